"""What the product stands on and no recording shows: today's answers, told once, true of the embedded server and of a
live cluster alike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from conformance.player import read_events
from conformance.storyteller import CRDS, NAMESPACE, NODE, TALES, Storyteller, a_definition
from conformance.target import Target
from kubesim.server.api import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]

WATCH_LIST_IS_OFF = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
PODS = f"{NAMESPACE}/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/rec-stories/leases"
DEPLOYMENTS = "/apis/apps/v1/namespaces/rec-stories/deployments"


@pytest.fixture
async def tell(target: Target) -> AsyncIterator[Storyteller]:
    """A namespace, a node and a custom kind of the story's own."""
    async with target.stage((NAMESPACE, NODE, CRDS + "/tales.stories.rec.example")):
        yield await Storyteller(target).begin()


async def test_unready_pods_may_always_go_if_the_budget_says_so(tell: Storyteller) -> None:
    await tell.pods(ready=("a",), unready=("b", "c"))
    await tell.budget(minAvailable=2, unhealthyPodEvictionPolicy="AlwaysAllow")
    before = await tell.counted(currentHealthy=1, desiredHealthy=2, disruptionsAllowed=0)
    assert await tell.evict("b") == 201
    # At no cost: nothing was decremented, no pod is written down as disrupted.
    assert (await tell.budget_status()).get("disruptedPods") is None
    assert before["disruptionsAllowed"] == 0
    assert await tell.evict("a") == 429
    assert await tell.evict("c") == 201


async def test_unready_pods_wait_while_their_budget_is_not_healthy(tell: Storyteller) -> None:
    await tell.pods(ready=("a",), unready=("b",))
    await tell.budget(minAvailable=2, unhealthyPodEvictionPolicy="IfHealthyBudget")
    await tell.counted(currentHealthy=1, desiredHealthy=2, disruptionsAllowed=0)
    assert await tell.evict("b") == 429
    await tell.becomes_ready("b")
    await tell.pods(unready=("c",))
    await tell.counted(currentHealthy=2, desiredHealthy=2, disruptionsAllowed=0)
    assert await tell.evict("c") == 201
    assert await tell.evict("b") == 429


async def test_a_budget_is_spent_pod_by_pod(tell: Storyteller) -> None:
    await tell.pods(ready=("a", "b", "c"))
    await tell.budget(minAvailable=1)
    await tell.counted(disruptionsAllowed=2)
    assert [await tell.evict(name, dryRun="All") for name in "abc"] == [201, 201, 201]
    assert (await tell.budget_status())["disruptionsAllowed"] == 2
    assert [await tell.evict(name) for name in "abc"] == [201, 201, 429]
    await tell.counted(disruptionsAllowed=0, currentHealthy=1)


def a_lease(name: str, **spec: object) -> JsonObject:
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}


async def test_unknown_fields_are_refused_warned_of_or_ignored_as_asked(tell: Storyteller) -> None:
    strict = await tell.call("POST", LEASES, a_lease("a", holder="x"), fieldValidation="Strict")
    assert (strict.status, strict.body["reason"]) == (400, "BadRequest")
    assert strict.body["message"].endswith('strict decoding error: unknown field "spec.holder"')
    warned = await tell.call("POST", LEASES, a_lease("b", holder="x"), fieldValidation="Warn")
    assert (warned.status, warned.headers["warning"]) == (201, '299 - "unknown field \\"spec.holder\\""')
    ignored = await tell.call("POST", LEASES, a_lease("c", holder="x"), fieldValidation="Ignore")
    assert (ignored.status, "warning" in ignored.headers) == (201, False)
    by_default = await tell.call("POST", LEASES, a_lease("d", holder="x"))
    assert (by_default.status, "warning" in by_default.headers) == (201, True)


async def test_unknown_fields_of_custom_resources_are_refused_too(tell: Storyteller) -> None:
    await tell.define(a_definition())
    strict = await tell.call("POST", TALES, tell.tale("a", title="t", unknown=1), fieldValidation="Strict")
    assert strict.status == 400
    assert 'strict decoding error: unknown field "spec.unknown"' in strict.body["message"]


async def test_custom_resources_take_json_patches(tell: Storyteller) -> None:
    await tell.define(a_definition())
    await tell.call("POST", TALES, tell.tale("a", title="one"))
    added = await tell.json_patch(
        f"{TALES}/a",
        {"op": "test", "path": "/spec/title", "value": "one"},
        {"op": "add", "path": "/metadata/annotations", "value": {"x": "1"}},
        {"op": "add", "path": "/spec/pages", "value": 3},
    )
    assert (added.status, added.body["spec"], added.body["metadata"]["generation"]) == (
        200,
        {"title": "one", "pages": 3},
        2,
    )
    missed = await tell.json_patch(f"{TALES}/a", {"op": "test", "path": "/spec/pages", "value": 4})
    assert (missed.status, missed.body["reason"]) == (422, "Invalid")
    removed = await tell.json_patch(f"{TALES}/a", {"op": "remove", "path": "/metadata/annotations"})
    assert (removed.status, "annotations" in removed.body["metadata"]) == (200, False)


async def test_a_rule_keeps_a_field_as_it_was(tell: Storyteller) -> None:
    await tell.define(a_definition())
    await tell.call("POST", TALES, tell.tale("a", title="one", pages=1))
    refused = await tell.merge_patch(f"{TALES}/a", {"spec": {"title": "two"}})
    assert (refused.status, refused.body["reason"]) == (422, "Invalid")
    assert refused.body["message"] == (
        'Tale.stories.rec.example "a" is invalid: spec.title: Invalid value: "string": a title stays'
    )
    assert (await tell.merge_patch(f"{TALES}/a", {"spec": {"pages": 2}})).status == 200


async def test_a_deployment_has_a_scale(tell: Storyteller) -> None:
    labels = {"matchLabels": {"app": "web"}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "pause"}]}}
    body = {"replicas": 0, "selector": labels, "template": template}
    await tell.call(
        "POST", DEPLOYMENTS, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": body}
    )
    seen = await tell.call("GET", f"{DEPLOYMENTS}/web/scale")
    assert (seen.body["kind"], seen.body["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (seen.body["spec"], seen.body["status"]["selector"]) == ({}, "app=web")
    scaled = await tell.merge_patch(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 2}})
    assert (scaled.status, scaled.body["spec"]) == (200, {"replicas": 2})
    deployment = (await tell.call("GET", f"{DEPLOYMENTS}/web")).body
    assert (deployment["spec"]["replicas"], deployment["metadata"]["generation"]) == (2, 2)
    stale = await tell.call("PUT", f"{DEPLOYMENTS}/web/scale", {**seen.body, "spec": {"replicas": 1}})
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")


async def test_a_watch_may_begin_with_what_there_is_and_say_when_that_is_all(tell: Storyteller) -> None:
    for name in ("a", "b"):
        await tell.call("POST", LEASES, a_lease(name))
    asked = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    unmatched = await tell.call("GET", LEASES, watch="1", sendInitialEvents="true")
    assert unmatched.status == 422
    watch = await tell.call("GET", LEASES, watch="1", **asked)
    if watch.status == 422 and WATCH_LIST_IS_OFF in watch.body["message"]:
        pytest.skip("this cluster has its feature gate WatchList switched off")
    assert watch.stream is not None
    events, _ = await read_events(watch.stream, 3, until_the_end=False)
    await watch.stream.aclose()
    names = sorted(event["object"]["metadata"]["name"] for event in events[:2])
    assert ([event["type"] for event in events], names) == (["ADDED", "ADDED", "BOOKMARK"], ["a", "b"])
    assert events[2]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
