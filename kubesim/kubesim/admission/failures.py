"""Denials and failures of webhooks, as clients see them (recordings admission, admission-nodes).

A denial is the webhook's own Status with a prefix; a failure is a 500 with its message twice. The failurePolicy applies
only to a `CallFailed`: a patch that does not apply fails the write even under Ignore.
"""

from __future__ import annotations

from kubesim.server.api import JsonObject
from kubesim.server.status import Refusal, bad_request


class CallFailed(Exception):
    """A webhook could not be asked, or its answer is none: the text says why, as Go would."""


def internal_error(message: str) -> Refusal:
    """500, reason InternalError."""
    return Refusal(
        500, "InternalError", f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
    )


def call_failed(webhook: str, reason: CallFailed) -> Refusal:
    """500: the webhook was needed (failurePolicy Fail) and gave no answer."""
    return internal_error(f'failed calling webhook "{webhook}": {reason}')


def no_dry_run(webhook: str) -> Refusal:
    """400: the write is a dry run, and the webhook has effects that it cannot take back."""
    return bad_request(f'admission webhook "{webhook}" does not support dry run')


def modifies_nothing(webhook: str) -> Refusal:
    """500: a patch, and no object to patch (a DELETE)."""
    return internal_error(
        f'admission webhook "{webhook}" attempted to modify the object, which is not supported for this operation'
    )


def denied(webhook: str, status: JsonObject | None) -> Refusal:
    """The refusal that a webhook asked for. Its code counts from 400 on; without one it is 400."""
    status = status or {}
    text = f'admission webhook "{webhook}" denied the request'
    why = status.get("message") or status.get("reason")
    details, retry_after = status.get("details"), None
    if details is not None:
        retry_after = details.get("retryAfterSeconds") or None
        details = {key: value for key, value in details.items() if key != "retryAfterSeconds" and value}
    return Refusal(
        max(status.get("code") or 0, 400),
        status.get("reason") or "",
        f"{text}: {why}" if why else f"{text} without explanation",
        details=details,
        retry_after=retry_after,
    )
