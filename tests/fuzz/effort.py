"""Bounds on work and memory by counting: calls of functions and bytes of values, for each byte of the input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

CALLS_PER_BYTE, BYTES_PER_BYTE = 40, 200
CALLS, BYTES = 60_000, 100_000
"""For the smallest of inputs."""


class TooMuchWork(BaseException):
    """More calls than the input is worth. Not an Exception: handlers of those must not handle this."""


@contextmanager
def bounded_work(size: int, share: int = 1) -> Iterator[None]:
    """Raise TooMuchWork when the block makes more calls than an input of so many bytes is worth, `share` times over."""
    left = (CALLS + CALLS_PER_BYTE * size) * share

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_call"):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise TooMuchWork(f"more than {(CALLS + CALLS_PER_BYTE * size) * share} calls for {size} bytes")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def assert_small(value: object, size: int) -> None:
    """AssertionError if a value that was made of so many bytes is much larger."""
    held, seen, row = 0, set[int](), [value]
    while row:
        each = row.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        # Raw does not know its size; it is a view of the input.
        held += len(bytes(each)) if isinstance(each, msgspec.Raw) else sys.getsizeof(each)
        if isinstance(each, dict):
            row += (*each.keys(), *each.values())
        elif isinstance(each, (list, tuple, set, frozenset)):
            row += each
        elif isinstance(each, msgspec.Struct):
            row += (getattr(each, field) for field in each.__struct_fields__)
    assert held <= BYTES + BYTES_PER_BYTE * size, f"{held} bytes are held of {size}"
