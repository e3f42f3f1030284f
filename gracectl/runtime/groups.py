"""What fails inside task groups, out of the groups that they wrap it in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def leaves(error: Exception) -> Iterator[Exception]:
    """The failures themselves, the first one first; an error that is no group is its own leaf."""
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise a failure as it came: where the first one ends all others, nobody asks for those."""
    try:
        yield
    except ExceptionGroup as group:
        first = next(leaves(group))
        raise first from first.__cause__
