"""Bodies that only ask for something and are never stored (options, reviews, evictions), read as Go reads them.

Invariant: what leaves here has the types that its kind's Go struct has, so types are not checked again.
"""

from __future__ import annotations

from typing import Final

from kubesim.server.api import Json, JsonObject
from kubesim.server.status import bad_request
from kubesim.types.canonical import Unfit, canonical
from kubesim.types.catalog import GroupVersionKind, type_name
from kubesim.types.decoding import Reading

BINDING: Final = ("", "v1", "Binding")
DELETE_OPTIONS: Final = ("", "v1", "DeleteOptions")
EVICTION: Final = ("policy", "v1", "Eviction")
SCALE: Final = ("autoscaling", "v1", "Scale")


def transient(kind: GroupVersionKind, body: Json) -> JsonObject:
    """A copy of a built-in object as Go would write it, without unknown fields. Raises Refusal (400)."""
    if not isinstance(body, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind[2]})")
    struct = type_name(*kind)
    try:
        return canonical(struct, body)
    except Unfit:
        reading = Reading(struct, body)
    if reading.fault:
        _, version, name = kind
        raise bad_request(f'{name} in version "{version}" cannot be handled as a {name}: {reading.fault}')
    return canonical(struct, reading.value)
