"""What a rehearsal looks at: a node and its pods, once and without a write; and what it says if that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from support.shutdowns import BY_KEP, a_pod_of
from support.stage import STOPS_AFTER_5, Stage, a_pod_manifest, staged, the_settings

from gracectl.agent.settings import GATE
from gracectl.cli.agent.rehearsal import FAILURES, NoOrder, RehearsalInput, read_input, run_rehearsal
from gracectl.cli.options import UnknownNodes
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.times import format_time

GROUP: dict[str, Any] = {"selector": {"matchLabels": {"pool": "x"}}}


def reached(stage: Stage) -> Connection:
    return Connection(stage.transport, stage.clock, KubeClient(stage.transport, stage.clock))


async def inputs(stage: Stage, node: str = "n1", **settings: Any) -> RehearsalInput:
    return await read_input(reached(stage), node, the_settings(**(settings or BY_KEP)))


async def test_the_pods_of_the_node_are_seen_by_name_and_nothing_is_written_or_watched() -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(a_pod_manifest("elsewhere", "n2"))
        for name, priority in (("web", 0), ("db", 20_000)):
            await a_pod_of(stage, name, priority)
        result = await run_rehearsal(reached(stage), "n1", the_settings(**BY_KEP))
        assert [pod.name for pod in result.inputs.pods] == ["db", "web"]
        assert [[pod.pod.name for pod in each.pods] for each in result.rehearsal.ranges] == [["web"], [], ["db"], []]
        assert {each.operation.verb for each in stage.transport.executed} == {"get", "list"}


async def test_the_own_pod_is_left_alone_where_it_is_known() -> None:
    async with staged("n1") as stage:
        await a_pod_of(stage, "agent", 0)
        (uid,) = (pod["metadata"]["uid"] for pod in stage.pods_on("n1"))
        result = await run_rehearsal(reached(stage), "n1", the_settings(**BY_KEP), uid)
        assert [pod.name for pod, _ in result.rehearsal.ignored] == ["agent"]


async def test_a_node_that_is_not_there_is_named() -> None:
    async with staged("n1") as stage:
        with pytest.raises(UnknownNodes, match=r"^there is no node n7; `kubectl get nodes` lists") as refusal:
            await inputs(stage, "n7")
        assert FAILURES[type(refusal.value)] == 3


async def test_a_node_without_an_order_is_told_what_is_missing() -> None:
    async with staged("n1") as stage:
        with pytest.raises(NoOrder, match=r"node n1: no shutdown order: .* have no shutdown") as refusal:
            await inputs(stage, leaderElection={"enabled": False})
        assert FAILURES[type(refusal.value)] == 2
        with pytest.raises(NoOrder, match=rf"is ignored: featureGates\.{GATE} is false"):
            await inputs(stage, **BY_KEP, featureGates={GATE: False})
        with pytest.raises(NoOrder, match="have no shutdown"):
            await inputs(stage, nodeGroups=[{**GROUP, "shutdownGracePeriod": "30s"}])


async def test_the_order_is_that_of_the_nodes_group() -> None:
    async with staged("n1") as stage:
        await stage.patch_node("n1", {"metadata": {"labels": {"pool": "x"}}})
        assert (await inputs(stage, **BY_KEP, nodeGroups=[{**GROUP, "shutdownGracePeriod": "30s"}])).order.total == 30
        with pytest.raises(NoOrder):
            await inputs(stage, **BY_KEP, nodeGroups=[{**GROUP, "shutdownGracePeriodByPodPriority": []}])


async def test_the_deadline_counts_once_the_node_is_being_terminated() -> None:
    async with staged("n1") as stage:
        deadline = stage.clock.now() + 100
        annotations = {names.TERMINATION_TIMESTAMP: format_time(deadline)}
        await stage.patch_node("n1", {"metadata": {"annotations": annotations, "finalizers": [names.FINALIZER]}})
        await stage.create(a_pod_manifest("web", "n1", terminationGracePeriodSeconds=300, **STOPS_AFTER_5))
        assert (await inputs(stage)).deadline is None
        await stage.delete_node("n1")
        rehearsal = await run_rehearsal(reached(stage), "n1", the_settings(shutdownGracePeriod="5m"))
        assert rehearsal.inputs.deadline is not None
        assert rehearsal.inputs.deadline == pytest.approx(deadline, abs=1)
        ((web,), *_) = (each.pods for each in rehearsal.rehearsal.ranges)
        assert web.ends is not None
        assert rehearsal.inputs.now + web.ends <= rehearsal.inputs.deadline


async def test_a_server_that_does_not_answer_is_what_the_caller_hears() -> None:
    async with staged("n1") as stage:
        stage.transport.is_listening = False
        with pytest.raises(ApiError):
            await inputs(stage)
