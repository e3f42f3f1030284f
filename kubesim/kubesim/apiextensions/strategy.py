"""The kind CustomResourceDefinition: its defaults, its generation, and how its deletion begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kubesim.apiextensions.columns import DEFINITION_COLUMNS
from kubesim.apiextensions.definition import CLEANUP, GROUP, PLURAL, condition, with_condition, with_status
from kubesim.apiextensions.validation import change_faults, definition_faults, name_faults, names_faults
from kubesim.server.api import JsonObject
from kubesim.server.resource import Occasion, Resource, Strategy, fields, keep_from
from kubesim.server.status import Cause

Changed = Callable[[str], None]
"""Gets the name of a definition before it is written."""

NEW_STATUS: Final = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}}


class DefinitionStrategy(Strategy):
    """CustomResourceDefinitions. The controller of the endpoints is notified of every change."""

    unconditional_update = False
    status_writes_metadata = False

    def __init__(self, changed: Changed) -> None:
        self._changed = changed

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = with_defaults(new)
        stored = [each["name"] for each in new["spec"].get("versions") or () if each.get("storage")][:1]
        self._changed(new["metadata"].get("name", ""))
        metadata = {**new["metadata"], "generation": 1}
        return {**new, "metadata": metadata, "status": {**NEW_STATUS, "storedVersions": stored}}

    def prepare_update(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> JsonObject:
        self._changed(old["metadata"]["name"])
        if occasion.subresource == "status":
            return keep_from(new, old, ("spec",))
        new = with_defaults(keep_from(new, old, ("status",)))
        stored = old["status"].get("storedVersions") or []
        added = [each["name"] for each in new["spec"].get("versions") or () if each.get("storage")][:1]
        if added and added[0] not in stored:
            new = with_status(new, storedVersions=[*stored, *added])
        if new["spec"] == old["spec"]:
            return new
        return {**new, "metadata": {**new["metadata"], "generation": old["metadata"].get("generation", 0) + 1}}

    def validate(self, new: JsonObject) -> list[Cause]:
        return [*name_faults(new), *definition_faults(new)]

    def faults_of_change(self, new: JsonObject, old: JsonObject, occasion: Occasion) -> list[Cause]:
        if occasion.subresource == "status":
            return list(names_faults(new["status"].get("acceptedNames") or {}, "status.acceptedNames"))
        established = condition(old, "Established").get("status") == "True"
        return [*definition_faults(new), *change_faults(new, old, established=established)]

    def ending(self, old: JsonObject, now: str) -> JsonObject | None:
        metadata = old["metadata"]
        self._changed(metadata["name"])
        if "deletionTimestamp" in metadata:
            return None
        finalizers = [*(each for each in metadata.get("finalizers") or () if each != CLEANUP), CLEANUP]
        return with_condition(
            {**old, "metadata": {**metadata, "deletionTimestamp": now, "finalizers": finalizers}},
            now,
            "Terminating",
            status="True",
            reason="InstanceDeletionPending",
            message="CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        )


def with_defaults(raw: JsonObject) -> JsonObject:
    """The definition with its names completed, and conversion None."""
    spec = raw.get("spec") or {}
    names = dict(spec.get("names") or {})
    kind = names.get("kind", "")
    if not names.get("singular") and kind:
        names["singular"] = kind.lower()
    if not names.get("listKind") and kind:
        names["listKind"] = f"{kind}List"
    return {**raw, "spec": {**spec, "names": names, "conversion": spec.get("conversion") or {"strategy": "None"}}}


def definition_resource(changed: Changed) -> Resource:
    """Where definitions are served."""
    return Resource(
        group=GROUP,
        version="v1",
        plural=PLURAL,
        kind="CustomResourceDefinition",
        singular="customresourcedefinition",
        namespaced=False,
        strategy=DefinitionStrategy(changed),
        subresources=("status",),
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        selectable=fields(),
        columns=DEFINITION_COLUMNS,
    )
