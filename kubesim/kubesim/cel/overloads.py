"""Functions by name, with their signatures, for the compiler and the evaluator.

A signature is text: `size(string) int`, `string.matches(string) bool` (a method), `_+_(int, int) int` (an operator).
Single capitals are type variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from kubesim.cel import types
from kubesim.cel.errors import no_overload
from kubesim.cel.types import Type
from kubesim.cel.values import CelType, Duration, Maybe, Timestamp

Function = Callable[..., Any]

TYPES: Final[dict[str, tuple[Type, type | tuple[type, ...]]]] = {
    "bool": (types.BOOL, bool),
    "int": (types.INT, int),
    "double": (types.DOUBLE, float),
    "string": (types.STRING, str),
    "bytes": (types.BYTES, str),
    "null_type": (types.NULL, type(None)),
    "type": (types.TYPE, CelType),
    "duration": (types.DURATION, Duration),
    "timestamp": (types.TIMESTAMP, Timestamp),
    "list": (Type("list"), list),
    "map": (Type("map"), dict),
    "optional": (Type("optional_type"), Maybe),
}
"""The types of signatures: as the checker knows them, and what their values are."""

_KINDS: Final = {type_.name: kinds for type_, kinds in TYPES.values()}
_NAME: Final = re.compile(r"(?P<name>[A-Za-z_.@]+?|[!-]_|_.{1,4}_|_\?_:_|_\[_\])\((?P<parameters>.*)\) (?P<result>.+)")
_METHOD: Final = re.compile(r"(?P<target>[a-z]+(?:\([A-Za-z, ()]*\))?|[A-Z])\.(?P<rest>[a-zA-Z]+\(.*)")


class Overload(msgspec.Struct, frozen=True):
    """One signature of a function, and what it does."""

    parameters: tuple[Type, ...]
    result: Type
    call: Function
    is_method: bool

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Whether these values may be handed to it."""
        return len(arguments) == len(self.parameters) and all(map(is_of, self.parameters, arguments))


def is_of(type_: Type, value: Any) -> bool:
    """Whether a value is of a type, as far as can be seen from outside."""
    if type_.is_variable or type_ == types.DYN:
        return True
    kinds = _KINDS[type_.name]
    if kinds is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kinds)


class Library:
    """Functions by name."""

    def __init__(self) -> None:
        self._functions: dict[str, list[Overload]] = {}

    def add(self, *signatures: str) -> Callable[[Function], Function]:
        """A decorator: the function has these signatures."""

        def added(call: Function) -> Function:
            for signature in signatures:
                name, overload = _read(signature, call)
                self._functions.setdefault(name, []).append(overload)
            return call

        return added

    def named(self, name: str, *, is_method: bool) -> list[Overload]:
        """The signatures of a function, or of a method."""
        return [each for each in self._functions.get(name, ()) if each.is_method == is_method]

    def has(self, name: str) -> bool:
        """Whether there is such a function or method."""
        return name in self._functions


def dispatched(overloads: Iterable[Overload]) -> Function:
    """A function that finds the right one of these by the values it is given. Raises EvaluationError."""
    candidates = tuple(overloads)

    def call(*arguments: Any) -> Any:
        for each in candidates:
            if each.takes(arguments):
                return each.call(*arguments)
        raise no_overload()

    return call


def _read(signature: str, call: Function) -> tuple[str, Overload]:
    target: tuple[Type, ...] = ()
    method = _METHOD.fullmatch(signature)
    if method is not None:
        target, signature = (_type(method["target"]),), method["rest"]
    found = _NAME.fullmatch(signature)
    assert found is not None, signature
    parameters = tuple(_type(each) for each in _split(found["parameters"]))
    return found["name"], Overload((*target, *parameters), _type(found["result"]), call, bool(target))


def _split(text: str) -> list[str]:
    parts, depth, start = list[str](), 0, 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts


def _type(text: str) -> Type:
    name, _, inside = text.partition("(")
    if len(name) == 1 or name == "dyn":
        return Type(name)
    return Type(TYPES[name][0].name, *(_type(each) for each in _split(inside.removesuffix(")"))))
