"""The patches of the API: merge patches (RFC 7386) here, JSON Patch and strategic merge in modules of their own.

Every patch builds a new value; nothing is changed in place (recordings writes-patch, writes-refused, json-patch).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kubesim.server.api import Json
from kubesim.server.goformat import decoded_as
from kubesim.server.jsonpatch import PatchFault, patched
from kubesim.server.status import Refusal, bad_request, rejected, unsupported_media_type
from kubesim.server.strategic import Layout, strategic

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


def change(media_type: str, patch: Json, layout: Layout | None = None) -> Callable[[Json], Json]:
    """The function of a patch. `layout`: how the object's lists merge (strategic merge). Raises Refusal (415)."""
    match media_type:
        case "application/merge-patch+json":
            return partial(merge, patch=patch)
        case "application/strategic-merge-patch+json":
            return partial(_strategic, patch=patch, layout=layout)
        case "application/json-patch+json":
            return partial(json_patch, operations=patch)
    raise unsupported_media_type()


def merge(target: Json, patch: Json) -> Json:
    """RFC 7386: null removes, objects merge, everything else is replaced."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def _strategic(target: Json, patch: Json, layout: Layout | None) -> Json:
    try:
        return strategic(target, patch, layout)
    except (TypeError, AttributeError):
        # A directive, or an item of a list that is merged, of a wrong type: Go's library finds each by its own name.
        raise bad_request("invalid strategic merge patch format") from None


def json_patch(target: Json, operations: Json) -> Json:
    """RFC 6902. Raises Refusal: 400 unless a list of objects, 422 (one fixed message) if it does not apply."""
    if not isinstance(operations, list):
        raise _undecodable(operations, "[]handlers.jsonPatchOp")
    for operation in operations:
        if not isinstance(operation, dict):
            raise _undecodable(operation, "handlers.jsonPatchOp")
    try:
        return patched(target, operations)
    except PatchFault:
        raise rejected() from None


def _undecodable(value: Json, go_type: str) -> Refusal:
    why = f"json: cannot unmarshal {decoded_as(value)} into Go value of type {go_type}"
    return bad_request(f"error decoding patch: {why}")
