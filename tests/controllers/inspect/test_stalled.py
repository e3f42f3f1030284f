"""Forecasts of drains with replacements that find no node, as commands make them, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kubesim.server.api import JsonObject
from support.clients import a_client, asked_pods, named
from support.stage import Stage, a_budget_manifest, a_workload, staged

from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.inspect.forecast import draining_nodes
from gracectl.inspect.progress import forecast_of
from gracectl.inspect.status import is_active
from gracectl.inspect.watcher import snapshot
from gracectl.kube.connection import Connection
from gracectl.policy.answers import Answer, Unknown, Window
from gracectl.policy.forecast import Assumptions
from gracectl.runtime.supervise import while_running

NO_NODE = "when a node takes the Pending pods of Deployment shop/web"
UNBOUND = "list spec.nodeName=,status.phase=Pending"


def web(**selector: str) -> list[JsonObject]:
    """A Deployment with three pods that run only on nodes with these labels, of which one may be missing."""
    deployment = a_workload("Deployment", "web", 3, pod={"nodeSelector": selector})
    return [deployment, a_budget_manifest("web", maxUnavailable=1)]


@asynccontextmanager
async def a_full_node() -> AsyncIterator[tuple[Stage, float]]:
    """Node n1 with all of them, and a node that takes none; n1 is deleted, and when."""
    async with staged("n1", labels={"pool": "a"}, objects=web(pool="a")) as stage, stage.controller() as controller:
        await stage.add_nodes("n2")
        await stage.settle(controller)
        yield stage, await stage.delete_node("n1")


@pytest.mark.parametrize("is_endless", [False, True], ids=["status -w", "board"])
async def test_a_replacement_that_finds_no_node_makes_the_end_unknown(is_endless: bool) -> None:
    """Its creation is known in whole seconds: two seconds later it is a sign, until a node comes."""
    said: list[tuple[float, Answer]] = []
    async with a_full_node() as (stage, deleted):
        connection = Connection(stage.transport.line(), stage.clock, a_client(stage))
        follower = StatusFollower(connection, stage.settings, StatusScope(is_active), is_endless=is_endless)

        def show(frame: StatusFrame) -> bool:
            for node in frame.nodes:
                answer = node.drained if node.forecast is not None else None
                if answer is not None and (not said or type(said[-1][1]) is not type(answer)):
                    said.append((stage.clock.monotonic() - deleted, answer))
            return stage.node("n1") is None

        async def help_out() -> None:
            await stage.clock.sleep(60)
            await stage.add_nodes("n3", labels={"pool": "a"})

        async with while_running(help_out):
            await follower.run(show)
    (first, early), (second, stuck), *rest = said
    assert (first, second) == (0.25, 3.0)
    assert isinstance(early, Window)
    assert isinstance(stuck, Unknown)
    assert stuck.missing == (NO_NODE,)
    assert rest == []


async def test_one_look_sees_it_and_reads_no_more_than_it_must() -> None:
    """Pods without a node are read once a budget lacks pods."""
    async with a_full_node() as (stage, deleted):
        read, answers = [], []
        for after in (0.0, 0.5, 5.0):
            await stage.clock.sleep(deleted + after - stage.clock.monotonic())
            stage.transport.executed.clear()
            cluster, now = await snapshot(a_client(stage), named("n1")), stage.clock.now()
            read.append(UNBOUND in asked_pods(stage))
            forecast = forecast_of(draining_nodes(cluster, stage.settings.termination, now), now, Assumptions())
            assert forecast is not None
            answers.append(forecast.nodes[0].drained)
    assert read == [False, True, True]
    assert [type(each) for each in answers] == [Window, Window, Unknown]
    assert getattr(answers[-1], "missing", None) == (NO_NODE,)
