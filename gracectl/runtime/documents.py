"""Strict parser of YAML files: a duplicate key is an error (PyYAML would let the second win).

Errors are one line, without the name of the file, which the caller knows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class DocumentError(Exception):
    """A document is invalid; the message says why."""


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys, which YAML forbids and PyYAML accepts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        # As written: merge keys are resolved later, and what they bring may be overridden.
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"found {key.value!r} twice", problem_mark=key.start_mark)
            seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


class _PlainLoader(_Loader):
    """Rejects aliases, by which a short text becomes any number of values."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="alias (*) not allowed", problem_mark=mark)
        return super().compose_node(parent, index)


def read_file(path: Path) -> str:
    """Text of a file. Raises DocumentError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DocumentError("is not UTF-8 text") from error


def parse_yaml(text: str, *, allows_aliases: bool = True) -> Any:
    """Value of a YAML text; None if it is empty. Raises DocumentError."""
    try:
        value = yaml.load(text, _Loader if allows_aliases else _PlainLoader)
        if _is_cyclic(value):
            raise ValueError("an anchor (&) contains itself")
        return value
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # ValueError: a date such as 2026-13-01. LookupError, AttributeError: PyYAML's own, for a value that does not
        # fit its tag, such as !!bool often.
        raise DocumentError(f"is not YAML: {' '.join(str(error).split())}") from error


def _is_cyclic(value: Any) -> bool:
    """Whether a value contains itself."""
    around: set[int] = set()
    done: set[int] = set()  # shared values are visited once

    def is_endless(part: Any) -> bool:
        if not isinstance(part, (dict, list)) or id(part) in done:
            return False
        if id(part) in around:
            return True
        around.add(id(part))
        found = any(map(is_endless, part.values() if isinstance(part, dict) else part))
        around.discard(id(part))
        done.add(id(part))
        return found

    return is_endless(value)
