"""Compiler: a tree of nodes becomes a typed closure.

Invariant: a compiled program fails only because of its values (a missing key, an overflow, the content of an
int-or-string), never because of an unknown name or signature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kubesim.cel import types
from kubesim.cel.errors import CompileError, EvaluationError, no_overload
from kubesim.cel.library import LIBRARY
from kubesim.cel.macros import MACROS
from kubesim.cel.overloads import TYPES, Function, Overload, dispatched
from kubesim.cel.parts import Field, Part, Run, Scope
from kubesim.cel.regexes import PatternError, compiled
from kubesim.cel.syntax import (
    Index,
    Invocation,
    ListLiteral,
    Literal,
    MapLiteral,
    Name,
    Node,
    Select,
    parsed,
)
from kubesim.cel.types import BOOL, DYN, Fields, Type
from kubesim.cel.values import CelType, Maybe, equals, type_name


class Program(NamedTuple):
    """A compiled expression and the variables that it looks at."""

    type: Type
    run: Run
    variables: frozenset[str]


def compile_expression(source: str, variables: Mapping[str, Type]) -> Program:
    """The program of an expression over these variables. Raises CompileError."""
    compiler = Compiler(variables)
    part = compiler.part(parsed(source))
    return Program(part.type, part.run, frozenset(compiler.seen))


_OF_LITERALS: Final = (
    (bool, types.BOOL),
    (int, types.INT),
    (float, types.DOUBLE),
    (str, types.STRING),
    (type(None), types.NULL),
)
_TYPE_NAMES: Final = {
    **{name: CelType(name) for name in TYPES},
    "google.protobuf.Timestamp": CelType("google.protobuf.Timestamp"),
    "google.protobuf.Duration": CelType("google.protobuf.Duration"),
}
_MISSING: Final = object()


class Compiler:
    """Compiles the parts of one expression. `seen`: the variables that came up."""

    def __init__(self, variables: Mapping[str, Type], seen: set[str] | None = None) -> None:
        self.variables = variables
        self.seen: set[str] = set() if seen is None else seen

    def within(self, variables: Mapping[str, Type]) -> Compiler:
        """A compiler for what a macro binds variables in."""
        return Compiler({**self.variables, **variables}, self.seen)

    def part(self, node: Node) -> Part:
        """Compile a node. Raises CompileError."""
        match node:
            case Literal(value=value):
                return Part(next(type_ for kind, type_ in _OF_LITERALS if isinstance(value, kind)), lambda _: value)
            case Name():
                return self._name(node)
            case Select():
                return self._select(node)
            case Index():
                return self._index(node)
            case ListLiteral():
                return self._list(node)
            case MapLiteral():
                return self._map(node)
            case Invocation():
                return self._invocation(node)
        raise CompileError("unsupported expression", node.offset)

    def _name(self, node: Name) -> Part:
        name = node.name
        if name in self.variables:
            self.seen.add(name)
            return Part(self.variables[name], lambda scope: scope[name])
        if name in _TYPE_NAMES:
            value = _TYPE_NAMES[name]
            return Part(types.TYPE, lambda _: value)
        raise CompileError(f"undeclared reference to '{name}' (in container '')", node.offset)

    # -- fields and items ----------------------------------------------------------------------------------------------

    def field(self, node: Select) -> Field:
        """A selection. Raises CompileError."""
        type_, operand = self.part(node.operand)
        through = type_.name == "optional_type"
        if through:
            type_ = type_.parameters[0]
        if isinstance(type_, Fields):
            found = type_.fields.get(node.field)
            if found is None:
                raise CompileError(f"undefined field '{node.field}'", node.offset)
            return Field(operand, found[1], found[0], through)
        if type_.name == "map":
            return Field(operand, type_.parameters[1], node.field, through)
        if type_ in (DYN, types.ERROR):
            return Field(operand, DYN, node.field, through)
        raise CompileError(f"type '{type_}' does not support field selection", node.offset)

    def _select(self, node: Select) -> Part:
        if isinstance(node.operand, Name) and f"{node.operand.name}.{node.field}" in _TYPE_NAMES:
            value = _TYPE_NAMES[f"{node.operand.name}.{node.field}"]
            return Part(types.TYPE, lambda _: value)
        run, type_, field, through = self.field(node)
        if node.optional or through:
            return Part(types.maybe(type_), lambda scope: _maybe_item(_opened(run(scope)), field))

        def selected(scope: Scope) -> Any:
            operand = run(scope)
            if not isinstance(operand, dict):
                raise no_overload()
            if field not in operand:
                raise EvaluationError(f"no such key: {field}")
            return operand[field]

        return Part(type_, selected)

    def _index(self, node: Index) -> Part:
        (type_, operand), (index_type, index) = self.part(node.operand), self.part(node.index)
        through = type_.name == "optional_type"
        container = type_.parameters[0] if through else type_
        bound: dict[str, Type] = {}
        pattern = {"list": types.INT, "map": container.parameters[0] if container.name == "map" else DYN}
        if container not in (DYN, types.ERROR) and (
            container.name not in pattern or not types.assignable(pattern[container.name], index_type, bound)
        ):
            shown = f"({type_}, {index_type})"
            raise CompileError(f"found no matching overload for '_[_]' applied to '{shown}'", node.offset)
        item = container.parameters[-1] if container.parameters else DYN
        if node.optional or through:
            return Part(types.maybe(item), lambda scope: _maybe_item(_opened(operand(scope)), index(scope)))
        return Part(item, lambda scope: _item(operand(scope), index(scope)))

    def _list(self, node: ListLiteral) -> Part:
        parts = [self.part(item) for item in node.items]
        item_type: Type | None = None
        for part, item in zip(parts, node.items, strict=True):
            item_type = part.type if item_type is None else self._same(item_type, part.type, item.offset)
        return Part(types.list_of(item_type or DYN), lambda scope: [part.run(scope) for part in parts])

    @staticmethod
    def _same(one: Type, other: Type, offset: int) -> Type:
        """What two values of one literal have in common: Kubernetes wants them to be of one type."""
        if not types.assignable(one, other, {}) and not types.assignable(other, one, {}):
            raise CompileError(f"expected type '{one}' but found '{other}'", offset)
        return types.joined(one, other)

    def _map(self, node: MapLiteral) -> Part:
        entries = [(self.part(key), self.part(value)) for key, value in node.entries]
        keys: Type | None = None
        values: Type | None = None
        for (key, value), (key_node, value_node) in zip(entries, node.entries, strict=True):
            keys = key.type if keys is None else self._same(keys, key.type, key_node.offset)
            values = value.type if values is None else self._same(values, value.type, value_node.offset)
        return Part(
            types.map_of(keys or DYN, values or DYN),
            lambda scope: {key.run(scope): value.run(scope) for key, value in entries},
        )

    # -- functions -----------------------------------------------------------------------------------------------------

    def _invocation(self, node: Invocation) -> Part:
        target = node.target
        macro = MACROS.get((node.function, len(node.arguments), target is not None))
        if macro is not None:
            return macro(self, node)
        match node.function:
            case "_&&_" | "_||_":
                return self._junction(node, absorbing=node.function == "_||_")
            case "_?_:_":
                return self._choice(node)
        return self._call(node)

    def _call(self, node: Invocation) -> Part:
        method = node.target is not None
        nodes = (*((node.target,) if node.target is not None else ()), *node.arguments)
        parts = [self.part(each) for each in nodes]
        if not LIBRARY.has(node.function):
            raise CompileError(f"undeclared reference to '{node.function}' (in container '')", node.offset)
        candidates = LIBRARY.named(node.function, is_method=method)
        result, fitting = _resolved(candidates, [part.type for part in parts])
        if not fitting:
            shown = ", ".join(str(part.type) for part in parts[method:])
            applied = f"{parts[0].type}.({shown})" if method else f"({shown})"
            raise CompileError(f"found no matching overload for '{node.function}' applied to '{applied}'", node.offset)
        _check_literals(node, nodes)
        is_certain = len(fitting) == 1 and not any(_is_open(part.type) for part in parts)
        return Part(result, _calling(fitting[0].call if is_certain else dispatched(fitting), [p.run for p in parts]))

    def _boolean(self, node: Node) -> Run:
        type_, run = self.part(node)
        if type_ not in (BOOL, DYN, types.ERROR):
            raise CompileError(f"expected type 'bool' but found '{type_}'", node.offset)
        return run

    def _junction(self, node: Invocation, *, absorbing: bool) -> Part:
        """`&&` and `||`: an operand that decides makes up for the failure of the other, on whichever side it is."""
        left, right = map(self._boolean, node.arguments)

        def run(scope: Scope) -> bool:
            failure: EvaluationError | None = None
            for side in (left, right):
                try:
                    value = side(scope)
                except EvaluationError as error:
                    failure = failure or error
                    continue
                if not isinstance(value, bool):
                    failure = failure or no_overload()
                elif value == absorbing:
                    return absorbing
            if failure is not None:
                raise failure
            return not absorbing

        return Part(BOOL, run)

    def _choice(self, node: Invocation) -> Part:
        (decides, condition), then, other = (self.part(each) for each in node.arguments)
        fits = types.assignable(then.type, other.type, {}) or types.assignable(other.type, then.type, {})
        if not fits or decides not in (BOOL, DYN, types.ERROR):
            shown = f"({decides}, {then.type}, {other.type})"
            raise CompileError(f"found no matching overload for '_?_:_' applied to '{shown}'", node.offset)

        def run(scope: Scope) -> Any:
            decision = condition(scope)
            if not isinstance(decision, bool):
                raise no_overload()
            return then.run(scope) if decision else other.run(scope)

        return Part(types.joined(then.type, other.type), run)


def _resolved(candidates: Sequence[Overload], given: Sequence[Type]) -> tuple[Type, list[Overload]]:
    """The overloads that arguments of these types may mean, and the type of the result (dyn if they differ)."""
    fitting: list[Overload] = []
    results: list[Type] = []
    for each in candidates:
        bound: dict[str, Type] = {}
        if len(each.parameters) == len(given) and all(
            types.assignable(wanted, type_, bound) for wanted, type_ in zip(each.parameters, given, strict=True)
        ):
            fitting.append(each)
            results.append(types.bound_type(each.result, bound))
    same = bool(results) and all(result == results[0] for result in results)
    return (results[0] if same else DYN), fitting


def _is_open(type_: Type) -> bool:
    return type_ in (DYN, types.ERROR) or any(map(_is_open, type_.parameters))


def _calling(function: Function, runs: Sequence[Run]) -> Run:
    match runs:
        case [one]:
            return lambda scope: function(one(scope))
        case [one, two]:
            return lambda scope: function(one(scope), two(scope))
    return lambda scope: function(*(run(scope) for run in runs))


def _check_literals(node: Invocation, nodes: Sequence[Node]) -> None:
    """Constants that can never be right are refused immediately: patterns, durations, timestamps."""
    last = nodes[-1] if nodes else None
    if not isinstance(last, Literal) or not isinstance(last.value, str):
        return
    if node.function == "matches":
        try:
            compiled(last.value)
        except PatternError:
            raise CompileError("invalid matches argument", last.offset) from None
    if node.function in ("duration", "timestamp"):
        try:
            LIBRARY.named(node.function, is_method=False)[-1].call(last.value)
        except EvaluationError:
            raise CompileError(f"invalid {node.function} argument", last.offset) from None


def _opened(value: Any) -> Any:
    if isinstance(value, Maybe):
        return value.values[0] if value.values else _MISSING
    return value


def _item(container: Any, index: Any) -> Any:
    if isinstance(container, dict):
        if isinstance(index, str) and index in container:
            return container[index]
        for key, value in container.items():
            if equals(key, index):
                return value
        raise EvaluationError(f"no such key: {index}")
    if isinstance(container, list):
        position = int(index) if isinstance(index, float) and index.is_integer() else index
        if isinstance(position, bool) or not isinstance(position, int):
            raise EvaluationError(f"unsupported index type '{type_name(index)}' in list")
        if not 0 <= position < len(container):
            raise EvaluationError(f"index out of bounds: {position}")
        return container[position]
    raise no_overload()


def _maybe_item(container: Any, index: Any) -> Maybe:
    if container is _MISSING:
        return Maybe()
    try:
        return Maybe((_item(container, index),))
    except EvaluationError:
        return Maybe()
