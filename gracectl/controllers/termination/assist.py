"""Assistance to the drain of another owner: evict and delete the pods of its node as soon as the owner would.

Two steps over the state, the plan, the PDB queues and the deleter of our own drains. Invariant: nothing is written but
evictions, deletions of pods, and Events: no node, claim, taint, finalizer or condition (ADR 0077). The drain ends when
the objects of the owner no longer show it. A drain of Karpenter or Cluster Autoscaler without assistance is planned,
too, for metrics and traces; then nothing is written at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import anyio
import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.termination.context import Answer, Next, Step, StepContext
from gracectl.controllers.termination.drain import drain, watch_drain
from gracectl.controllers.termination.state import InstanceMemo, NodeState
from gracectl.controllers.termination.statistics import TerminationKind
from gracectl.controllers.termination.steps import StepRunner
from gracectl.kube.cache.reading import read_served
from gracectl.kube.resources import DRAIN_RULE_VERSIONS
from gracectl.model.node import Node
from gracectl.policy.deadlines import Deadline
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.other_drains import (
    ClusterApiDrain,
    OtherDrain,
    autoscaler_drain,
    cluster_api_drain,
    karpenter_drain,
)
from gracectl.policy.owners import DrainOwner
from gracectl.runtime.workers import Requeue

KINDS: Final[Mapping[DrainOwner, TerminationKind]] = {
    DrainOwner.KARPENTER: "karpenter",
    DrainOwner.CLUSTER_AUTOSCALER: "cluster-autoscaler",
    DrainOwner.CLUSTER_API: "cluster-api",
}
"""Kinds of their drains, for the metrics."""

RULES_SECONDS: Final = 20.0
"""Cluster API reads its MachineDrainRules again after this time."""


def other_drain(context: StepContext, node: Node) -> OtherDrain | None:
    """The drain of this node by another owner, and whether the settings assist it; None: there is none now."""
    wanted, cluster = context.settings.assist, context.cluster
    found: OtherDrain | None = karpenter_drain(node, cluster.claims_of(node))
    if found is not None and cluster.owner_of(node) is None:
        found = None
    if found is None and not is_in_maintenance(node):  # our own maintenance drains the node already
        found = autoscaler_drain(node)
        if found is None and wanted.cluster_api:
            found = cluster_api_drain(node, cluster.machines_of(node))
    return None if found is None else msgspec.structs.replace(found, is_assisted=wanted.assists(found.owner))


class AssistState(NodeState):
    """State of the drain of another owner."""

    outcome = "is no longer drained by its owner"

    def __init__(self, node: Node, instance: InstanceMemo, now: float, context: StepContext, other: OtherDrain) -> None:
        super().__init__(node, instance, now)
        self.tracked.is_ours = False
        self.kind = KINDS[other.owner]
        self.activity = f"is drained by {other.owner}"
        self.scope = anyio.CancelScope()  # of the run in progress, or the last one
        self.has_rules: bool | None = None
        """Whether there are MachineDrainRules, as read at `read_at` (monotonic)."""
        self.read_at = -math.inf
        self._context = context
        self.take(other)

    def take(self, other: OtherDrain) -> None:
        """Take over what the objects of the owner show now: its deadline may move either way."""
        self.other = other
        self.deadline = None if other.deadline is None else Deadline(other.deadline)

    def matches_node(self, node: Node) -> bool:
        """Whether this object is the node of this state, and still drained by the same owner."""
        found = other_drain(self._context, node) if node.uid == self.uid else None
        return found is not None and self.other is not None and found.owner == self.other.owner

    def interruption(self, cluster: ClusterCache, step: str) -> str:
        """The owner may have ended its drain by now."""
        node = cluster.node(self.node.name)
        return "" if node is not None and self.matches_node(node) else "its owner no longer drains it"


async def find_owner(context: StepContext, state: AssistState) -> Answer:
    """Find what the owner of the drain evicts, and by when."""
    if isinstance(found := other_drain(context, state.node), ClusterApiDrain):
        now, (namespace, _) = context.clock.monotonic(), found.machine
        if now >= state.read_at + RULES_SECONDS:
            rules = await read_served(context.client, DRAIN_RULE_VERSIONS)
            state.has_rules, state.read_at = any(each["metadata"]["namespace"] == namespace for each in rules), now
        state.take(msgspec.structs.replace(found, has_rules=state.has_rules))
        return Answer(Next.PROCEED, state.read_at + RULES_SECONDS - now)
    if found is not None:
        state.take(found)
    return Answer(Next.PROCEED)


async def drain_for_owner(context: StepContext, state: AssistState) -> Answer:
    """Evict and delete what the owner would; what follows is the owner's."""
    is_assisted = state.other is not None and state.other.is_assisted
    answer = await (drain if is_assisted else watch_drain)(context, state)
    if state.drain.plan is None or state.drain.plan.left or state.other is None:
        return answer
    reason = f"all pods are gone; {state.other.owner} continues"
    return msgspec.structs.replace(answer, next=Next.WAIT, seconds=math.inf, reason=reason)


ASSISTING: Final = (Step("owner", find_owner), Step("drain", drain_for_owner))


async def run_assistance(runner: StepRunner, state: AssistState) -> Requeue | None:
    """Run the steps until the owner ends its drain; returns when to run them again. Raises ApiError."""
    with anyio.CancelScope() as state.scope:
        return await runner.run(ASSISTING, state)
    return None  # interrupted by an event, which has queued the node, too
