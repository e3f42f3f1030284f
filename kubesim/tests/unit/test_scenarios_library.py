"""Every scenario that ships: it can be read, it settles, and it lives through its timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.controllers.objects import is_ready, key_of, labels_of, node_of, phase_of
from kubesim.controllers.paths import BUDGETS, NODES, PODS, path_of
from kubesim.scenarios.library import names, scenario_named, text_of
from kubesim.scenarios.parser import ScenarioError
from kubesim.scenarios.plan import plan_of, scaled
from kubesim.scenarios.simulation import InitialState, Simulation
from kubesim_support.clusters import patch, quiet

pytestmark = pytest.mark.anyio

FACTORS = {"large": 0.02, "huge": 0.002}
"""How much of a scenario a test can bear."""


@asynccontextmanager
async def settled(name: str) -> AsyncIterator[tuple[Simulation, InitialState, list[str]]]:
    """A scenario of the library that has settled, and what its timeline tells."""
    told: list[str] = []
    scenario = scaled(scenario_named(name), FACTORS.get(name, 1.0))
    simulation = Simulation(LoopClock(), scenario, tell=lambda at, what: told.append(f"{at:g} {what}"))
    async with anyio.create_task_group() as group:
        state = await group.start(simulation.run)
        yield simulation, state, told
        group.cancel_scope.cancel()


def test_the_library_has_what_is_promised() -> None:
    promised = (
        "demo empty small budgets protected statefulsets-with-volumes stubborn crowded flaky-server frozen-watches"
    )
    assert set(names()) >= {*promised.split(), "partition", "slow-cloud", "spot-storm", "large", "huge"}


@pytest.mark.parametrize("name", names())
def test_each_is_told_apart_by_one_line(name: str) -> None:
    scenario = scenario_named(name)
    assert scenario.name == name
    assert len(scenario.description) <= 120
    assert scenario.description.endswith(".")
    assert "\n" not in scenario.description
    assert f"name: {name}\n" in text_of(name)


def test_one_that_is_not_there() -> None:
    with pytest.raises(ScenarioError, match="there is no scenario none; choose among budgets, crashing"):
        scenario_named("none")


@pytest.mark.parametrize("name", names())
async def test_each_settles(name: str) -> None:
    async with settled(name) as (simulation, state, _):
        assert state.is_complete
        assert state.nodes == len(simulation.plan.nodes)
        assert state.pods == len(simulation.cluster.pods())


@pytest.mark.parametrize("name", [name for name in names() if scenario_named(name).timeline])
async def test_each_lives_through_its_timeline(name: str) -> None:
    steps = scenario_named(name).timeline
    end = max(step.at + step.every * (step.times - 1) for step in steps)
    async with settled(name) as (simulation, _, told):
        await simulation.cluster.pace.sleep(end + 30)
        assert len(told) >= len(steps)
        assert not [what for what in told if "failed" in what]


def test_the_sizes_are_those_of_the_descriptions() -> None:
    for name, nodes, pods in (("large", 500, 15_000), ("huge", 5_000, 150_000)):
        plan = plan_of(scenario_named(name))
        kinds = Counter(object_["kind"] for object_ in plan.objects)
        replicas = sum(object_["spec"].get("replicas", 0) for object_ in plan.objects if "spec" in object_)
        assert len(plan.nodes) == nodes
        assert replicas + nodes * kinds["DaemonSet"] + len(plan.static_pods) == pods


async def test_budgets_allow_what_their_comments_say() -> None:
    async with settled("budgets") as (simulation, _, _told):
        await quiet()
        _, answer = await simulation.cluster.api.call("GET", BUDGETS)
        allowed = {item["metadata"]["name"]: item["status"]["disruptionsAllowed"] for item in answer["items"]}
        assert allowed == {
            "max-number": 1,
            "max-percent": 3,
            "min-number": 2,
            "min-percent": 1,
            "never-by-number": 0,
            "never-by-percent": 0,
            "only-one": 0,
            "twice": 1,
            "twice-again": 3,
            "unhealthy-if-healthy": 0,
            "unhealthy-always": 0,
            "ordered": 1,
            "alone": 0,
            "no-pods": 0,
            "all-pods": 0,
        }


async def evicted(simulation: Simulation, app: str, node: str) -> int:
    """Evict a pod of an app on a node; returns the status."""
    for pod in simulation.cluster.pods():
        if labels_of(pod)["app"] == app and node_of(pod) == node:
            namespace, name = key_of(pod)
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
            status, _ = await simulation.cluster.api.call("POST", path_of(PODS, namespace, name, "eviction"), body)
            return status
    raise AssertionError(f"no pod of {app} runs on {node}")


async def test_crowded_has_no_room_until_a_node_comes() -> None:
    async with settled("crowded") as (simulation, _, _told):
        cluster = simulation.cluster
        await patch(cluster, path_of(NODES, name="node-1"), {"spec": {"unschedulable": True}})
        assert await evicted(simulation, "web", "node-1") == 201
        await cluster.pace.sleep(60)
        assert [phase_of(pod) for pod in cluster.pods() if not is_ready(pod)] == ["Pending"]
        await cluster.pace.sleep(300)
        assert all(map(is_ready, cluster.pods()))
