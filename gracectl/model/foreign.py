"""Foreign text, such as the value of an annotation that any tenant may have written, made safe to show.

Every way out of the process uses it: logs, Events, conditions, responses of webhooks, labels of metrics, terminals,
pages and JSON. Invariant: a text has no characters that a terminal obeys, that reorder or hide adjacent text, or
that a document cannot contain.
"""

from __future__ import annotations

import re
from typing import Final

SHOWN = 60
"""Characters: annotations may be long."""

_SECRETS = (
    re.compile(r"(?i)(\bauthorization[\\\"']*\s*[:=]\s*[\\\"']*(?:bearer|basic)\s+)[\w.~+/=-]+"),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{16,}"),
    # Looks only at runs of these characters that have a second and third part: a megabyte of one part takes no longer.
    re.compile(r"(?<![\w-])(?=[\w-]++\.[\w-]{10,}+\.)([\w-]*?\b)eyJ[\w-]{10,}+\.[\w-]{10,}+\.[\w-]*+"),
)
"""The header, a bearer token without it, and a JSON web token anywhere."""


_HIDDEN: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0001\U000e0020-\U000e007f"
)
"""Unicode's controls (Cc, without tab and line feed), formats (Cf, bidirectional ones among them), separators of lines
and paragraphs (Zl, Zp), and halves of surrogate pairs (Cs)."""
_BUT_IN_LINES: Final = re.compile(f"[{_HIDDEN}]")
_ANYWHERE: Final = re.compile(f"[\t\n{_HIDDEN}]")
_PERHAPS_HIDDEN: Final = re.compile(rf"[{_HIDDEN}]|\\[bfru]")
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_IN_VALUES: Final = re.compile(rf"[{_HIDDEN}]|\\(?:u[0-9a-fA-F]{{4}}|.)")
"""Such a character in a JSON document, or any escape."""


def visible(text: str) -> str:
    """The text on one line, with `\\x1b`, `\\n` or `\\u202e` for invisible characters that change the display."""
    return text if text.isprintable() else _ANYWHERE.sub(_escaped, text)  # as nearly every text is


def visible_lines(text: str) -> str:
    """The same of a text of ours with foreign parts: its tabs and line breaks stay."""
    return _BUT_IN_LINES.sub(_escaped, text)


def visible_json(document: str) -> str:
    """The JSON document in other spelling, with such characters as `\\u…`: its values are the same."""
    if document.isprintable():
        return document
    return _BUT_IN_LINES.sub(_json_escape, document)


def visible_values(document: str) -> str:
    """The JSON document with visible values: what a reader parses from it has `\\x1b` or `\\u202e` for such characters.

    Tabs and line breaks stay, as in visible_lines. `document`: as orjson writes it, without halves of surrogate pairs.
    """
    if _PERHAPS_HIDDEN.search(document) is None:
        return document
    return _IN_VALUES.sub(_visible_value, document)


def harmless(text: str, most: int = SHOWN) -> str:
    """The first characters of the text, visible, and `…` for the rest."""
    return visible(text if len(text) <= most else text[: most - 1] + "…")


def shortened(text: str, head: int, tail: int) -> str:
    """The first and last characters of a text, with `…` between them: reasons are at either end."""
    return text if len(text) <= head + tail else f"{text[:head]}…{text[-tail:]}"


def _escaped(found: re.Match[str]) -> str:
    return _escaped_character(found[0])


def _escaped_character(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _visible_value(found: re.Match[str]) -> str:
    spelled = found[0]
    character = _unescaped(spelled) if spelled[0] == "\\" else spelled
    return _escaped_character(character).replace("\\", r"\\") if _BUT_IN_LINES.match(character) else spelled


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return re.sub("(....)", r"\\u\1", units)


def _unescaped(spelled: str) -> str:
    """The character of an escape in JSON."""
    kind = spelled[1]
    return chr(int(spelled[2:], 16)) if kind == "u" else _ESCAPES.get(kind, kind)


def without_secrets(text: str) -> str:
    """The text with *** for what looks like credentials, which a server or proxy may repeat in its errors.

    Credentials may remain: never pass text that is known to be secret.
    """
    # Nearly every text has none, and a look for words is cheaper than one for patterns.
    lowered = text.lower()
    if "bearer" not in lowered and "authorization" not in lowered and "eyj" not in lowered:
        return text
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text
