"""A node is drained for maintenance and stays until it is uncordoned, whatever becomes of controllers meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable

import pytest
from e2e_support import manifests
from e2e_support.program import Program
from e2e_support.story import Story
from kubesim.controllers.objects import is_terminating
from kubesim.server.api import JsonObject
from kubesim_support.kubectl import Kubectl, needs_kubectl

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

OURS = (names.DRAINED, names.VOLUMES_DETACHED)


async def keep(story: Story, node: str) -> None:
    """Request maintenance, and wait until the node is drained."""
    await story.patch("Node", node, {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}})
    await story.sight.until(f"{node} is drained and kept", lambda: is_at_rest(story, node))


async def take_off(story: Story, node: str) -> None:
    await story.patch("Node", node, {"metadata": {"annotations": {names.KEEP_DRAINED: None}}})


async def uncordon(story: Story, node: str) -> None:
    """As kubectl does."""
    await story.patch("Node", node, {"spec": {"unschedulable": None}})


def is_at_rest(story: Story, node: str) -> bool:
    condition = story.condition(node, names.DRAINED)
    return (condition.get("status"), condition.get("reason")) == ("True", "Maintenance")


def is_given_back(story: Story, node: str) -> bool:
    """Nothing of gracectl is left on the node but the finalizer."""
    now = story.sees("Node", node)
    annotations = now["metadata"].get("annotations") or {}
    return (
        not now["spec"].get("unschedulable")
        and all(taint["key"] != names.DISRUPTED_TAINT_KEY for taint in now["spec"].get("taints") or ())
        and names.EXCLUDE_FROM_LOAD_BALANCERS not in (now["metadata"].get("labels") or {})
        and not {names.KEEP_DRAINED, names.CORDONED} & annotations.keys()
        and not any(story.condition(node, type_) for type_ in OURS)
        and story.is_held(node)
    )


async def killed(controller: Program) -> None:
    controller.send(signal.SIGKILL)
    await controller.ended()


def told(story: Story, node: JsonObject, reason: str) -> list[str]:
    return story.events_about(node, reason)


@pytest.mark.parametrize("give_back", [take_off, uncordon])
async def test_a_node_is_drained_for_maintenance_and_returned(
    story: Story, give_back: Callable[[Story, str], Awaitable[None]]
) -> None:
    await story.controller()
    (kept,) = await story.nodes("a")
    node = story.sees("Node", kept)
    critical = {"priorityClassName": "system-cluster-critical"}
    (daemon,) = await story.workload("DaemonSet", "agent", 1)
    (web,) = await story.workload("Deployment", "web", 1, replicas=1)
    dns = await story.pod("dns", on=kept, spec=critical)

    await keep(story, kept)
    first, last = story.sight.over(web), story.sight.asked(dns)
    assert first is not None
    assert last is not None
    assert first.version < last.version, "a wave starts when the one before is over"
    assert last.object["metadata"]["deletionGracePeriodSeconds"] == manifests.GRACE_SECONDS
    assert story.sight.asked(daemon) is None
    assert [pod["metadata"]["name"] for pod in story.pods_on(kept)] == [daemon["metadata"]["name"]]
    assert not is_terminating(story.sees("Node", kept))
    assert story.healthy("web") == []  # there is no other node for it

    await give_back(story, kept)
    await story.sight.until("it is as it was", lambda: is_given_back(story, kept))
    await story.sight.until("its pod is back", lambda: len(story.healthy("web")) == 1)
    await story.sight.until("an Event is emitted", lambda: told(story, node, names.EventReason.UNCORDONED))
    assert story.sees("Node", kept)["metadata"]["uid"] == node["metadata"]["uid"]
    assert story.sight.asked(daemon) is None


async def test_budgets_hold_and_no_pod_is_evicted_after_the_uncordon(story: Story) -> None:
    await story.controller()
    (kept,) = await story.nodes("a")
    pods = await story.workload("Deployment", "web", 3, replicas=3)
    await story.budget("strict", "web", maxUnavailable=1)
    await story.patch("Node", kept, {"metadata": {"annotations": {names.KEEP_DRAINED: ""}}})
    # The first replacement cannot be scheduled, so the budget stays spent.
    await story.sight.until("one is asked", lambda: any(story.sight.asked(pod) for pod in pods))
    await story.sight.until("people are told why", lambda: story.condition(kept, names.DRAINED))
    assert "budget" in story.condition(kept, names.DRAINED)["message"]

    await take_off(story, kept)
    await story.sight.until("it is as it was", lambda: is_given_back(story, kept))
    await story.sight.until("all are well again", lambda: len(story.healthy("web")) == 3)
    assert len([pod for pod in pods if story.sight.asked(pod)]) == 1


async def test_maintenance_survives_kills_of_the_controller(story: Story) -> None:
    """One is killed in the middle of the drain, one while the node rests; the uncordon comes while none runs."""
    first = await story.controller()
    (kept,) = await story.nodes("a")
    slow = await story.pod("slow", on=kept, behaviour={"stop-seconds": "2"})
    await story.patch("Node", kept, {"metadata": {"annotations": {names.KEEP_DRAINED: ""}}})
    await story.sight.until("the pod is asked", lambda: story.sight.asked(slow))
    await killed(first)
    second = await story.controller()
    await story.sight.until("it is drained and kept", lambda: is_at_rest(story, kept))
    await killed(second)
    await take_off(story, kept)
    pod = await story.pod("new", on=kept)
    await story.controller()
    await story.sight.until("it is as it was", lambda: is_given_back(story, kept))
    assert story.sight.asked(pod) is None


async def test_a_node_in_maintenance_that_is_deleted_is_terminated(story: Story) -> None:
    await story.controller()
    (kept,) = await story.nodes("a")
    (daemon,) = await story.workload("DaemonSet", "agent", 1)
    await keep(story, kept)
    await story.delete("Node", kept)
    await story.until_gone(kept)
    assert story.sight.asked(daemon) is not None


async def test_maintenance_of_an_unmanaged_node_is_reported_and_not_started(story: Story) -> None:
    await story.controller()
    await story.nodes("ours")
    (foreign,) = await story.nodes("foreign", managed=False)
    node, pod = story.sees("Node", foreign), await story.pod("web", on=foreign)
    await story.patch("Node", foreign, {"metadata": {"annotations": {names.KEEP_DRAINED: ""}}})
    await story.sight.until("an Event is emitted", lambda: told(story, node, names.EventReason.MAINTENANCE_IGNORED))
    assert not story.sees("Node", foreign)["spec"].get("unschedulable")
    assert story.sight.asked(pod) is None


@needs_kubectl
async def test_kubectl_shows_maintenance_and_ends_it(story: Story) -> None:
    await story.controller()
    (kept,) = await story.nodes("a")
    kubectl = Kubectl(story.target.kubeconfig, story.folder)
    await kubectl("annotate", "node", kept, f"{names.KEEP_DRAINED}=2026-01-01T00:00:00Z")
    await kubectl("wait", "node", kept, "--for=condition=Drained", "--timeout=30s")
    _, row = (await kubectl("get", "node", kept)).splitlines()
    assert row.split()[:2] == [kept, "Ready,SchedulingDisabled"]
    described = await kubectl("describe", "node", kept)
    (condition,) = (line for line in described.splitlines() if line.split()[:2] == ["Drained", "True"])
    assert f"kubectl uncordon {kept}" in condition
    await kubectl("uncordon", kept)
    await story.sight.until("it is as it was", lambda: is_given_back(story, kept))
