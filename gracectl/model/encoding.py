"""JSON that this program writes, encoded by orjson; `untrusted` decodes what it reads.

Invariant: whatever a Decoder has returned can be encoded. orjson refuses halves of surrogate pairs, integers of more
than 64 bits, and what is nested more than 254 deep. All three only come from others, and are rewritten then.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson

from gracectl.model.untrusted import MAXIMUM_DEPTH

INDENTED: Final = orjson.OPT_INDENT_2
SORTED: Final = orjson.OPT_SORT_KEYS

_INTEGERS: Final = range(-(2**63), 2**64)


def encode(value: object, option: int = 0) -> bytes:
    """JSON of structs, collections and scalars; NaN and infinity become null. `option`: INDENTED, SORTED or both.

    Raises TypeError for a type that msgspec does not know.
    """
    try:
        return orjson.dumps(value, default=_plain, option=option | orjson.OPT_UTC_Z)
    except orjson.JSONEncodeError:
        return orjson.dumps(_rewritten(value, MAXIMUM_DEPTH), default=_plain, option=option | orjson.OPT_UTC_Z)


def _plain(value: object) -> Any:
    if isinstance(value, msgspec.Raw):
        return orjson.Fragment(bytes(value))
    return msgspec.to_builtins(value, str_keys=True)


def _rewritten(value: Any, depth: int) -> Any:
    """The value with null for what is nested deeper, and floats for integers that are too large, as in Go."""
    if isinstance(value, msgspec.Struct):
        value = _plain(value)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and value not in _INTEGERS:
        return _float(value)
    if isinstance(value, dict) and depth:
        return {_rewritten(_key(key), depth): _rewritten(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_rewritten(each, depth - 1) for each in value]
    return None if isinstance(value, dict | list | tuple) else value


def _key(key: object) -> str:
    return key if isinstance(key, str) else encode(key).decode().strip('"')


def _float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None
