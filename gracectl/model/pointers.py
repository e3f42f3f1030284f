"""Places in an object, as a JSON patch names them."""

from __future__ import annotations


def pointer(*parts: str) -> str:
    """A JSON pointer (RFC 6901); parts may hold slashes, as label keys do."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)
