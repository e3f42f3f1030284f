"""Many questions that become one call, whichever callers are cancelled meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio
import pytest

from gracectl.runtime.batches import Batcher, BatcherClosed
from gracectl.runtime.clock import LoopClock


class Desk:
    """Answers with the key in capitals after a second; notes what it was asked for, and when."""

    def __init__(self, limit: int = 10) -> None:
        self.clock = LoopClock()
        self.calls: list[tuple[float, list[str]]] = []
        self.cut: list[list[str]] = []
        self.answers: list[str | Exception] = []
        self.failure: Exception | None = None
        self.batches = Batcher[str, str](self.clock, self._call, seconds=0.05, limit=limit)

    async def _call(self, keys: Sequence[str]) -> Mapping[str, str | Exception]:
        self.calls.append((round(self.clock.monotonic(), 3), list(keys)))
        try:
            await self.clock.sleep(1)
        except anyio.get_cancelled_exc_class():
            self.cut.append(list(keys))
            raise
        if self.failure:
            raise self.failure
        return {key: ValueError(key) if key == "bad" else key.upper() for key in keys}

    async def ask(self, key: str, patience: float = 100.0, after: float = 0.0) -> None:
        await self.clock.sleep(after)
        with anyio.move_on_after(patience):
            try:
                self.answers.append(await self.batches.get(key))
            except Exception as error:
                self.answers.append(error)


async def test_what_comes_within_the_window_is_one_call() -> None:
    desk = Desk()
    async with anyio.create_task_group() as group:
        for key, after in (("a", 0.0), ("b", 0.03), ("a", 0.04), ("c", 0.2)):
            group.start_soon(desk.ask, key, 100.0, after)
    assert desk.calls == [(0.05, ["a", "b"]), (0.25, ["c"])]
    assert desk.answers == ["A", "B", "A", "C"]
    assert desk.clock.monotonic() == pytest.approx(1.25)


async def test_a_full_batch_takes_in_only_equal_questions() -> None:
    desk = Desk(limit=2)
    async with anyio.create_task_group() as group:
        for key in ("a", "b", "a", "c", "d", "e"):
            group.start_soon(desk.ask, key)
    assert sorted(keys for _, keys in desk.calls) == [["a", "b"], ["c", "d"], ["e"]]
    assert sorted(map(str, desk.answers)) == ["A", "A", "B", "C", "D", "E"]


async def test_a_caller_during_the_call_gets_a_call_of_its_own() -> None:
    desk = Desk()
    async with anyio.create_task_group() as group:
        group.start_soon(desk.ask, "a")
        group.start_soon(desk.ask, "a", 100.0, 0.5)
    assert desk.calls == [(0.05, ["a"]), (0.55, ["a"])]


async def test_the_exception_of_one_key_is_raised_to_its_callers() -> None:
    desk = Desk()
    async with anyio.create_task_group() as group:
        for key in ("a", "bad", "b"):
            group.start_soon(desk.ask, key)
    assert [str(answer) for answer in desk.answers] == ["A", "bad", "B"]
    assert isinstance(desk.answers[1], ValueError)


async def test_a_call_that_fails_fails_for_all_and_the_next_is_a_new_one() -> None:
    desk = Desk()
    desk.failure = OSError("no way")
    async with anyio.create_task_group() as group:
        for key in ("a", "b"):
            group.start_soon(desk.ask, key)
    assert [str(answer) for answer in desk.answers] == ["no way", "no way"]
    desk.failure = None
    assert await desk.batches.get("a") == "A"


@pytest.mark.parametrize(("patience", "calls", "cut"), [
    (0.02, [(0.05, ["b", "c"])], []),
    (0.5, [(0.05, ["a", "b", "c"]), (0.5, ["b", "c"])], [["a", "b", "c"]]),
], ids=["before it left", "while it was on its way"])  # fmt: skip
async def test_the_next_takes_over_from_a_cancelled_carrier(
    patience: float, calls: list[tuple[float, list[str]]], cut: list[list[str]]
) -> None:
    desk = Desk()
    async with anyio.create_task_group() as group:
        group.start_soon(desk.ask, "a", patience)
        group.start_soon(desk.ask, "b")
        group.start_soon(desk.ask, "c")
    assert (desk.calls, desk.cut, desk.answers) == (calls, cut, ["B", "C"])


async def test_a_cancelled_waiter_disturbs_no_other() -> None:
    desk = Desk()
    async with anyio.create_task_group() as group:
        group.start_soon(desk.ask, "a")
        group.start_soon(desk.ask, "b", 0.5)
        group.start_soon(desk.ask, "c", 0.02)
    assert (desk.calls, desk.cut, desk.answers) == ([(0.05, ["a", "b"])], [], ["A"])


async def test_a_batch_that_all_callers_have_left_is_never_sent_and_takes_no_more() -> None:
    desk = Desk()
    async with anyio.create_task_group() as group:
        group.start_soon(desk.ask, "a", 0.01)
        group.start_soon(desk.ask, "b", 0.01)
        group.start_soon(desk.ask, "c", 100.0, 0.02)
    assert desk.calls == [(0.07, ["c"])]


@pytest.mark.parametrize("after", [0.01, 0.5], ids=["before it left", "while it was on its way"])
async def test_closing_ends_what_is_on_its_way_and_tells_all(after: float) -> None:
    desk = Desk()
    async with anyio.create_task_group() as group:
        for key in ("a", "b"):
            group.start_soon(desk.ask, key)
        await desk.clock.sleep(after)
        await desk.batches.aclose()
        assert len(desk.cut) == len(desk.calls) == (after > 0.05)
    assert [type(answer) for answer in desk.answers] == [BatcherClosed] * 2
    assert desk.clock.monotonic() == pytest.approx(after)
    with pytest.raises(BatcherClosed):
        await desk.batches.get("a")
    await desk.batches.aclose()
