"""The options of a request: dry run, deletion options, and what is wrong with them (recording deletes-options).

For a DELETE the body wins: where there is one, the query is not read at all, `dryRun` included.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import go_strings
from kubesim.server.patches import APPLY
from kubesim.server.status import (
    NOT_SUPPORTED,
    Cause,
    Kind,
    bad_request,
    forbidden_value,
    internal,
    invalid,
    invalid_options,
    invalid_value,
    not_supported,
    required,
)

LONGEST_MANAGER = 128
"""The longest name of a field manager, in bytes."""

PROPAGATIONS = ("Foreground", "Background", "Orphan", "nil")


class DeleteOptions(msgspec.Struct, frozen=True):
    """What a DELETE asks for. `grace` in seconds, None when not said; empty strings are preconditions not made."""

    grace: int | None = None
    uid: str = ""
    resource_version: str = ""
    propagation: str = ""
    orphan_dependents: bool | None = None
    dry_run: bool = False
    raw: JsonObject = {}
    """As the client wrote them, for admission webhooks."""


def check_write(query: Mapping[str, str], kind: str) -> bool:
    """Check the options of a POST or PUT; returns whether it is a dry run. Raises Refusal (422)."""
    if "fieldManager" not in query:
        return is_dry_run(query, kind)
    return _checked(query, kind, [])


def check_patch(query: Mapping[str, str], media_type: str) -> bool:
    """Check the options of a PATCH of this type; returns whether it is a dry run. Raises Refusal (422)."""
    faults: list[Cause] = []
    if media_type == APPLY:
        if not query.get("fieldManager"):
            faults.append(required("fieldManager", "is required for apply patch"))
    elif "force" in query:
        faults.append(forbidden_value("force", "may not be specified for non-apply patch"))
    if not faults:
        return check_write(query, "PatchOptions")
    return _checked(query, "PatchOptions", faults)


def _checked(query: Mapping[str, str], kind: str, faults: list[Cause]) -> bool:
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > LONGEST_MANAGER:
        why = f"Too long: may not be more than {LONGEST_MANAGER} bytes"
        faults.append(Cause("FieldValueTooLong", why, "fieldManager"))
    for index, character in enumerate(manager):
        if not character.isprintable():
            why = f"invalid character U+{ord(character):04X} (at position {index})"
            faults.append(invalid_value("fieldManager", manager, why))
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        faults.append(not_supported("dryRun", go_strings([dry_run]), ["All"]))
    if faults:
        raise invalid(Kind("meta.k8s.io", "", kind), "", faults)
    return bool(dry_run)


def is_dry_run(query: Mapping[str, str], kind: str) -> bool:
    """Whether the query asks for a dry run. Raises Refusal (422) for anything but `All`; `kind` names the options."""
    return _dry_run([query["dryRun"]] if query.get("dryRun") else [], kind)


def _dry_run(values: list[str], kind: str) -> bool:
    if any(value != "All" for value in values):
        raise invalid_options(kind, not_supported("dryRun", go_strings(values), ["All"]))
    return bool(values)


def delete_options(query: Mapping[str, str], body: Json) -> DeleteOptions:
    """Options of a DELETE, of its body if there is one. Raises Refusal."""
    if isinstance(body, dict):
        kind = body.get("kind", "DeleteOptions")
        if kind != "DeleteOptions":
            raise internal(f"converting (v1.{kind}) to (v1.DeleteOptions): unknown conversion")
        return options_from(body)
    raw: JsonObject = {}
    if query.get("gracePeriodSeconds"):
        raw["gracePeriodSeconds"] = integer(query["gracePeriodSeconds"])
    if query.get("propagationPolicy"):
        raw["propagationPolicy"] = query["propagationPolicy"]
    if query.get("orphanDependents"):
        raw["orphanDependents"] = query["orphanDependents"] == "true"
    if query.get("dryRun"):
        raw["dryRun"] = [query["dryRun"]]
    return options_from(raw)


def options_from(raw: JsonObject) -> DeleteOptions:
    """DeleteOptions as JSON, checked. Raises Refusal (422)."""
    propagation = raw.get("propagationPolicy") or ""
    orphan = raw.get("orphanDependents")
    if propagation and propagation not in PROPAGATIONS[:3]:
        raise invalid_options("DeleteOptions", not_supported("propagationPolicy", f'"{propagation}"', PROPAGATIONS))
    if propagation and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        raise invalid_options("DeleteOptions", invalid_value("propagationPolicy", propagation, why))
    preconditions = raw.get("preconditions") or {}
    return DeleteOptions(
        grace=raw.get("gracePeriodSeconds"),
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        propagation=propagation,
        orphan_dependents=orphan,
        dry_run=_dry_run(raw.get("dryRun") or [], "DeleteOptions"),
        raw=raw,
    )


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Whether the query says so, in any of the words that Go takes for true; anything else means no."""
    return query.get(name) in ("1", "t", "T", "true", "True", "TRUE")


def integer(text: str) -> int:
    """A number of a query. Raises Refusal (400)."""
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def version_number(text: str, *, watch: bool = False) -> int:
    """A resourceVersion of a query. Raises Refusal: 500 for a watch, 400 for the others (1.24: 500 for all)."""
    if text.isascii() and text.isdigit():
        return int(text)
    why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
    raise internal(why) if watch else bad_request(f"invalid resource version: {why}")


def check_match(query: Mapping[str, str], *, watch: bool) -> str:
    """`resourceVersionMatch` of a list, checked. Raises Refusal (422)."""
    wanted = query.get("resourceVersionMatch", "")
    if watch:
        return _watch_match(query, wanted)
    if not wanted:
        return ""
    version = query.get("resourceVersion", "")
    field = "resourceVersionMatch"
    if not version:
        fault = Cause(
            "FieldValueForbidden",
            "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            field,
        )
    elif wanted not in ("Exact", "NotOlderThan"):
        supported = '"Exact", "NotOlderThan", ""'
        fault = Cause(NOT_SUPPORTED, f'Unsupported value: "{wanted}": supported values: {supported}', field)
    elif wanted == "Exact" and version == "0":
        message = 'Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        fault = Cause("FieldValueForbidden", message, field)
    else:
        return wanted
    raise invalid_options("ListOptions", fault)


def _watch_match(query: Mapping[str, str], wanted: str) -> str:
    """`resourceVersionMatch` of a watch: NotOlderThan goes with sendInitialEvents, and neither without the other."""
    faults: list[Cause] = []
    field = "resourceVersionMatch"
    if "sendInitialEvents" in query and wanted != "NotOlderThan":
        faults.append(forbidden_value(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
    if wanted and "sendInitialEvents" not in query:
        why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        faults.append(forbidden_value(field, why))
    if wanted and wanted != "NotOlderThan":
        faults.append(not_supported(field, f'"{wanted}"', ["NotOlderThan"]))
    if faults:
        raise invalid(Kind("meta.k8s.io", "", "ListOptions"), "", faults)
    return wanted
