"""Webhooks for nodes: a created node gets the finalizer, a deletion is denied if it would break a NodeDisruptionBudget.

The finalizer has to be there before the DELETE: one that is added while the DELETE is being admitted does not hold the
node (kubernetes issue 77988, recording finalizer-race).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

from gracectl.admission import reviews
from gracectl.kube.resources import NODES, Resource
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.envelope import StatusCause
from gracectl.model.node import Node, Taint
from gracectl.model.selectors import is_subdomain
from gracectl.model.times import parse_time
from gracectl.model.untrusted import Decoder
from gracectl.model.wire import Object
from gracectl.nodebudgets.admitter import Refusal, UnknownNode
from gracectl.policy.finalizers import FinalizerRule
from gracectl.policy.nodebudgets import is_available
from gracectl.policy.owners import ManagedNodes

H = TypeVar("H", Node, NodeClaim)

TOO_MANY_REQUESTS: Final = 429


class NodeAdmitter(Protocol):
    """Interface of nodebudgets.admitter.Admitter."""

    async def known(self, node: Node) -> Node | None:
        """The node of this UID as the cluster has it; None if it has none. Raises ApiError, UnknownNode."""

    async def admit(self, node: Node, *, dry_run: bool = False, is_forced: bool = False) -> Refusal | None:
        """Charge the deletion of a node to all its budgets; None: allowed. Idempotent. Raises ApiError."""


class NodeFinalizerInjector:
    """Mutating webhook for created nodes: adds the finalizer."""

    def __init__(self, managed: ManagedNodes, finalizer: Callable[[], FinalizerRule] = FinalizerRule) -> None:
        self._managed = managed
        self._finalizer = finalizer

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        try:
            created = _CREATED_NODE.decode(reviews.required(request.object, "object"))
        except msgspec.DecodeError as error:
            raise reviews.InvalidReview(f"request.object is not a Node: {error}") from error
        meta = created.metadata
        warnings = _warnings_of(meta)
        finalizers = meta.finalizers or ()
        taints = tuple(Taint(each.key) for each in (created.spec or _Spec()).taints or ())
        node = Node(name="", uid="", labels=meta.labels or {}, taints=taints)
        if any(each in names.FINALIZERS for each in finalizers) or not self._managed.includes(node):
            return reviews.AdmissionResponse(warnings=warnings)
        # The end of a list that is not there cannot be added to.
        name = self._finalizer().name
        place, value = ("/-", name) if finalizers else ("", [name])
        operation = {"op": "add", "path": f"/metadata/finalizers{place}", "value": value}
        return reviews.AdmissionResponse(patch=(operation,), warnings=warnings)


class NodeDeletionValidator:
    """Validating webhook for node deletions, single or as a collection; `is_synced`: whether nodes and budgets are
    known; `is_urgent`: whether the machine of a node goes anyway, so that it is only counted.

    Not checked are nodes that change no count: those being deleted, and those that are not Ready. The decision rests on
    the cluster's own state of the node, never on the request's copy.
    """

    def __init__(
        self,
        admitter: NodeAdmitter,
        is_synced: Callable[[], bool],
        is_urgent: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        self._admitter = admitter
        self._is_synced = is_synced
        self._is_urgent = is_urgent

    async def __call__(self, request: reviews.AdmissionRequest) -> reviews.AdmissionResponse:
        """See reviews.Handler."""
        node = deleted_object(request, NODES)
        if not is_available(node):
            return reviews.ALLOWED
        if not self._is_synced():
            raise reviews.Undecided(503, "caches of nodes and budgets not synced yet; retry in a moment")
        try:
            known = await self._admitter.known(node)
        except UnknownNode:
            raise reviews.Undecided(503, f"node {node.name}: not seen yet in this state; retry in a second") from None
        if known is None:
            return reviews.ALLOWED  # deleted meanwhile, or never existed: no count changes
        is_forced = self._is_urgent(known)
        refusal = await self._admitter.admit(known, dry_run=request.is_dry_run, is_forced=is_forced)
        if refusal is None:
            return reviews.ALLOWED
        message = f"node {known.name}: deletion denied: {refusal}"
        return reviews.AdmissionResponse(denial_of(request, known.name, message, refusal))


def deleted_object(request: reviews.AdmissionRequest, resource: Resource[H]) -> H:
    """The node or claim that is to be deleted. Raises InvalidReview."""
    try:
        found = resource.decode(reviews.required(request.old_object, "oldObject"))
    except msgspec.DecodeError as error:
        raise reviews.InvalidReview(f"request.oldObject is not a {resource.kind}: {error}") from error
    if not is_subdomain(found.name):
        raise reviews.InvalidReview("request.oldObject.metadata.name: is not a DNS-1123 subdomain")
    return found


def denial_of(request: reviews.AdmissionRequest, name: str, message: str, refusal: Refusal) -> reviews.Denial:
    """Denial of the deletion of the object of this name, for the refusal of a budget."""
    return reviews.Denial(
        code=TOO_MANY_REQUESTS,
        reason="TooManyRequests",
        message=message,
        resource=request.resource,
        name=name,
        causes=(StatusCause(names.NODE_BUDGET_CAUSE, refusal.reason, refusal.budget),),
        retry_after=refusal.retry_after,
    )


class _Annotations(Object):
    deadline: object = msgspec.field(default=None, name=names.TERMINATION_TIMESTAMP)


class _Meta(Object):
    labels: dict[str, str] | None = None
    annotations: _Annotations | None = None
    finalizers: tuple[str, ...] | None = None


class _Taint(Object):
    key: str


class _Spec(Object):
    taints: tuple[_Taint, ...] | None = None


class _CreatedNode(Object):
    """Fields needed of a created node, which may have 20 KiB and no name yet."""

    metadata: _Meta
    spec: _Spec | None = None


def _warnings_of(node: _Meta) -> tuple[str, ...]:
    text = node.annotations.deadline if node.annotations else None
    if text is None:
        return ()
    try:
        parse_time(str(text))
    except ValueError as error:
        return (f"annotation {names.TERMINATION_TIMESTAMP}: {error}; no deadline is set",)
    return ()


_CREATED_NODE = Decoder(_CreatedNode)
