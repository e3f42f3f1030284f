"""Every recording of a real API server, replayed: each step is answered as recorded, or as differences.py says."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from conformance.differences import TARGETS, Difference, steps_of
from conformance.known import DIFFERENCES, LEFT_OUT
from conformance.placeholders import Deviation
from conformance.player import Offstage, Player
from conformance.report import Report
from conformance.scenes import SCENES
from conformance.tape import all_names, tape
from conformance.target import Target, Unreachable
from conformance.trims import trim_named

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


@pytest.mark.parametrize("name", all_names())
async def test_is_answered_as_recorded(name: str, target: Target, report: Report) -> None:
    recording, scene = tape(name), SCENES.get(name, Offstage())
    expected = [each for each in DIFFERENCES if name in each.steps and target.kind in TARGETS[each.side]]
    left_out = {
        index: each.reason
        for each in LEFT_OUT
        if each.target == target.kind and each.trait in ("", *target.traits)
        for index in steps_of(each.places).get(name, ())
    }

    def known(index: int, deviation: Deviation) -> bool:
        return any(each.covers(name, index, deviation) for each in expected)

    async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        player = Player(target, recording, scene, known, tasks)
        try:
            await stack.enter_async_context(target.stage(recording.made))
            if scene.has_webhook:
                player.learn("<ca>", await stack.enter_async_context(target.webhook(player.review)))
        except Unreachable as reason:
            left_out = dict.fromkeys(range(len(recording.steps)), str(reason))
        played = await player.play(left_out)
        await stack.aclose()
        tasks.cancel_scope.cancel()

    assert [step.index for step in played] == list(range(len(recording.steps)))
    differences: dict[int, list[Difference]] = {}
    surprises = []
    for step in played:
        for deviation in step.deviations:
            covering = next((each for each in expected if each.covers(name, step.index, deviation)), None)
            if covering is None:
                surprises.append(f"step {step.index} ({recording.steps[step.index].note}): {deviation}")
            elif covering not in differences.setdefault(step.index, []):
                differences[step.index].append(covering)
    stale = [
        f"step {index}: no longer differs: {each.at}: {each.reason}"
        for each in expected
        for index in each.steps[name]
        if each not in differences.get(index, []) and index not in left_out
    ]
    report.add(recording, played, differences, target.kind)
    if surprises or stale:
        pytest.fail("\n".join((f"{name} on the {target.kind} cluster:", *surprises, *stale)), pytrace=False)


def test_no_trim_is_unknown() -> None:
    for name in all_names():
        for step in tape(name).steps:
            trim_named(step.trimmed)


def test_every_step_that_may_differ_says_how_it_is_compared() -> None:
    for name in all_names():
        marked = {index for index, step in enumerate(tape(name).steps) if step.nondeterministic}
        assert marked == set(SCENES.get(name, Offstage()).loosely), name


def test_every_entry_names_steps_that_there_are() -> None:
    for places in (*(each.places for each in DIFFERENCES), *(each.places for each in LEFT_OUT)):
        for name, steps in steps_of(places).items():
            assert set(steps) <= set(range(len(tape(name).steps))), places
