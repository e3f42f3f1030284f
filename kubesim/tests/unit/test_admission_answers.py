"""What comes of a webhook's answer: denials, patches, and answers that are none."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest
from kubesim.admission.caller import Reply
from kubesim.server.api import JsonObject
from kubesim_support.webhooks import (
    CONFIGMAPS,
    FAILED,
    NAME,
    Stage,
    attempt,
    config_map,
    internal,
    patching,
)

pytestmark = pytest.mark.anyio

REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
ADD_A = {"op": "add", "path": "/metadata/labels/a", "value": "1"}


@pytest.mark.parametrize(
    ("status", "code", "reason", "text"),
    [
        ({}, 400, None, "without explanation"),
        ({"message": "no"}, 400, None, ": no"),
        ({"reason": "Forbidden"}, 400, "Forbidden", ": Forbidden"),
        ({"code": 200, "message": "odd"}, 400, None, ": odd"),
        ({"code": 399}, 400, None, "without explanation"),
        ({"code": 429, "message": "wait", "reason": "TooManyRequests"}, 429, "TooManyRequests", ": wait"),
        ({"code": 503}, 503, None, "without explanation"),
    ],
)
async def test_denials(status: JsonObject, code: int, reason: str | None, text: str) -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    hook.denies(**status)
    response = await attempt(stage)
    assert (response.status, response.body["code"], response.body.get("reason")) == (code, code, reason)
    assert response.body["message"].removeprefix(f'admission webhook "{NAME}" denied the request').strip() == text
    assert "details" not in response.body
    assert "retry-after" not in response.headers


async def test_a_dry_run_calls_no_webhook_with_side_effects() -> None:
    stage = Stage()
    hook = await stage.hook("validating", failurePolicy="Ignore")
    table = stage.server.store.table("validatingwebhookconfigurations.admissionregistration.k8s.io")
    old = table.get("", "rec")
    assert old is not None
    # No configuration of today may say so; older ones, that are stored already, do.
    stage.server.store.put(table, {**old, "webhooks": [{**old["webhooks"][0], "sideEffects": "Unknown"}]}, old)
    response = await stage.call("POST", CONFIGMAPS, config_map("one"), dryRun="All")
    assert (response.status, response.body["message"]) == (
        400,
        f'admission webhook "{NAME}" does not support dry run',
    )
    assert hook.requests == []
    assert (await attempt(stage)).status == 201


OPERATIONS: list[dict[str, Any]] = orjson.loads((Path(__file__).parent / "answers" / "patches.json").read_bytes())
"""Operations that do not apply, and what a real server, 1.37, answers."""


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize("case", OPERATIONS, ids=lambda case: str(case["operation"]))
async def test_a_patch_that_does_not_apply_fails_whatever_the_policy(case: dict[str, Any], policy: str) -> None:
    stage = Stage()
    hook = await stage.hook("mutating", failurePolicy=policy)
    hook.patches(case["operation"])
    body = {"metadata": {"name": "one", "labels": {"x": "y"}, "finalizers": ["rec.example/one"]}}
    assert internal(await stage.call("POST", CONFIGMAPS, body)) == f"Internal error occurred: {case['fault']}"


BAD_JSON = (
    "failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal string into Go value "
    'of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
)


def text(status: int, body: str) -> Reply:
    """A plain answer."""
    return Reply(status, body.encode(), "text/plain; charset=utf-8")


def json(body: JsonObject) -> Reply:
    """An answer of JSON."""
    return Reply(200, orjson.dumps(body))


FAILURES: list[tuple[str, JsonObject | Reply, str]] = [
    (
        "500",
        text(500, "boom\n"),
        'failed to call webhook: an error on the server ("boom") has prevented the request from succeeding',
    ),
    ("404", text(404, "no"), "failed to call webhook: the server could not find the requested resource"),
    ("400", Reply(400, b"{}"), "failed to call webhook: the server rejected our request for an unknown reason"),
    ("503", text(503, ""), "failed to call webhook: the server is currently unable to handle the request"),
    (
        "302",
        text(302, ""),
        "failed to call webhook: the server responded with the status code 302 but did not return more information",
    ),
    ("no JSON", text(200, "hello"), BAD_JSON),
    (
        "nothing",
        text(200, ""),
        "failed to call webhook: 0-length response with status code: 200 and content type: text/plain; charset=utf-8",
    ),
    (
        "no kind",
        json({"response": {"uid": "?", "allowed": True}}),
        "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, "
        "got /, Kind=",
    ),
    (
        "another kind",
        json({"apiVersion": "v1", "kind": "Pod"}),
        'failed to call webhook: no kind "Pod" is registered for version "v1" in scheme "pkg/runtime/scheme.go:110"',
    ),
    (
        "another version",
        json({**REVIEW, "apiVersion": "admission.k8s.io/v1beta1"}),
        "failed to call webhook: converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion",
    ),
    ("no response", json(REVIEW), "received invalid webhook response: webhook response was absent"),
    (
        "a word for yes",
        {"allowed": "yes"},
        "failed to call webhook: json: cannot unmarshal string into Go struct field AdmissionResponse.response.allowed "
        "of type bool",
    ),
    (
        "no base64",
        {"allowed": True, "patchType": "JSONPatch", "patch": "%%"},
        "failed to call webhook: illegal base64 data at input byte 0",
    ),
    (
        "a patch without type",
        {"allowed": True, "patch": base64.b64encode(b"[]").decode()},
        "received invalid webhook response: webhook returned response.patch but not response.patchType",
    ),
    (
        "a type without patch",
        {"allowed": True, "patchType": "JSONPatch"},
        "received invalid webhook response: webhook returned response.patchType but not response.patch",
    ),
    *(
        (f"patch {raw.decode()}", patching(raw), f"received undecodable patch in webhook response: {fault}")
        for raw, fault in (
            (b"hello", "invalid character 'h' looking for beginning of value"),
            (b"{}", "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
            (b'["x"]', "json: cannot unmarshal string into Go value of type jsonpatch.Operation"),
        )
    ),
    ("another type", patching(orjson.dumps([ADD_A]), "Merge"), 'unsupported patch type "Merge"'),
]


@pytest.mark.parametrize(("answer", "fault"), [each[1:] for each in FAILURES], ids=[each[0] for each in FAILURES])
async def test_an_answer_that_is_none_is_a_failure_subject_to_the_policy(
    answer: JsonObject | Reply, fault: str
) -> None:
    for policy in ("Fail", "Ignore"):
        stage = Stage()
        hook = await stage.hook("mutating", failurePolicy=policy)

        def answers(request: JsonObject) -> JsonObject | Reply:
            if isinstance(answer, Reply):
                uid = request["uid"].encode()
                return Reply(answer.status, answer.body.replace(b'"?"', b'"' + uid + b'"'), answer.content_type)
            return answer

        hook.answer = answers
        response = await attempt(stage)
        if policy == "Fail":
            assert internal(response) == f"{FAILED}{fault}"
        else:
            assert response.status == 201
