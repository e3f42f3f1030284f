"""Tokens become a tree: a parser by precedence (Pratt's), with CEL's grammar and no more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from kubesim.cel.errors import CompileError
from kubesim.cel.tokens import Token, tokens
from kubesim.cel.values import HIGHEST

BINARY: Final = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
RESERVED: Final = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
        *("package", "namespace", "null", "return", "true", "var", "void", "while"),
    }
)
CONSTANTS: Final = {"true": True, "false": False, "null": None}
EXPECTED: Final = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
DEPTH: Final = 50


class Node(msgspec.Struct, frozen=True, tag=True):
    """A part of an expression. `offset`: where error messages point."""

    offset: int


class Literal(Node, frozen=True):
    """A constant."""

    value: Any


class Name(Node, frozen=True):
    """A variable, a type, or the first part of a function's qualified name."""

    name: str


class Select(Node, frozen=True):
    """`operand.field`; `optional` for `operand.?field`."""

    operand: Node
    field: str
    optional: bool = False


class Index(Node, frozen=True):
    """`operand[index]`; `optional` for `operand[?index]`."""

    operand: Node
    index: Node
    optional: bool = False


class Invocation(Node, frozen=True):
    """A function or an operator (`_+_`, `!_`, `_?_:_`); `target` stands before the dot of a method."""

    function: str
    arguments: tuple[Node, ...]
    target: Node | None = None


class ListLiteral(Node, frozen=True):
    """`[a, b]`."""

    items: tuple[Node, ...]


class MapLiteral(Node, frozen=True):
    """`{k: v}`."""

    entries: tuple[tuple[Node, Node], ...]


def parsed(source: str) -> Node:
    """The tree of an expression. Raises CompileError."""
    return _Parser(tokens(source)).whole()


class _Parser:
    def __init__(self, found: Sequence[Token]) -> None:
        self._tokens = found
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _is_sign(self, *signs: str) -> bool:
        return self._next.kind == "sign" and self._next.text in signs

    def _skip(self, sign: str) -> bool:
        if self._is_sign(sign):
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> Token:
        if not self._is_sign(sign):
            raise self._unexpected(f"'{sign}'")
        return self._take()

    def _unexpected(self, expected: str) -> CompileError:
        word = "mismatched" if expected == EXPECTED else "extraneous" if self._next.kind != "end" else "missing"
        if word == "missing":
            return CompileError(f"Syntax error: missing {expected} at '<EOF>'", self._next.offset)
        return CompileError(f"Syntax error: {word} input '{self._next.text}' expecting {expected}", self._next.offset)

    def whole(self) -> Node:
        node = self._ternary()
        if self._next.kind != "end":
            raise self._unexpected("<EOF>")
        return node

    def _ternary(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH:
            raise CompileError("Syntax error: expression recursion limit exceeded", self._next.offset)
        condition = self._binary(1)
        if self._is_sign("?"):
            mark = self._take()
            then = self._binary(1)
            self._expect(":")
            condition = Invocation(mark.offset, "_?_:_", (condition, then, self._ternary()))
        self._depth -= 1
        return condition

    def _binary(self, lowest: int) -> Node:
        left = self._unary()
        while True:
            token = self._next
            strength = BINARY.get(token.text, 0) if token.kind in ("sign", "name") else 0
            if strength < lowest:
                return left
            self._take()
            right = self._binary(strength + 1)
            function = "@in" if token.text == "in" else f"_{token.text}_"
            left = Invocation(token.offset, function, (left, right))

    def _unary(self) -> Node:
        if not self._is_sign("!", "-"):
            return self._postfix(self._primary())
        token = self._take()
        if token.text == "-" and self._next.kind == "literal" and type(self._next.value) in (int, float):
            literal = self._take()
            return self._postfix(Literal(token.offset, -literal.value))
        return Invocation(token.offset, f"{token.text}_", (self._unary(),))

    def _postfix(self, node: Node) -> Node:
        while True:
            token = self._next
            if self._is_sign(".", ".?"):
                self._take()
                name = self._field()
                if token.text == "." and self._is_sign("("):
                    opening = self._take()
                    node = Invocation(opening.offset, name, self._arguments(")"), node)
                else:
                    node = Select(token.offset, node, name, token.text == ".?")
            elif self._is_sign("[", "[?"):
                self._take()
                index = self._ternary()
                self._expect("]")
                node = Index(token.offset, node, index, token.text == "[?")
            else:
                return node

    def _field(self) -> str:
        if self._next.kind != "name" or self._next.text in CONSTANTS or self._next.text == "in":
            raise self._unexpected("IDENTIFIER")
        return self._take().text

    def _primary(self) -> Node:
        token = self._next
        if token.kind == "literal":
            self._take()
            if type(token.value) is int and token.value > HIGHEST:
                raise CompileError("invalid int literal", token.offset)
            return Literal(token.offset, token.value)
        if token.kind == "name" and token.text != "in":
            return self._named(self._take())
        if self._skip("."):
            return self._named(self._take())
        if self._skip("("):
            inner = self._ternary()
            self._expect(")")
            return inner
        if self._skip("["):
            return ListLiteral(token.offset, self._arguments("]"))
        if self._skip("{"):
            return MapLiteral(token.offset, tuple(self._entries()))
        raise self._unexpected(EXPECTED)

    def _named(self, token: Token) -> Node:
        if token.text in CONSTANTS:
            return Literal(token.offset, CONSTANTS[token.text])
        if token.text in RESERVED:
            raise CompileError(f"reserved identifier: {token.text}", token.offset)
        if self._is_sign("("):
            opening = self._take()
            return Invocation(opening.offset, token.text, self._arguments(")"))
        return Name(token.offset, token.text)

    def _arguments(self, end: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while not self._is_sign(end):
            found.append(self._ternary())
            if not self._skip(","):
                break
        self._expect(end)
        return tuple(found)

    def _entries(self) -> list[tuple[Node, Node]]:
        found: list[tuple[Node, Node]] = []
        while not self._is_sign("}"):
            key = self._ternary()
            self._expect(":")
            found.append((key, self._ternary()))
            if not self._skip(","):
                break
        self._expect("}")
        return found
