"""Conditions as Go writes them: times without omitempty stand there as null."""

from __future__ import annotations

from kubesim.server.api import JsonObject


def filled_conditions(object_: JsonObject, times: tuple[str, ...]) -> JsonObject:
    """The object with the named times present (null if unknown) in each of its conditions."""
    conditions = (object_.get("status") or {}).get("conditions")
    if not conditions or all(time in condition for condition in conditions for time in times):
        return object_
    filled = [{**dict.fromkeys(times), **condition} for condition in conditions]
    return {**object_, "status": {**object_["status"], "conditions": filled}}
