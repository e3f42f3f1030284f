"""Bodies as a real server reads them: into Go structs and out again, with the client's fieldValidation.

Built-in kinds only. Invariant: the result is canonical (see `canonical`), and the caller's object is neither kept nor
changed. A valid body takes one pass through msgspec; an invalid one is read again in Python for Go's error text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from kubesim.server.api import JsonObject
from kubesim.server.bodies import content_type, copied
from kubesim.server.calls import Call
from kubesim.server.goformat import go_text
from kubesim.server.hooks import BodyCheck
from kubesim.server.patches import STRATEGIC
from kubesim.server.resource import Resource
from kubesim.server.status import Refusal, bad_request, invalid_options, not_supported
from kubesim.server.strategic import Layout
from kubesim.types.canonical import Unfit, canonical, parts
from kubesim.types.catalog import built_in_type, type_name
from kubesim.types.decoding import Conversion, Reading, parsed_with_repetitions

DIRECTIVES: Final = ("", "Ignore", "Strict", "Warn")
OPTIONS: Final = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}


class TypedBodies:
    """The body check of the built-in kinds."""

    def __init__(self, custom: BodyCheck) -> None:
        """`custom` checks the kinds that are not built in."""
        self._custom = custom

    def sent(self, call: Call, body: JsonObject) -> JsonObject:
        """The object of a POST or PUT; an applied configuration stays as it is. Raises Refusal (400, 422)."""
        resource = call.route.resource
        struct = type_name(resource.group, resource.version, resource.kind)
        if not struct:
            # A kind of its own may keep parts of the body as they are.
            return self._custom.sent(call, body if isinstance(call.request.body, bytes) else copied(body))
        if call.request.method == "PATCH":
            return body
        directive = validation(call)
        raw = call.request.body
        if directive == "Strict" and isinstance(raw, bytes) and content_type(call.request) == "application/json":
            # Only a slow parser sees names that stand twice, so it is left out where the client did not ask.
            reading = Reading(struct, parsed_with_repetitions(raw))
        else:
            try:
                return canonical(struct, body)
            except Unfit:
                reading = Reading(struct, body)
        fault = reading.fault or strict_fault(call, reading.strict, directive)
        if fault:
            version = str(body["apiVersion"]).rpartition("/")[2]
            raise bad_request(f'{resource.kind} in version "{version}" cannot be handled as a {resource.kind}: {fault}')
        return canonical(struct, {"kind": body["kind"], "apiVersion": body["apiVersion"], **reading.value})

    def patched(self, call: Call, patched: JsonObject, old: JsonObject) -> JsonObject:
        """The object that a patch made of `old`; what it left alone is shared. Raises Refusal (422)."""
        resource = call.route.resource
        struct = type_name(resource.group, resource.version, resource.kind)
        if not struct:
            return self._custom.patched(call, patched, old)
        directive = validation(call)
        try:
            if resource.kind == "Node" and has_unreadable_instants(patched):
                raise Unfit
            return parts(struct).canonical(patched, old)
        except Unfit:
            strategic = content_type(call.request) == STRATEGIC
            reading = (Conversion if strategic else Reading)(struct, patched)
        fault = reading.fault or strict_fault(call, reading.strict, directive)
        if fault:
            raise unpatchable(call, patched, fault)
        return canonical(struct, reading.value)

    def layout(self, resource: Resource) -> Layout | None:
        """How a strategic merge merges a kind, or None if it cannot."""
        if type_name(resource.group, resource.version, resource.kind):
            return built_in_type(resource.group, resource.version, resource.kind)
        return self._custom.layout(resource)


def has_unreadable_instants(node: JsonObject) -> bool:
    """Whether a node holds an instant that Go has written and does not read: no patch that leaves it there is taken."""
    values: list[object] = []
    for part, field in (("status", "conditions"), ("spec", "taints")):
        section = node.get(part)  # anything at all: it is validated later
        entries = section.get(field) if isinstance(section, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            values += entry.values() if isinstance(entry, dict) else ()
    return any(isinstance(value, str) and value.startswith("10000-") for value in values)


def validation(call: Call) -> str:
    """The directive of fieldValidation: Ignore, Warn, Strict, or "" (which warns). Raises Refusal (422)."""
    directive = call.query.get("fieldValidation", "")
    if directive not in DIRECTIVES:
        fault = not_supported("fieldValidation", f'"{directive}"', DIRECTIVES)
        raise invalid_options(OPTIONS.get(call.request.method, "CreateOptions"), fault)
    return directive


def strict_fault(call: Call, complaints: Sequence[str], directive: str) -> str:
    """What a strict decoder says, if it was asked to be strict; otherwise the client is warned or spared."""
    if directive == "Strict":
        return f"strict decoding error: {', '.join(complaints)}" if complaints else ""
    if directive != "Ignore":
        call.warnings += complaints
    return ""


def unpatchable(call: Call, patched: JsonObject, fault: str) -> Refusal:
    """The refusal of a patch: it quotes the object that the patch made, or (if it is strategic) the patch."""
    if content_type(call.request) == STRATEGIC:
        body = call.request.body
        shown = go_text(orjson.loads(body) if isinstance(body, bytes) else body)
    else:
        shown = orjson.dumps({key: patched[key] for key in sorted(patched)}).decode()
    quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
    why = f'Invalid value: "{quoted}": {fault}'
    cause = {"reason": "FieldValueInvalid", "message": why, "field": "patch"}
    return Refusal(422, "Invalid", f' "" is invalid: patch: {why}', details={"causes": [cause]})
