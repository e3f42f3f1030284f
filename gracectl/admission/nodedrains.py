"""Webhooks for NodeDrains: the record of who asked, and validation of what expressions of the definition cannot check.

The user of the request is written into an annotation, over whatever the client sent; it never changes afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from gracectl.admission import reviews
from gracectl.kube.resources import NODE_DRAINS
from gracectl.model import names
from gracectl.model.foreign import visible
from gracectl.model.meta import pointer
from gracectl.model.nodedrain import NodeDrain
from gracectl.model.untrusted import Decoder
from gracectl.model.wire import Object
from gracectl.policy.windows import invalid_window


class RequesterInjector:
    """Mutating webhook for created and updated NodeDrains."""

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        found = _annotations(reviews.required(request.object, "object"))
        if request.old_object is None:
            wanted: str | None = visible(request.username)
        else:
            wanted = (_annotations(request.old_object) or {}).get(names.REQUESTED_BY)
        if (found or {}).get(names.REQUESTED_BY) == wanted:
            return reviews.ALLOWED
        return reviews.AdmissionResponse(patch=(_operation(found, wanted),))


def _operation(found: Mapping[str, str | None] | None, wanted: str | None) -> Mapping[str, object]:
    """Operation that sets the annotation, or removes it."""
    path = pointer("metadata", "annotations", names.REQUESTED_BY)
    if wanted is None:
        return {"op": "remove", "path": path}
    if found is None:
        return {"op": "add", "path": pointer("metadata", "annotations"), "value": {names.REQUESTED_BY: wanted}}
    return {"op": "add", "path": path, "value": wanted}


class NodeDrainValidator:
    """Validating webhook for created and updated NodeDrains: messages with field and remedy."""

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        if not reviews.is_spec_new(request, NODE_DRAINS.kind):
            return reviews.ALLOWED
        named = f"NodeDrain {request.name}".rstrip()
        try:
            drain = NODE_DRAINS.decode(reviews.required(request.object, "object"))
        except msgspec.DecodeError as error:
            field_error = _field_error(error)
            if not field_error.field.startswith("spec"):
                raise reviews.InvalidReview(f"request.object is not a NodeDrain: {error}") from error
            return reviews.AdmissionResponse(reviews.invalid(request, named, [field_error]))
        if errors := [*_errors(drain)]:
            return reviews.AdmissionResponse(reviews.invalid(request, named, errors))
        return reviews.ALLOWED


def _field_error(error: msgspec.DecodeError) -> reviews.FieldError:
    """Durations and bounds have their field in front."""
    field, _, text = str(error).partition(": ")
    return reviews.FieldError(field, text) if field.startswith("spec.") else reviews.type_error(error)


def _errors(drain: NodeDrain) -> Iterator[reviews.FieldError]:
    if drain.selector_error:
        yield reviews.FieldError("spec.nodeSelector", drain.selector_error)
    if problem := invalid_window(drain.windows, "spec.windows"):
        field, _, text = problem.partition(": ")
        yield reviews.FieldError(field, text)


class _Meta(Object):
    annotations: dict[str, str | None] | None = None


class _Annotated(Object):
    metadata: _Meta


def _annotations(raw: msgspec.Raw) -> Mapping[str, str | None] | None:
    try:
        return _ANNOTATED.decode(raw).metadata.annotations
    except msgspec.DecodeError as error:
        raise reviews.InvalidReview(f"request.object is not a NodeDrain: {error}") from error


_ANNOTATED = Decoder(_Annotated)
