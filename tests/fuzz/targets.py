"""One target for each decoder of foreign bytes, and for what is made of its values at once.

A target is given bytes or a text, and lets no exception out but those that its subject documents.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Coroutine
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from support.aws_messages import a_lifecycle_action, a_spot_notice
from support.builders import NOW, a_node, a_pod
from support.forecasts import predicted

from fuzz.effort import assert_small
from fuzz.material import documents, json_bytes, mostly_whole, recorded, texts, yaml_bytes
from fuzz.outside import OUTSIDE
from fuzz.samples import (
    ATTACHMENT,
    BUDGET,
    CLAIM,
    EVENT,
    LEASE,
    MACHINE,
    META,
    NETWORK_POLICY,
    NODE,
    NODE_BUDGET,
    NODE_DRAIN,
    PENDING,
    POD,
    QUOTA,
    ROOM,
    RUNNING,
    SELECTOR,
    SERVICE,
    STATUS,
    TRACEPARENT,
    VOLUME,
    VOLUME_CLAIM,
    WORKLOAD,
)
from fuzz.target import POLICY_SHARE, Target, refusal_of
from gracectl.admission.nodebudgets import NodeBudgetValidator
from gracectl.admission.nodeclaims import NodeClaimValidator
from gracectl.admission.nodes import NodeFinalizerInjector
from gracectl.admission.reviews import InvalidReview, Undecided, decode_review, encode_review
from gracectl.cli.plan.report import plan_report
from gracectl.cli.report import to_json
from gracectl.cloud.responses import decode_response, display_text
from gracectl.config.errors import ConfigError
from gracectl.config.loading import load_settings
from gracectl.inspect.owner_reports import decode_owner_event
from gracectl.interruption.aws_events import read_event
from gracectl.interruption.metadata import AZURE_KINDS, azure_notice_of, events_of, rebalance_of, spot_of
from gracectl.kube.auth.credentials import ClusterAddress, CredentialsError
from gracectl.kube.auth.kubeconfig import read_context
from gracectl.kube.auth.user import read_plugin_answer
from gracectl.kube.cache import Cache
from gracectl.kube.errors import error_for, error_for_event
from gracectl.kube.leader.leases import LEASE_OBJECTS
from gracectl.kube.patching import rewritten
from gracectl.kube.resources import untyped
from gracectl.kube.transport import Request, Response
from gracectl.kube.transport.skew import SkewEstimate
from gracectl.model import names, wire
from gracectl.model.bounds import Limits, MemoryQuota
from gracectl.model.budget import scaled_value
from gracectl.model.decode import (
    BudgetDecoder,
    NodeBudgetDecoder,
    NodeDecoder,
    PodDecoder,
    decode_attachment,
    decode_budget,
    decode_claim,
    decode_lease,
    decode_node,
    decode_node_budget,
    decode_pod,
    decode_volume_claim,
    unknown_pod,
)
from gracectl.model.durations import format_duration, parse_duration, parse_seconds
from gracectl.model.envelope import (
    ListPage,
    WatchEvent,
    decode_envelope,
    decode_event,
    decode_meta,
    decode_page,
    decode_page_in_slices,
    decode_status,
    token_ahead,
)
from gracectl.model.machine import decode_machine, decode_membership
from gracectl.model.node import Node
from gracectl.model.nodedrain import decode_node_drain
from gracectl.model.selectors import LabelSelector, SelectorError, is_subdomain, parse_selector, read_selector
from gracectl.model.sharing import Sharing
from gracectl.model.times import EARLIEST, LATEST, format_micro_time, format_time, parse_time
from gracectl.model.untrusted import Decoder, finish
from gracectl.model.workloads import (
    decode_labels,
    decode_network_policy,
    decode_pending,
    decode_quota,
    decode_room,
    decode_service,
    decode_volume,
    decode_workload,
)
from gracectl.policy.budgets import eviction_verdict
from gracectl.policy.deadlines import deadline_of, parse_grace_period
from gracectl.policy.explain import explain, summarize
from gracectl.policy.interruption import decode as decode_interruption
from gracectl.policy.interruption import encode as encode_interruption
from gracectl.policy.nodebudgets import desired_of, invalid_reason
from gracectl.policy.owners import ManagedNodes
from gracectl.policy.placement import OtherNode, is_pinned, no_node_fits
from gracectl.policy.plan import NodeView
from gracectl.policy.planner import plan
from gracectl.policy.protection import invalid_annotation, protection_of
from gracectl.policy.release import LABELS as RELEASE_LABELS
from gracectl.policy.release import release_of
from gracectl.policy.replacement import Circumstances, decide_replacement
from gracectl.policy.scenario import DrainingNode
from gracectl.policy.settings import PolicySettings, ReplaceFirst
from gracectl.policy.surroundings import without_budget
from gracectl.policy.voluntary import triggers_of
from gracectl.telemetry.spans import Trace

SETTINGS: Final = PolicySettings()


def _of_kind(made: Any) -> st.SearchStrategy[bytes]:
    return json_bytes(made, made, *recorded(made["kind"]))


def _decodes(decode: Callable[[bytes], Any], *more: Callable[[Any], None]) -> Callable[[bytes], None]:
    """A target of a decoder: a value that is no larger than its bytes, of which more is made; or DecodeError."""

    def run(body: bytes) -> None:
        try:
            value = decode(body)
        except msgspec.DecodeError as error:
            found = decode_envelope(body, error)
            assert found.error
            return
        assert_small(value, len(body))
        for each in more:
            each(value)

    return run


def _done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What comes of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


# -- what is made of objects -------------------------------------------------------------------------------------------


def _plan_of(pod: Any) -> None:
    for at in (None, NOW + 900, NOW - 1, LATEST):
        view = NodeView(a_node(deletion_timestamp=NOW), (pod, a_pod("other")), {}, cordoned_at=NOW - 60, deadline=at)
        decision = plan(view, NOW)
        explain(decision)
        summarize(decision)
        protection_of(pod, NOW, SETTINGS.protection)
        invalid_annotation(pod)


def _forecast(body: bytes) -> None:
    try:
        pod = decode_pod(body)
    except msgspec.DecodeError as error:
        pod = unknown_pod(decode_envelope(body, error))
    pod = msgspec.structs.replace(pod, uid="fuzzed", node_name="node-1")
    node = a_node(deletion_timestamp=NOW)
    for at in (None, NOW + 900):
        view = NodeView(node, (pod, a_pod("other")), {}, cordoned_at=NOW, deadline=at)
        to_json(plan_report(predicted(DrainingNode(view, NOW)), ClusterAddress()))


def _ends_of(node: Any) -> None:
    deadline_of(node, None, SETTINGS)
    triggers_of([node], None, SETTINGS)
    for condition in node.conditions:
        format_time(condition.last_transition or 0.0)


def _expiry_of(claim: Any) -> None:
    deadline_of(None, claim, SETTINGS)
    deadline_of(a_node(deletion_timestamp=NOW), claim, SETTINGS)
    triggers_of([a_node()], claim, SETTINGS)


def _allows(budget: Any) -> None:
    eviction_verdict(a_pod(), (budget,))


def _counts(budget: Any) -> None:
    invalid_reason(budget)
    desired_of(budget, 10)


def _pins(volume: Any) -> None:
    is_pinned(volume.terms, a_node())


def _places(workload: Any) -> None:
    no_node_fits(workload.needs, (), [OtherNode(a_node(), {"cpu": Fraction(4)})])
    without_budget(workload)


def _page_of(page: Any) -> None:
    for raw in page.items:
        _decodes(decode_pod)(bytes(raw))


def _page(body: bytes) -> ListPage:
    """Pods that are decoded with their page are those that are decoded one by one."""
    token_ahead(body)
    page, whole = decode_page(body), finish(decode_page_in_slices(body, wire.Pod))
    assert [_pod_or_envelope(pod) for pod in whole.items] == [_pod_or_envelope(raw) for raw in page.items]
    return page


def _pod_or_envelope(read: Any) -> Any:
    try:
        return decode_pod(read)
    except msgspec.DecodeError:
        return decode_envelope(read, msgspec.DecodeError("of either kind"))


def _event(line: bytes) -> WatchEvent[msgspec.Raw]:
    """A pod that is decoded with its event is the one that is decoded from it."""
    event, whole = decode_event(line), decode_event(line, wire.Pod)
    assert event.type == whole.type
    assert _pod_or_envelope(whole.object) == _pod_or_envelope(event.object)
    return event


def _event_of(event: Any) -> None:
    for decode in (decode_pod, decode_meta):
        _decodes(decode)(bytes(event.object))
    str(error_for_event(Request(method="GET", path="/api/v1/pods", query=(("watch", "1"),)), event.object))


def _refusal(body: bytes) -> None:
    decode_status(body)
    eviction = Request(method="POST", path="/api/v1/namespaces/shop/pods/web-1/eviction")
    for request in (eviction, Request(method="GET", path="/api/v1/nodes/n1")):
        for code in (400, 401, 403, 404, 409, 410, 422, 429, 500, 504, 599):
            str(error_for(request, Response(status=code, body=body)))


def _headers(text: str) -> None:
    skew = SkewEstimate(lambda offset, is_disputed: None)
    skew.observe(text, NOW, 0.1)
    headers = {"retry-after": text}
    str(error_for(Request(method="GET", path="/api/v1/nodes"), Response(status=429, headers=headers, body=b"")))


# -- admission, plugins, providers -------------------------------------------------------------------------------------

HANDLERS: Final = (
    NodeFinalizerInjector(ManagedNodes(LabelSelector())),
    NodeClaimValidator(),
    NodeBudgetValidator(Cache[Node]("nodes")),
)


def _review(now: Any, before: Any) -> dict[str, Any]:
    request = {
        "uid": "u",
        "operation": "UPDATE",
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "name": "a-1",
        "userInfo": {"username": "another"},
        "object": now,
        "oldObject": before,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _reviews() -> st.SearchStrategy[bytes]:
    """Of objects that were changed, and such as are none themselves."""
    objects = documents((NODE, CLAIM, NODE_BUDGET))
    changed = mostly_whole(st.builds(_review, objects, objects).map(msgspec.json.encode))
    return changed | json_bytes(_review(NODE, NODE))


def _admission(body: bytes) -> None:
    try:
        question = decode_review(body)
    except InvalidReview:
        return
    for handler in HANDLERS:
        try:
            answer = _done(handler(question))
        except (InvalidReview, Undecided):
            continue
        msgspec.json.decode(encode_review(question.uid, answer))


def _plugin(body: bytes) -> None:
    try:
        answer = read_plugin_answer(body, "client.authentication.k8s.io/v1")
        if answer.expiration_timestamp:
            parse_time(answer.expiration_timestamp)
    except ValueError:
        return
    assert_small(answer, len(body))


def _provider(body: bytes) -> None:
    display_text(body)
    refused = refusal_of(lambda: decode_response(body), ValueError)
    assert len(refused) < 2_000


# -- files -------------------------------------------------------------------------------------------------------------


def _file(read: Callable[[Path], object], refusal: type[Exception]) -> Callable[[bytes], None]:
    def run(body: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "file.yaml")
            path.write_bytes(body)
            assert len(refusal_of(lambda: read(path), refusal)) < 10_000 + 10 * len(body)

    return run


SETTINGS_FILE: Final = {
    "nodeSelector": {"matchLabels": {"managed": "true"}},
    "nodeGroups": [{"selector": {"matchLabels": {"pool": "a"}}, "terminationGracePeriod": "15m"}],
    "drain": {"minimumSeconds": 5},
    "eviction": {"qps": 20, "maxInFlight": 50},
    "protection": {"maximumSeconds": 3600},
    "provider": {"name": "exec", "options": {"command": ["/bin/true"], "timeoutSeconds": 5}},
    "leaderElection": {"namespace": "kube-system", "name": "gracectl"},
}
KUBECONFIG: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "shop"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority": "ca.crt"}}],
    "users": [{"name": "u", "user": {"tokenFile": "token", "exec": {"command": "./plugin", "args": ["a"]}}}],
}


def _context(path: Path) -> object:
    return read_context((path,), None)


# -- texts -------------------------------------------------------------------------------------------------------------


def _refuses(
    parse: Callable[[str], object], refusal: type[Exception] = ValueError, words: str = ""
) -> Callable[[str], None]:
    """A target of a parser of texts: it parses them, or says in `words` of ours, and not at length, why not."""

    def run(text: str) -> None:
        refused = refusal_of(lambda: parse(text), refusal)
        assert len(refused) < 1_000 + 10 * len(text)
        assert words in refused or not refused

    return run


METADATA: tuple[dict[str, Any], ...] = (
    {"action": "terminate", "time": "2026-01-01T00:02:00Z"},
    {"noticeTime": "2026-01-01T00:00:00Z"},
    {"Events": [{"EventId": "1", "EventType": "Preempt", "Resources": ["a"], "EventStatus": "Scheduled",
                 "NotBefore": "Thu, 01 Jan 2026 00:02:00 GMT"}]},
)  # fmt: skip


def _metadata(text: str) -> None:
    """Each answer of a metadata service that the agent reads."""
    body = text.encode("utf-8", "replace")
    for read in (spot_of, rebalance_of, _events):
        try:
            read(body)
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error


def _events(body: bytes) -> None:
    for event in events_of(body):
        if event.event_type in AZURE_KINDS:
            azure_notice_of(event, 0.0)


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")


def _interruption(text: str) -> None:
    found = decode_interruption(text)
    assert decode_interruption(encode_interruption(found)) == found


RELEASE = "2026-01-01T00:00:00Z Deployment/web pod-template-hash 6d4cf56db6"


def _release(text: str) -> None:
    """What a pod claims to be released from can be selected by and written back, and ends."""
    labels = dict.fromkeys(RELEASE_LABELS, names.RELEASED)
    pod = a_pod("web", labels=labels, annotations={names.RELEASED_FROM: text})
    found = release_of(pod)
    if found is None:
        return
    parse_selector(f"{found.label}={found.value}")
    assert is_subdomain(found.replica_set)
    settings = ReplaceFirst()
    decision = decide_replacement(pod, None, settings, Circumstances(NOW, is_blocked=True))
    assert decision is not None
    assert decision.until is None or decision.until <= NOW + 2 * settings.patience


def _duration(text: str) -> None:
    nanoseconds = parse_duration(text)
    assert -(1 << 63) <= nanoseconds < 1 << 63
    assert parse_duration(format_duration(nanoseconds)) == nanoseconds
    parse_seconds(text)


def _query(text: str) -> None:
    for requirement in parse_selector(text).requirements:
        requirement.validate()


def _timestamp(text: str) -> None:
    seconds = parse_time(text)
    assert EARLIEST <= seconds <= LATEST
    assert parse_time(format_time(seconds)) == seconds // 1
    assert abs(parse_time(format_micro_time(seconds)) - seconds) < 1e-4


def _protection(text: str) -> None:
    for name in (names.DO_NOT_DISRUPT, names.DO_NOT_EVICT):
        body = msgspec.json.encode({**RUNNING, "metadata": {**META, "annotations": {name: text}}})
        _plan_of(decode_pod(body))


def _scaled(text: str) -> None:
    for value in (text, len(text)):
        scaled_value(value, 10, round_up=True)


def _trace(text: str) -> None:
    trace = Trace.read(text)
    assert trace is None or Trace.read(trace.traceparent(is_sampled=True)) == trace


def _charged(body: bytes) -> None:
    """Objects that share a small quota: what is charged is within its limits, and nothing when they are gone."""
    sharing = Sharing()
    limits = Limits(free=300, per_object=3_000, per_namespace=4_000, in_all=5_000)
    sharing.quota = MemoryQuota(limits)
    kept = []
    try:
        parts = _PARTS.decode(body)
    except msgspec.DecodeError:
        return
    for part in parts:
        for decode in (BudgetDecoder(sharing), NodeBudgetDecoder(sharing), PodDecoder(sharing), NodeDecoder(sharing)):
            try:
                kept.append(decode(part))
            except msgspec.DecodeError:
                continue
            assert 0 <= sharing.quota.charged <= limits.in_all
    kept.clear()
    assert sharing.quota.charged == 0


def _rewrites(body: bytes) -> None:
    """Patches that rewrite instants name entries by their merge keys, and hold only instants that can be read."""
    try:
        whole = untyped(body)
    except msgspec.DecodeError:
        return
    for name, entries, key in (("status", "conditions", "type"), ("spec", "taints", "key")):
        part = whole.get(name)
        for entry in rewritten(part.get(entries) if isinstance(part, dict) else None, key):
            assert {parse_time(instant) for field, instant in entry.items() if field != key} == {LATEST}


_PARTS: Final = Decoder(list[msgspec.Raw])

DURATIONS: Final = ("4h", "1h30m", "1.5s", "-5m", "2562047h47m16.854775807s", "720h", "Never")
TIMES: Final = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123456+02:00", "9999-12-31T23:59:59-23:59")
PERCENTAGES: Final = ("50%", "100%", "+1%", "-10%", "9" * 300 + "%")
QUERIES: Final = ("a=b,c!=d", "e in (f,g),!h,i>1", "app.kubernetes.io/name==web", "a notin ()")
PAGE: Final = {"metadata": {"resourceVersion": "7", "continue": "t"}, "items": [POD, RUNNING]}
PLUGIN_ANSWER: Final = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"},
}

TARGETS: Final = (
    Target("pods", _of_kind(POD) | _of_kind(RUNNING), _decodes(decode_pod, _plan_of), POLICY_SHARE),
    Target("forecasts", _of_kind(POD) | _of_kind(RUNNING), _forecast, POLICY_SHARE),
    Target("nodes", _of_kind(NODE), _decodes(decode_node, _ends_of)),
    Target("node-claims", _of_kind(CLAIM), _decodes(decode_claim, _expiry_of)),
    Target("budgets", _of_kind(BUDGET), _decodes(decode_budget, _allows)),
    Target("node-budgets", _of_kind(NODE_BUDGET), _decodes(decode_node_budget, _counts)),
    Target("node-drains", _of_kind(NODE_DRAIN), _decodes(decode_node_drain)),
    Target("attachments", _of_kind(ATTACHMENT), _decodes(decode_attachment)),
    Target("volume-claims", _of_kind(VOLUME_CLAIM), _decodes(decode_volume_claim)),
    Target("volumes", _of_kind(VOLUME), _decodes(decode_volume, _pins)),
    Target("workloads", _of_kind(WORKLOAD), _decodes(decode_workload, _places)),
    Target("network-policies", _of_kind(NETWORK_POLICY), _decodes(decode_network_policy)),
    Target("quotas", _of_kind(QUOTA), _decodes(decode_quota)),
    Target("labels", _of_kind(ROOM), _decodes(decode_labels)),
    Target("services", _of_kind(SERVICE), _decodes(decode_service)),
    Target("pending-pods", _of_kind(PENDING), _decodes(decode_pending)),
    Target("rooms", _of_kind(ROOM), _decodes(decode_room)),
    Target("leases", _of_kind(LEASE), _decodes(decode_lease)),
    Target("owner-events", _of_kind(EVENT), _decodes(decode_owner_event)),
    Target("whole-leases", _of_kind(LEASE), _decodes(LEASE_OBJECTS.decode)),
    Target("untyped-objects", _of_kind(LEASE), _decodes(untyped)),
    Target("machines", _of_kind(MACHINE), _decodes(decode_machine)),
    Target("memberships", _of_kind(NODE), _decodes(decode_membership)),
    Target("memory-quotas", json_bytes([BUDGET, NODE_BUDGET, POD, NODE] * 3), _charged, POLICY_SHARE),
    Target("unreadable-instants", _of_kind(NODE), _rewrites),
    Target("pages", json_bytes(PAGE), _decodes(_page, _page_of)),
    Target(
        "watch-lines",
        json_bytes({"type": "ADDED", "object": POD}, {"type": "ERROR", "object": STATUS}),
        _decodes(_event, _event_of),
    ),
    Target("refusals", _of_kind(STATUS), _refusal, 5),
    Target("headers", texts("Thu, 01 Jan 2026 00:00:00 GMT", "30", "31536000"), _headers, is_text=True),
    Target("admission-reviews", _reviews(), _admission),
    Target("credential-plugins", json_bytes(PLUGIN_ANSWER), _plugin),
    Target("provider-answers", json_bytes({"state": "gone", "message": "m", "remedy": "r"}), _provider),
    Target("settings-files", yaml_bytes(SETTINGS_FILE), _file(load_settings, ConfigError), 100, 8),
    Target("kubeconfigs", yaml_bytes(KUBECONFIG), _file(_context, CredentialsError), 100, 8),
    Target(
        "durations",
        texts(*DURATIONS, alphabet="0123456789.hmsnuµ+-"),
        _refuses(_duration, words="is no duration"),
        is_text=True,
    ),
    Target("grace-periods", texts(*DURATIONS, alphabet="0123456789hms"), _refuses(parse_grace_period), is_text=True),
    Target(
        "timestamps",
        texts(*TIMES, alphabet="0123456789-+:.TZ"),
        _refuses(_timestamp, words="is no RFC 3339 time"),
        is_text=True,
    ),
    Target("protections", texts(*DURATIONS, "true", alphabet="0123456789hms"), _protection, POLICY_SHARE, is_text=True),
    Target("int-or-percent", texts(*PERCENTAGES, alphabet="0123456789%+-"), _refuses(_scaled), is_text=True),
    Target(
        "selector-texts",
        texts(*QUERIES, alphabet="ab,=!()<> in"),
        _refuses(_query, SelectorError),
        is_text=True,
    ),
    Target(
        "selectors",
        json_bytes(SELECTOR).map(lambda body: body.decode("utf-8", "replace")),
        _refuses(lambda text: read_selector(_plain(text)), SelectorError),
        is_text=True,
    ),
    Target(
        "aws-messages",
        json_bytes(a_spot_notice("i-12345678", 0.0), a_lifecycle_action("i-12345678", 0.0)).map(_text),
        _refuses(lambda text: read_event(text, "us-west-2", frozenset({"terminated"}))),
        is_text=True,
    ),
    Target("metadata-services", json_bytes(*METADATA).map(_text), _refuses(_metadata), is_text=True),
    Target("interruptions", texts("spot 2026-01-01T00:02:00Z aws soon"), _refuses(_interruption), is_text=True),
    Target("releases", texts(RELEASE, RELEASE.replace("2026", "9999")), _release, is_text=True),
    Target("traceparents", texts(TRACEPARENT, alphabet="0123456789abcdef-"), _trace, is_text=True),
    *OUTSIDE,
)


def _plain(text: str) -> object:
    """JSON as plain values, as a settings file has them; the text itself where it is none."""
    try:
        return untyped(text.encode("utf-8", "replace"))
    except msgspec.DecodeError:
        return text
