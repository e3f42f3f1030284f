"""A real server's refusals, as recorded, and what each of them means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gracectl.kube import errors
from gracectl.kube.errors import ApiError, Invalid, error_for, error_for_event
from gracectl.kube.transport import Request, Response
from gracectl.kube.transport.operation import operation_of

RECORDED = Path(__file__).parent / "recorded"
STEPS = {step["name"]: step for step in json.loads((RECORDED / "refusals.json").read_text())}

MEANINGS: dict[str, type[ApiError]] = {
    "budget spent": errors.BudgetExhausted, "budget just edited": errors.BudgetExhausted,
    "budget spent by a mistaken eviction": errors.BudgetExhausted, "two budgets": errors.MultipleBudgets,
    "no such pod": errors.NotFound, "patch of a missing object": errors.NotFound,
    "eviction of another uid": errors.Conflict, "eviction of another version": errors.Conflict,
    "delete of another uid": errors.Conflict, "delete of another version": errors.Conflict,
    "stale update": errors.Conflict, "stale takeover": errors.Conflict, "update of another uid": errors.Conflict,
    "stale merge patch": errors.Conflict, "patch of another uid": errors.Conflict,
    "create of an existing lease": errors.AlreadyExists, "names differ": errors.Invalid,
    "malformed body": errors.Invalid, "unknown media type": errors.Invalid, "unknown patch type": errors.Invalid,
    "strategic merge of a custom resource": errors.Invalid, "wrong type in a patch": errors.Invalid,
    "MicroTime without micros": errors.Invalid, "invalid lease": errors.Invalid,
    "invalid delete options": errors.Invalid, "against the schema": errors.Invalid,
    "new finalizer while deleting": errors.Invalid, "failed test of a JSON patch": errors.Invalid,
    "method not allowed": errors.Invalid, "unserved resource": errors.NotServed,
    "unserved subresource": errors.NotServed, "unserved group": errors.NotServed, "anonymous list": errors.Forbidden,
    "list without a right": errors.Forbidden, "get without a right": errors.Forbidden,
    "cluster-wide list without a right": errors.Forbidden, "watch without a right": errors.Forbidden,
    "eviction without a right": errors.Forbidden, "create without a right": errors.Forbidden,
    "deletecollection without a right": errors.Forbidden, "bad token": errors.Unauthorized,
    "server confused": errors.ServerError, "webhook patches a delete": errors.ServerError,
    "webhook down": errors.ServerError, "exact version from the future": errors.ServerError,
    "version from the future": errors.RequestTimeout, "compacted list": errors.Gone,
    "compacted continue token": errors.Gone, "denied without reason": errors.AdmissionDenied,
    "denied with retry": errors.AdmissionDenied, "denied with 400": errors.AdmissionDenied,
}  # fmt: skip


def recorded(name: str) -> ApiError:
    """The error that a recorded refusal means."""
    step = STEPS[name]
    asked, answered = step["request"], step["response"]
    request = Request(method=asked["method"], path=asked["path"], query=tuple(sorted(asked.get("query", {}).items())))
    body = answered["body"]
    response = Response(
        status=answered["status"],
        headers={key.lower(): value for key, value in answered["headers"].items()},
        body=body.encode() if isinstance(body, str) else msgspec.json.encode(body),
    )
    return error_for(request, response)


def an_error(status: int, body: Any, path: str = "/api/v1/nodes/one", method: str = "GET", **headers: str) -> ApiError:
    """The error of an answer that no recording has."""
    encoded = body if isinstance(body, bytes) else msgspec.json.encode({"kind": "Status", "code": status, **body})
    lower = {name.replace("_", "-"): value for name, value in headers.items()}
    return error_for(Request(method=method, path=path), Response(status=status, headers=lower, body=encoded))


def test_every_recorded_refusal_has_its_meaning_here() -> None:
    assert sorted(MEANINGS) == sorted(STEPS)


@pytest.mark.parametrize("name", sorted(MEANINGS))
def test_recorded_refusal(name: str) -> None:
    error = recorded(name)
    assert type(error) is MEANINGS[name]
    body = STEPS[name]["response"]["body"]
    assert error.status_message == (body["message"] if isinstance(body, dict) else body.strip())
    assert error.status_message in str(error)


@pytest.mark.parametrize(("name", "mismatch"), [
    ("eviction of another uid", True), ("delete of another uid", True), ("update of another uid", True),
    ("patch of another uid", True), ("eviction of another version", False), ("delete of another version", False),
    ("stale update", False), ("stale merge patch", False),
])  # fmt: skip
def test_a_conflict_says_whether_another_object_has_the_name(name: str, mismatch: bool) -> None:
    error = recorded(name)
    assert isinstance(error, errors.Conflict)
    assert error.uid_mismatch is mismatch


def test_a_spent_budget_and_one_that_is_still_looked_at_differ_by_retry_after() -> None:
    spent, edited = recorded("budget spent"), recorded("budget just edited")
    assert isinstance(spent, errors.BudgetExhausted)
    assert isinstance(edited, errors.BudgetExhausted)
    assert (spent.retry_after, edited.retry_after) == (None, 10.0)
    assert "is spent" in str(spent)
    assert "still being processed" in str(edited)


def test_a_webhook_that_answers_429_does_not_mean_a_busy_server() -> None:
    plain, patient = recorded("denied without reason"), recorded("denied with retry")
    assert isinstance(plain, errors.AdmissionDenied)
    assert isinstance(patient, errors.AdmissionDenied)
    assert (plain.retry_after, patient.retry_after) == (None, 5.0)


@pytest.mark.parametrize(("name", "advice"), [
    ("list without a right", "list pods in rec-auth: forbidden: add the verb list on pods to the role"),
    ("cluster-wide list without a right", "list nodes: forbidden: add the verb list on nodes to the role"),
    ("watch without a right", "add the verb watch on nodes to the role"),
    ("eviction without a right", "add the verb create on pods/eviction to the role"),
    ("create without a right", 'add the verb create on leases of API group "coordination.k8s.io" to the role'),
    ("deletecollection without a right", "add the verb deletecollection on pods to the role"),
    ("get without a right", "get pods rec-auth/web: forbidden: add the verb get on pods to the role"),
])  # fmt: skip
def test_a_missing_right_is_spelled_out(name: str, advice: str) -> None:
    assert advice in str(recorded(name))


def test_a_refusal_that_no_role_can_mend_gives_no_such_advice() -> None:
    message = 'pods "web" is forbidden: exceeded quota: small'
    error = an_error(403, {"reason": "Forbidden", "message": message}, "/api/v1/namespaces/n/pods", "POST")
    assert isinstance(error, errors.Forbidden)
    assert "role" not in str(error)


def test_a_namespace_that_is_being_deleted() -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "namespace n is being terminated"}]
    details = {"name": "web.1", "kind": "events", "causes": causes}
    message = 'events "web.1" is forbidden: unable to create new content in namespace n because it is being terminated'
    body = {"reason": "Forbidden", "message": message, "details": details}
    assert type(an_error(403, body, "/api/v1/namespaces/n/events", "POST")) is errors.NamespaceTerminating


EVICTION = "/api/v1/namespaces/n/pods/a/eviction"
TOO_MANY = 'poddisruptionbudget.policy "web" is forbidden: DisruptedPods map too big - too many evictions not confirmed'


@pytest.mark.parametrize("details", [
    {"name": "web", "group": "policy", "kind": "poddisruptionbudget"},
    {"name": "web", "group": "policy", "kind": "poddisruptionbudgets"},
    {"name": "web", "group": "policy", "kind": "", "causes": [{"reason": "DisruptionBudget", "message": "too many"}]},
], ids=["as servers write it", "plural", "by its cause"])  # fmt: skip
def test_a_budget_with_too_many_unconfirmed_evictions_cannot_pay(details: dict[str, Any]) -> None:
    error = an_error(403, {"reason": "Forbidden", "message": TOO_MANY, "details": details}, EVICTION, "POST")
    assert isinstance(error, errors.BudgetExhausted)
    assert error.retry_after is None


POD, NODE = EVICTION.removesuffix("/eviction"), "/api/v1/nodes/n1"
CLAIM = "/apis/karpenter.sh/v1/nodeclaims/n1"


@pytest.mark.parametrize(("method", "path", "kind", "name"), [
    ("POST", EVICTION, "poddisruptionbudgets", "web"),
    ("POST", EVICTION, "poddisruptionbudget", "a"),
    ("POST", EVICTION, "namespaces", "n"), ("DELETE", POD, "namespaces", "n"), ("DELETE", NODE, "services", "hook"),
    ("DELETE", NODE, "nodes", "n2"), ("DELETE", NODE, "leases", "n1"),
    ("PATCH", f"{NODE}/status", "nodeclaims", "n1"),
    ("PATCH", CLAIM, "nodes", "n1"), ("GET", CLAIM, "services", "hook"),
])  # fmt: skip
def test_that_another_object_is_missing_says_nothing_of_ours(method: str, path: str, kind: str, name: str) -> None:
    """An eviction was taken for done, and not sent again, when its namespace was said to be missing: seed 6144."""
    body = {"reason": "NotFound", "message": f'{kind} "{name}" not found', "details": {"name": name, "kind": kind}}
    error = an_error(404, body, path, method)
    assert type(error) is errors.OtherNotFound
    assert not error.is_gone


@pytest.mark.parametrize(("method", "path", "kind"), [
    ("DELETE", NODE, "nodes"), ("PATCH", f"{NODE}/status", "nodes"), ("PATCH", f"{NODE}/status", "nodes/status"),
    ("DELETE", CLAIM, "nodeclaims"), ("DELETE", CLAIM, "NodeClaim"), ("GET", NODE, ""),
    ("POST", "/api/v1/namespaces/n1/events", "namespaces"),
])  # fmt: skip
def test_a_404_that_names_the_object_says_that_it_is_gone(method: str, path: str, kind: str) -> None:
    body = {"reason": "NotFound", "message": 'not found: "n1"', "details": {"name": "n1", "kind": kind}}
    assert type(an_error(404, body, path, method)) is errors.NotFound


@pytest.mark.parametrize("code", [401, 403, 413, 422])
def test_a_policy_denies_with_the_code_that_it_chooses(code: int) -> None:
    said = "ValidatingAdmissionPolicy 'guard' with binding 'all' denied request: you cannot evict what holds a lock"
    body = {
        "reason": "Forbidden", "message": f'pods "a" is forbidden: {said}', "details": {"name": "a", "kind": "pods"},
    }  # fmt: skip
    error = an_error(code, body, EVICTION, "POST")
    assert isinstance(error, errors.AdmissionDenied)
    assert "role" not in str(error)


REFUSED = 'User "u" cannot create resource "pods/eviction" in API group ""'


@pytest.mark.parametrize(("message", "is_rbac"), [
    (f'pods "a" is forbidden: {REFUSED} in the namespace "n"', True),
    (f"pods is forbidden: {REFUSED} at the cluster scope: no such role", True),
    ('pods "a" is forbidden: User "u" cannot do that today', False),
    (f'pods "a" is forbidden: plugin: pods "a" is forbidden: {REFUSED}', False),
    ('pods "a" is forbidden: you cannot evict this', False),
    ("you cannot pass", False),
])  # fmt: skip
def test_want_of_a_role_is_known_by_its_exact_form(message: str, is_rbac: bool) -> None:
    error = an_error(403, {"reason": "Forbidden", "message": message}, EVICTION, "POST")
    assert isinstance(error, errors.Forbidden)
    assert error.rbac is is_rbac


@pytest.mark.parametrize(("headers", "details", "seconds"), [
    ({"retry_after": "7"}, {}, 7.0),
    ({"retry_after": "7"}, {"retryAfterSeconds": 3}, 7.0),
    ({}, {"retryAfterSeconds": 3}, 3.0), ({}, {}, 1.0),
    ({"retry_after": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, 1.0),
    ({"retry_after": "-4"}, {}, 1.0), ({"retry_after": "0"}, {}, 1.0), ({}, {"retryAfterSeconds": -4}, 1.0),
    ({"retry_after": "31536000"}, {}, 60.0), ({"retry_after": "9" * 5000}, {}, 60.0),
    ({}, {"retryAfterSeconds": 10**18}, 60.0), ({}, {"retryAfterSeconds": 10**400}, 60.0),
], ids=str)  # fmt: skip
def test_how_long_a_busy_server_asks_for(headers: dict[str, str], details: dict[str, int], seconds: float) -> None:
    error = an_error(429, {"reason": "TooManyRequests", "message": "busy", "details": details}, **headers)
    assert isinstance(error, errors.Throttled)
    assert error.delay == seconds
    assert error.is_capped == (seconds == 60.0)


@pytest.mark.parametrize("code", [429, 500, 504])
@pytest.mark.parametrize(("said", "seconds"), [("31536000", 30.0), ("12", 12.0), ("0", None)])
def test_no_answer_makes_one_request_wait_for_long_or_not_at_all(code: int, said: str, seconds: float | None) -> None:
    status = {"details": {"causes": [{"reason": "DisruptionBudget"}]}, "message": "later"}
    error = an_error(code, status, EVICTION, "POST", retry_after=said)
    assert isinstance(error, errors.BudgetExhausted | errors.ServerError | errors.RequestTimeout)
    assert error.retry_after == seconds


def test_the_plain_text_of_the_request_filters_is_a_busy_server_too() -> None:
    error = an_error(429, b"Too many requests, please try again later.\n", retry_after="1")
    assert isinstance(error, errors.Throttled)
    assert error.status_message == "Too many requests, please try again later."


@pytest.mark.parametrize(("status", "meaning"), [
    (302, errors.Invalid), (400, errors.Invalid), (413, errors.Invalid), (502, errors.ServerError),
    (503, errors.ServerError), (504, errors.RequestTimeout),
])  # fmt: skip
def test_a_proxy_that_answers_for_the_server(status: int, meaning: type[ApiError]) -> None:
    error = an_error(status, b"<html>bad gateway</html>")
    assert type(error) is meaning
    assert "bad gateway" in str(error)


def test_an_answer_without_a_word_still_says_something() -> None:
    assert "HTTP status 503" in str(an_error(503, b""))
    assert "HTTP status 500" in str(an_error(500, {}))


def test_a_cluster_scoped_404_in_plain_text_is_no_proof_that_an_object_is_gone() -> None:
    assert type(an_error(404, b"404 page not found\n", "/apis/karpenter.sh/v1/nodeclaims/one")) is errors.NotServed


def test_the_error_event_of_a_watch() -> None:
    step = next(step for step in json.loads((RECORDED / "watches.json").read_text()) if step["name"] == "too old")
    request = Request(method="GET", path=step["request"]["path"], query=(("watch", "1"),))
    error = error_for_event(request, msgspec.json.encode(step["response"]["events"][0]["object"]))
    assert type(error) is errors.Gone
    assert error.operation.verb == "watch"
    assert type(error_for_event(request, b'{"kind":"Status","message":"etcd lost"}')) is errors.ServerError


@pytest.mark.parametrize(("method", "path", "query", "said"), [
    ("GET", "/api/v1/nodes/a", {}, "get nodes a"),
    ("GET", "/api/v1/nodes", {}, "list nodes"),
    ("GET", "/api/v1/nodes", {"watch": "1"}, "watch nodes"),
    ("GET", "/api/v1/pods", {"watch": "true"}, "watch pods"),
    ("GET", "/api/v1/namespaces", {}, "list namespaces"),
    ("GET", "/api/v1/namespaces/n", {}, "get namespaces n"),
    ("POST", "/api/v1/namespaces/n/pods/a/eviction", {}, "create pods/eviction n/a"),
    ("PATCH", "/apis/karpenter.sh/v1/nodeclaims/a/status", {}, "patch nodeclaims/status.karpenter.sh a"),
    ("DELETE", "/apis/policy/v1/namespaces/n/poddisruptionbudgets/b", {}, "delete poddisruptionbudgets.policy n/b"),
    ("DELETE", "/api/v1/namespaces/n/pods", {}, "deletecollection pods in n"),
    ("GET", "/version", {}, "get /version"),
])  # fmt: skip
def test_a_request_in_words(method: str, path: str, query: dict[str, str], said: str) -> None:
    assert str(operation_of(Request(method=method, path=path, query=tuple(query.items())))) == said


def test_of_a_refusal_that_quotes_a_whole_object_the_ends_are_kept() -> None:
    message = 'patch: Invalid value: "' + "x" * 1_000_000 + '": parsing time "10000-01-01T23:58:59Z"'
    body = msgspec.json.encode({"kind": "Status", "code": 422, "reason": "Invalid", "message": message})
    error = error_for(Request(method="PATCH", path="/api/v1/nodes/n1"), Response(status=422, body=body))
    assert isinstance(error, Invalid)
    assert str(error).endswith('x": parsing time "10000-01-01T23:58:59Z")')
    assert len(str(error)) < 3_000
