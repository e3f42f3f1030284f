"""Targets of what comes from elsewhere than the API server: providers, certificates, files of a host, any text."""

from __future__ import annotations

import gzip
import tempfile
import unicodedata
from contextlib import suppress
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec
import requests
from hypothesis import strategies as st
from support.builders import NOW
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from fuzz.material import json_bytes, mostly_whole, texts
from fuzz.samples import META, NODE
from fuzz.target import POLICY_SHARE, Target, refusal_of
from gracectl.agent.inhibit_delay import FILE, DropIn
from gracectl.app.dry_run import InvalidPatch, apply_patch, changed_fields, merge_patch
from gracectl.cli.ui.events import decode_event as decode_board_event
from gracectl.cloud.aws.provider import AwsProvider
from gracectl.cloud.aws.region import instance_of
from gracectl.cloud.exec import ExecProvider, ProcessResult
from gracectl.cloud.http import HttpResponse
from gracectl.cloud.provider import ProviderError, ProviderRefused
from gracectl.cloud.webhook import WebhookProvider, read_secrets
from gracectl.config.errors import ConfigError
from gracectl.config.loading import read_config_map
from gracectl.controllers.termination.maintenance import maintenance_cordon_patch, record_removal_patch, uncordon_patch
from gracectl.kube.client.watch import LineSplitter, OversizeLine, read_head
from gracectl.kube.requests import JsonPatch, MergePatch, StrategicPatch
from gracectl.kube.resources import untyped
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.decode import decode_config_map, decode_node
from gracectl.model.foreign import (
    harmless,
    visible,
    visible_json,
    visible_lines,
    visible_values,
    without_secrets,
)
from gracectl.model.names import SETTINGS_KEY
from gracectl.model.node import Node
from gracectl.policy.cordon import marks_in, marks_on, missing_marks, recorded, removals
from gracectl.policy.deadlines import deadline_of, invalid_deadline
from gracectl.policy.maintenance import maintenance_ended_at, maintenance_since, recorded_marks
from gracectl.policy.settings import PolicySettings
from gracectl.policy.voluntary import expires_at, parse_expire_after, parse_jitter
from gracectl.policy.warnings import keeps_running
from gracectl.runtime.certificates import KeyPair, authorities_in, certificate_info, check, issue, issuers_of, unexpired
from gracectl.telemetry.collector import LONGEST_RESPONSE, BoundedAdapter, OversizeResponse

SETTINGS: Final = PolicySettings()
LONGEST_MESSAGE: Final = 2_000


# -- providers ---------------------------------------------------------------------------------------------------------


@cache
def _webhook() -> WebhookProvider:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"d2Vic2VjcmV0LXdlYnNlY3JldC13ZWJzZWNyZXQ=\n")
        file.flush()
        return WebhookProvider(WebhookProvider.Options(url="https://machines.example.com/", secret_file=file.name))


def _webhook_answer(answer: bytes) -> None:
    """Status, Retry-After and Location on a line each, then the body."""
    head, body = answer[:300].split(b"\n", 3), answer
    if len(head) == 4:
        body = answer.split(b"\n", 3)[3]
    status, retry_after, location = (line.decode("utf-8", "replace") for line in [*head[:3], b"", b"", b""][:3])
    code = int(status) if status.isascii() and status.isdigit() and 3 <= len(status) <= 3 else 200
    response = HttpResponse(code, {"retry-after": retry_after, "location": location}, body)
    assert len(refusal_of(lambda: _webhook()._state_of(response), ProviderError)) < LONGEST_MESSAGE


def _exec_result(output: bytes) -> None:
    """What a command writes, to both of its outputs."""
    provider = ExecProvider(ExecProvider.Options(command=("/bin/provider",)))
    for code in (0, 1, 3, -9, 75):
        for is_cut in (False, True):
            result = ProcessResult(code, output, output, is_cut)
            assert len(refusal_of(partial(provider._state_of, result), ProviderError)) < LONGEST_MESSAGE


def _secrets(text: str) -> None:
    assert len(refusal_of(lambda: read_secrets(text), ValueError)) < LONGEST_MESSAGE


def _provider_id(text: str) -> None:
    aws = AwsProvider(AwsProvider.Options(region="us-east-1"))
    refusal_of(lambda: instance_of(text), ProviderRefused)
    assert aws.instance_key(text) == aws.instance_key(f" {text} ")
    keeps_running(text)


WEBHOOK_ANSWERS: Final = (
    b'200\n\n\n{"state":"running","message":"m"}',
    b'404\n\n\n{"state":"gone"}',
    b"202\n\n\n",
    b"503\nThu, 01 Jan 2026 00:00:00 GMT\n\nbusy",
    b"429\n30\n\nlater",
    b"301\n\nhttps://elsewhere.example.com/\n",
    b'409\n\n\n{"message":"protected","remedy":"r"}',
)
EXEC_OUTPUTS: Final = (b'{"state":"gone"}\n', b"first line\nremedy: do this\n", b"\xff\xfe\n\n")
PROVIDER_IDS: Final = ("aws:///us-east-1a/i-0123456789abcdef0", "aws:///i-0123456789abcdef0", "kind://docker/a/b")

