"""Text that anybody may have written into a cluster, such as the value of an annotation, as people are shown it.

Invariant: nothing is left in it that a terminal would obey or that a document could not hold.
"""

from __future__ import annotations

SHOWN = 60
"""Characters: annotations may be long."""


def harmless(text: str, most: int = SHOWN) -> str:
    """The text in so many characters at most, `�` for what cannot be printed, `…` for the rest of it."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in short)
