"""Waiting of the benchmarks: it shows what it waits for, and ends with the cause when nothing moves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from support.builders import READY, a_node, a_pod

from benchmarks.ground import nodes
from benchmarks.ground.ground import Ground
from benchmarks.ground.nodes import until_held
from benchmarks.ground.site import Site
from benchmarks.ground.waiting import STILL, Stalled
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.transport.operation import Operation
from gracectl.model.names import FINALIZER
from gracectl.model.node import Node
from gracectl.runtime.clock import LoopClock

pytestmark = pytest.mark.anyio
GROUND = Ground(Path("kubeconfig"), "bench-1", "kwok", Path("."))


class Cluster:
    """That knows these nodes, and nothing else."""

    def __init__(self, *known: Node) -> None:
        self.nodes: Mapping[str, Node] = {node.name: node for node in known}

    async def get(self, resource: Any, key: tuple[str, str]) -> Node:
        if key[1] not in self.nodes:
            raise NotFound(Operation("get", "", "nodes", "", "", key[1]))
        return self.nodes[key[1]]


def a_site(cluster: Cluster) -> Site:
    return Site(GROUND, GROUND, "bench-1-storm", cast(KubeClient, cluster), LoopClock())


async def test_a_wait_without_a_change_ends_with_pods_nodes_and_what_to_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = a_site(Cluster(a_node("n1", conditions=READY), a_node("n2")))
    one.pods.put(a_pod("web-1"))
    one.pods.put(a_pod("web-2", node_name="n2", ready=False, phase="Pending"))
    one.pods.put(a_pod("web-3", node_name="n3", deletion_timestamp=1.0))
    one.pods.put(a_pod("web-4", node_name="", ready=False, phase="Pending"))
    began = anyio.current_time()
    with pytest.raises(Stalled) as failure:
        await one.until(lambda: False, "3 pods to be Ready")
    assert anyio.current_time() - began == pytest.approx(STILL, abs=2)
    assert str(failure.value) == (
        "bench-1-storm: waiting for 3 pods to be Ready: nothing has changed for 60 s: 2 Pending, 1 Ready, 1 terminating"
        "; web-2 is Pending on n2 (not Ready), web-3 is terminating on n3 (gone), web-4 is Pending on no node;"
        " check that kwok runs, and manages nodes with the annotation kwok.x-k8s.io/node=fake"
    )
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == ("  bench-1-storm: waiting for 3 pods to be Ready: 2 Pending, 1 Ready, 1 terminating after 10 s")


async def test_no_time_is_too_long_as_long_as_something_moves() -> None:
    one = a_site(Cluster())

    async def come() -> None:
        for number in range(20):
            await anyio.sleep(STILL - 5)
            one.pods.put(a_pod(f"web-{number}"))

    async with anyio.create_task_group() as group:
        group.start_soon(come)
        await one.until(lambda: len(one.pods) == 20, "20 pods")
    assert anyio.current_time() >= 20 * (STILL - 5)


async def test_nodes_that_no_controller_takes_are_named_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "clock", LoopClock())
    cluster = Cluster(a_node("n1", finalizers=(FINALIZER,)), a_node("n2", conditions=READY))
    with pytest.raises(ExceptionGroup) as failure:
        await until_held(cast(KubeClient, cluster), ["n1", "n2"], lambda: "the controller said: no lease")
    assert str(failure.value.exceptions[0]) == (
        "n1 … n2: nothing has changed for 60 s: 1 of 2 nodes held by the controller;"
        " n2: Ready; the controller said: no lease"
    )
