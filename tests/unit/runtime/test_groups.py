"""Failures come out of their groups as they went in."""

from __future__ import annotations

import anyio
import pytest

from gracectl.runtime.supervise import leaves, ungrouped


def test_the_leaves_of_nested_groups_come_in_order() -> None:
    first, second, third = ValueError("1"), KeyError("2"), OSError("3")
    assert list(leaves(ExceptionGroup("outer", [ExceptionGroup("inner", [first, second]), third]))) == [
        first, second, third,
    ]  # fmt: skip
    assert list(leaves(first)) == [first]


async def test_the_first_failure_is_raised_with_its_own_cause() -> None:
    async def fail() -> None:
        raise ValueError("mine") from OSError("its cause")

    async def fail_in_groups() -> None:
        with ungrouped():
            async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
                outer.start_soon(anyio.sleep_forever)
                inner.start_soon(fail)

    with pytest.raises(ValueError, match="mine") as caught:
        await fail_in_groups()
    assert str(caught.value.__cause__) == "its cause"


def test_what_is_in_no_group_passes() -> None:
    with pytest.raises(ValueError, match="mine"), ungrouped():
        raise ValueError("mine")
