"""Replicas of custom resources, for their subresource `scale`: where they stand, the definition says by path."""

from __future__ import annotations

from typing import Any

from kubesim.apiextensions.fieldpaths import value_at, with_value_at
from kubesim.server.api import JsonObject
from kubesim.server.status import Refusal


class CustomReplicas:
    """Replicas at the paths of a definition."""

    def __init__(self, paths: JsonObject) -> None:
        """`paths`: the `subresources.scale` of a version."""
        self._paths = paths

    def wanted(self, object_: JsonObject) -> int:
        """See Replicas."""
        path = self._paths["specReplicasPath"]
        replicas = number_at(object_, path)
        if replicas is None:
            why = f'the spec replicas field "{path}" does not exist'
            message = f"Internal error occurred: {why}"
            raise Refusal(500, "InternalError", message, details={"causes": [{"message": why}]})
        return replicas

    def status(self, object_: JsonObject) -> JsonObject:
        """See Replicas."""
        replicas = number_at(object_, self._paths["statusReplicasPath"]) or 0
        path = self._paths.get("labelSelectorPath")
        selector = text_at(object_, path) if path else ""
        return {"replicas": replicas, **({"selector": selector} if selector else {})}

    def with_wanted(self, object_: JsonObject, replicas: int) -> JsonObject:
        """See Replicas."""
        return with_value_at(object_, self._paths["specReplicasPath"], replicas)


def number_at(object_: JsonObject, path: str) -> int | None:
    """The whole number at a path, or None."""
    found = _at(object_, path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def text_at(object_: JsonObject, path: str) -> str:
    """The text at a path, or ""."""
    found = _at(object_, path)
    return found if isinstance(found, str) else ""


def _at(object_: JsonObject, path: str) -> Any:
    try:
        return value_at(object_, path)
    except TypeError:
        return None
