"""Events of both groups are one store: core/v1 is stored, events.k8s.io/v1 is a view of it (recording events)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.kinds.workloads import EventStrategy
from kubesim.server.api import JsonObject
from kubesim.server.resource import Field, View, fields
from kubesim.server.status import Cause, invalid_value, required

NAMES: Final[Mapping[str, str]] = {
    "reportingComponent": "reportingController",
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
STORED_NAMES: Final = {shown: stored for stored, shown in NAMES.items()}
FIXED: Final = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)
"""What may not change through events.k8s.io/v1, by stored name; through core/v1 everything may. (1.24 let it pass.)"""

REPORTERS: Final = ("reportingComponent",)
IMMUTABLE: Final = "field is immutable"
LEFT_OUT_EMPTY: Final = ("reportingController", "reportingInstance")

CORE_FIELDS: Final[Mapping[str, Field]] = fields(
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
NEW_FIELDS: Final[Mapping[str, Field]] = {
    name.replace("involvedObject.", "regarding.").replace("reportingComponent", "reportingController"): read
    for name, read in CORE_FIELDS.items()
    if name != "source"
}


def _from_stored(event: JsonObject) -> JsonObject:
    shown = {NAMES.get(key, key): value for key, value in event.items()}
    for key in LEFT_OUT_EMPTY:
        if not shown.get(key):
            shown.pop(key, None)
    return {**shown, "apiVersion": "events.k8s.io/v1"}


def _to_stored(event: JsonObject) -> JsonObject:
    return {**{STORED_NAMES.get(key, key): value for key, value in event.items()}, "apiVersion": "v1"}


NEW_VIEW: Final = View(from_stored=_from_stored, to_stored=_to_stored)


class NewEventStrategy(EventStrategy):
    """What events.k8s.io/v1 demands on top."""

    def validate(self, new: JsonObject) -> list[Cause]:
        return super().validate(new) if new.get("eventTime") else [required("eventTime")]

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        return [
            invalid_value(NAMES.get(field, field) if field in REPORTERS else field, new.get(field), IMMUTABLE)
            for field in FIXED
            if new.get(field) != old.get(field)
        ]
