"""Errors of the API server by meaning; no module outside this package sees a status code.

    ApiError
    ├── NotFound  NotServed  AlreadyExists  Gone  Invalid  Unauthorized  Forbidden  NamespaceTerminating  TooLarge
    ├── OtherNotFound         another object than that of the request does not exist
    ├── Conflict              the precondition failed; `uid_mismatch`: another object has the name
    ├── MultipleBudgets       no eviction can succeed
    ├── Superseded            not sent: the precondition of the caller no longer held
    ├── NotLeading            not sent: the fence is closed
    ├── Unreachable           no connection, or it broke; `sent`: the outcome is unknown
    └── Delaying              with a Retry-After, or the lack of it
        ├── BudgetExhausted  AdmissionDenied  Throttled
        └── ServerError  RequestTimeout     the outcome is unknown

`error_for` is the one mapping from a response to an error, taken from recordings of a real kube-apiserver (copied
under tests/unit/kube/recorded). A message names the request, what the server said and, where that helps, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from gracectl.kube.transport import Request, Response
from gracectl.kube.transport.operation import Operation, operation_of
from gracectl.model.envelope import Status, decode_status
from gracectl.model.foreign import shortened, without_secrets
from gracectl.runtime.fence import FenceClosed

# Seconds for which a Retry-After counts at most: for one request; for the whole client or one object.
_LONGEST_PATIENCE, _LONGEST_SILENCE = 30.0, 60.0
_ENDLESS = 10**9  # a number in JSON may be larger than any float


class ApiError(Exception):
    """A request that failed. `operation` says which, `status_message` what the server said."""

    meaning = "refused"
    """Short description of the kind of error."""
    is_gone = False
    """Whether the object of the request no longer exists, or its name belongs to another object."""
    is_outcome_unknown = False
    """Whether the request may still have been carried out."""

    def __init__(self, operation: Operation, status_message: str = "") -> None:
        super().__init__(operation, status_message)
        self.operation = operation
        self.status_message = status_message

    def __str__(self) -> str:
        said = f" (server: {self.status_message})" if self.status_message else ""
        return f"{self.operation}: {self.meaning}{said}"


class Delaying(ApiError):
    """Error with a Retry-After, or that could have one. `retry_after`: its seconds, None without; never more than
    `longest`, because a proxy can send anything, and must not stop us for long.

    `asked_for`: the value that was sent; `is_capped`: it exceeds `longest`. `delay`: seconds to wait at least, which is
    `default` without a Retry-After.
    """

    longest: ClassVar[float] = _LONGEST_PATIENCE
    default: ClassVar[float] = 0.0

    def __init__(self, operation: Operation, status_message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(operation, status_message)
        # Retry-After 0 counts as none: it would cause requests without end.
        self.asked_for = retry_after if retry_after is not None and retry_after > 0 else None
        self.retry_after = None if self.asked_for is None else min(self.asked_for, self.longest)
        self.delay = self.retry_after or self.default
        self.is_capped = self.asked_for is not None and self.asked_for > self.longest


class NotFound(ApiError):
    """The object does not exist (or, on a create, its namespace)."""

    meaning = "not found"
    is_gone = True


class OtherNotFound(ApiError):
    """Another object than that of the request does not exist: its namespace, the budget of an eviction, the service of
    an aggregated server. Of the object of the request nothing is known.
    """

    meaning = "another object is missing"


class NotServed(ApiError):
    """The server does not know the resource: the custom resource definition is missing, or the server is too old."""

    meaning = "the server does not serve this resource"


class Conflict(ApiError):
    """The object is not as the precondition says. `uid_mismatch`: another object has that name."""

    def __init__(self, operation: Operation, status_message: str = "", *, uid_mismatch: bool = False) -> None:
        super().__init__(operation, status_message)
        self.uid_mismatch = self.is_gone = uid_mismatch
        self.meaning = "another object has that name by now" if uid_mismatch else "changed meanwhile"


class AlreadyExists(ApiError):
    """An object of that name exists, or is still being deleted."""

    meaning = "exists already"


class Gone(ApiError):
    """The version or continue token is older than the server's history: list again."""

    meaning = "the server no longer has that version"


class Invalid(ApiError):
    """The object would break a rule of its schema, or the request is malformed: a repeat cannot help."""

    meaning = "invalid"


class AdmissionDenied(Delaying):
    """An admission webhook or policy said no. `retry_after`: seconds, if the webhook gave them."""

    longest = _LONGEST_SILENCE
    meaning = "denied by an admission webhook or policy"


class Forbidden(ApiError):
    """Not allowed. `rbac`: for want of a role, which the message then spells out."""

    def __init__(self, operation: Operation, status_message: str = "", *, rbac: bool = True) -> None:
        super().__init__(operation, status_message)
        self.rbac = rbac
        group = f' of API group "{operation.group}"' if operation.group else ""
        remedy = (
            f": add the verb {operation.verb} on {operation.resource}{group} to the role of the user or service account"
        )
        self.meaning = f"forbidden{remedy if rbac else ''}"


