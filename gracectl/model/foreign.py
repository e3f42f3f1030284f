"""Text that anybody may have written into a cluster, such as the value of an annotation, as people are shown it.

Invariant: nothing is left in it that a terminal would obey or that a document could not hold.
"""

from __future__ import annotations

import re

SHOWN = 60
"""Characters: annotations may be long."""

_SECRETS = (
    re.compile(r"(?i)(\bauthorization[\\\"']*\s*[:=]\s*[\\\"']*(?:bearer|basic)\s+)[\w.~+/=-]+"),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{16,}"),
    re.compile(r"(\b)eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"),
)
"""The header, a bearer token without it, and a JSON web token wherever it stands."""


def harmless(text: str, most: int = SHOWN) -> str:
    """The text in so many characters at most, `�` for what cannot be printed, `…` for the rest of it."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in short)


def without_secrets(text: str) -> str:
    """The text with *** for what looks like credentials on their way to a server, which one that is badly made (or a
    proxy before it) repeats in its refusals. It is no proof that nothing is left: who has a secret must not tell it."""
    # Nearly every text has none, and a look for words is cheaper than one for patterns.
    lowered = text.lower()
    if "bearer" not in lowered and "authorization" not in lowered and "eyj" not in lowered:
        return text
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text
