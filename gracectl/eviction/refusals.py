"""What an API server's refusal says to whoever wants a pod to leave, by eviction or by deletion."""

from __future__ import annotations

from gracectl.kube import errors


def is_over(refusal: errors.ApiError) -> bool:
    """Whether the pod need not be asked for any more: it is gone, or its name belongs to another pod."""
    return isinstance(refusal, errors.NotFound) or (isinstance(refusal, errors.Conflict) and refusal.uid_mismatch)


def may_have_happened(refusal: errors.ApiError) -> bool:
    """Whether what was asked for may have been carried out all the same."""
    if isinstance(refusal, errors.Unreachable):
        return refusal.sent
    return isinstance(refusal, errors.ServerError | errors.RequestTimeout)


def patience(refusal: errors.ApiError) -> float:
    """The seconds that the server asks us to wait; 0 if it does not say."""
    return refusal.patience if isinstance(refusal, errors.Delaying) else 0.0
