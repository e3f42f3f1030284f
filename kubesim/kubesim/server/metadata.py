"""Metadata of objects: what only the server sets, what may never change, what must be there.

Invariant: uid, creationTimestamp, deletionTimestamp and deletionGracePeriodSeconds never come from a client.
"""

from __future__ import annotations

from collections.abc import Callable

from kubesim.server.api import JsonObject
from kubesim.server.goformat import go_strings
from kubesim.server.names import SUBDOMAIN_RULE, is_subdomain, label_fault, path_name_faults
from kubesim.server.resource import Resource
from kubesim.server.status import Cause, forbidden_value, invalid_value, required

SERVER_ONLY = ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
STANDARD_FINALIZERS = {"kubernetes", "orphan", "foregroundDeletion"}
OWNER_FIELDS = (("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid"))
EMPTY_ARE_ABSENT = ("labels", "annotations", "finalizers", "ownerReferences")


def normalised(metadata: JsonObject) -> JsonObject:
    """The metadata as Go would write it: nothing empty, nothing null."""
    if all(value is not None for value in metadata.values()) and all(metadata.get(key, 1) for key in EMPTY_ARE_ABSENT):
        return metadata
    return {
        key: value for key, value in metadata.items() if value is not None and (value or key not in EMPTY_ARE_ABSENT)
    }


def for_create(
    metadata: JsonObject, resource: Resource, namespace: str, now: str, new_uid: Callable[[], str]
) -> JsonObject:
    """The metadata of a new object: the server's own fields set, those that clients may not set dropped."""
    fresh: JsonObject = {}
    for key in ("name", "generateName"):
        if metadata.get(key):
            fresh[key] = metadata[key]
    if resource.namespaced:
        fresh["namespace"] = namespace
    fresh["uid"] = new_uid()
    if resource.strategy.counts_generations:
        fresh["generation"] = 1
    elif metadata.get("generation"):
        fresh["generation"] = metadata["generation"]
    fresh["creationTimestamp"] = now
    for key, value in metadata.items():
        if key not in fresh and key not in SERVER_ONLY and key not in ("namespace", "generation", "resourceVersion"):
            fresh[key] = value
    return normalised(fresh)


def for_update(metadata: JsonObject, old: JsonObject) -> JsonObject:
    """The metadata of a changed object: what the server alone may set is put back silently."""
    kept = dict(metadata)
    for key in ("creationTimestamp", "generation", "namespace", "generateName", *SERVER_ONLY):
        if key in old:
            kept[key] = old[key]
        else:
            kept.pop(key, None)
    kept["resourceVersion"] = old["resourceVersion"]
    kept.setdefault("uid", old["uid"])
    kept.setdefault("name", old["name"])
    return normalised(kept)


def with_owners(metadata: JsonObject, other: JsonObject) -> JsonObject:
    """The metadata with the managedFields (or without, if it has none) of the other."""
    if metadata.get("managedFields") is other.get("managedFields"):
        return metadata
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    return {**kept, "managedFields": other["managedFields"]} if "managedFields" in other else kept


def validate(metadata: JsonObject, *, names_are_free: bool = False, finalizers_are_free: bool = False) -> list[Cause]:
    """Faults of metadata, new or changed: name, labels, annotations, finalizers."""
    causes: list[Cause] = []
    name = metadata.get("name", "")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif names_are_free:
        causes.extend(path_name_faults("metadata.name", name))
    elif not is_subdomain(name):
        causes.append(invalid_value("metadata.name", name, SUBDOMAIN_RULE))
    causes.extend(validate_labels(metadata.get("labels") or {}))
    for index, finalizer in enumerate(metadata.get("finalizers") or ()):
        if not finalizers_are_free and "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            causes.append(invalid_value(f"metadata.finalizers[{index}]", finalizer, why))
    for owner in metadata.get("ownerReferences") or ():
        causes.extend(
            invalid_value(f"metadata.ownerReferences.{field}", "", f"{word} must not be empty")
            for field, word in OWNER_FIELDS
            if not owner.get(field)
        )
    return causes


def validate_labels(labels: dict[str, str]) -> list[Cause]:
    """Faults of labels."""
    return [fault for key, value in labels.items() if (fault := label_fault(key, value)) is not None]


def validate_update(metadata: JsonObject, old: JsonObject) -> list[Cause]:
    """Faults of a change: what is immutable, finalizers that come too late, and (once more) labels."""
    causes = validate_labels(metadata.get("labels") or {})
    if metadata["name"] != old["name"]:
        causes.append(invalid_value("metadata.name", metadata["name"], "field is immutable"))
    if metadata["uid"] != old["uid"]:
        causes.append(invalid_value("metadata.uid", metadata["uid"], "field is immutable"))
    if "deletionTimestamp" in old:
        had = set(old.get("finalizers") or ())
        late = [finalizer for finalizer in metadata.get("finalizers") or () if finalizer not in had]
        if late:
            why = "no new finalizers can be added if the object is being deleted, found new finalizers "
            causes.append(forbidden_value("metadata.finalizers", why + go_strings(late)))
    return causes