class Unauthorized(ApiError):
    """The server does not accept the credentials."""

    meaning = "the server does not accept the credentials (expired or revoked token, unknown certificate?)"


class NamespaceTerminating(ApiError):
    """Nothing new can be created in a namespace that is being deleted."""

    meaning = "the namespace is being deleted"


class BudgetExhausted(Delaying):
    """A PodDisruptionBudget does not allow the eviction now.

    `retry_after` None: the budget is spent. Seconds: the disruption controller has not yet observed a budget that was
    just created or edited; that takes milliseconds, regardless of the number (recording `eviction`).
    """

    def __init__(self, operation: Operation, status_message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(operation, status_message, retry_after=retry_after)
        self.meaning = f"the disruption budget is {'spent' if self.retry_after is None else 'still being processed'}"


class Throttled(Delaying):
    """The server is busy and did not execute the request. The whole client pauses for `delay` seconds."""

    longest = _LONGEST_SILENCE
    default = 1.0  # as in client-go

    def __init__(self, operation: Operation, status_message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(operation, status_message, retry_after=retry_after)
        capped = f", {self.delay:g} s are waited" if self.is_capped else ""
        self.meaning = f"the server is busy: Retry-After {self.asked_for or self.delay:g} s{capped}"


class MultipleBudgets(ApiError):
    """More than one PodDisruptionBudget selects the pod: no eviction can succeed until one is left."""

    meaning = "more than one PodDisruptionBudget selects this pod"


class Superseded(ApiError):
    """The request was not sent: while it waited for its turn, its precondition ceased to hold."""

    meaning = "not sent: the precondition no longer holds"


class NotLeading(ApiError, FenceClosed):
    """The request was not sent: this process may not write now, or no longer. Never repeated."""

    meaning = "not sent: not the leader"


class ServerError(Delaying):
    """The server failed. A write may have happened. `retry_after` in seconds, if the server gave them."""

    meaning = "the server failed"
    is_outcome_unknown = True


class TooLarge(ApiError):
    """The response exceeds the maximum size. A write has happened."""

    meaning = "the answer is too large"


class RequestTimeout(Delaying):
    """No answer in time, from the server or within the server. A write may have happened. `waited`: the seconds in
    which the server was silent; None: it has answered that it took too long.
    """

    is_outcome_unknown = True

    def __init__(
        self,
        operation: Operation,
        status_message: str = "",
        *,
        retry_after: float | None = None,
        waited: float | None = None,
    ) -> None:
        super().__init__(operation, status_message, retry_after=retry_after)
        self.meaning = "timed out" if waited is None else f"no answer in {waited:.3g} s"


class Unreachable(ApiError):
    """No connection, or it broke. `sent` False: the server surely did not see the request. `remedy`: for people who
    chose the server by a kubeconfig.
    """

    def __init__(self, operation: Operation, status_message: str = "", *, sent: bool, remedy: str = "") -> None:
        super().__init__(operation, status_message)
        self.remedy = remedy or "check the server's address in the kubeconfig, and that it runs"
        self.sent = self.is_outcome_unknown = sent
        self.meaning = "the connection broke" if sent else "the server cannot be reached"

    def __str__(self) -> str:
        return f"{self.operation}: {self.meaning}: {self.status_message}"


def error_for(request: Request, response: Response) -> ApiError:
    """The error that an answer of status >= 400 means."""
    status = _status_of(response)
    builder = _BY_CODE.get(response.status)
    operation = operation_of(request)
    if _DENIED.search(status.message, 0, _HEAD):
        return AdmissionDenied(operation, status.message, retry_after=_retry_after(response, status))
    if builder is None:
        builder = _server_fault if response.status >= 500 else _invalid
    return builder(operation, response, status)


def error_for_event(request: Request, raw: bytes | msgspec.Raw) -> ApiError:
    """Error of an ERROR event of a watch; its object is a Status with its own code."""
    body = bytes(raw)
    status = decode_status(body)
    return error_for(request, Response(status=status.code if status and status.code else 500, body=body))


# A policy chooses the code of its refusals: 401, 403, 413 or 422.
# https://github.com/kubernetes/kubernetes/blob/v1.37.2/staging/src/k8s.io/apiserver/pkg/admission/plugin/policy/validating/dispatcher.go
_DENIED: Final = re.compile(
    r"admission webhook .*denied the request|ValidatingAdmissionPolicy '[^']*' .*denied request:"
)
_HEAD, _TAIL = 2_000, 500
"""Characters of a message that are kept. A refusal may quote a whole object before the reason. A denial is at the
start, after the name of the object: the rest may come from any tenant."""

_Builder = Callable[[Operation, Response, Status], ApiError]


def _status_of(response: Response) -> Status:
    """The Status in the body; a proxy, an unserved group or the server's own filters answer in plain text."""
    status = decode_status(response.body)
    if status is None:
        text = without_secrets(response.body[:500].decode("utf-8", "replace").strip())
        return Status(code=response.status, message=text or f"HTTP status {response.status}, no explanation")
    if status.message:
        return msgspec.structs.replace(status, message=shortened(without_secrets(status.message), _HEAD, _TAIL))
    return msgspec.structs.replace(status, message=f"HTTP status {response.status}, no explanation")


def _retry_after(response: Response, status: Status) -> float | None:
    """Seconds to wait: the header (its form as a date is none of Kubernetes' habits), else the Status."""
    header = response.headers.get("retry-after", "").strip()
    if header.isascii() and header.isdigit():
        return float(header)
    seconds = status.details.retry_after_seconds
    return float(min(seconds, _ENDLESS)) if seconds else None


def _has_cause(status: Status, reason: str) -> bool:
    return any(cause.reason == reason for cause in status.details.causes)


def _spent(status: Status) -> bool:
    return _has_cause(status, "DisruptionBudget")


def _not_found(operation: Operation, response: Response, status: Status) -> ApiError:
    if operation.name and _is_about_another(operation, status):
        return OtherNotFound(operation, status.message)
    # An object's 404 names it; that of an unserved group is plain text, that of an unserved resource has no
    # details (recording `writes-refused`). To take the latter for the former would turn a missing API into
    # "it is gone".
    if status.details.name:
        return NotFound(operation, status.message)
    return NotServed(operation, status.message)


def _is_about_another(operation: Operation, status: Status) -> bool:
    """Whether a 404 is about another object than the request: a node's Lease has the node's name, so the kind counts.

    The kind is the plural, of some servers the singular.
    """
    kind = status.details.kind.partition("/")[0].lower()
    is_kind = kind.rstrip("s") in ("", operation.plural.rstrip("s"))
    return not (is_kind and status.details.name in ("", operation.name))


def _conflict(operation: Operation, response: Response, status: Status) -> ApiError:
    if status.reason == "AlreadyExists":
        return AlreadyExists(operation, status.message)
    # Two wordings, of a DELETE's (or an eviction's) precondition and of a write in the store; details do not
    # say.
    of_uid = "UID in the precondition" in status.message or "UID in precondition" in status.message
    return Conflict(operation, status.message, uid_mismatch=of_uid)


# forbiddenMessage() of the authorizer, behind the name of the object; an admission plugin's own words stand there too.
_OF_A_USER: Final = re.compile(r'[^ "]+(?: "[^"]*")? is forbidden: User "')


def _forbidden(operation: Operation, response: Response, status: Status) -> ApiError:
    if _has_cause(status, "NamespaceTerminating"):
        return NamespaceTerminating(operation, status.message)
    if operation.subresource == "eviction" and (
        _spent(status) or status.details.kind.rstrip("s") == "poddisruptionbudget"
    ):
        # "DisruptedPods map too big", "disruptions allowed is negative": the budget cannot pay now. The kind is the
        # singular; newer servers add the cause.
        # https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/registry/core/pod/storage/eviction.go
        return BudgetExhausted(operation, status.message)
    wanted = f" cannot {operation.verb} resource "
    return Forbidden(
        operation, status.message, rbac=bool(_OF_A_USER.match(status.message)) and wanted in status.message
    )


def _invalid(operation: Operation, response: Response, status: Status) -> ApiError:
    # A patch that brings another uid is "invalid", not a conflict (recording `writes-patch`): we send uids as
    # preconditions.
    if any(cause.field == "metadata.uid" for cause in status.details.causes):
        return Conflict(operation, status.message, uid_mismatch=True)
    return Invalid(operation, status.message)


def _busy(operation: Operation, response: Response, status: Status) -> ApiError:
    retry_after = _retry_after(response, status)
    if _spent(status):
        return BudgetExhausted(operation, status.message, retry_after=retry_after)
    return Throttled(operation, status.message, retry_after=retry_after)


def _internal(operation: Operation, response: Response, status: Status) -> ApiError:
    if operation.subresource == "eviction" and "more than one PodDisruptionBudget" in status.message:
        return MultipleBudgets(operation, status.message)
    return _server_fault(operation, response, status)


def _server_fault(operation: Operation, response: Response, status: Status) -> ApiError:
    return ServerError(operation, status.message, retry_after=_retry_after(response, status))


def _timed_out(operation: Operation, response: Response, status: Status) -> ApiError:
    return RequestTimeout(operation, status.message, retry_after=_retry_after(response, status))


_BY_CODE: dict[int, _Builder] = {
    401: lambda operation, response, status: Unauthorized(operation, status.message),
    403: _forbidden,
    404: _not_found,
    408: _timed_out,
    409: _conflict,
    410: lambda operation, response, status: Gone(operation, status.message),
    429: _busy,
    500: _internal,
    504: _timed_out,
}
