"""Webhooks for NodeClaims: durations and deadlines are readable, a deadline is never moved later, and a deletion is
denied if it would break a NodeDisruptionBudget.

Other owners of claims, such as Karpenter, delete the claim, and then its node. The clock of the deadline starts with
the claim, so a denial of the node's deletion would come too late.

Of a written claim only fields that a write changes are validated; finalizers and status are ignored. Fields and grammar
are Karpenter's, for v1 and v1beta1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

import msgspec

from gracectl.admission import reviews
from gracectl.admission.nodes import NodeAdmitter, deleted_object, denial_of
from gracectl.kube.resources import NODE_CLAIMS
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.deadlines import invalid_deadline, parse_grace_period, written_deadline
from gracectl.policy.nodebudgets import is_available
from gracectl.policy.voluntary import expires_at

DEADLINE: Final = f"metadata.annotations[{names.TERMINATION_TIMESTAMP}]"
GRACE_PERIOD: Final = "spec.terminationGracePeriod"
EXPIRY: Final = "spec.expireAfter"
NEW: Final = NodeClaim(name="", uid="")
"""The claim before its creation."""


class NodeClaimValidator:
    """Validating webhook for created and updated claims."""

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        named = f"NodeClaim {request.name}".rstrip()
        before = NEW
        if request.old_object is not None:
            try:
                before = NODE_CLAIMS.decode(request.old_object)
            except msgspec.DecodeError:
                return reviews.ALLOWED  # unknown what the write changes
        try:
            claim = NODE_CLAIMS.decode(reviews.required(request.object, "object"))
        except msgspec.DecodeError as error:
            field_error = reviews.type_error(error)
            if not field_error.field.startswith(("spec", "metadata.annotations")):
                raise reviews.InvalidReview(f"request.object is not a NodeClaim: {error}") from error
            return reviews.AdmissionResponse(reviews.invalid(request, named, [field_error]))
        errors = list(_invalid_durations(claim, before))
        errors += _loosened(claim, before) if claim.deletion_timestamp is not None else _unreadable(claim, before)
        if errors:
            return reviews.AdmissionResponse(reviews.invalid(request, named, errors))
        return reviews.AdmissionResponse(warnings=tuple(_warnings(claim, before)))


class NodeClaimDeletionValidator:
    """Validating webhook for claims of any owner that are deleted: counts their nodes in the budgets, as for a deletion
    of the nodes. `nodes_of`: the nodes of a claim of this name and UID, by the cluster's own state; None: not synced.
    `is_urgent`: whether the machine of a node goes anyway, so that it is only counted."""

    def __init__(
        self,
        admitter: NodeAdmitter,
        nodes_of: Callable[[NodeClaim], Collection[Node] | None],
        is_urgent: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        self._admitter = admitter
        self._nodes_of = nodes_of
        self._is_urgent = is_urgent

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        claim = deleted_object(request, NODE_CLAIMS)
        if claim.deletion_timestamp is not None:
            return reviews.ALLOWED
        nodes = self._nodes_of(claim)
        if nodes is None:
            raise reviews.Undecided(503, "caches of nodes, claims and budgets not synced yet; retry in a moment")
        for node in filter(is_available, nodes):
            is_forced = self._is_urgent(node)
            refusal = await self._admitter.admit(node, dry_run=request.is_dry_run, is_forced=is_forced)
            if refusal is not None:
                message = f"node claim {claim.name}: deletion denied: node {node.name}: {refusal}"
                return reviews.AdmissionResponse(denial_of(request, claim.name, message, refusal))
        return reviews.ALLOWED


def _invalid_durations(claim: NodeClaim, before: NodeClaim) -> Iterator[reviews.FieldError]:
    if claim.termination_grace_period not in (None, before.termination_grace_period):
        try:
            parse_grace_period(claim.termination_grace_period or "")
        except ValueError as error:
            yield reviews.FieldError(GRACE_PERIOD, str(error))
    if claim.expire_after != before.expire_after:
        try:
            expires_at(claim)
        except ValueError as error:
            yield reviews.FieldError(EXPIRY, f"{error}; set a duration such as 720h, or Never")


def _unreadable(claim: NodeClaim, before: NodeClaim) -> Iterator[reviews.FieldError]:
    text = invalid_deadline(claim)
    if text is not None and text != before.annotations.get(names.TERMINATION_TIMESTAMP):
        yield reviews.FieldError(DEADLINE, f"{text[:100]!r} is not an RFC 3339 time such as 2026-01-01T00:00:00Z")


def _loosened(claim: NodeClaim, before: NodeClaim) -> Iterator[reviews.FieldError]:
    """A deadline may be moved earlier while the claim is being deleted, never later."""
    promised, now = written_deadline(before), written_deadline(claim)
    if before.deletion_timestamp is None or promised is None or (now is not None and now <= promised):
        return
    if now is not None:
        what = f"{format_time(now)} is later than {format_time(promised)}"
    else:
        text = claim.annotations.get(names.TERMINATION_TIMESTAMP)
        what = "removed" if text is None else f"{text[:100]!r} is not an RFC 3339 time"
    text = f"{what}: the deadline of a claim being deleted may only be moved earlier; keep its value"
    yield reviews.FieldError(DEADLINE, text, "FieldValueForbidden")


def _warnings(claim: NodeClaim, before: NodeClaim) -> Iterator[str]:
    """Warnings about values that are allowed, but perhaps not intended."""
    period = claim.termination_grace_period
    if period not in (None, before.termination_grace_period) and _is_zero(period or ""):
        yield f"{GRACE_PERIOD}: {period} deletes all pods immediately with the claim, including protected ones"
    if claim.expire_after not in (None, before.expire_after) and expires_at(claim) == claim.created:
        yield f"{EXPIRY}: {claim.expire_after} expires the claim at its creation; to disable expiry, set Never"


def _is_zero(period: str) -> bool:
    try:
        return parse_grace_period(period) == 0
    except ValueError:
        return False
