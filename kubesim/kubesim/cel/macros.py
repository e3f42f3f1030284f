"""Macros: what looks like a function and binds variables, or asks whether a field is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kubesim.cel import types
from kubesim.cel.errors import CompileError, EvaluationError, no_overload
from kubesim.cel.parts import Compiling, Part, Run
from kubesim.cel.syntax import Invocation, Name, Node, Select
from kubesim.cel.types import BOOL, DYN, Type

Macro = Callable[[Compiling, Invocation], Part]


def _has(compiler: Compiling, node: Invocation) -> Part:
    asked = node.arguments[0]
    if not isinstance(asked, Select) or asked.optional:
        raise CompileError("invalid argument to has() macro", asked.offset)
    operand, _, field, through = compiler.field(asked)

    def run(scope: Mapping[str, Any]) -> bool:
        found = operand(scope)
        if through:
            found = found.values[0] if found.values else {}
        if not isinstance(found, dict):
            raise no_overload()
        return field in found

    return Part(BOOL, run)


class _Loop:
    """What the macros over lists and maps share: the range, the variables, the body."""

    def __init__(self, compiler: Compiling, node: Invocation, bodies: int = 1) -> None:
        assert node.target is not None
        range_type, self.range = compiler.part(node.target)
        self._name = _variable(node.arguments[0])
        self.item = _item_of(range_type, node.target)
        inner = compiler.within({self._name: self.item})
        self.bodies = [inner.part(each) for each in node.arguments[-bodies:]]

    def scopes(self, scope: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
        """The scope of the body for each item."""
        values = self.range(scope)
        if not isinstance(values, list | dict):
            raise no_overload()
        return ({**scope, self._name: value} for value in values)

    def condition(self, node: Invocation) -> Run:
        """The body, which must be a condition."""
        type_, run = self.bodies[0]
        if type_ not in (BOOL, DYN):
            argument = node.arguments[-len(self.bodies)]
            raise CompileError(f"expected type 'bool' but found '{type_}'", argument.offset)
        return run


def _variable(node: Node) -> str:
    if not isinstance(node, Name):
        raise CompileError("argument must be a simple name", node.offset)
    return node.name


def _item_of(type_: Type, node: Node) -> Type:
    if type_.name in ("list", "map"):
        return type_.parameters[0]
    if type_ in (DYN, types.ERROR):
        return DYN
    raise CompileError(
        f"expression of type '{type_}' cannot be range of a comprehension (must be list, map, or dynamic)", node.offset
    )


def _deciding(decisive: bool) -> Macro:
    """`all` and `exists`: one item may decide, whatever becomes of the others."""

    def macro(compiler: Compiling, node: Invocation) -> Part:
        loop = _Loop(compiler, node)
        body = loop.condition(node)

        def run(scope: Mapping[str, Any]) -> bool:
            failure: EvaluationError | None = None
            for inner in loop.scopes(scope):
                try:
                    value = body(inner)
                except EvaluationError as error:
                    failure = failure or error
                    continue
                if not isinstance(value, bool):
                    failure = failure or no_overload()
                elif value == decisive:
                    return decisive
            if failure is not None:
                raise failure
            return not decisive

        return Part(BOOL, run)

    return macro


def _exists_one(compiler: Compiling, node: Invocation) -> Part:
    loop = _Loop(compiler, node)
    type_, body = loop.bodies[0]
    if type_ not in (BOOL, DYN):
        shown = f"({type_}, int, int)"  # it counts
        raise CompileError(f"found no matching overload for '_?_:_' applied to '{shown}'", node.offset)
    return Part(BOOL, lambda scope: sum(body(inner) is True for inner in loop.scopes(scope)) == 1)


def _filter(compiler: Compiling, node: Invocation) -> Part:
    loop = _Loop(compiler, node)
    body, name = loop.condition(node), _variable(node.arguments[0])

    def run(scope: Mapping[str, Any]) -> list[Any]:
        return [inner[name] for inner in loop.scopes(scope) if body(inner) is True]

    return Part(types.list_of(loop.item), run)


def _map(compiler: Compiling, node: Invocation) -> Part:
    loop = _Loop(compiler, node)
    type_, body = loop.bodies[0]
    return Part(types.list_of(type_), lambda scope: [body(inner) for inner in loop.scopes(scope)])


def _filtered_map(compiler: Compiling, node: Invocation) -> Part:
    loop = _Loop(compiler, node, bodies=2)
    condition, (type_, body) = loop.condition(node), loop.bodies[1]

    def run(scope: Mapping[str, Any]) -> list[Any]:
        return [body(inner) for inner in loop.scopes(scope) if condition(inner) is True]

    return Part(types.list_of(type_), run)


MACROS: Final[dict[tuple[str, int, bool], Macro]] = {
    ("has", 1, False): _has,
    ("all", 2, True): _deciding(False),
    ("exists", 2, True): _deciding(True),
    ("exists_one", 2, True): _exists_one,
    ("existsOne", 2, True): _exists_one,
    ("filter", 2, True): _filter,
    ("map", 2, True): _map,
    ("map", 3, True): _filtered_map,
}
"""By name, number of arguments, and whether it stands behind a dot."""
