"""A deleted node is held, cordoned, drained by kinds of pods, and removed."""

from __future__ import annotations

import pytest
from e2e_support import manifests
from e2e_support.story import Story
from kubesim.server.api import JsonObject

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


def is_cordoned(node: JsonObject) -> bool:
    """Both parts of the cordon: unschedulable, no traffic from load balancers."""
    return node["spec"].get("unschedulable") is True and names.EXCLUDE_FROM_LOAD_BALANCERS in (
        node["metadata"].get("labels") or {}
    )


def is_tainted(node: JsonObject) -> bool:
    """What also keeps DaemonSet pods off, once they leave."""
    taints = [(taint["key"], taint["effect"]) for taint in node["spec"].get("taints") or ()]
    return (names.DISRUPTED_TAINT_KEY, "NoSchedule") in taints


async def test_a_deleted_node_is_cordoned_drained_wave_by_wave_and_removed(story: Story) -> None:
    await story.controller()
    (node_name,) = await story.nodes("a")
    node = story.sees("Node", node_name)
    disrupted = {"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}
    critical = {"priorityClassName": "system-cluster-critical"}
    await story.create(manifests.workload("DaemonSet", "agent", story.run))
    await story.create(manifests.workload("DaemonSet", "network", story.run, spec=critical))
    await story.create(manifests.workload("Deployment", "web", story.run, replicas=3))
    await story.create(manifests.pod("dns", story.run, on=node_name, spec=critical))
    await story.create(manifests.pod("lonely", story.run, on=node_name))
    await story.create(manifests.pod("stays", story.run, on=node_name, tolerations=(disrupted,)))
    await story.create(manifests.mirror("static", node, story.run))
    await story.create(manifests.pod("job", story.run, on=node_name, spec={"restartPolicy": "Never"}))
    await story.sight.until(
        "all pods are ready",
        lambda: (
            all(map(story.ready, ("dns", "lonely", "stays", "static", "job")))
            and [len(story.healthy(app)) for app in ("agent", "network", "web")] == [1, 1, 3]
        ),
    )
    await story.patch("Pod", "job", {"status": {"phase": "Succeeded"}}, status=True)

    waves = [
        [*story.healthy("web"), story.sees("Pod", "lonely")],
        story.healthy("agent"),
        [story.sees("Pod", "dns")],
        story.healthy("network"),
    ]
    stays = [story.sees("Pod", name) for name in ("stays", "static", "job")]
    await story.delete("Node", node_name)
    await story.until_gone(node_name)

    cordoned = next(seen for seen in story.sight.events("Node", node["metadata"]["uid"]) if is_cordoned(seen.object))
    tainted = next(seen for seen in story.sight.events("Node", node["metadata"]["uid"]) if is_tainted(seen.object))
    left = story.sight.gone("Node", node)
    assert left is not None
    last_over = cordoned.version
    for wave in waves:
        asked = [seen for pod in wave if (seen := story.sight.asked(pod))]
        over = [seen for pod in wave if (seen := story.sight.over(pod))]
        assert len(asked) == len(over) == len(wave)
        assert last_over < min(seen.version for seen in asked), "a wave starts when the one before is over"
        last_over = max(seen.version for seen in over)
        for seen in asked:
            assert seen.object["metadata"]["deletionGracePeriodSeconds"] == manifests.GRACE_SECONDS
    assert last_over < left.version
    first, agents = (min(seen.version for pod in wave if (seen := story.sight.asked(pod))) for wave in waves[:2])
    assert first < tainted.version < agents, "DaemonSet pods may come until theirs leave"
    for pod in stays:
        touched = story.sight.asked(pod)
        assert touched is None or touched.version > left.version, f"{pod['metadata']['name']} was to stay"
    for seen in story.sight.events("Pod", waves[0][0]["metadata"]["uid"]):
        disruption = [c for c in seen.object["status"].get("conditions", ()) if c["type"] == "DisruptionTarget"]
        assert all(c["reason"] == "EvictionByEvictionAPI" for c in disruption), "evicted, not deleted"


async def test_an_evicted_stateful_pod_is_recreated_on_another_node_and_stays(story: Story) -> None:
    await story.controller()
    (leaving,) = await story.nodes("a")
    (pod,) = await story.workload("StatefulSet", "db", 1, replicas=1)
    (refuge,) = await story.nodes("refuge")

    await story.delete("Node", leaving)
    await story.until_gone(leaving)
    await story.sight.until("it is back", lambda: story.healthy("db"))
    (namesake,) = story.healthy("db")
    assert namesake["metadata"]["name"] == pod["metadata"]["name"]
    assert namesake["metadata"]["uid"] != pod["metadata"]["uid"]
    assert namesake["spec"]["nodeName"] == refuge
    assert story.sight.asked(namesake) is None


async def test_an_unmanaged_node_is_deleted_without_a_drain(story: Story) -> None:
    await story.controller()
    await story.nodes("ours")
    (foreign,) = await story.nodes("foreign", managed=False)
    pod = await story.pod("web", on=foreign)
    before = story.sees("Node", foreign)

    await story.delete("Node", foreign)
    await story.until_gone(foreign, seconds=story.at_most(5))
    for seen in story.sight.events("Node", before["metadata"]["uid"]):
        assert not is_cordoned(seen.object)
        assert names.FINALIZER not in seen.object["metadata"].get("finalizers", ())
    assert story.events_about(pod, names.EventReason.EVICTED) == []


async def test_an_unmanaged_node_with_the_finalizer_is_reported_and_left_alone(story: Story) -> None:
    await story.controller()
    await story.nodes("ours")
    (foreign,) = await story.nodes("foreign", managed=False)
    pod = await story.pod("web", on=foreign)
    await story.patch("Node", foreign, {"metadata": {"finalizers": [names.FINALIZER]}})
    node = story.sees("Node", foreign)

    await story.delete("Node", foreign)
    await story.sight.until(
        "an Event says what holds it", lambda: story.events_about(node, names.EventReason.UNMANAGED_NODE_HELD)
    )
    assert not is_cordoned(story.sees("Node", foreign))
    assert story.sight.asked(pod) is None


async def test_the_cordon_keeps_foreign_taints_labels_and_finalizers(story: Story) -> None:
    await story.controller()
    own = [
        {"key": "example.com/soft", "value": "x", "effect": "PreferNoSchedule"},
        {"key": "example.com/hard", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"},
    ]
    (leaving,) = await story.nodes("a", unschedulable=True, taints=own)
    before = story.sees("Node", leaving)
    assert all(taint in before["spec"]["taints"] for taint in own)
    pod = await story.pod(
        "web", on=leaving, tolerations=({"key": "example.com/hard", "operator": "Exists", "effect": "NoExecute"},)
    )

    await story.delete("Node", leaving)
    await story.until_gone(leaving)
    cordoned = [
        seen.object for seen in story.sight.events("Node", before["metadata"]["uid"]) if is_cordoned(seen.object)
    ]
    assert cordoned
    for node in cordoned:
        assert all(taint in node["spec"]["taints"] for taint in own)
        assert before["metadata"]["labels"].items() <= node["metadata"]["labels"].items()
    assert story.sight.asked(pod) is not None
