"""Reviews: what is read of those that a real server has sent, what is none, and how answers look."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubesim.admission.responses import verdict
from support.admission import a_node_object, a_review

from gracectl.admission.reviews import (
    AdmissionResponse,
    Denial,
    GroupResource,
    InvalidReview,
    decode_review,
    encode_review,
)
from gracectl.model.decode import decode_node
from gracectl.model.envelope import StatusCause

RECORDINGS = Path(__file__).parents[3] / "kubesim/tests/conformance/recordings"


def recorded(name: str) -> list[Any]:
    text = (RECORDINGS / f"{name}.json").read_text().replace("<time>", "2026-01-01T00:00:00Z")
    steps = json.loads(text)["steps"]
    return [step["request"]["body"] for step in steps if step.get("request", {}).get("path") == "webhook:"]


@pytest.mark.parametrize("name", ["admission", "admission-nodes"])
def test_what_a_real_server_asks_is_read(name: str) -> None:
    reviews = recorded(name)
    assert len(reviews) >= 3
    for review in reviews:
        request = review["request"]
        question = decode_review(msgspec.json.encode(review))
        assert (question.uid, question.operation, question.name) == (
            request["uid"], request["operation"], request["name"],
        )  # fmt: skip
        assert question.username == "admin"
        assert question.resource == GroupResource("", "v1", "nodes")
        assert question.is_dry_run is request["dryRun"]
        assert (question.object is None) == (request["object"] is None)
        assert (question.old_object is None) == (request["oldObject"] is None)
        if question.old_object is not None:
            assert decode_node(question.old_object).name == request["name"]


def test_what_a_newer_server_says_besides_is_passed_over() -> None:
    review = a_review("DELETE", "nodes", None, a_node_object(), novelty={"a": [1]}, dryRun=None, userInfo=None)
    review["more"] = 1
    question = decode_review(msgspec.json.encode(review))
    assert (question.name, question.username, question.is_dry_run) == ("n1", "", False)


@pytest.mark.parametrize(("body", "why"), [
    (b"", "not an AdmissionReview of admission.k8s.io/v1: Input data was truncated"),
    (b"[]", r"Expected `object`, got `array`"),
    (b"{}", "not an AdmissionReview of admission.k8s.io/v1, but no kind of no version"),
    (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "u"}}',
     r"Object missing required field `operation` - at `\$.request`"),
    (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}',
     "but AdmissionReview of admission.k8s.io/v1beta1"),
    (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "AdmissionReview without a request uid"),
    (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"operation": "EAT"}}',
     "Invalid enum value 'EAT'"),
])  # fmt: skip
def test_what_is_no_review_is_told_so(body: bytes, why: str) -> None:
    with pytest.raises(InvalidReview, match=why):
        decode_review(body)


def test_answers_are_such_as_a_server_takes() -> None:
    nodes = GroupResource("", "v1", "nodes")
    patch = ({"op": "add", "path": "/metadata/finalizers", "value": ["x"]},)
    allowed = verdict(encode_review("7", AdmissionResponse(patch=patch, warnings=("mind",))), "v1", "7", mutating=True)
    assert (allowed.allowed, msgspec.json.decode(allowed.patch), allowed.warnings) == (True, list(patch), ["mind"])
    plain = verdict(encode_review("7", AdmissionResponse()), "v1", "7", mutating=False)
    assert (plain.allowed, plain.patch, plain.status) == (True, b"", None)
    denial = Denial(429, "TooManyRequests", "no", nodes, "n1", (StatusCause("R", "m", "f"),), 3)
    denied = verdict(encode_review("7", AdmissionResponse(denial)), "v1", "7", mutating=False)
    assert not denied.allowed
    assert denied.status == {
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 429, "reason": "TooManyRequests",
        "message": "no",
        "details": {
            "name": "n1", "kind": "nodes", "causes": [{"reason": "R", "message": "m", "field": "f"}],
            "retryAfterSeconds": 3,
        },
    }  # fmt: skip


def test_a_denial_without_a_time_says_none() -> None:
    denial = Denial(422, "Invalid", "no", GroupResource("g", "v1", "things"), "a")
    details = msgspec.json.decode(encode_review("7", AdmissionResponse(denial)))["response"]["status"]["details"]
    assert details == {"name": "a", "group": "g", "kind": "things"}


def test_the_recorded_patch_is_what_ours_would_be() -> None:
    steps = json.loads((RECORDINGS / "admission-nodes.json").read_text())["steps"]
    response = steps[0]["response"]["body"]["response"]
    [operation] = json.loads(b64decode(response["patch"]))
    ours = msgspec.json.decode(encode_review(response["uid"], AdmissionResponse(patch=(operation,))))["response"]
    assert ours | {"patch": ""} == response | {"patch": ""}
