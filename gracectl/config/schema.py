"""The JSON schema of the settings file, made from the same types that read it.

What the types alone cannot tell (`checks`) is not in it: a file that it lets pass may be refused all the same, one that
it refuses is always refused.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gracectl.config.settings import Settings

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """As JSON has it."""
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(msgspec.json.schema(Settings)))
    return {"$schema": DIALECT, "title": "Settings of gracectl", **made}
