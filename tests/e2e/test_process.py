"""The controller as a process: SIGKILL, SIGTERM once and twice, restarts."""

from __future__ import annotations

import signal
from pathlib import Path

import aiohttp
import anyio
import orjson
import pytest
from e2e_support.program import Program, running
from e2e_support.sight import ClusterWatcher, Scope
from e2e_support.story import TIMES, Story
from e2e_support.target import Target, embedded_cluster
from e2e_support.wire import Hold
from kubesim.controllers.client import ApiClient
from kubesim.controllers.paths import NODES, PODS, path_of
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE
from support.servers import free_port

from benchmarks.ground.hollow import connected
from gracectl.model.names import DO_NOT_DISRUPT, FINALIZER
from gracectl.runtime.clock import SystemClock

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

PODS_OF_ONE_BUDGET = 6


async def reached(hold: Hold) -> None:
    """Wait until an eviction has reached the gate."""
    with anyio.fail_after(PATIENCE):
        await hold.reached.wait()


async def one_pod_on_a_deleted_node(story: Story) -> str:
    """A controller's smallest job; returns the pod's uid."""
    (leaving,) = await story.nodes("a")
    pod = await story.pod("web", on=leaving)
    await story.delete("Node", leaving)
    uid: str = pod["metadata"]["uid"]
    return uid


async def test_a_drain_whose_controller_was_killed_is_finished_by_the_next_one(story: Story) -> None:
    wire = await story.wire()
    first = await story.controller(through=wire)
    leaving = await story.nodes("a", "b")
    # Slow to stop, so that the next controller finds pods that the first has evicted and that are still there.
    pods = await story.workload(
        "Deployment", "web", PODS_OF_ONE_BUDGET, replicas=PODS_OF_ONE_BUDGET, behaviour={"stop-seconds": "3"}
    )
    await story.budget("web", "web", maxUnavailable=1)
    await story.nodes("refuge")

    # The worst instant: the server has granted it, the pod terminates, and the controller never gets the answer.
    hold = wire.hold("answer", agreements=3)
    before = len(story.sight.journal)
    await story.delete("Node", *leaving)
    await reached(hold)
    first.send(signal.SIGKILL)
    assert await first.ended() == -signal.SIGKILL
    hold.go_on.set()

    await story.controller(through=wire)
    await story.until_gone(*leaving)
    assert sorted(wire.agreed) == sorted(pod["metadata"]["uid"] for pod in pods), "each once, and no other pod"
    assert story.sight.lowest_health(before, app="web") >= PODS_OF_ONE_BUDGET - 1
    for pod in pods:
        ends = {
            seen.object["metadata"].get("deletionTimestamp")
            for seen in story.sight.events("Pod", pod["metadata"]["uid"])
            if seen.object["metadata"].get("deletionGracePeriodSeconds")  # the kubelet's own last DELETE has none
        }
        assert len(ends) == 1, "its grace was not shortened"


async def test_sigterm_finishes_the_eviction_in_flight_and_exits_with_0(story: Story) -> None:
    wire = await story.wire()
    controller = await story.controller(through=wire)
    hold = wire.hold("request")
    uid = await one_pod_on_a_deleted_node(story)
    await reached(hold)

    controller.send(signal.SIGTERM)
    await controller.until_said("stopping")
    await story.clock.sleep(0.3)
    assert controller.exit_code is None, "it waits for the answer"
    hold.go_on.set()
    assert await controller.ended(story.at_most(5)) == 0
    assert wire.agreed == [uid]
    assert [entry["uid"] for entry in controller.said("pod evicted")] == [uid]
    assert_json_lines(controller)


def assert_json_lines(controller: Program) -> None:
    """Every line of its log is one JSON object with the documented keys."""
    lines = controller.text().splitlines()
    assert lines
    for line in lines:
        assert {"ts", "level", "logger", "message"} <= orjson.loads(line).keys()


async def test_sigterm_stops_an_idle_controller_with_0(story: Story) -> None:
    controller = await story.controller()
    (node,) = await story.nodes("a")
    controller.send(signal.SIGTERM)
    assert await controller.ended(story.at_most(5)) == 0
    assert_json_lines(controller)
    assert story.is_held(node), "what it has promised stays"


async def test_a_second_sigterm_stops_it_at_once(story: Story) -> None:
    wire = await story.wire()
    controller = await story.controller(through=wire)
    hold = wire.hold("request")
    await one_pod_on_a_deleted_node(story)
    await reached(hold)

    controller.send(signal.SIGTERM)
    await controller.until_said("stopping")
    assert controller.exit_code is None
    controller.send(signal.SIGTERM)
    assert await controller.ended(story.at_most(2)) == 128 + signal.SIGTERM
    assert wire.evictions == []