# -- certificates ------------------------------------------------------------------------------------------------------


@cache
def _issued() -> tuple[bytes, bytes, bytes]:
    made = issue(["gracectl.gracectl.svc", "127.0.0.1"], NOW, 3600.0)
    return made.pair.certificate, made.pair.key, made.authority


def _certificates() -> st.SearchStrategy[bytes]:
    return mostly_whole(st.sampled_from((_issued()[0], _issued()[2], _issued()[0] + _issued()[2], _issued()[1])))


def _certificate(pem: bytes) -> None:
    chain, key, authority = _issued()
    refusal_of(lambda: certificate_info(pem), ValueError)
    refusal_of(lambda: unexpired(authorities_in(pem), NOW), ValueError)
    refusal_of(lambda: issuers_of(chain, authorities_in(pem)), ValueError)
    refusal_of(lambda: issuers_of(pem, (authority,)), ValueError)
    for pair in (KeyPair(pem, key), KeyPair(chain, pem)):
        refusal_of(partial(check, pair), ValueError)


# -- files of a host ---------------------------------------------------------------------------------------------------


def _logind_files(body: bytes) -> None:
    """The same bytes as logind's own file, as another drop-in, and as ours."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ours = root / "etc" / "systemd" / "logind.conf.d"
        ours.mkdir(parents=True)
        for file in (root / "etc" / "systemd" / "logind.conf", ours / "10-other.conf", ours / FILE):
            file.write_bytes(body)
        drop_in = DropIn(ours, root)
        drop_in.winner()
        drop_in.ensure(30.0)
        found = drop_in.winner()
        assert found is not None
        assert found.file == ours / FILE


LOGIND_FILE: Final = b"# comment\n[Manager]\nInhibitDelayMaxSec=5\n[Login]\nInhibitDelayMaxSec=1min 30s\n=\n[\n"

# -- what is made of annotations, and of whole objects -----------------------------------------------------------------


def _annotations(text: str) -> None:
    """Every annotation of ours with the same value; then those of a node in maintenance."""
    mine = dict.fromkeys(names.NODE_ANNOTATIONS, text)
    for metadata in (META, {key: value for key, value in META.items() if not key.startswith("deletion")}):
        for values in (mine, {**mine, names.CORDONED: "taint"}, {**mine, names.CORDONED: ""}):
            body = msgspec.json.encode({**NODE, "metadata": {**metadata, "annotations": values}})
            _marks(decode_node(body))
    assert marks_in(recorded(marks_in(text))) == marks_in(text)


def _marks(node: Node) -> None:
    deadline_of(node, None, SETTINGS)
    invalid_deadline(node)
    maintenance_since(node, NOW)
    maintenance_ended_at(node)
    whole = untyped(msgspec.json.encode(_as_json(node)))
    for patch in (
        maintenance_cordon_patch(node),
        uncordon_patch(node, "2026-01-01T00:00:00Z"),
        record_removal_patch(node),
    ):
        if patch is not None:
            apply_patch(whole, patch.operations, JsonPatch.content_type)
    for operations in (
        list(missing_marks(node).values()),
        removals(node, recorded_marks(node)),
        removals(node, marks_on(node)),
    ):
        apply_patch(whole, operations, JsonPatch.content_type)


def _as_json(node: Node) -> dict[str, object]:
    """As much of the node as our patches touch."""
    taints = [{"key": each.key, "effect": each.effect} for each in node.taints]
    spec = {"unschedulable": True} if node.unschedulable else {}
    metadata = {"labels": dict(node.labels), "annotations": dict(node.annotations)}
    return {"metadata": metadata, "spec": {**spec, "taints": taints} if taints else spec}


def _ages(text: str) -> None:
    refusal_of(lambda: parse_expire_after(text), ValueError)
    refusal_of(lambda: parse_jitter(text), ValueError)
    claim = NodeClaim(name="a", uid="u", resource_version="1", created=NOW, expire_after=text)
    refusal_of(lambda: expires_at(claim), ValueError)


def _difference(body: bytes) -> None:
    """A dry run applies our patches to whatever objects there are, and reports what changes."""
    try:
        thing = untyped(body)
    except msgspec.DecodeError:
        return
    patches: tuple[tuple[object, str], ...] = (
        ({"metadata": {"annotations": {"a": None, "b": "c"}}, "spec": None}, MergePatch.content_type),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, StrategicPatch.content_type),
        ([{"op": "remove", "path": "/spec/taints/0"}], JsonPatch.content_type),
        ([{"op": "add", "path": "/metadata/finalizers/-", "value": "f"}], JsonPatch.content_type),
    )
    for patch, content_type in patches:
        try:
            result = apply_patch(thing, patch, content_type)
        except InvalidPatch:
            continue
        change = merge_patch(thing, result)
        list(changed_fields(change))
        apply_patch(thing, change, MergePatch.content_type)


def _oversize(body: bytes) -> None:
    read_head(OversizeLine(body))
    for size in (1, 7, 4_096):
        splitter = LineSplitter(longest=100, head=50)
        lines = [line for at in range(0, min(len(body), 20_000), size) for line in splitter.feed(body[at : at + size])]
        lines.append(splitter.rest())
        assert len(lines) == 1 + body[:20_000].count(b"\n")
        assert all(len(line) <= 100 for line in lines)


OVERSIZE_LINE: Final = (
    b'{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u",'
    b'"resourceVersion":"7","annotations":{"a":"'
)


def _config_map(body: bytes) -> None:
    """Any tenant may label a ConfigMap as the settings."""
    try:
        found = decode_config_map(body)
    except msgspec.DecodeError:
        return
    assert len(refusal_of(lambda: read_config_map(found), ConfigError)) < 10_000 + 10 * len(body)


def _collector(body: bytes) -> None:
    """Responses of a collector, packed and as they are."""
    for packing in ("gzip", "deflate", ""):
        response = requests.Response()
        headers = {"content-encoding": packing} if packing else {}
        response.raw = HTTPResponse(BytesIO(body), headers, preload_content=False)
        with suppress(OversizeResponse, HTTPError):
            assert len(BoundedAdapter(lambda: 0.0).read(response)) <= LONGEST_RESPONSE


def _board_event(body: bytes) -> None:
    """Any client may create Events in gracectl's name."""
    try:
        event = decode_board_event(body)
    except msgspec.DecodeError:
        return
    assert len(msgspec.json.encode(event.json)) < 20_000


