"""Nodes that come and go: a new one that is managed gets the finalizer, a deleted one goes if its budgets let it.

The finalizer has to be there before the deletion: one that is added to a node while its DELETE is being admitted does
not hold it (kubernetes issue 77988, recording finalizer-race).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from gracectl.admission.reviews import YES, Answer, CannotTell, Denial, NotAReview, Question, present
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.envelope import StatusCause
from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector, is_subdomain
from gracectl.model.times import parse_time
from gracectl.model.untrusted import Decoder
from gracectl.model.wire import Object
from gracectl.nodebudgets.admitter import Refusal
from gracectl.policy.nodebudgets import is_available

TOO_MANY_REQUESTS: Final = 429


class Admits(Protocol):
    """What is asked of the gate (disruption.gate.Gate)."""

    async def known(self, node: Node) -> Node | None:
        """This very node as the cluster has it; None if it has none. Raises ApiError."""

    async def admit(self, node: Node, *, dry_run: bool = False) -> Refusal | None:
        """Count the end of a node in all its budgets; None: it may end. Idempotent. Raises ApiError."""


class NodeCreation:
    """Mutating, of nodes that are made: the finalizer from birth."""

    def __init__(self, selector: LabelSelector) -> None:
        self._selector = selector

    async def __call__(self, question: Question) -> Answer:
        """See reviews.Handler."""
        try:
            node = _NEWBORN.decode(present(question.object, "object")).metadata
        except msgspec.DecodeError as error:
            raise NotAReview(f"request.object is no node: {error}") from error
        warnings = _warnings_of(node)
        finalizers = node.finalizers or ()
        if names.FINALIZER in finalizers or not self._selector.matches(node.labels or {}):
            return Answer(warnings=warnings)
        # The end of a list that is not there cannot be added to.
        place, value = ("/-", names.FINALIZER) if finalizers else ("", [names.FINALIZER])
        operation = {"op": "add", "path": f"/metadata/finalizers{place}", "value": value}
        return Answer(patch=(operation,), warnings=warnings)


class NodeDeletion:
    """Validating, of nodes that are deleted, one by one or as a collection; `is_live`: whether the gate sees anything
    yet.

    Not asked of anybody are nodes that change no count: those that are going already, and those that are not Ready.
    What is written is decided by the cluster's own state of the node, never by what the question says of it.
    """

    def __init__(self, gate: Admits, is_live: Callable[[], bool]) -> None:
        self._gate = gate
        self._is_live = is_live

    async def __call__(self, question: Question) -> Answer:
        """See reviews.Handler."""
        try:
            node = NODES.decode(present(question.old_object, "oldObject"))
        except msgspec.DecodeError as error:
            raise NotAReview(f"request.oldObject is no node: {error}") from error
        if not is_subdomain(node.name):
            raise NotAReview("request.oldObject.metadata.name: is no name of a node (a DNS-1123 subdomain)")
        if not is_available(node):
            return YES
        if not self._is_live():
            raise CannotTell(503, "gracectl has not seen all nodes and budgets yet; try again in a moment")
        known = await self._gate.known(node)
        if known is None:
            return YES  # deleted meanwhile, or never there: nothing to count
        refusal = await self._gate.admit(known, dry_run=question.is_dry_run)
        return YES if refusal is None else Answer(_denied(question, known, refusal))


def _denied(question: Question, node: Node, refusal: Refusal) -> Denial:
    return Denial(
        code=TOO_MANY_REQUESTS,
        reason="TooManyRequests",
        message=f"node {node.name} may not end now: {refusal}",
        resource=question.resource,
        name=node.name,
        causes=(StatusCause(names.NODE_BUDGET_CAUSE, refusal.reason, refusal.budget),),
        retry_after=refusal.retry_after,
    )


class _Annotations(Object):
    deadline: object = msgspec.field(default=None, name=names.TERMINATION_TIMESTAMP)


class _Meta(Object):
    labels: dict[str, str] | None = None
    annotations: _Annotations | None = None
    finalizers: tuple[str, ...] | None = None


class _Newborn(Object):
    """The little that is to be known of a node that comes, which may be 20 KiB and have no name yet."""

    metadata: _Meta


def _warnings_of(node: _Meta) -> tuple[str, ...]:
    text = node.annotations.deadline if node.annotations else None
    if text is None:
        return ()
    try:
        parse_time(str(text))
    except ValueError as error:
        return (f"annotation {names.TERMINATION_TIMESTAMP}: {error}; it sets no deadline",)
    return ()


_NEWBORN = Decoder(_Newborn)
