"""Pods are evicted as their budgets allow, and the drain ends as soon as they are gone."""

from __future__ import annotations

import pytest
from e2e_support import manifests
from e2e_support.story import Story

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

PODS = 9
AT_ONCE_SECONDS = 5.0
"""Longest wait until a drain continues when its blocker is gone: much less than a retry, enough for a slow machine."""


async def test_never_two_pods_of_one_budget_are_down_on_three_deleted_nodes(story: Story) -> None:
    wire = await story.wire()
    await story.controller(through=wire)
    leaving = await story.nodes("a", "b", "c")
    pods = await story.workload("Deployment", "web", PODS, replicas=PODS)
    await story.budget("web", "web", maxUnavailable=1)
    assert {pod["spec"]["nodeName"] for pod in pods} == set(leaving)
    await story.nodes("refuge")

    before, started = len(story.sight.journal), story.clock.monotonic()
    await story.delete("Node", *leaving)
    await story.until_gone(*leaving)
    assert story.clock.monotonic() - started < story.at_most(40)

    assert story.sight.lowest_health(before, app="web") >= PODS - 1
    assert sorted(wire.agreed) == sorted(pod["metadata"]["uid"] for pod in pods), "each once, and no other pod"
    assert len(wire.evictions) <= 1.1 * PODS
    await story.sight.until("all run elsewhere", lambda: len(story.healthy("web")) == PODS)
    assert {pod["spec"]["nodeName"] for pod in story.healthy("web")} == {f"{story.run}-refuge"}


@pytest.mark.parametrize("bound", [{"maxUnavailable": 0}, {"minAvailable": "100%"}], ids=str)
async def test_a_budget_that_allows_nothing_blocks_the_node_until_it_is_edited(
    story: Story, bound: dict[str, int | str]
) -> None:
    await story.controller()
    (leaving,) = await story.nodes("a")
    (pod,) = await story.workload("Deployment", "web", 1, replicas=1)
    await story.budget("strict", "web", **bound)
    await story.nodes("refuge")

    await story.delete("Node", leaving)
    words = (f"{story.namespace}/{pod['metadata']['name']}", f"{story.namespace}/strict")
    await story.sight.until(
        "the condition names pod and budget",
        lambda: all(word in story.condition(leaving, names.DRAINED).get("message", "") for word in words),
    )
    assert story.condition(leaving, names.DRAINED)["status"] == "False"
    assert story.sight.asked(pod) is None
    # Not maxUnavailable for both: a budget takes one bound only.
    field = next(iter(bound))
    await story.patch("PodDisruptionBudget", "strict", {"spec": {field: 1 if field == "maxUnavailable" else 0}})
    await story.until_gone(leaving, seconds=story.at_most(AT_ONCE_SECONDS))


async def test_two_budgets_over_one_pod_are_reported_until_one_is_deleted(story: Story) -> None:
    await story.controller()
    (leaving,) = await story.nodes("a")
    pod = await story.pod("web", on=leaving)
    await story.budget("first", "web", minAvailable=0)
    await story.budget("second", "web", minAvailable=0)

    await story.delete("Node", leaving)
    await story.sight.until(
        "an Event names both budgets",
        lambda: any(
            f"{story.namespace}/first" in message and f"{story.namespace}/second" in message
            for message in story.events_about(pod, names.EventReason.MULTIPLE_BUDGETS)
        ),
    )
    assert story.sight.asked(pod) is None
    await story.delete("PodDisruptionBudget", "second")
    await story.until_gone(leaving, seconds=story.at_most(AT_ONCE_SECONDS))


async def test_an_unready_pod_is_evicted_under_a_spent_budget_when_enough_others_are_healthy(story: Story) -> None:
    await story.controller()
    leaving, staying = await story.nodes("a", "b")
    for number in range(2):
        await story.pod(f"well-{number}", on=staying, labels={"app": "web"})
    await story.create(
        manifests.pod("ill", story.run, on=leaving, labels={"app": "web"}, behaviour={"never-ready": "true"})
    )
    await story.budget("web", "web", minAvailable=2)
    await story.sight.until("it runs", lambda: story.sees("Pod", "ill").get("status", {}).get("phase") == "Running")

    await story.delete("Node", leaving)
    await story.until_gone(leaving, seconds=story.at_most(2 * AT_ONCE_SECONDS))
    assert len(story.healthy("web")) == 2


async def test_an_unready_pod_under_always_allow_is_evicted_whatever_the_others_are(story: Story) -> None:
    await story.controller()
    leaving, staying = await story.nodes("a", "b")
    await story.pod("well", on=staying, labels={"app": "web"})
    await story.create(
        manifests.pod("ill", story.run, on=leaving, labels={"app": "web"}, behaviour={"never-ready": "true"})
    )
    await story.budget("web", "web", minAvailable=2)
    await story.sight.until("it runs", lambda: story.sees("Pod", "ill").get("status", {}).get("phase") == "Running")

    await story.delete("Node", leaving)
    await story.sight.until(
        "the condition names the budget",
        lambda: f"{story.namespace}/web" in story.condition(leaving, names.DRAINED).get("message", ""),
    )
    edited = await story.patch(
        "PodDisruptionBudget", "web", {"spec": {"unhealthyPodEvictionPolicy": names.ALWAYS_ALLOW}}
    )
    if "unhealthyPodEvictionPolicy" not in edited["spec"]:
        pytest.skip("this server is older than unhealthyPodEvictionPolicy and drops it")
    await story.until_gone(leaving, seconds=story.at_most(AT_ONCE_SECONDS))


async def test_a_stateful_pod_recreated_elsewhere_under_its_name_is_left_alone(story: Story) -> None:
    wire = await story.wire()
    await story.controller(through=wire)
    (leaving,) = await story.nodes("a")
    (pod,) = await story.workload("StatefulSet", "db", 1, replicas=1)
    await story.budget("db", "db", maxUnavailable=0)
    (refuge,) = await story.nodes("refuge")

    await story.delete("Node", leaving)
    await story.sight.until(
        "the pod waits for its budget",
        lambda: f"{story.namespace}/db" in story.condition(leaving, names.DRAINED).get("message", ""),
    )
    # Another client deletes it; its name is back at once, and the budget allows the eviction of its namesake.
    await story.delete("Pod", "db-0", preconditions={"uid": pod["metadata"]["uid"]})
    await story.until_gone(leaving)
    await story.sight.until("it is back", lambda: story.healthy("db"))
    (namesake,) = story.healthy("db")
    await story.patch("PodDisruptionBudget", "db", {"spec": {"maxUnavailable": 1}})
    await story.counted("db")
    await story.clock.sleep(1.0)

    assert namesake["spec"]["nodeName"] == refuge
    assert namesake["metadata"]["uid"] != pod["metadata"]["uid"]
    assert story.sight.asked(namesake) is None
    assert wire.evictions == []