EVENT: Final = {
    "kind": "Event",
    "metadata": META,
    "involvedObject": {"kind": "Node", "namespace": "", "name": "a-1", "uid": "u"},
    "type": "Warning",
    "reason": "Blocked",
    "message": "5 pods left",
    "count": 7,
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "eventTime": "2026-01-01T00:00:00.123456Z",
}
CONFIG_MAP: Final = {
    "kind": "ConfigMap",
    "metadata": META,
    "data": {SETTINGS_KEY: "drain: {minimumSeconds: 5}\nnodeGroups: &a\n- selector: {}\nprotection: *a\n"},
}

# -- any text that is shown --------------------------------------------------------------------------------------------


SECRET: Final = "9c1d" * 10


def _shown(text: str) -> None:
    for made in (visible(text), harmless(text)):
        assert not {unicodedata.category(each) for each in made} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    visible_json(text)
    whole = text.encode(errors="replace").decode()
    shown = msgspec.json.decode(visible_values(msgspec.json.encode(whole).decode()))
    assert shown == visible_lines(whole)
    assert SECRET not in without_secrets(f"Authorization: Bearer {SECRET} {text}")
    assert SECRET not in without_secrets(f"{text} eyJ{SECRET}.{SECRET}.{SECRET}")


OUTSIDE: Final = (
    Target("webhook-answers", mostly_whole(st.sampled_from(WEBHOOK_ANSWERS)), _webhook_answer),
    Target("exec-results", mostly_whole(st.sampled_from(EXEC_OUTPUTS)), _exec_result, POLICY_SHARE),
    Target("webhook-secrets", texts("d2Vic2VjcmV0LXdlYnNlY3JldC13ZWJzZWNyZXQ=", "whsec_MTIz"), _secrets, is_text=True),
    Target("provider-ids", texts(*PROVIDER_IDS, alphabet="aws:/-0123i"), _provider_id, is_text=True),
    Target("certificates", st.deferred(_certificates), _certificate, POLICY_SHARE, 12),
    Target("logind-files", mostly_whole(st.sampled_from((LOGIND_FILE,))), _logind_files),
    Target(
        "annotations", texts("taint,label", "2026-01-01T00:00:00Z", "true"), _annotations, POLICY_SHARE, is_text=True
    ),
    Target("ages", texts("720h", "Never", "10%", "0.1", alphabet="0123456789.hm%-"), _ages, is_text=True),
    Target("dry-run-objects", json_bytes(NODE), _difference, POLICY_SHARE),
    Target("board-events", json_bytes(EVENT), _board_event, POLICY_SHARE),
    Target("config-maps", json_bytes(CONFIG_MAP), _config_map, 100),
    Target(
        "collector-responses",
        mostly_whole(st.sampled_from((gzip.compress(bytes(100_000)), gzip.compress(b"{}"), b"{}"))),
        _collector,
        POLICY_SHARE,
    ),
    Target("oversize-lines", mostly_whole(st.sampled_from((OVERSIZE_LINE,))), _oversize, POLICY_SHARE),
    Target(
        "shown-texts", texts("Bearer abcdefghijklmnopqrst", "eyJhbGciOiJIUzI1.eyJhbGciOiJIUzI1.x"), _shown, is_text=True
    ),
)
