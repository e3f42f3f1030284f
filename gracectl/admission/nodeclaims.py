"""Whether what somebody writes into a NodeClaim says when its end must be over, and does not take that back.

Only what a write touches is looked at: whatever was let in before stays, and finalizers and status come and go as they
like. Fields and grammar are Karpenter's, in v1 and v1beta1 alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from gracectl.admission.findings import Finding, invalid, misread
from gracectl.admission.reviews import YES, Answer, NotAReview, Question, present
from gracectl.kube.resources import NODE_CLAIMS
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.times import format_time
from gracectl.policy.deadlines import invalid_deadline, parse_grace_period, written_deadline
from gracectl.policy.voluntary import expires_at

DEADLINE: Final = f"metadata.annotations[{names.TERMINATION_TIMESTAMP}]"
GRACE_PERIOD: Final = "spec.terminationGracePeriod"
EXPIRY: Final = "spec.expireAfter"
NOTHING: Final = NodeClaim(name="", uid="")
"""What a claim that is made was before."""


class NodeClaimWriting:
    """Validating, of claims that are made or changed."""

    async def __call__(self, question: Question) -> Answer:
        """See reviews.Handler."""
        named = f"NodeClaim {question.name}".rstrip()
        before = NOTHING
        if question.old_object is not None:
            try:
                before = NODE_CLAIMS.decode(question.old_object)
            except msgspec.DecodeError:
                return YES  # nobody can tell what is new about it
        try:
            claim = NODE_CLAIMS.decode(present(question.object, "object"))
        except msgspec.DecodeError as error:
            fault = misread(error)
            if not fault.field.startswith(("spec", "metadata.annotations")):
                raise NotAReview(f"request.object is no NodeClaim: {error}") from error
            return Answer(invalid(question, named, [fault]))
        findings = list(_misspelt(claim, before))
        findings += _loosened(claim, before) if claim.deletion_timestamp is not None else _unreadable(claim, before)
        if findings:
            return Answer(invalid(question, named, findings))
        return Answer(warnings=tuple(_warnings(claim, before)))


def _misspelt(claim: NodeClaim, before: NodeClaim) -> Iterator[Finding]:
    if claim.termination_grace_period not in (None, before.termination_grace_period):
        try:
            parse_grace_period(claim.termination_grace_period or "")
        except ValueError as error:
            yield Finding(GRACE_PERIOD, str(error))
    if claim.expire_after != before.expire_after:
        try:
            expires_at(claim)
        except ValueError as error:
            yield Finding(EXPIRY, f"{error}; write a duration such as 720h, or Never")


def _unreadable(claim: NodeClaim, before: NodeClaim) -> Iterator[Finding]:
    text = invalid_deadline(claim)
    if text is not None and text != before.annotations.get(names.TERMINATION_TIMESTAMP):
        yield Finding(DEADLINE, f"{text[:100]!r} is no RFC 3339 time such as 2026-01-01T00:00:00Z")


def _loosened(claim: NodeClaim, before: NodeClaim) -> Iterator[Finding]:
    """A deadline may be made tighter while the claim ends, never looser (DESIGN 3.2)."""
    promised, now = written_deadline(before), written_deadline(claim)
    if before.deletion_timestamp is None or promised is None or (now is not None and now <= promised):
        return
    if now is not None:
        what = f"{format_time(now)} is later than {format_time(promised)}"
    else:
        text = claim.annotations.get(names.TERMINATION_TIMESTAMP)
        what = "it is taken away" if text is None else f"{text[:100]!r} is no RFC 3339 time"
    text = f"{what}: the claim is being deleted, and its deadline may only be moved earlier; leave it as it is"
    yield Finding(DEADLINE, text, "FieldValueForbidden")


def _warnings(claim: NodeClaim, before: NodeClaim) -> Iterator[str]:
    """What is allowed, and perhaps not meant."""
    period = claim.termination_grace_period
    if period not in (None, before.termination_grace_period) and _is_nothing(period or ""):
        yield f"{GRACE_PERIOD}: {period} gives pods no time at all once the claim is deleted, whatever protects them"
    if claim.expire_after not in (None, before.expire_after) and expires_at(claim) == claim.created:
        yield f"{EXPIRY}: {claim.expire_after} ends the claim as soon as it is made; Never is written Never"


def _is_nothing(period: str) -> bool:
    try:
        return parse_grace_period(period) == 0
    except ValueError:
        return False
