"""The subresources that kinds may have, as discovery and OpenAPI list them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SUBRESOURCES: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "binding": ("", "Binding", ("create",)),
    "eviction": ("policy/v1", "Eviction", ("create",)),
    "finalize": ("", "", ("update",)),
    "scale": ("autoscaling/v1", "Scale", ("get", "patch", "update")),
    "status": ("", "", ("get", "patch", "update")),
    "token": ("authentication.k8s.io/v1", "TokenRequest", ("create",)),
}
"""By name: group and version if they are not the resource's own, kind if it is not the resource's own, verbs."""
