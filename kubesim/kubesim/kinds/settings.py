"""Kinds that only hold values: Secrets and PriorityClasses."""

from __future__ import annotations

import base64
from typing import Final

from kubesim.kinds.workloads import TopLevel
from kubesim.server.api import JsonObject
from kubesim.server.resource import Occasion
from kubesim.server.status import Cause, forbidden_value

HIGHEST_PRIORITY: Final = 1_000_000_000
SYSTEM_PREFIX: Final = "system-"


class Secret(TopLevel):
    """Secrets keep what is written as text among what is encoded."""

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        return {**new, "type": new.get("type") or "Opaque"}

    def normalise(self, new: JsonObject) -> JsonObject:
        if "stringData" not in new:
            return new
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in (new["stringData"] or {}).items()}
        kept = {key: value for key, value in new.items() if key != "stringData"}
        return {**kept, "data": {**(new.get("data") or {}), **encoded}} if encoded else kept


class PriorityClass(TopLevel):
    """PriorityClasses: at most the system's highest value; the value is immutable."""

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        return {"value": 0, "preemptionPolicy": "PreemptLowerPriority", **new}

    def validate(self, new: JsonObject) -> list[Cause]:
        if new.get("value", 0) <= HIGHEST_PRIORITY or new["metadata"].get("name", "").startswith(SYSTEM_PREFIX):
            return []
        return [forbidden_value("value", f"maximum allowed value of a user defined priority is {HIGHEST_PRIORITY}")]

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        if new.get("value", 0) == old.get("value", 0):
            return []
        return [forbidden_value("value", "may not be changed in an update.")]
