"""AdmissionReviews (admission.k8s.io/v1): requests of API servers, and their responses.

Requests are decoded leniently: a newer server may send more fields. Objects stay undecoded until a handler needs them.
Source: recordings admission, admission-nodes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from gracectl.model.encoding import SORTED, encode
from gracectl.model.envelope import StatusCause
from gracectl.model.foreign import visible
from gracectl.model.untrusted import Decoder
from gracectl.model.wire import ABSENT, Object

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class InvalidReview(ValueError):
    """Body without a valid request; the text says why."""


class Undecided(Exception):
    """No decision is possible now: the webhook's failurePolicy decides; the text says why. `status`: HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class GroupResource(msgspec.Struct, frozen=True):
    """Resource, as paths name it."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True):
    """Request of an API server. `object`: as it would be; `old_object`: as it is. Each is None where there is none."""

    uid: str
    operation: Operation
    resource: GroupResource
    name: str
    """"" for an object without a name: the server generates it."""
    username: str
    object: msgspec.Raw | None
    old_object: msgspec.Raw | None
    is_dry_run: bool


class Denial(msgspec.Struct, frozen=True):
    """Reason of a denial, as a Status for clients. `resource` and `name`: of the object; `retry_after`: seconds, where
    repeating the request may help (clients of Kubernetes do so silently)."""

    code: int
    reason: str
    message: str
    resource: GroupResource
    name: str
    causes: tuple[StatusCause, ...] = ()
    retry_after: int | None = None


class AdmissionResponse(msgspec.Struct, frozen=True):
    """Response: allowed unless there is a denial; with operations of a JSON patch, and with warnings for the client."""

    denial: Denial | None = None
    patch: tuple[Mapping[str, object], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["allowed", "patched", "denied"]:
        """The response in one word."""
        if self.denial is not None:
            return "denied"
        return "patched" if self.patch else "allowed"


ALLOWED: Final = AdmissionResponse()

Handler = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]
"""Raises Undecided, InvalidReview for objects that cannot be decoded, or ApiError."""


def decode_review(body: bytes) -> AdmissionRequest:
    """Request of a review. Raises InvalidReview."""
    try:
        review = _REVIEW.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidReview(f"not an {KIND} of {API_VERSION}: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        found = f"{review.kind or 'no kind'} of {review.api_version or 'no version'}"
        raise InvalidReview(f"not an {KIND} of {API_VERSION}, but {found}")
    request = review.request
    if request is None or not request.uid:
        raise InvalidReview(f"{KIND} without a request uid")
    return AdmissionRequest(
        uid=request.uid,
        operation=request.operation,
        resource=request.resource or GroupResource(),
        name=request.name or "",
        username=(request.user_info.username if request.user_info else None) or "",
        object=_present(request.object),
        old_object=_present(request.old_object),
        is_dry_run=bool(request.dry_run),
    )


def encode_review(uid: str, response: AdmissionResponse) -> bytes:
    """Review with the response to the request of that UID."""
    fields: dict[str, object] = {"uid": uid, "allowed": response.denial is None}
    if response.denial is not None:
        fields["status"] = _status(response.denial)
    elif response.patch:
        fields["patchType"] = "JSONPatch"
        fields["patch"] = b64encode(encode(response.patch)).decode()
    if response.warnings:
        fields["warnings"] = [visible(each) for each in response.warnings]
    return encode({"apiVersion": API_VERSION, "kind": KIND, "response": fields})


def required(raw: msgspec.Raw | None, field: str) -> msgspec.Raw:
    """Object that a request must have. Raises InvalidReview."""
    if raw is None:
        raise InvalidReview(f"request.{field}: missing")
    return raw


def is_spec_new(request: AdmissionRequest, kind: str) -> bool:
    """Whether the request writes another spec, so that it is to be validated: not for an object that is being deleted.
    Raises InvalidReview."""
    new = _written(required(request.object, "object"), kind)
    if new.metadata.deletion_timestamp is not None:
        return False
    # Canonical forms: to Python, 1 is true.
    old = None if request.old_object is None else _written(request.old_object, kind)
    return old is None or encode(old.spec, SORTED) != encode(new.spec, SORTED)


def _status(denial: Denial) -> dict[str, object]:
    details: dict[str, object] = {
        "name": denial.name,
        "group": denial.resource.group,
        "kind": denial.resource.resource,
        "causes": [
            {"reason": cause.reason, "message": visible(cause.message), "field": cause.field} for cause in denial.causes
        ],
    }
    if denial.retry_after is not None:
        details["retryAfterSeconds"] = denial.retry_after
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "code": denial.code,
        "reason": denial.reason,
        "message": visible(denial.message),
        "details": {name: value for name, value in details.items() if value},
    }


class _Meta(Object):
    deletion_timestamp: str | None = None


class _Written(Object):
    """Part of an object that decides whether it needs validation."""

    metadata: _Meta
    spec: object = None


def _written(raw: msgspec.Raw, kind: str) -> _Written:
    try:
        return _WRITTEN.decode(raw)
    except msgspec.DecodeError as error:
        raise InvalidReview(f"request.object is not a {kind}: {error}") from error


class _UserInfo(Object):
    username: str | None = None


class _Request(Object):
    operation: Operation
    uid: str | None = None
    resource: GroupResource | None = None
    name: str | None = None
    user_info: _UserInfo | None = None
    object: msgspec.Raw = ABSENT
    old_object: msgspec.Raw = ABSENT
    dry_run: bool | None = None


class _Review(Object):
    api_version: str | None = None
    kind: str | None = None
    request: _Request | None = None


def _present(raw: msgspec.Raw) -> msgspec.Raw | None:
    return None if bytes(raw) == b"null" else raw


_REVIEW = Decoder(_Review)
_WRITTEN = Decoder(_Written)


UNPROCESSABLE: Final = 422


class FieldError(msgspec.Struct, frozen=True):
    """Invalid field of an object: path, text, and the API's name for the kind of error (see field.Error of
    apimachinery)."""

    field: str
    text: str
    cause: str = "FieldValueInvalid"


def invalid(request: AdmissionRequest, what: str, errors: Sequence[FieldError]) -> Denial:
    """Denial of an object with these errors (422, as a server's own validation has it); `what`: `NodeClaim a`."""
    text = "; ".join(f"{each.field}: {each.text}" for each in errors)
    return Denial(
        code=UNPROCESSABLE,
        reason="Invalid",
        message=f"{what} is invalid: {text}",
        resource=request.resource,
        name=request.name,
        causes=tuple(StatusCause(each.cause, each.text, each.field) for each in errors),
    )


def type_error(error: msgspec.DecodeError) -> FieldError:
    """Field of the wrong type, from a decoder's message: `Expected `str`, got `int` - at `$.spec.x``."""
    reason, _, place = str(error).partition(" - at `")
    return FieldError(place.rstrip("`").removeprefix("$").removeprefix(".") or "the object", reason)
