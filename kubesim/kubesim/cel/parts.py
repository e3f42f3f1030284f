"""What the compiler makes of a node, and what macros need of the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kubesim.cel.syntax import Node, Select
from kubesim.cel.types import Type

Scope = Mapping[str, Any]
"""The values of variables."""

Run = Callable[[Scope], Any]
"""Computes a value. Raises EvaluationError."""


class Part(NamedTuple):
    """A part of a program: the type of its value, and what computes it."""

    type: Type
    run: Run


class Field(NamedTuple):
    """A selection: what computes the object, the field's type and real name, and whether the object is optional."""

    operand: Run
    type: Type
    name: str
    through: bool


class Compiling(Protocol):
    """Compiles nodes."""

    def part(self, node: Node) -> Part:
        """A node. Raises CompileError."""
        ...

    def field(self, node: Select) -> Field:
        """A selection. Raises CompileError."""
        ...

    def within(self, variables: Mapping[str, Type]) -> Compiling:
        """A compiler for what variables are bound in."""
        ...
