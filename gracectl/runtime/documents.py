"""YAML files that people write, read strictly: a key that stands twice is an error, where only the second would count.

What is wrong is said in one line, without the name of the file, which the caller knows better how to call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class DocumentError(Exception):
    """A document cannot be used; the message says why."""


class _Loader(yaml.SafeLoader):
    """Refuses what YAML forbids and PyYAML accepts: a key that is written twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        # As written: merge keys are resolved later, and what they bring may be overridden.
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"found {key.value!r} twice", problem_mark=key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def file_text(path: Path) -> str:
    """The text of a file. Raises DocumentError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DocumentError("is not UTF-8 text") from error


def document(text: str) -> Any:
    """What a YAML text says; None if it says nothing. Raises DocumentError."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-13-01
        raise DocumentError(f"is not YAML: {' '.join(str(error).split())}") from error
