"""Refusals, worded as kube-apiserver words them (recordings writes-refused, writes-create, deletes-options, eviction).

A verb that refuses a request raises `Refusal`; the core turns it into a response. No other module builds Status bodies.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kubesim.server.api import Json, JsonObject, Response


class Cause(msgspec.Struct, frozen=True):
    """One entry of `details.causes`. `field` is left out of the body when it is empty."""

    reason: str
    message: str
    field: str = ""

    def body(self) -> JsonObject:
        """The cause as JSON."""
        body = {"reason": self.reason, "message": self.message}
        if self.field:
            body["field"] = self.field
        return body


class Kind(msgspec.Struct, frozen=True):
    """The words that refusals use for a resource: its group, plural and kind."""

    group: str
    plural: str
    kind: str

    @property
    def resource(self) -> str:
        """The plural with its group: `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        """The kind with its group: `Lease.coordination.k8s.io`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind


class Refusal(Exception):
    """An answer with a Status of `Failure`. An empty `reason` and a `details` of None are left out of the body."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: JsonObject | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after
        self.metadata: JsonObject = {}

    def body(self) -> JsonObject:
        """The Status object."""
        body: JsonObject = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        details = self.details
        if self.retry_after is not None:
            details = {**(details or {}), "retryAfterSeconds": self.retry_after}
        if details is not None:
            body["details"] = details
        body["code"] = self.code
        return body

    def response(self) -> Response:
        """The whole answer, with its Retry-After header where it has one."""
        headers = {"content-type": "application/json"}
        if self.retry_after is not None:
            headers["retry-after"] = str(self.retry_after)
        return Response(status=self.code, headers=headers, body=self.body())


def success(code: int | None = None, details: JsonObject | None = None) -> JsonObject:
    """A Status of `Success`: of a deletion (with details) or of a binding and an eviction (with a code)."""
    body: JsonObject = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        body["details"] = details
    if code is not None:
        body["code"] = code
    return body


def details_of(kind: Kind, name: str, *, by_kind: bool = False, **more: Json) -> JsonObject:
    """`details` of one object: name, group and (confusingly named) kind, which is the plural unless `by_kind`."""
    details: JsonObject = {}
    if name:
        details["name"] = name
    if kind.group:
        details["group"] = kind.group
    details["kind"] = kind.kind if by_kind else kind.plural
    details.update(more)
    return details


def not_found(kind: Kind, name: str) -> Refusal:
    """404: no such object."""
    return Refusal(404, "NotFound", f'{kind.resource} "{name}" not found', details=details_of(kind, name))


def no_such_resource() -> Refusal:
    """404: the group is served, the resource or subresource is not."""
    return Refusal(404, "NotFound", "the server could not find the requested resource", details={})


def not_here(why: str) -> Refusal:
    """501: a real server would answer, and this one cannot. No words of kube-apiserver, which has none for this."""
    return Refusal(501, "NotImplemented", why, details={})


def no_such_path() -> Response:
    """404 in plain text: not even the group is served."""
    return Response(status=404, headers={"content-type": "text/plain; charset=utf-8"}, body="404 page not found\n")


def method_not_allowed() -> Refusal:
    """405."""
    message = "the server does not allow this method on the requested resource"
    return Refusal(405, "MethodNotAllowed", message, details={})


def bad_request(message: str) -> Refusal:
    """400."""
    return Refusal(400, "BadRequest", message)


def internal(message: str) -> Refusal:
    """500 without a reason, as errors that the server never classified come out."""
    return Refusal(500, "", message)


def already_exists(kind: Kind, name: str, *, being_deleted: bool) -> Refusal:
    """409: the name is taken, perhaps by an object on its way out."""
    prefix = "object is being deleted: " if being_deleted else ""
    message = f'{prefix}{kind.resource} "{name}" already exists'
    return Refusal(409, "AlreadyExists", message, details=details_of(kind, name))


STORED_AS = {"nodes": "minions", "services": "services/specs", "endpoints": "services/endpoints"}
"""Plurals with older names in the keys of etcd."""

MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(kind: Kind, name: str, why: str = MODIFIED) -> Refusal:
    """409 of a write: the version (or, on PUT, the uid) is not the stored one."""
    message = f'Operation cannot be fulfilled on {kind.resource} "{name}": {why}'
    return Refusal(409, "Conflict", message, details=details_of(kind, name))


def overtaken(kind: Kind, namespace: str, name: str, fault: str) -> Refusal:
    """409 of a write: its precondition held at the beginning and no longer does; in the words of the storage."""
    group = f"{kind.group}/" if "." in kind.group and not kind.group.endswith(".k8s.io") else ""
    key = "/".join(filter(None, (f"/registry/{group}{STORED_AS.get(kind.resource, kind.plural)}", namespace, name)))
    why = f"Precondition failed: {fault}"
    return conflict(
        kind, name, f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}"
    )


def precondition_failed(kind: Kind, name: str, why: str) -> Refusal:
    """409 of a DELETE: names the Kind where other conflicts name the resource."""
    message = f'Operation cannot be fulfilled on {kind.qualified} "{name}": {why}'
    return Refusal(409, "Conflict", message, details=details_of(kind, name, by_kind=True))


def forbidden(kind: Kind, name: str, why: str, *, causes: Sequence[Cause] = ()) -> Refusal:
    """403."""
    details = details_of(kind, name)
    if causes:
        details["causes"] = [cause.body() for cause in causes]
    subject = f'{kind.resource} "{name}"' if name else kind.resource
    return Refusal(403, "Forbidden", f"{subject} is forbidden: {why}", details=details)


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Refusal:
    """422 with a cause for each fault. The message names equal faults once, the causes repeat them."""
    faults = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in causes))
    text = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    details = details_of(kind, name, by_kind=True)
    if not details["kind"]:
        del details["kind"]
    details["causes"] = [cause.body() for cause in causes]
    return Refusal(422, "Invalid", f'{kind.qualified} "{name}" is invalid: {text}', details=details)


def invalid_options(kind: str, cause: Cause) -> Refusal:
    """422 about the options of a request (ListOptions, DeleteOptions, CreateOptions…)."""
    return invalid(Kind(group="meta.k8s.io", plural="", kind=kind), "", [cause])


def rejected() -> Refusal:
    """422: a JSON patch that cannot be applied, whatever the reason."""
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request", details={})


def unsupported_media_type(accepted: Sequence[str] = ()) -> Refusal:
    """415: of a body (names what is accepted) or, with nothing to name, of a patch."""
    if not accepted:
        return Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    message = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return Refusal(415, "UnsupportedMediaType", message)


def too_large(limit: int) -> Refusal:
    """413: a body of more bytes than the server takes."""
    return Refusal(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")


def not_acceptable() -> Refusal:
    """406: no representation that the client accepts."""
    return Refusal(406, "NotAcceptable", "406: Not Acceptable", details={})


def expired(message: str) -> Refusal:
    """410: the version is older than what the server remembers."""
    return Refusal(410, "Expired", message)


def too_large_version(asked: int, current: int) -> Refusal:
    """504: a version that has not happened yet."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return Refusal(504, "Timeout", message, details={"causes": [cause]}, retry_after=1)


def budget_refusal(message: str, *, retry_after: int | None = None) -> Refusal:
    """429 of an eviction that its budget does not allow. Only a budget not yet counted brings a Retry-After."""
    details = {"causes": [{"reason": "DisruptionBudget", "message": message}]}
    text = "Cannot evict pod as it would violate the pod's disruption budget."
    return Refusal(429, "TooManyRequests", text, details=details, retry_after=retry_after)


def unauthorized() -> Refusal:
    """401: an unknown bearer token."""
    return Refusal(401, "Unauthorized", "Unauthorized")


REQUIRED = "FieldValueRequired"
INVALID = "FieldValueInvalid"
NOT_SUPPORTED = "FieldValueNotSupported"
DUPLICATE = "FieldValueDuplicate"
FORBIDDEN = "FieldValueForbidden"


def required(field: str, why: str = "") -> Cause:
    """A cause: nothing where something must be."""
    return Cause(REQUIRED, f"Required value: {why}" if why else "Required value", field)


def invalid_value(field: str, value: Json, why: str) -> Cause:
    """A cause: a value that breaks a rule."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause(INVALID, f"Invalid value: {shown}: {why}", field)


def forbidden_value(field: str, why: str) -> Cause:
    """A cause: something that may not be set or changed."""
    return Cause(FORBIDDEN, f"Forbidden: {why}", field)


def not_supported(field: str, shown: str, supported: Sequence[str]) -> Cause:
    """A cause: a word outside its list. `shown` is the word as Go prints it."""
    words = ", ".join(f'"{word}"' for word in supported)
    return Cause(NOT_SUPPORTED, f"Unsupported value: {shown}: supported values: {words}", field)
