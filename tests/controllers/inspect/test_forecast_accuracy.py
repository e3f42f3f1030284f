"""What a plan predicts is what then happens: random worlds, told beforehand, then lived through."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio
import msgspec
import pytest
from support.forecasts import REPLACEMENT_SECONDS, World, a_world, create
from support.inprocess import Executed, uid_of
from support.stage import Stage, staged
from support.stories import gracectl_keep, is_at_rest

from gracectl.app.controller import Controller
from gracectl.inspect.forecast import DrainForecast, forecast_drains
from gracectl.policy.answers import Never, Unknown, Window
from gracectl.policy.forecast import Assumptions, NodeForecast, PodForecast
from gracectl.policy.scenario import RemovalMethod
from gracectl.runtime.supervise import while_running

HORIZON = 3 * 3600.0
"""Longer than any protection that ends, and any deadline, in these worlds."""

LATER = (0.05, 0.3, 0.9, 2.7, 8.1, 24.3, 72.9, 218.7)
"""Seconds between later forecasts: some while evictions are charged to a budget and not counted yet."""

SLACK = 1.0
"""Seconds by which what is certain may be off, and what is not may lie outside of its span."""


class Happened(msgspec.Struct, frozen=True):
    """A pod deletion requested for the first time, so many seconds after the nodes were deleted."""

    at: float
    how: RemovalMethod
    grace: int | None


async def predicted(
    stage: Stage, controller: Controller, world: World, *, for_maintenance: bool = False
) -> DrainForecast:
    """What is said of the nodes in question at the beginning of a second, as which the server's timestamps are."""
    await stage.settle(controller)
    await stage.clock.sleep(math.ceil(stage.clock.monotonic()) - stage.clock.monotonic())
    assumptions = Assumptions(replacement_seconds=REPLACEMENT_SECONDS)
    settings, now = world.settings.termination, stage.clock.now()
    return forecast_drains(
        controller._cluster, settings, world.deleted, now, assumptions, for_maintenance=for_maintenance
    )


async def lived_through(
    stage: Stage, controller: Controller, world: World
) -> tuple[DrainForecast, list[DrainForecast]]:
    """Predict in the instant of the deletion, delete, predict again and again, and let all happen."""
    forecast = await predicted(stage, controller, world)
    for name in world.deleted:
        await stage.delete_node(name)
    later: list[DrainForecast] = []

    async def predict_again() -> None:
        for seconds in LATER:
            await stage.clock.sleep(seconds)
            later.append(again(stage, controller, world))

    with anyio.move_on_after(HORIZON):
        async with while_running(predict_again):
            await stage.until_gone(*world.deleted)
    return forecast, later


def again(stage: Stage, controller: Controller, world: World) -> DrainForecast:
    """What is said of the nodes that are draining now; never as one reading has it."""
    cluster = controller._cluster
    asked = [name for name in world.deleted if cluster.node(name) is not None]
    assumptions = Assumptions(replacement_seconds=REPLACEMENT_SECONDS)
    return forecast_drains(cluster, world.settings.termination, asked, stage.clock.now(), assumptions)


async def kept_through(stage: Stage, controller: Controller, world: World) -> tuple[DrainForecast, dict[str, float]]:
    """The same of nodes that are drained for maintenance; also by name when (Unix seconds) each of them was empty."""
    forecast = await predicted(stage, controller, world, for_maintenance=True)
    for name in world.deleted:
        await gracectl_keep(stage, name)
    at_rest: dict[str, float] = {}

    async def wait(name: str) -> None:
        await stage.until(lambda: is_at_rest(stage, name))
        at_rest[name] = stage.clock.now()

    with anyio.move_on_after(HORIZON):
        async with anyio.create_task_group() as group:
            for name in world.deleted:
                group.start_soon(wait, name)
    return forecast, at_rest


def first_words(stage: Stage, begun: float) -> dict[str, Happened]:
    """By pod uid, how it was first told to leave. `begun`: when the nodes were deleted, by the server's clock."""
    start = begun - stage.clock.now() + stage.clock.monotonic()
    happened: dict[str, Happened] = {}
    asked = [(RemovalMethod.EVICTED, each) for each in stage.evictions if each.status == 201]
    asked += [(RemovalMethod.DELETED, each) for each in stage.transport.of("delete", "pods") if each.status == 200]
    for how, each in sorted(asked, key=lambda pair: pair[1].instant):
        happened.setdefault(uid_of(each.request), Happened(round(each.instant - start, 3), how, _grace(each)))
    return happened


def _grace(executed: Executed) -> int | None:
    grace: int | None = msgspec.json.decode(executed.request.body or b"{}").get("gracePeriodSeconds")
    return grace


