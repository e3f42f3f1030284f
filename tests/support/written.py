"""Objects as an API server writes them, for decoders."""

from __future__ import annotations

from typing import Any

import msgspec

NEW_YEAR = 1_767_225_600.0

META: dict[str, Any] = {
    "name": "web-1", "namespace": "shop", "uid": "4f9c", "resourceVersion": "42",
    "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "web"},
    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
}  # fmt: skip
NULL_META: dict[str, Any] = dict.fromkeys(
    (
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
    ),
    None,
) | {"name": "a"}


def encoded(**fields: object) -> bytes:
    return msgspec.json.encode(fields)
