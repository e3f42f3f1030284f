"""What comes of a webhook's answer, and of none: order, patches, denials, failures, deadlines, and who looks again."""

from __future__ import annotations

import base64
from typing import Any

import anyio
import orjson
import pytest
from sim.admission_stage import CONFIGMAPS, FAILED, NAME, Hook, Stage, config_map, patching, rule, webhook
from sim.caller import MERGE, NODES, PODS, next_events

from gracectl.sim.admission.calling import Reply
from gracectl.sim.faults.rules import Rule, SlowWebhook
from gracectl.sim.server.api import JsonObject, Response
from gracectl.sim.server.store import at_version

pytestmark = pytest.mark.anyio

REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
HELD = ["rec.example/hold"]
ADD_A = {"op": "add", "path": "/metadata/labels/a", "value": "1"}


async def attempt(stage: Stage) -> Response:
    """Create a config map, whatever comes of it."""
    return await stage.call("POST", CONFIGMAPS, config_map("one", x="y"))


def internal(response: Response) -> str:
    """The message of a 500 whose one cause repeats it."""
    assert (response.status, response.body["reason"]) == (500, "InternalError"), response.body
    [cause] = response.body["details"]["causes"]
    message: str = response.body["message"]
    assert message == f"Internal error occurred: {cause['message']}"
    return message


# -- order -------------------------------------------------------------------------------------------------------------


async def test_mutating_webhooks_are_asked_one_after_another_by_the_names_of_their_configurations() -> None:
    stage = Stage()
    asked: list[str] = []

    def adds(name: str) -> Any:
        def answer(request: JsonObject) -> JsonObject:
            asked.append(f"{name} sees {sorted(request['object']['metadata']['labels'])}")
            return patching(orjson.dumps([{"op": "add", "path": f"/metadata/labels/{name}", "value": ""}]))

        return answer

    for name in ("c", "a", "b"):
        hook = await stage.hook("mutating", configuration=name, name=f"{name}.rec.example")
        hook.answer = adds(name)
    created = (await attempt(stage)).body
    assert asked == ["a sees ['x']", "b sees ['a', 'x']", "c sees ['a', 'b', 'x']"]
    assert set(created["metadata"]["labels"]) == {"x", "a", "b", "c"}


async def test_who_asked_for_it_is_asked_again_after_a_later_change_and_once_only() -> None:
    stage = Stage()
    first = await stage.hook("mutating", configuration="1", reinvocationPolicy="IfNeeded")
    never = await stage.hook("mutating", configuration="2", name="b.rec.example")
    last = await stage.hook("mutating", configuration="3", name="c.rec.example", reinvocationPolicy="IfNeeded")
    last.patches(ADD_A)
    await attempt(stage)
    assert [len(hook.requests) for hook in (first, never, last)] == [2, 1, 1]
    assert first.last["object"]["metadata"]["labels"] == {"x": "y", "a": "1"}


async def test_a_change_in_the_second_round_asks_those_behind_it_again() -> None:
    stage = Stage()
    first = await stage.hook("mutating", configuration="1", reinvocationPolicy="IfNeeded")
    second = await stage.hook("mutating", configuration="2", name="b.rec.example", reinvocationPolicy="IfNeeded")
    second.patches(ADD_A)

    def answer(request: JsonObject) -> JsonObject:
        if "a" not in request["object"]["metadata"]["labels"]:
            return {"allowed": True}
        return patching(b'[{"op": "add", "path": "/metadata/labels/b", "value": "2"}]')

    first.answer = answer
    assert set((await attempt(stage)).body["metadata"]["labels"]) == {"x", "a", "b"}
    assert [len(hook.requests) for hook in (first, second)] == [2, 2]


async def test_nobody_is_asked_again_when_nothing_changed() -> None:
    stage = Stage()
    first = await stage.hook("mutating", configuration="1", reinvocationPolicy="IfNeeded")
    second = await stage.hook("mutating", configuration="2", name="b.rec.example")
    second.patches({"op": "add", "path": "/metadata/labels/x", "value": "y"}, {"op": "add", "path": "/odd", "value": 1})
    await attempt(stage)
    assert len(first.requests) == 1


