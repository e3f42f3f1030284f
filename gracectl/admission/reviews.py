"""AdmissionReviews (admission.k8s.io/v1): what API servers ask, and what they are told.

Questions are read leniently: a newer server may say more than we know. Objects stay undecoded until somebody asks for
them. Source: recordings admission, admission-nodes.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal

import msgspec

from gracectl.model.envelope import StatusCause
from gracectl.model.foreign import visible
from gracectl.model.untrusted import Decoder
from gracectl.model.wire import ABSENT, Object

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


class NotAReview(ValueError):
    """A body that asks nothing; the text says why."""


class CannotTell(Exception):
    """There is no answer now, and the webhook's failurePolicy has to decide; the text says why. `status`: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class GroupResource(msgspec.Struct, frozen=True):
    """Which kind of object, as paths name it."""

    group: str = ""
    version: str = ""
    resource: str = ""


class Question(msgspec.Struct, frozen=True):
    """May this be done? `object`: as it would be then; `old_object`: as it is. Each is None where there is none."""

    uid: str
    operation: Operation
    resource: GroupResource
    name: str
    """"" for an object whose name the server has yet to make."""
    username: str
    object: msgspec.Raw | None
    old_object: msgspec.Raw | None
    is_dry_run: bool


class Denial(msgspec.Struct, frozen=True):
    """Why not, as a Status that clients read. `resource` and `name` say of what; `retry_after`: seconds, where asking
    again as it is may help (clients of Kubernetes do so by themselves then, and say nothing)."""

    code: int
    reason: str
    message: str
    resource: GroupResource
    name: str
    causes: tuple[StatusCause, ...] = ()
    retry_after: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """Allowed unless there is a denial; with operations of a JSON patch, and with warnings for whoever asks."""

    denial: Denial | None = None
    patch: tuple[Mapping[str, object], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["allowed", "patched", "denied"]:
        """In a word."""
        if self.denial is not None:
            return "denied"
        return "patched" if self.patch else "allowed"


YES: Final = Answer()

Handler = Callable[[Question], Awaitable[Answer]]
"""Raises CannotTell, NotAReview for objects that cannot be read, or ApiError."""


def read_review(body: bytes) -> Question:
    """The question in a review. Raises NotAReview."""
    try:
        review = _REVIEW.decode(body)
    except msgspec.DecodeError as error:
        raise NotAReview(f"this is no {KIND} of {API_VERSION}: {error}") from error
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise NotAReview(
            f"this is {review.kind or 'nothing'} of {review.api_version or 'no version'}, and not an {KIND} of "
            f"{API_VERSION}"
        )
    asked = review.request
    if asked is None or not asked.uid:
        raise NotAReview(f"this {KIND} has no request with a uid: nothing is asked")
    return Question(
        uid=asked.uid,
        operation=asked.operation,
        resource=asked.resource or GroupResource(),
        name=asked.name or "",
        username=(asked.user_info.username if asked.user_info else None) or "",
        object=_present(asked.object),
        old_object=_present(asked.old_object),
        is_dry_run=bool(asked.dry_run),
    )


def written(uid: str, answer: Answer) -> bytes:
    """The review that answers the question of that uid."""
    response: dict[str, object] = {"uid": uid, "allowed": answer.denial is None}
    if answer.denial is not None:
        response["status"] = _status(answer.denial)
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = b64encode(msgspec.json.encode(answer.patch)).decode()
    if answer.warnings:
        response["warnings"] = [visible(each) for each in answer.warnings]
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


def present(raw: msgspec.Raw | None, field: str) -> msgspec.Raw:
    """An object that a question must have. Raises NotAReview."""
    if raw is None:
        raise NotAReview(f"request.{field} is missing: nobody can tell without it")
    return raw


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
