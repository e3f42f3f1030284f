"""What stories about deadlines have in common: nodes deleted at a whole second, and the instants of their pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from kubesim.server.api import JsonObject

from gracectl.app.controller import Controller
from gracectl.config import Settings
from gracectl.controllers.settings import TerminationSettings
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.runtime.clock import Clock
from support.stage import NAMESPACE, Stage, the_settings

START = 100.0
"""When stories delete their nodes: a whole second of every clock, as deletionTimestamps are cut to those."""

WORKERS = 20
CROWD = [f"n{number}" for number in range(WORKERS + 4)]
"""More nodes than `few_workers`, and less than they leave free when they hang."""


def few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give controllers WORKERS workers, a fifth of the usual ones: fewer nodes take all of them."""
    termination = Settings.termination

    def with_few(settings: Settings) -> TerminationSettings:
        usual: TerminationSettings = termination.__get__(settings)
        return msgspec.structs.replace(usual, workers=WORKERS)

    monkeypatch.setattr(Settings, "termination", property(with_few))


@asynccontextmanager
async def controlled(stage: Stage, clock: Clock) -> AsyncIterator[Controller]:
    """A controller on another clock than its cluster's."""
    controller = Controller(stage.settings, stage.transport.line(), clock, stage.provider)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run, stop)
        yield controller
        stop.set()


def with_grace_period(period: str, **more: Any) -> Settings:
    """Settings in which all nodes have this TGP."""
    return the_settings(nodeGroups=[{"selector": {}, "terminationGracePeriod": period}], **more)


async def until(stage: Stage, instant: float) -> None:
    """Wait until so many seconds after START."""
    await stage.clock.sleep(START + instant - stage.clock.monotonic())


async def delete_at_start(stage: Stage, *nodes: str) -> None:
    """Delete these nodes at START."""
    await until(stage, 0.0)
    for node in nodes:
        await stage.delete_node(node)


@asynccontextmanager
async def draining(stage: Stage, *nodes: str, mortal: bool = False) -> AsyncIterator[Controller]:
    """A settled controller, and these nodes deleted at START."""
    async with stage.settled(mortal) as controller:
        await delete_at_start(stage, *nodes)
        yield controller


def written_on(thing: JsonObject | None) -> str:
    """The deadline that stands on a node or claim; "" for none."""
    text: str = ((thing or {}).get("metadata", {}).get("annotations") or {}).get(names.TERMINATION_TIMESTAMP, "")
    return text


def stamp(stage: Stage, instant: float) -> str:
    """As it is written: so many seconds after START by the controller's clock."""
    return format_time(stage.clock.now() - stage.clock.monotonic() + START + instant)


def deletions(stage: Stage) -> list[tuple[str, float, int]]:
    """(pod, seconds after START, grace) of every DELETE of ours that the server has agreed to, in their order."""
    found = []
    for each in stage.transport.of("delete", "pods"):
        if each.status == 200:
            grace = msgspec.json.decode(each.request.body or b"{}").get("gracePeriodSeconds")
            found.append((each.operation.name, round(each.instant - START, 3), grace))
    return found


def evictions(stage: Stage) -> list[tuple[str, float]]:
    """(pod, seconds after START) of every eviction that the server has agreed to."""
    agreed = [each for each in stage.evictions if each.status == 201]
    return [(each.operation.name, round(each.instant - START, 3)) for each in agreed]


def asked_to_end(stage: Stage) -> list[float]:
    """When the provider was called to terminate an instance, in seconds after START."""
    return [round(instant - START, 3) for instant in stage.provider.instants_of("terminate")]


async def told(stage: Stage, name: str, *reasons: str) -> list[str]:
    """The messages of our Events with these reasons on the object of this name."""
    return [message for object_, reason, message in await stage.events() if object_ == name and reason in reasons]


def names_of(pods: Sequence[JsonObject]) -> list[str]:
    """Sorted, of this namespace only."""
    return sorted(pod["metadata"]["name"] for pod in pods if pod["metadata"]["namespace"] == NAMESPACE)
