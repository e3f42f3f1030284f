"""Which field is meant, in front of what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named(field: str) -> Iterator[None]:
    """A ValueError of the block gets `field` in front."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
