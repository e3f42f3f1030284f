"""Components run and stop together: failures, graceful stops, and their order."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial

import anyio
import pytest

from gracectl.runtime.supervise import Component, ComponentFailed, ComponentStatistics, ComponentStatus, run_components

End = Callable[[str], None]


async def live(name: str, end: End, shielded_seconds: float = 0.0) -> None:
    """Component that runs for ever, and takes `shielded_seconds` seconds, shielded, to stop."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(shielded_seconds)
        end(name)


async def fail_after(seconds: float, error: Exception) -> None:
    await anyio.sleep(seconds)
    raise error


async def stop_after(seconds: float, stop: anyio.Event) -> None:
    await anyio.sleep(seconds)
    stop.set()


async def test_a_component_that_fails_stops_the_others_with_its_name_and_cause() -> None:
    ended: list[str] = []
    cause = OSError("disk gone")
    with pytest.raises(ComponentFailed, match=r"^watch of pods failed: OSError: disk gone$") as failure:
        await run_components(
            {"other": partial(live, "other", ended.append), "watch of pods": lambda: fail_after(5, cause)},
            anyio.Event(),
        )
    assert (failure.value.component, failure.value.__cause__) == ("watch of pods", cause)
    assert (ended, anyio.current_time()) == (["other"], 5)


async def test_a_component_that_ends_unasked_has_failed_too() -> None:
    ended: list[str] = []
    with pytest.raises(ComponentFailed, match="short failed: ended before it was stopped") as failure:
        await run_components(
            {"short": partial(anyio.sleep, 3), "other": partial(live, "other", ended.append)}, anyio.Event()
        )
    assert failure.value.__cause__ is None
    assert (ended, anyio.current_time()) == (["other"], 3)


async def test_the_cause_is_taken_out_of_the_groups_around_it(caplog: pytest.LogCaptureFixture) -> None:
    first, second = ValueError("first"), ValueError("second")

    async def part() -> None:
        raise ExceptionGroup("outer", [ExceptionGroup("inner", [first]), second])

    with pytest.raises(ComponentFailed, match="ValueError: first") as failure:
        await run_components({"part": part}, anyio.Event())
    assert failure.value.__cause__ is first
    assert [record.getMessage() for record in caplog.records] == ["part failed: ValueError: second"]


async def test_failures_while_the_process_goes_down_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def trip() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("tripped")

    with pytest.raises(ComponentFailed, match="ValueError: first"):
        await run_components({"one": lambda: fail_after(1, ValueError("first")), "two": trip}, anyio.Event())
    assert [record.getMessage() for record in caplog.records] == ["two failed: RuntimeError: tripped"]


async def test_when_stopped_each_component_outlives_those_behind_it() -> None:
    ended: list[tuple[str, float]] = []

    def end(name: str) -> None:
        ended.append((name, anyio.current_time()))

    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(stop_after, 10, stop)
        await run_components(
            {name: partial(live, name, end, shielded_seconds=2.0) for name in ("watch", "events", "nodes")}, stop
        )
    assert ended == [("nodes", 12), ("events", 14), ("watch", 16)]


async def test_a_component_that_ends_too_slowly_is_not_awaited(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[tuple[str, float]] = []

    def end(name: str) -> None:
        ended.append((name, anyio.current_time()))

    stop = anyio.Event()
    stop.set()
    parts = {"quick": partial(live, "quick", end), "slow": partial(live, "slow", end, shielded_seconds=30.0)}
    await run_components(parts, stop, grace_seconds=5)
    assert ended == [("quick", 5), ("slow", 30)]
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "not stopped after 5 s: quick, slow; finishing shielded work only"
    ]


async def test_a_component_that_returns_when_it_is_asked_to_end_has_not_failed() -> None:
    async def part() -> None:
        with anyio.CancelScope() as scope:
            try:
                await anyio.sleep_forever()
            finally:
                scope.cancel()

    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(stop_after, 1, stop)
        await run_components({"part": part}, stop)


async def test_a_component_that_ends_by_itself_because_of_the_stop_has_not_failed() -> None:
    stop = anyio.Event()
    ended: list[str] = []
    async with anyio.create_task_group() as group:
        group.start_soon(stop_after, 1, stop)
        await run_components({"first": stop.wait, "second": partial(live, "second", ended.append, 3.0)}, stop)
    assert ended == ["second"]


async def test_a_component_that_fails_to_end_is_reported_after_all_others_have_ended() -> None:
    ended: list[str] = []

    async def trip() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("tripped")

    stop = anyio.Event()
    stop.set()
    with pytest.raises(ComponentFailed, match="last failed: RuntimeError: tripped"):
        await run_components({"first": partial(live, "first", ended.append, 2.0), "last": trip}, stop)
    assert (ended, anyio.current_time()) == (["first"], 2)


async def test_a_cancellation_from_outside_ends_all_components_without_a_failure() -> None:
    ended: list[str] = []
    with anyio.move_on_after(4):
        await run_components({name: partial(live, name, ended.append) for name in "ab"}, anyio.Event())
    assert (sorted(ended), anyio.current_time()) == (["a", "b"], 4)


async def test_what_fails_during_a_cancellation_from_outside_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def trip() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("tripped")

    with anyio.move_on_after(4) as scope:
        await run_components({"part": trip, "other": anyio.sleep_forever}, anyio.Event())
    assert scope.cancelled_caught
    assert [(r.getMessage(), r.exc_info is not None) for r in caplog.records] == [
        ("part failed: RuntimeError: tripped", True)
    ]


async def test_a_component_that_returns_on_cancellation_has_not_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def part() -> None:
        with contextlib.suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep_forever()

    with anyio.move_on_after(4) as scope:
        await run_components({"part": part, "other": anyio.sleep_forever}, anyio.Event())
    assert scope.cancelled_caught
    assert caplog.records == []


async def test_status_lists_running_and_failed_components() -> None:
    status, stop = ComponentStatus(), anyio.Event()
    assert status.statistics() == ComponentStatistics()
    seen: list[ComponentStatistics] = []

    def look(name: str) -> None:
        seen.append(status.statistics())

    parts: dict[str, Component] = {
        "slow": partial(live, "slow", look, 2.0),
        "sick": lambda: fail_after(5, OSError("disk gone")),
        "other": partial(live, "other", lambda name: None),
    }
    with pytest.raises(ComponentFailed):
        await run_components(parts, stop, status=status)
    assert seen == [ComponentStatistics(running=("slow",), failed=("sick",))]
    assert status.statistics() == ComponentStatistics(failed=("sick",))


async def test_a_stopped_component_is_not_listed() -> None:
    status, stop = ComponentStatus(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(run_components, dict.fromkeys("ab", anyio.sleep_forever), stop, status=status))
        await anyio.sleep(1)
        assert status.statistics() == ComponentStatistics(running=("a", "b"))
        stop.set()
    assert status.statistics() == ComponentStatistics()
