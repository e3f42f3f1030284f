"""A file of secrets or certificates that somebody replaces from time to time, read anew for each use.

Invariant: what cannot be used changes nothing, and is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Replaced(Generic[T]):
    """`read` makes of the content what is wanted; it raises ValueError or OSError for what cannot be used.

    Raises ValueError when it is made, naming the option, if the file cannot be used from the beginning.
    """

    def __init__(self, option: str, path: str, read: Callable[[bytes], T]) -> None:
        self._option = option
        self._path = Path(path)
        self._read = read
        self._complaint = ""
        try:
            self._content = self._path.read_bytes()
            self._value = read(self._content)
        except (OSError, ValueError) as error:
            raise ValueError(f"{option}: {path}: {_in_words(error)}") from error

    def current(self) -> T:
        """As the file has it now, or had it when it could last be used. Small files of a memory file system, so there
        is nothing to wait for."""
        try:
            content = self._path.read_bytes()
            if content != self._content:
                self._value = self._read(content)
                self._content = content
        except (OSError, ValueError) as error:
            self._complain(_in_words(error))
        else:
            self._complaint = ""
        return self._value

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            logger.warning("%s: %s: %s; what it held before is used on", self._option, self._path, text)


def _in_words(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
