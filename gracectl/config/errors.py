"""Errors of settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(Exception):
    """The settings are invalid; the message has the file or variable, the field and the remedy."""


class InvalidField(Exception):
    """Invalid field of a document: its path (`eviction.qps`), and the reason."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


@contextmanager
def prefix_errors(field: str) -> Iterator[None]:
    """Prefix the ValueErrors of the block with `field`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
