"""Characters become tokens (https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax)."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from kubesim.cel.errors import CompileError

_QUOTED: Final = (
    r'"""(?:\\.|[^\\])*?"""|' + r"'''(?:\\.|[^\\])*?'''|" + r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'"
)
_RAW: Final = r'"""(?:.|\n)*?"""|' + r"'''(?:.|\n)*?'''|" + r'"[^"\n]*"|' + r"'[^'\n]*'"
_TOKEN: Final = re.compile(
    rf"""
    (?P<space>(?:\s|//[^\n]*)+)
  | (?P<string>[rR](?:{_RAW})|{_QUOTED})
  | (?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<int>0[xX][0-9a-fA-F]+|\d+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>==|!=|<=|>=|&&|\|\||\.\?|\[\?|[-+*/%<>!?:.,()\[\]{{}}])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([abfnrtv\\'\"`?])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))"
)
_SIMPLE: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_LARGEST: Final = 2**63


class Token(NamedTuple):
    """One token. `kind`: `literal`, `name`, `sign` or `end`; `value` is the literal's."""

    kind: str
    text: str
    offset: int
    value: Any = None


def tokens(source: str) -> list[Token]:
    """The tokens of an expression, an `end` behind them. Raises CompileError."""
    found: list[Token] = []
    position = 0
    while position < len(source):
        match = _TOKEN.match(source, position)
        if match is None:
            raise CompileError(f"Syntax error: token recognition error at: '{source[position]}'", position)
        kind = match.lastgroup or ""
        if kind in ("name", "sign"):
            found.append(Token(kind, match.group(), position))
        elif kind != "space":
            found.append(Token("literal", match.group(), position, _literal(kind, match.group(), position)))
        position = match.end()
    return [*found, Token("end", "<EOF>", len(source))]


def _literal(kind: str, text: str, offset: int) -> Any:
    match kind:
        case "string":
            return _string(text, offset)
        case "float":
            return float(text)
    number = int(text, 16 if "x" in text.lower() else 10)
    # One more than the largest int is fine behind a minus sign; the parser looks at that.
    if number > _LARGEST:
        raise CompileError("invalid int literal", offset)
    return number


def _string(text: str, offset: int) -> str:
    body = text[text[:1] in "rR" :]
    width = 3 if body[:3] in ('"""', "'''") else 1
    body = body[width:-width]

    def unescaped(found: re.Match[str]) -> str:
        simple, octet, short, long, octal, other = found.groups()
        if other is not None:
            raise CompileError(f"Syntax error: token recognition error at: '{text}'", offset)
        if simple is not None:
            return _SIMPLE.get(simple, simple)
        return chr(int(octal, 8) if octal else int(octet or short or long, 16))

    return body if text[:1] in "rR" else _ESCAPE.sub(unescaped, body)