def differences(pod: PodForecast, happened: Happened | None, now: float) -> list[str]:
    """What happened to a pod, held against what was predicted."""
    name, removal = pod.entry.pod.name, pod.removal
    if removal is None:
        return [f"{name}: not predicted, but {happened}"] if happened else []
    earliest, latest = removal.earliest - now, None if removal.latest is None else removal.latest - now
    if happened is None:
        return [f"{name}: {pod.methods} at {earliest} to {latest}, but nothing happened"] if latest is not None else []
    errors_of_pod = []
    if happened.how not in pod.methods:
        errors_of_pod.append(f"{name}: {pod.methods} predicted, {happened}")
    if not earliest - SLACK <= happened.at <= (float("inf") if latest is None else latest + SLACK):
        errors_of_pod.append(f"{name}: at {earliest} to {latest} predicted, {happened}")
    if pod.is_certain and happened.how is RemovalMethod.DELETED and pod.removals[0].grace != happened.grace:
        errors_of_pod.append(f"{name}: {pod.removals[0]} predicted, {happened}")
    return errors_of_pod


def disorder(pods: list[PodForecast], happened: dict[str, Happened]) -> list[str]:
    """Pairs that were predicted in one order, and left in the other."""
    predicted_pods = [pod for pod in pods if pod.removal is not None and pod.entry.pod.uid in happened]
    return [
        f"{first.entry.pod.name} was to leave before {second.entry.pod.name}"
        for first in predicted_pods
        for second in predicted_pods
        if first.removal
        and second.removal
        and first.removal.latest is not None
        and first.removal.latest < second.removal.earliest
        and happened[first.entry.pod.uid].at > happened[second.entry.pod.uid].at + 0.01
    ]


def ends(stage: Stage, node: NodeForecast) -> float | None:
    """When (Unix seconds) the node's instance was asked to end."""
    instance = stage.instances[node.name]
    journal = [entry for entry in stage.cluster.cloud.journal if entry.id == instance and entry.what == "shutting-down"]
    return journal[0].instant if journal else None


def drains(node: NodeForecast, at: float | None) -> list[str]:
    """When the node was drained, held against what was predicted."""
    match node.drained:
        case Never():
            return [f"{node.name}: never drained predicted, drained at {at}"] if at is not None else []
        case Unknown(_, earliest):
            return [f"{node.name}: not before {earliest}, drained at {at}"] if at and earliest and at < earliest else []
        case Window(_, latest) if at is None:
            return [f"{node.name}: drained by {latest} predicted, never drained"]
        case Window(earliest, latest) if at is not None and not earliest - SLACK <= at <= latest + SLACK:
            return [f"{node.name}: drained at {earliest} to {latest} predicted, drained at {at}"]
    return []


def errors(stage: Stage, forecast: DrainForecast, drained: Callable[[NodeForecast], float | None]) -> list[str]:
    """All in which it came otherwise."""
    now = forecast.whole.at
    happened = first_words(stage, now)
    pods = [pod for node in forecast.nodes for pod in node.forecast.pods]
    all_errors = [each for pod in pods for each in differences(pod, happened.get(pod.entry.pod.uid), now)]
    all_errors += disorder(pods, happened)
    all_errors += [each for node in forecast.nodes for each in drains(node.forecast, drained(node.forecast))]
    return all_errors


@pytest.mark.seeds(3)
async def test_what_is_predicted_happens(seed: int) -> None:
    world = a_world(seed)
    async with staged(settings=world.settings, seed=seed) as stage:
        await create(stage, world)
        async with stage.controller() as controller:
            forecast, later = await lived_through(stage, controller, world)
        all_errors = errors(stage, forecast, lambda node: ends(stage, node))
        for each in later:
            undrained = (node.forecast for node in each.nodes if not node.forecast.plan.drained)
            all_errors += [f"said later: {error}" for node in undrained for error in drains(node, ends(stage, node))]
        assert not all_errors, "\n".join(all_errors)


@pytest.mark.seeds(3)
async def test_what_is_predicted_of_nodes_that_stay_happens(seed: int) -> None:
    world = a_world(seed)
    async with staged(settings=world.settings, seed=seed) as stage:
        await create(stage, world)
        async with stage.controller() as controller:
            forecast, at_rest = await kept_through(stage, controller, world)
        all_errors = errors(stage, forecast, lambda node: at_rest.get(node.name))
        assert not all_errors, "\n".join(all_errors)
        assert not [each for pod in forecast.whole.nodes for each in pod.pods if RemovalMethod.DELETED in each.methods]