async def test_validating_webhooks_are_all_asked_at_once_and_the_first_refusal_counts() -> None:
    stage = Stage()
    hooks: list[Hook] = []
    for name, delay in (("a", 3), ("b", 1), ("c", 2)):
        hook = await stage.hook("validating", configuration=name, name=f"{name}.rec.example")
        hook.delay = delay
        hook.denies(message=name)
        hooks.append(hook)
    before = stage.clock.monotonic()
    response = await attempt(stage)
    assert response.body["message"] == 'admission webhook "b.rec.example" denied the request: b'
    assert stage.clock.monotonic() - before == 3  # all answers are waited for
    assert [len(hook.requests) for hook in hooks] == [1, 1, 1]


async def test_validating_webhooks_come_after_mutating_ones_and_after_the_kinds_own_validation() -> None:
    stage = Stage()
    mutating, validating = await stage.hook("mutating"), await stage.hook("validating")
    mutating.patches({"op": "add", "path": "/metadata/labels/a", "value": "_bad_"})
    assert (await attempt(stage)).status == 422
    assert validating.requests == []
    mutating.patches(ADD_A)
    await attempt(stage)
    assert validating.last["object"]["metadata"]["labels"] == {"x": "y", "a": "1"}


# -- denials -----------------------------------------------------------------------------------------------------------


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


async def test_the_details_of_a_denial_come_through() -> None:
    stage = Stage()
    hook = await stage.hook("mutating")
    details = {"causes": [{"reason": "R", "message": "m"}], "kind": "nodes", "retryAfterSeconds": 5}
    hook.denies(code=429, message="wait", details=details)
    response = await attempt(stage)
    assert response.body["details"] == details
    assert response.headers["retry-after"] == "5"


async def test_warnings_become_headers_also_of_a_refusal() -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    warnings = ["one", 'q"\\', "one", "two\nlines", ""]
    hook.answer = lambda request: {"allowed": request["dryRun"], "warnings": warnings}
    response = await attempt(stage)
    assert response.status == 400
    assert response.headers["warning"] == '299 - "one", 299 - "q\\"\\\\"'
    response = await stage.call("POST", CONFIGMAPS, config_map("one"), dryRun="All")
    assert (response.status, response.headers["warning"]) == (201, '299 - "one", 299 - "q\\"\\\\"')


async def test_a_dry_run_does_not_ask_whom_it_would_change() -> None:
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


# -- patches -----------------------------------------------------------------------------------------------------------

OPERATIONS: list[tuple[JsonObject, str]] = [
    (
        {"op": "add", "path": "/no/x", "value": 1},
        'add operation does not apply: doc is missing path: "/no/x": missing value',
    ),
    (
        {"op": "add", "path": "/metadata/labels/a", "value": 1},
        "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
    ),
    (
        {"op": "remove", "path": "/metadata/labels/no"},
        "error in remove for path: '/metadata/labels/no': Unable to remove nonexistent key: no: missing value",
    ),
    ({"op": "remove", "path": "/no/x"}, 'remove operation does not apply: doc is missing path: "/no/x": missing value'),
    (
        {"op": "replace", "path": "/no/x", "value": 1},
        "replace operation does not apply: doc is missing path: /no/x: missing value",
    ),
    ({"op": "test", "path": "/metadata/name", "value": "z"}, "testing value /metadata/name failed: test failed"),
    ({"op": "test", "path": "/metadata/no", "value": "z"}, "testing value /metadata/no failed: test failed"),
    (
        {"op": "copy", "from": "/no/x", "path": "/metadata/labels/a"},
        "copy operation does not apply: doc is missing from path: /no/x: missing value",
    ),
    (
        {"op": "move", "from": "/metadata/no", "path": "/metadata/labels/a"},
        "error in move for path: 'no': Unable to remove nonexistent key: no: missing value",
    ),
    ({"op": "odd", "path": "/metadata/labels/a"}, "Unexpected kind: odd"),
    ({"path": "/metadata/labels/a"}, "Unexpected kind: unknown"),
]


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
@pytest.mark.parametrize(("operation", "fault"), OPERATIONS, ids=[str(each[0]) for each in OPERATIONS])
async def test_a_patch_that_does_not_apply_fails_whatever_the_policy(
    operation: JsonObject, fault: str, policy: str
) -> None:
    stage = Stage()
    hook = await stage.hook("mutating", failurePolicy=policy)
    hook.patches(operation)
    assert internal(await attempt(stage)) == f"Internal error occurred: {fault}"


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"hello", "invalid character 'h' looking for beginning of value"),
        (b"{}", "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
    ],
)
async def test_a_patch_that_is_none(raw: bytes, fault: str) -> None:
    stage = Stage()
    hook = await stage.hook("mutating")
    hook.answer = lambda request: patching(raw)
    assert internal(await attempt(stage)) == f"Internal error occurred: {fault}"


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "replace", "path": "/metadata/labels/x", "value": "z"}],
        [{"op": "remove", "path": "/metadata/labels/x"}, {"op": "replace", "path": "/metadata/labels/x", "value": "z"}],
        [{"op": "add", "path": "/metadata/labels", "value": {"x": "z"}}],
        [
            {"op": "add", "path": "/metadata/labels/y", "value": "z"},
            {"op": "move", "from": "/metadata/labels/y", "path": "/metadata/labels/x"},
        ],
        [
            {"op": "test", "path": "/metadata/labels/x", "value": "y"},
            {"op": "add", "path": "/metadata/labels/x", "value": "z"},
        ],
    ],
    ids=str,
)
async def test_patches(operations: list[JsonObject]) -> None:
    stage = Stage()
    hook = await stage.hook("mutating")
    hook.patches(*operations)
    assert (await attempt(stage)).body["metadata"]["labels"] == {"x": "z"}