async def test_probes_and_metrics_of_the_process(story: Story) -> None:
    """Over HTTP, from its beginning to its end; all three paths at one address."""
    listen = f"127.0.0.1:{free_port()}"
    wire = await story.wire()
    controller = await story.controller(through=wire, metrics={"listen": listen}, probes={"listen": listen})
    await controller.until_said("/readyz: serving at")
    hold = wire.hold("request")
    await one_pod_on_a_deleted_node(story)
    await reached(hold)
    async with aiohttp.ClientSession(f"http://{listen}") as session:

        async def asked(path: str) -> tuple[int, str]:
            async with session.get(path) as answer:
                return answer.status, await answer.text()

        assert [(await asked(path))[0] for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 200]
        metrics = (await asked("/metrics"))[1]
        assert 'gracectl_terminations{kind="node",step="drain"} 1.0\n' in metrics
        assert "gracectl_leader 1.0\n" in metrics
        assert "\nprocess_resident_memory_bytes " in metrics

        controller.send(signal.SIGTERM)
        await controller.until_said("stopping")
        assert await asked("/readyz") == (503, (await asked("/readyz"))[1])
        assert "FAILED running: stopping\n" in (await asked("/readyz"))[1]
        assert (await asked("/healthz"))[0] == 200, "it finishes what it has begun"
        hold.go_on.set()
        assert await controller.ended(story.at_most(5)) == 0


async def test_changed_settings_count_while_it_runs(story: Story) -> None:
    controller = await story.controller(eviction={"qps": 7})
    (leaving,) = await story.nodes("a")
    await story.pod("guarded", on=leaving, annotations={DO_NOT_DISRUPT: "true"})
    await story.delete("Node", leaving)
    await controller.until_said("Draining")
    whole = controller.settings()
    controller.write_settings("eviction: {qps: -1}")
    await controller.until_said("eviction.qps: Expected `float` >= 0.0, got -1")
    controller.write_settings(whole)
    controller.configure(protection={"maximumSeconds": 1}, log={"level": "info"}, metrics={"listen": ":1"})
    await controller.until_said("settings changed: protection.maximumSeconds")
    assert controller.said("settings file: valid again")
    await controller.until_said("settings changed, restart needed: metrics.listen")
    await story.until_gone(leaving)
    assert controller.exit_code is None


async def test_no_instance_is_left_when_a_controller_was_killed(tmp_path: Path) -> None:
    """On a simulated cluster of its own, whatever the others run against: only there can instances be counted."""
    with embedded_cluster(tmp_path, "--nodes", "5", "--pods", "40", "--speed", "4") as kubeconfig:
        async with connected(kubeconfig) as api, anyio.create_task_group() as group:
            sight = ClusterWatcher(api, SystemClock(), Scope("Node", NODES, {}), Scope("Pod", PODS, {}))
            await group.start(sight.run)
            leaving = sight.all("Node")[:3]
            await drain_with_two_controllers(sight, api, leaving, Target(kubeconfig, "demo"))
            for node in leaving:
                id_ = node["spec"]["providerID"].rsplit("/", 1)[-1]
                status, instance = await api.call("GET", f"/cloud/v1/instances/{id_}")
                assert status == 404 or instance["state"] == "terminated"
            group.cancel_scope.cancel()


async def drain_with_two_controllers(
    sight: ClusterWatcher, api: ApiClient, leaving: list[JsonObject], target: Target
) -> None:
    """Delete nodes; one controller is killed once pods terminate, another finishes."""
    endpoint = target.config["clusters"][0]["cluster"]["server"]
    settings = {
        "provider": {"name": "simulated", "options": {"endpoint": endpoint}},
        "drain": {"minimumSeconds": 0.3},
        "leaderElection": {"leaseDurationSeconds": 5, **TIMES},
    }
    folder = target.kubeconfig.parent

    def is_held(node: JsonObject) -> bool:
        return FINALIZER in node["metadata"].get("finalizers", ())

    async with running(target.kubeconfig, settings, folder) as first:
        await sight.until("all nodes are held", lambda: all(map(is_held, sight.all("Node"))))
        for node in leaving:
            await api.call("DELETE", path_of(NODES, name=node["metadata"]["name"]))
        await sight.until("pods are leaving", lambda: any(map(sight.asked, sight.all("Pod"))))
        first.send(signal.SIGKILL)
        await first.ended()
    assert all(sight.gone("Node", node) is None for node in leaving), "killed in the middle"
    async with running(target.kubeconfig, settings, folder):
        await sight.until("they are gone", lambda: all(sight.gone("Node", node) for node in leaving))
