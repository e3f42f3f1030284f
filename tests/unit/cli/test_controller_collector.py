"""What the garbage collector is spared in a long-lived controller."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import anyio
import pytest

from gracectl.cli.controller import _freeze_long_lived_objects

MANY = 50_000
"""Far more than comes and goes beside."""


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests want a collector that looks at everything."""
    yield
    gc.unfreeze()


async def test_it_leaves_alone_what_the_caches_hold_once_they_are_live() -> None:
    live = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_freeze_long_lived_objects, live.wait)
        await anyio.lowlevel.checkpoint()
        before = gc.get_freeze_count()
        assert before > 0
        held = [[number] for number in range(MANY)]
        live.set()
    assert gc.get_freeze_count() > before + len(held) / 2


async def test_garbage_of_the_beginning_is_not_kept_for_ever() -> None:
    live = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_freeze_long_lived_objects, live.wait)
        await anyio.lowlevel.checkpoint()
        before = gc.get_freeze_count()
        for number in range(MANY):
            circle: list[object] = [number]
            circle.append(circle)
        live.set()
    assert gc.get_freeze_count() < before + MANY / 2