async def test_unknown_fields_of_a_patch_go_in_silence() -> None:
    stage = Stage()
    hook = await stage.hook("mutating")
    hook.patches({"op": "add", "path": "/unknown", "value": 1}, ADD_A)
    response = await stage.call("POST", CONFIGMAPS, config_map("one", x="y"), fieldValidation="Strict")
    assert response.status == 201
    assert "unknown" not in response.body
    assert "warning" not in response.headers


async def test_a_patch_of_an_update_is_stored() -> None:
    stage = Stage()
    await attempt(stage)
    hook = await stage.hook("mutating", rules=[rule(operations=("UPDATE",))])
    hook.patches({"op": "add", "path": "/data", "value": {"by": "webhook"}})
    assert (await stage.patch(f"{CONFIGMAPS}/one", {"data": {"a": "b"}}))["data"] == {"by": "webhook"}
    assert (await stage.get(f"{CONFIGMAPS}/one"))["data"] == {"by": "webhook"}


async def test_a_webhook_cannot_give_what_only_the_server_gives() -> None:
    stage = Stage()
    hook = await stage.hook("mutating")
    hook.patches({"op": "add", "path": "/metadata/uid", "value": "made-up"})
    assert (await attempt(stage)).body["metadata"]["uid"] != "made-up"


# -- failures ----------------------------------------------------------------------------------------------------------

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


async def test_a_validating_webhook_may_not_patch() -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    hook.answer = lambda request: patching(b"[]")
    fault = "received invalid webhook response: validating webhook may not return response.patch"
    assert internal(await attempt(stage)) == f"{FAILED}{fault}"


async def test_nobody_at_the_address() -> None:
    stage = Stage()
    client = {"url": "https://nobody.example:8443/a/b/"}
    await stage.configure("validating", webhook(clientConfig=client, timeoutSeconds=3))
    fault = (
        'failed to call webhook: Post "https://nobody.example:8443/a/b?timeout=3s": dial tcp nobody.example:8443: '
        "connect: connection refused"
    )
    assert internal(await attempt(stage)) == f"{FAILED}{fault}"


@pytest.mark.parametrize(("policy", "status"), [("Fail", 500), ("Ignore", 201)])
@pytest.mark.parametrize("kind", ["mutating", "validating"])
async def test_a_slow_webhook_is_given_its_timeout_and_no_more(kind: str, policy: str, status: int) -> None:
    stage = Stage()
    hook = await stage.hook(kind, timeoutSeconds=2, failurePolicy=policy)
    hook.delay = 2.5
    before = stage.clock.monotonic()
    response = await attempt(stage)
    assert stage.clock.monotonic() - before == 2
    assert (response.status, len(hook.requests)) == (status, 1)
    if status == 500:
        fault = f'failed to call webhook: Post "https://{NAME}/{kind}?timeout=2s": context deadline exceeded'
        assert internal(response) == f"{FAILED}{fault}"


async def test_a_fault_makes_a_webhook_slow() -> None:
    stage = Stage()
    await stage.hook("validating", timeoutSeconds=2)
    stage.server.faults.add(Rule(fault=SlowWebhook(seconds=1.5)))
    before = stage.clock.monotonic()
    assert (await attempt(stage)).status == 201
    assert stage.clock.monotonic() - before == 1.5


