"""Sliced computations: one slice per pass of the event loop, in the order of arrival; a short one awaits nothing."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from gracectl.runtime.slices import Sliced, Slices, run_at_once
from gracectl.runtime.supervise import while_running


def counted(name: str, slices: int, story: list[str]) -> Sliced[str]:
    for number in range(slices):
        story.append(f"{name}{number}")
        if number < slices - 1:
            yield
    return name


async def test_a_short_computation_awaits_nothing() -> None:
    story: list[str] = []
    running = Slices().run(counted("a", 1, story), lambda: story.append("waits"))
    with pytest.raises(StopIteration) as end:
        running.send(None)
    assert (end.value.value, story) == ("a", ["a0"])


async def test_no_two_slices_run_in_one_pass_of_the_event_loop() -> None:
    slices = Slices()
    story: list[str] = []
    passes: list[str] = []

    async def pulse() -> None:
        while True:
            passes.append("".join(story))
            story.clear()
            await anyio.lowlevel.checkpoint()

    async with while_running(pulse), anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(slices.run, counted(name, 4, story))
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        story.clear()  # first slices run when their tasks begin
        passes.clear()
    seen = [slice_ for slice_ in passes if slice_]
    assert seen == ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"][-len(seen) :]
    assert len(seen) >= 7


async def test_what_is_due_meanwhile_is_done_once_and_first() -> None:
    story: list[str] = []
    result = await Slices().run(counted("a", 3, story), lambda: story.append("waits"))
    assert (result, story) == ("a", ["a0", "waits", "a1", "a2"])


async def test_a_cancelled_computation_holds_up_no_other() -> None:
    slices = Slices()
    story: list[str] = []
    with anyio.move_on_after(0):
        await slices.run(counted("a", 1000, story))
    assert len(story) < 1000
    assert await slices.run(counted("b", 3, story)) == "b"


def test_all_at_once() -> None:
    story: list[str] = []
    assert run_at_once(counted("a", 3, story)) == "a"
    assert story == ["a0", "a1", "a2"]
