"""Bounds on work and memory: calls of functions and bytes of values, for each byte of the input; and CPU time.

Calls and bytes are counted, so the bounds are the same on every machine. What one call does in C (a regular expression)
is bounded by the CPU time of the process, amply.
"""

from __future__ import annotations

import signal
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

CALLS_PER_BYTE, BYTES_PER_BYTE = 40, 200
CALLS, BYTES = 60_000, 100_000
"""For the smallest of inputs."""


PEAK, PEAK_PER_BYTE = 4 * 1024 * 1024, 60
"""Bytes at a time for any input, and for each of its bytes."""
CPU_SECONDS = 5.0
"""For any input; ordinary ones take milliseconds."""


class TooMuchWork(BaseException):
    """More work than the input is worth. Not an Exception: handlers of those must not handle this."""


@contextmanager
def bounded_work(size: int, share: int = 1, seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Raise TooMuchWork when the block does more than an input of so many bytes is worth, `share` times over."""
    left = (CALLS + CALLS_PER_BYTE * size) * share

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_call"):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise TooMuchWork(f"more than {(CALLS + CALLS_PER_BYTE * size) * share} calls for {size} bytes")

    def expire(number: int, frame: FrameType | None) -> None:
        raise TooMuchWork(f"more than {seconds:g} s of CPU time for {size} bytes")

    before, handler = sys.getprofile(), signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)


@contextmanager
def bounded_memory(size: int, share: int = 1) -> Iterator[None]:
    """AssertionError when the block allocates more at a time than an input of so many bytes is worth."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    allowed = PEAK + PEAK_PER_BYTE * size * share
    assert peak <= allowed, f"{peak:,} bytes are allocated for {size:,}; {allowed:,} are enough"


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
