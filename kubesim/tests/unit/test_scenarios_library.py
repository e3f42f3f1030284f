"""Every scenario that ships: it can be read, it settles, and it lives through its timeline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.scenarios.library import names, scenario_named
from kubesim.scenarios.plan import scaled
from kubesim.scenarios.simulation import InitialState, Simulation

pytestmark = pytest.mark.anyio

FACTORS = {"large": 0.02, "huge": 0.002, "largest": 0.0005}
"""How much of a scenario a test can bear."""


@asynccontextmanager
async def settled(name: str) -> AsyncIterator[tuple[Simulation, InitialState, list[str]]]:
    """A scenario of the library that has settled, and what its timeline tells."""
    lines: list[str] = []
    scenario = scaled(scenario_named(name), FACTORS.get(name, 1.0))
    simulation = Simulation(LoopClock(), scenario, tell=lambda at, what: lines.append(f"{at:g} {what}"))
    async with anyio.create_task_group() as group:
        state = await group.start(simulation.run)
        yield simulation, state, lines
        group.cancel_scope.cancel()


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
    async with settled(name) as (simulation, _, lines):
        await simulation.cluster.pace.sleep(end + 30)
        assert len(lines) >= len(steps)
        assert not [what for what in lines if "failed" in what]
