"""What the recorder left out of an answer, left out of ours in the same way, so that what remains must be equal.

A recording names its trim in words; here stands what the words mean. Invariant: an unknown trim is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from kubesim.server.api import Json, JsonObject

Trim = Callable[[Json], Json]

AGE = re.compile(r"^\d+[smhd]$")
LEFT_OUT = ("managedFields", "selfLink")
GROUPS = ("apps", "coordination.k8s.io", "events.k8s.io", "policy", "storage.k8s.io")
CORE_RESOURCES = (
    "nodes",
    "nodes/status",
    "pods",
    "pods/eviction",
    "pods/status",
    "pods/binding",
    "events",
    "namespaces",
    "namespaces/finalize",
    "persistentvolumes",
    "persistentvolumeclaims",
)
REDUCED = re.compile(r"reduced to (?P<paths>.+); those not shown are absent")
ONLY = re.compile(r"only (?P<fields>[\w, ]+)")


def trim_named(words: str) -> Trim:
    """The trim that a recording names. Raises KeyError if it is unknown."""
    if words in NAMED:
        return NAMED[words]
    if match := REDUCED.fullmatch(words):
        return _reduced_to([path.split(".") for path in match["paths"].split(", ")])
    if match := ONLY.fullmatch(words):
        return _only(match["fields"].split(", "))
    raise KeyError(words)


def normalised(value: Json) -> Json:
    """Without the fields that no recording keeps."""
    if isinstance(value, dict):
        return {key: normalised(each) for key, each in value.items() if key not in LEFT_OUT}
    return [normalised(each) for each in value] if isinstance(value, list) else value


def _whole(body: Json) -> Json:
    return body


def _nothing(body: Json) -> Json:
    return None


def _is_status(body: Json) -> bool:
    return not isinstance(body, dict) or body.get("kind") == "Status"


def _slim(body: Json) -> Json:
    if _is_status(body):
        return body
    if "items" in body:
        return {"kind": body["kind"], "items": [_slim(item) for item in body["items"]]}
    metadata = ("name", "generateName", "generation", "finalizers", "deletionTimestamp", "deletionGracePeriodSeconds")
    short: JsonObject = {**_picked(body, ["kind"]), "metadata": _picked(body["metadata"], metadata)}
    if body.get("spec", {}).get("nodeName"):
        short["spec"] = {"nodeName": body["spec"]["nodeName"]}
    status = body.get("status") or {}
    if "disruptionsAllowed" in status:
        short["status"] = status
    elif "phase" in status:
        ready = [_picked(each, ["type", "status"]) for each in status.get("conditions", ()) if each["type"] == "Ready"]
        short["status"] = {"phase": status["phase"], **({"conditions": ready} if ready else {})}
    return short


def _picked(source: JsonObject, keys: Iterable[str]) -> JsonObject:
    return {key: source[key] for key in keys if key in source}


def _reduced_to(paths: list[list[str]]) -> Trim:
    def trim(body: Json) -> Json:
        if _is_status(body):
            return body
        kept: JsonObject = {}
        for path in paths:
            _copy(body, kept, path)
        return kept

    return trim


def _copy(source: Json, target: JsonObject, path: list[str]) -> None:
    head, *rest = path
    if isinstance(source, dict) and head in source:
        if rest:
            _copy(source[head], target.setdefault(head, {}), rest)
        else:
            target[head] = source[head]


def _only(fields: list[str]) -> Trim:
    return lambda body: body if _is_status(body) else _picked(body, ["apiVersion", *fields])


def _item_names(body: Json) -> Json:
    if not isinstance(body, dict) or "items" not in body:
        return body
    return {**body, "items": [item["metadata"]["name"] for item in body["items"]]}


def _without_version(body: Json) -> Json:
    if not isinstance(body, dict):
        return body
    return {**body, "metadata": _without(body.get("metadata", {}), "resourceVersion")}


def _without(source: JsonObject, *keys: str) -> JsonObject:
    return {key: value for key, value in source.items() if key not in keys}


def _names(body: Json) -> Json:
    return _without_version(_item_names(body))


def _sorted_names(body: Json) -> Json:
    named = _names(body)
    return {**named, "items": sorted(named["items"])} if isinstance(named, dict) and "items" in named else named


def _rows(body: Json) -> Json:
    if _is_status(body):
        return body
    rows = [{**row, "cells": [_aged(cell) for cell in row["cells"]]} for row in body["rows"]]
    return {"kind": body["kind"], "apiVersion": body["apiVersion"], "rows": rows}


def _aged(cell: Json) -> Json:
    return AGE.sub("<age>", cell) if isinstance(cell, str) else cell


def _columns_and_rows(body: Json) -> Json:
    if _is_status(body):
        return body
    return {**_rows(body), "columnDefinitions": [_without(each, "description") for each in body["columnDefinitions"]]}


def _of_crd(body: Json) -> Json:
    if not isinstance(body, dict) or body.get("kind") != "CustomResourceDefinition":
        return body
    kept = ("name", "generation", "finalizers", "deletionTimestamp", "deletionGracePeriodSeconds")
    return {"kind": body["kind"], "metadata": _picked(body["metadata"], kept), "status": body.get("status")}


def _opening(body: Json) -> Json:
    if not isinstance(body, dict):
        return body[:80]
    paths = {"paths": dict.fromkeys(list(body["paths"])[:5], "...")} if "paths" in body else {}
    return {**dict.fromkeys(body, "..."), **paths}


def _build(body: Json) -> Json:
    shown = ("major", "minor", "platform", "compiler", "gitVersion")
    return {key: value if key in shown else "..." for key, value in body.items()}


def _arithmetic(body: Json) -> Json:
    def row(budget: JsonObject) -> JsonObject:
        return {
            "metadata": {"name": budget["metadata"]["name"]},
            "spec": _without(budget["spec"], "selector"),
            "status": _without(budget["status"], "observedGeneration", "conditions"),
        }

    return {"kind": body["kind"], "items": [row(budget) for budget in body["items"]]}


def _with_metadata_only(body: Json) -> Json:
    """The objects of an AdmissionReview."""
    reduced = {
        key: {"metadata": value["metadata"]} if key in ("object", "oldObject") and value else value
        for key, value in body["request"].items()
    }
    return {**body, "request": reduced}


def _of_claims(body: Json) -> Json:
    if _is_status(body):
        return body
    if "items" in body:
        return {"kind": body["kind"], "items": [_of_claims(item) for item in body["items"]]}
    if "involvedObject" in body:
        return {key: body.get(key) for key in ("type", "reason", "message")}
    metadata, conditions = body["metadata"], (body.get("status") or {}).get("conditions") or ()
    return {
        "metadata": _picked(metadata, ("name", "generateName", "ownerReferences", "deletionGracePeriodSeconds")),
        "hash": (metadata.get("labels") or {}).get("pod-template-hash"),
        "node": body["spec"].get("nodeName"),
        "ready": any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
    }


def _of_sets(body: Json) -> Json:
    def row(pod_set: JsonObject) -> JsonObject:
        return {
            "kind": "ReplicaSet",
            "metadata": _picked(pod_set["metadata"], ("name", "labels")),
            "spec": {"replicas": pod_set["spec"]["replicas"]},
            "status": _without(pod_set["status"], "observedGeneration", "terminatingReplicas"),
        }

    return {"kind": body["kind"], "items": [row(found) for found in body["items"]]}


NAMED: dict[str, Trim] = {
    "": _whole,
    "no body: set-up": _nothing,
    "answer's body left out": _nothing,
    "of metadata the name, generation, finalizers and deletion fields; of spec the node; PDB status whole, "
    "else phase and Ready": _slim,
    "each item reduced to its name": _item_names,
    "each item reduced to its name, the list's version left out": _names,
    "each item reduced to its name, the list's version left out, sorted: the cache keeps no order": _sorted_names,
    "the list's version left out": _without_version,
    "only kind and rows, ages replaced": _rows,
    "column descriptions and the list's version left out, ages replaced": _columns_and_rows,
    "of a CRD the name, finalizers and status": _of_crd,
    "of an Event the type, reason and message": lambda body: {
        key: body.get(key) for key in ("type", "reason", "message")
    },
    "a text cut to its first 80 characters, an object to its keys (paths: the first five of the core group)": _opening,
    "the values of a development build replaced": _build,
    "serverAddressByClientCIDRs left out": lambda body: _without(body, "serverAddressByClientCIDRs"),
    "groups kept: those a node termination needs": lambda body: {
        **body,
        "groups": [each for each in body["groups"] if each["name"] in GROUPS],
    },
    "resources kept: those a node termination needs": lambda body: {
        **body,
        "resources": [each for each in body["resources"] if each["name"] in CORE_RESOURCES],
    },
    "of each budget the name, the bound and the numbers of its status": _arithmetic,
    "objects reduced to their metadata": _with_metadata_only,
    "of a pod the name, its hash, owners, node, readiness and deletion; of an Event the type, reason and message": (
        _of_claims
    ),
    "of each ReplicaSet the name, labels, size and status without generation and terminating pods": _of_sets,
}
"""By the words of the recordings. A status that was left out is compared by its code alone."""
