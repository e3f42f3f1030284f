"""Bodies of custom resources: they must say what they are, unknown fields go (and are reported as asked), and
metadata is read as Go reads it.
"""

from __future__ import annotations

import orjson

from kubesim.apiextensions.customresources import CustomStrategy
from kubesim.apiextensions.defaulting import NOTHING, Report
from kubesim.apiextensions.structural import go_value
from kubesim.server.api import Json, JsonObject
from kubesim.server.bodies import content_type, shortened
from kubesim.server.calls import Call
from kubesim.server.metadata import STANDARD_FINALIZERS
from kubesim.server.resource import Resource
from kubesim.server.status import Kind, Refusal, bad_request, invalid
from kubesim.server.strategic import Layout
from kubesim.types.bodies import strict_fault, unpatchable, validation
from kubesim.types.decoding import parsed_with_repetitions


class CustomBodies:
    """The body check of custom resources; what belongs to no definition stays as it is."""

    def sent(self, call: Call, body: JsonObject) -> JsonObject:
        """The object of a POST or PUT, or an applied configuration (which keeps every field it names). Raises Refusal
        (400, 405, 422)."""
        strategy = call.route.resource.strategy
        if not isinstance(strategy, CustomStrategy):
            return body
        if call.request.method == "POST" and strategy.definition.is_terminating:
            raise terminating(call.route.resource)
        check_type(call, body)
        if call.request.method == "PATCH":
            return body if isinstance(body.get("metadata"), dict) else {**body, "metadata": {}}
        directive = validation(call)
        raw = call.request.body
        if directive == "Strict" and isinstance(raw, bytes) and content_type(call.request) == "application/json":
            body = parsed_with_repetitions(raw)
        pruned, report = self._pruned(strategy, body)
        fault = report.fault or strict_fault(call, report.complaints, directive)
        if fault:
            raise unreadable(call.route.resource, fault)
        warn_of_finalizers(call, pruned["metadata"], {})
        return pruned

    def patched(self, call: Call, patched: JsonObject, old: JsonObject) -> JsonObject:
        """The object that a patch made of `old`. Raises Refusal (400, 422)."""
        strategy = call.route.resource.strategy
        if not isinstance(strategy, CustomStrategy):
            return patched
        if not patched.get("kind"):
            raise unpatchable(call, patched, f"Object 'Kind' is missing in '{_sorted_json(patched)}'")
        check_type(call, patched)
        directive = validation(call)
        pruned, report = self._pruned(strategy, patched, old)
        fault = report.fault or strict_fault(call, report.complaints, directive)
        if fault:
            raise unpatchable(call, patched, fault)
        warn_of_finalizers(call, pruned["metadata"], old["metadata"])
        return pruned

    def layout(self, resource: Resource) -> Layout | None:
        """None: there is no strategic merge."""
        return None

    @staticmethod
    def _pruned(strategy: CustomStrategy, body: JsonObject, old: JsonObject = NOTHING) -> tuple[JsonObject, Report]:
        report = Report()
        shaped: JsonObject = strategy.shape.defaulted(strategy.shape.prune(body, report, old), old)
        return (shaped if "metadata" in shaped else {**shaped, "metadata": {}}), report


def check_type(call: Call, body: JsonObject) -> None:
    """Raises Refusal (400, 422) unless an object says that it is what its path is about."""
    resource = call.route.resource
    if not body.get("kind"):
        raw = call.request.body
        text = raw.decode(errors="replace") if isinstance(raw, bytes) else orjson.dumps(body).decode()
        raise bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' is missing in "
            f"'{text}' ({shortened(text)})"
        )
    given = body.get("apiVersion") or ""
    if given != resource.api_version:
        raise bad_request(
            f"the API version in the data ({given}) does not match the expected API version ({resource.api_version})"
        )
    if body["kind"] != resource.kind:
        metadata = body.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, dict) else ""
        fault = go_value("kind", f'"{body["kind"]}"', f"must be {resource.kind}")
        raise invalid(Kind(resource.group, resource.plural, body["kind"]), name, [fault])


def terminating(resource: Resource) -> Refusal:
    """405: the definition is being deleted."""
    message = "create not allowed while custom resource definition is terminating"
    return Refusal(405, "MethodNotAllowed", message, details={"group": resource.group, "kind": resource.plural})


def unreadable(resource: Resource, fault: str) -> Refusal:
    """400: metadata of a wrong type, or something that a strict reader does not take."""
    kind = resource.kind
    return bad_request(f'{kind} in version "{resource.version}" cannot be handled as a {kind}: {fault}')


def warn_of_finalizers(call: Call, metadata: JsonObject, old: JsonObject) -> None:
    """Finalizers need not be qualified, but should."""
    had = set(old.get("finalizers") or ())
    for finalizer in sorted(set(metadata.get("finalizers") or ()) - had - STANDARD_FINALIZERS):
        if "/" not in finalizer:
            name = "name including a path (/)" if "." in finalizer else "name"
            call.warnings.append(
                f'metadata.finalizers: "{finalizer}": prefer a domain-qualified finalizer {name} to avoid accidental '
                "conflicts with other finalizer writers"
            )


def _sorted_json(value: Json) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