async def test_other_requests_go_on_meanwhile() -> None:
    stage = Stage()
    hook = await stage.hook("validating", rules=[rule("configmaps")])
    hook.delay = 5
    async with anyio.create_task_group() as group:
        group.start_soon(attempt, stage)
        await anyio.wait_all_tasks_blocked()
        before = stage.clock.monotonic()
        await stage.create(NODES, {"metadata": {"name": "n1"}})
        assert stage.clock.monotonic() == before


# -- deletions ---------------------------------------------------------------------------------------------------------


async def node(stage: Stage, name: str = "n1", **metadata: Any) -> Any:
    """Create a node."""
    return await stage.create(NODES, {"metadata": {"name": name, **metadata}})


async def deleting(stage: Stage, kind: str = "validating", resource: str = "nodes") -> Hook:
    """A webhook that hears of deletions."""
    return await stage.hook(kind, rules=[rule(resource, operations=("DELETE",))])


async def test_a_deletion_shows_the_old_object_and_its_options() -> None:
    stage = Stage()
    created = await node(stage)
    hook = await deleting(stage)
    body = {"preconditions": {"uid": created["metadata"]["uid"]}, "propagationPolicy": "Background"}
    await stage.ok("DELETE", f"{NODES}/n1", body)
    [request] = hook.requests
    assert (request["object"], request["oldObject"]) == (None, created)
    assert request["options"] == {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", **body}


async def test_a_held_object_asks_at_each_deletion_and_its_end_asks_nobody() -> None:
    stage = Stage()
    await node(stage, finalizers=HELD)
    hook = await deleting(stage)
    await stage.ok("DELETE", f"{NODES}/n1")
    await stage.ok("DELETE", f"{NODES}/n1")
    await stage.patch(f"{NODES}/n1", {"metadata": {"finalizers": None}})
    assert (await stage.call("GET", f"{NODES}/n1")).status == 404
    assert len(hook.requests) == 2


async def test_a_pods_deletion_is_told_its_grace_and_the_kubelets_is_asked_twice() -> None:
    stage = Stage()
    await stage.pod("one")
    hook = await deleting(stage, resource="pods")
    await stage.ok("DELETE", f"{PODS}/one")
    [request] = hook.requests
    assert request["options"]["gracePeriodSeconds"] == 30
    await stage.ok("DELETE", f"{PODS}/one")  # under way: nothing to ask about
    assert len(hook.requests) == 1
    await stage.ok("DELETE", f"{PODS}/one", {"gracePeriodSeconds": 0})
    seen = [request["oldObject"]["metadata"]["deletionGracePeriodSeconds"] for request in hook.requests[1:]]
    assert seen == [30, 0]
    assert (await stage.call("GET", f"{PODS}/one")).status == 404


async def test_a_pod_denied_at_its_end_stays_with_no_grace() -> None:
    stage = Stage()
    await stage.pod("one")
    hook = await deleting(stage, resource="pods")
    hook.answer = lambda request: {"allowed": "deletionTimestamp" not in request["oldObject"]["metadata"]}
    assert (await stage.call("DELETE", f"{PODS}/one", {"gracePeriodSeconds": 0})).status == 400
    assert (await stage.get(f"{PODS}/one"))["metadata"]["deletionGracePeriodSeconds"] == 0


async def test_a_collection_asks_for_each_without_a_name() -> None:
    stage = Stage()
    for name in ("n1", "n2"):
        await node(stage, name)
    hook = await deleting(stage)
    await stage.ok("DELETE", NODES)
    assert ["name" in request for request in hook.requests] == [False, False]
    assert [request["oldObject"]["metadata"]["name"] for request in hook.requests] == ["n1", "n2"]


async def test_a_patch_of_a_deletion_fails_it() -> None:
    stage = Stage()
    await node(stage)
    hook = await deleting(stage, "mutating")
    hook.patches({"op": "add", "path": "/metadata/finalizers", "value": HELD})
    fault = f'admission webhook "{NAME}" attempted to modify the object, which is not supported for this operation'
    assert internal(await stage.call("DELETE", f"{NODES}/n1")) == f"Internal error occurred: {fault}"
    assert (await stage.call("GET", f"{NODES}/n1")).status == 200


def finalizer_adder(stage: Stage, hook: Hook) -> None:
    """From now on the webhook holds the node before it answers."""

    async def holds(review: JsonObject) -> JsonObject | Reply:
        await stage.patch(f"{NODES}/n1", {"metadata": {"finalizers": HELD}})
        return await hook(review)

    stage.webhooks.register(hook.url, holds)


@pytest.mark.parametrize("kind", ["mutating", "validating"])
async def test_a_finalizer_that_comes_during_the_deletion_does_not_hold(kind: str) -> None:
    """Kubernetes issue 77988: the server sees the change, asks again, and deletes."""
    stage = Stage()
    await node(stage)
    hook = await deleting(stage, kind)
    finalizer_adder(stage, hook)
    stream = await stage.watch(NODES)
    await stage.ok("DELETE", f"{NODES}/n1")
    assert await next_events(stream, 3) == [("ADDED", "n1"), ("MODIFIED", "n1"), ("DELETED", "n1")]
    seen = [request["oldObject"]["metadata"].get("finalizers") for request in hook.requests]
    assert seen == [None, HELD]


async def test_a_precondition_notices_it() -> None:
    stage = Stage()
    created = await node(stage)
    hook = await deleting(stage)
    finalizer_adder(stage, hook)
    version = created["metadata"]["resourceVersion"]
    response = await stage.call("DELETE", f"{NODES}/n1", {"preconditions": {"resourceVersion": version}})
    now = (await stage.get(f"{NODES}/n1"))["metadata"]["resourceVersion"]
    assert (response.status, response.body["message"]) == (
        409,
        'Operation cannot be fulfilled on nodes "n1": StorageError: invalid object, Code: 4, Key: '
        "/registry/minions/n1, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in "
        f"precondition: {version}, ResourceVersion in object meta: {now}",
    )


async def test_a_held_object_keeps_what_came_during_its_deletion() -> None:
    stage = Stage()
    await node(stage, finalizers=["rec.example/other"])
    hook = await deleting(stage)
    finalizer_adder(stage, hook)
    deleted = await stage.ok("DELETE", f"{NODES}/n1")
    assert deleted["metadata"]["finalizers"] == HELD
    assert len(hook.requests) == 2


async def test_an_object_that_goes_meanwhile_is_not_found() -> None:
    stage = Stage()
    await node(stage)
    hook = await deleting(stage)
    hook.delay = 1
    answers: list[int] = []

    async def delete() -> None:
        answers.append((await stage.call("DELETE", f"{NODES}/n1")).status)

    async with anyio.create_task_group() as group:
        group.start_soon(delete)
        group.start_soon(delete)
    assert sorted(answers) == [200, 404]


async def test_a_dry_run_of_a_deletion_asks_once() -> None:
    stage = Stage()
    await stage.pod("one")
    hook = await deleting(stage, resource="pods")
    await stage.ok("DELETE", f"{PODS}/one", gracePeriodSeconds="0", dryRun="All")
    assert [request["dryRun"] for request in hook.requests] == [True]
    assert "deletionTimestamp" not in (await stage.get(f"{PODS}/one"))["metadata"]


# -- updates that are overtaken ----------------------------------------------------------------------------------------


def meddler(stage: Stage, hook: Hook, times: int) -> None:
    """The webhook writes the config map itself before it answers, so many times."""
    table = stage.server.store.table("configmaps")

    async def meddles(review: JsonObject) -> JsonObject | Reply:
        if len(hook.requests) < times:
            old = table.get("default", "one")
            assert old is not None
            data = {**old.get("data", {}), f"by-webhook-{len(hook.requests)}": ""}
            stage.server.store.put(table, at_version({**old, "data": data}, 0), old)
        return await hook(review)

    stage.webhooks.register(hook.url, meddles)


async def test_a_patch_is_applied_anew_to_what_came_meanwhile() -> None:
    stage = Stage()
    await attempt(stage)
    hook = await stage.hook("validating")
    meddler(stage, hook, 2)
    patched = await stage.patch(f"{CONFIGMAPS}/one", {"data": {"mine": ""}}, MERGE)
    assert set(patched["data"]) == {"mine", "by-webhook-0", "by-webhook-1"}
    assert len(hook.requests) == 3


async def test_a_put_with_a_version_has_lost() -> None:
    stage = Stage()
    created = (await attempt(stage)).body
    hook = await stage.hook("validating")
    meddler(stage, hook, 1)
    assert (await stage.call("PUT", f"{CONFIGMAPS}/one", created)).status == 409
    assert len(hook.requests) == 1


async def test_of_two_that_create_one_name_one_is_too_late() -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    hook.delay = 1
    answers: list[int] = []

    async def create() -> None:
        answers.append((await attempt(stage)).status)

    async with anyio.create_task_group() as group:
        group.start_soon(create)
        group.start_soon(create)
    assert sorted(answers) == [201, 409]
