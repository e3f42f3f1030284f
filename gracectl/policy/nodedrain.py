"""Decision about a campaign (NodeDrain): what begins, is deleted or returned now, what holds it, and its record.

    pending ──▶ in progress ──▶ drained, terminated
       │  ▲           │
       │  └─ once ────┴──▶ skipped, failed
       └──▶ canceled

Invariants: a node begins only while fewer than `maxConcurrent` are in progress, and a node is in progress until its
pods are replaced; a node that is skipped or has failed is recorded before it is returned; what this process does not
remember, the node and the record show. Source: ADR 0084.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget, scaled_value
from gracectl.model.meta import natural_key
from gracectl.model.node import Node
from gracectl.model.nodedrain import (
    MOST_BLOCKERS,
    Action,
    Blocker,
    Counts,
    NodeDrain,
    NodeState,
    OnUndrainable,
    Order,
    Scope,
)
from gracectl.model.times import format_time
from gracectl.policy import plan as plans
from gracectl.policy.answers import Answer, Never, Window
from gracectl.policy.disruption import Hold
from gracectl.policy.explain import by_urgency, explain_pod, listed
from gracectl.policy.plan import Plan

PATIENCE_SECONDS: Final = 300.0
"""Maximum time after the end of a drain for which its pods are awaited elsewhere."""

LONGEST_CANCEL_SECONDS: Final = 60.0
"""Time after its deletion within which the finalizer of a campaign is removed."""

LASTING: Final = frozenset(
    {
        plans.Blocker.PROTECTION,
        plans.Blocker.NEIGHBOUR,
        plans.Blocker.MISCONFIGURATION,
        plans.Blocker.REFUSED,
        plans.Blocker.UNDECODABLE,
    }
)
"""Blockers that set the condition Blocked: those of budgets come and go with each pod."""


class Record(StrEnum):
    """What is recorded about a node: the field of `status.scope`."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    DRAINED = "drained"
    TERMINATED = "terminated"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELED = "canceled"


UNFINISHED: Final = frozenset({Record.PENDING, Record.IN_PROGRESS})
DONE: Final = frozenset({Record.DRAINED, Record.TERMINATED})
SET_ASIDE: Final = frozenset({Record.SKIPPED, Record.FAILED, Record.CANCELED})


def records_of(scope: Scope) -> dict[str, Record]:
    """What is recorded about each node, by its reference."""
    return {reference: record for record in Record for reference in getattr(scope, record.value)}


class Forecasted(msgspec.Struct, frozen=True):
    """When the drain of a node ends by the forecast made at the instant `at` (Unix seconds)."""

    answer: Answer
    at: float

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key: the quickest drain first, unknown ones later, and undrainable nodes last."""
        if isinstance(self.answer, Never):
            return (2, 0.0)
        if not isinstance(self.answer, Window):
            return (1, 0.0)
        expected = self.answer.latest if self.answer.expected is None else self.answer.expected
        return (0, expected - self.at)


class CampaignNode(msgspec.Struct, frozen=True):
    """A node of a campaign, as the record and the caches show it at one instant."""

    reference: str
    """`NAME/UID`."""
    record: Record
    node: Node | None = None
    """None: no node has this UID."""
    is_ours: bool = False
    """The node has the annotation of this campaign."""
    is_ending: bool = False
    """The node, or its claim of another owner, is being deleted."""
    is_drained: bool = False
    """No pod must leave the node any longer."""
    awaited: tuple[str, ...] = ()
    """Replacements of its pods that are not Ready, and their budgets that are not whole."""
    since: float = 0.0
    """When its drain was requested (Unix seconds)."""
    forecast: Forecasted | None = None
    plan: Plan | None = None
    obstacle: str = ""
    """Why it can never begin."""
    wait: str = ""
    """Why it cannot begin yet, or why its deletion fails."""
    rival: str = ""
    """Name of the campaign that drives it instead."""
    rival_state: NodeState = NodeState.PENDING
    """Where the node is by that campaign."""
    gates: tuple[str, ...] = ()
    gated_since: float | None = None
    was_retried: bool = False
    message: str = ""
    """What was said of it when it was finished."""

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.reference.partition("/")[0]

    @property
    def is_settled(self) -> bool:
        """Whether the pods that it had are Ready elsewhere, and their budgets whole."""
        return not self.awaited

    @property
    def is_undrainable(self) -> bool:
        """Whether the forecast says that its drain never ends."""
        return self.forecast is not None and isinstance(self.forecast.answer, Never)


class NodeDecision(msgspec.Struct, frozen=True):
    """What is decided about a node, and what its status says."""

    node: CampaignNode
    record: Record
    state: NodeState
    message: str = ""
    blocked_by: tuple[Blocker, ...] = ()


class CampaignDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Decision about a campaign. Nodes are given by reference."""

    nodes: tuple[NodeDecision, ...]
    candidates: tuple[str, ...] = ()
    """Nodes that may begin, in this order."""
    free: int = 0
    """How many of them may begin now."""
    deletions: tuple[str, ...] = ()
    """Drained nodes to delete."""
    returns: tuple[str, ...] = ()
    """Nodes that take pods again."""
    stops: tuple[str, ...] = ()
    """Nodes with a drain that stops; they stay cordoned."""
    retried: tuple[str, ...] = ()
    """Skipped nodes that try again."""
    is_finished: bool = False
    next_change: float | None = None
    """The next instant at which the clock alone changes this decision."""

    @property
    def in_progress(self) -> int:
        """Number of nodes in progress."""
        return sum(each.record is Record.IN_PROGRESS for each in self.nodes)

    def counts(self) -> Counts:
        """Number of nodes by record."""
        found = Counter(each.record for each in self.nodes)
        done = sum(found[record] for record in DONE)
        return Counts(total=len(self.nodes), done=done, **{record.value: found[record] for record in Record})


def maximum_of(drain: NodeDrain, total: int) -> int:
    """How many nodes may be in progress at the same time: a percentage is rounded down; at least one."""
    try:
        return max(1, scaled_value(drain.max_concurrent, total, round_up=False))
    except ValueError:  # other definitions are less strict
        return 1


def decide(drain: NodeDrain, nodes: Sequence[CampaignNode], hold: Hold | None, now: float) -> CampaignDecision:
    """Decide about all nodes of a campaign at `now` (Unix seconds). `hold`: what keeps every node from beginning."""
    is_canceled = drain.deletion_timestamp is not None and drain.completion_time is None
    found = [_decide_node(drain, each, now, is_canceled=is_canceled) for each in nodes]
    has_failed = drain.on_undrainable is OnUndrainable.FAIL and any(each.record is Record.FAILED for each in found)
    if is_canceled or has_failed:
        reason = "canceled" if is_canceled else "another node has failed (onUndrainable: Fail)"
        found = [_canceled(each, reason) if each.record is Record.PENDING else each for each in found]
    free = maximum_of(drain, len(found)) - sum(map(_takes_a_place, found))
    waiting = [
        each.node for each in found if each.state is NodeState.PENDING and not (each.node.rival or each.node.wait)
    ]
    candidates = _ordered(drain, waiting) if hold is None and free > 0 else []
    if drain.on_undrainable is not OnUndrainable.WAIT:
        in_turn = {each.reference for each in candidates[:free] if each.is_undrainable}
        found = [_set_aside(drain, each) if each.node.reference in in_turn else each for each in found]
        candidates = [each for each in candidates if each.reference not in in_turn]
    retried: tuple[str, ...] = ()
    is_over = not any(each.record in UNFINISHED for each in found)
    if is_over and not (is_canceled or has_failed) and (again := [each for each in found if _may_retry(each)]):
        # Each is recorded as skipped, and returned, before it tries again.
        retried = tuple(each.node.reference for each in again if each.node.record is Record.SKIPPED)
        found = [_pending(each) if each.node.reference in retried else each for each in found]
        is_over = False
    released = [each for each in found if each.record in SET_ASIDE and _is_held(each.node)]
    # Recorded first, so that a later process does not begin the node again.
    recorded = [each.node for each in released if is_canceled or each.node.record is each.record]
    stops = {each.reference for each in recorded if each.record is Record.FAILED and drain.keeps_cordoned}
    return CampaignDecision(
        nodes=tuple(found),
        candidates=tuple(each.reference for each in candidates),
        free=max(free, 0),
        deletions=tuple(each.node.reference for each in found if _is_to_delete(drain, each)),
        returns=tuple(each.reference for each in recorded if each.reference not in stops),
        stops=tuple(stops),
        retried=retried,
        is_finished=is_over and not released,
        next_change=_next_change(drain, found, hold, now),
    )


def _decide_node(drain: NodeDrain, each: CampaignNode, now: float, *, is_canceled: bool) -> NodeDecision:
    was_begun = each.is_ours or each.record in (Record.IN_PROGRESS, Record.DRAINED)
    if is_canceled and was_begun and each.node is not None and not each.is_ending:
        return NodeDecision(each, Record.CANCELED, NodeState.CANCELED, "canceled: returned")
    if each.record not in UNFINISHED:
        return NodeDecision(each, each.record, NodeState(each.record.value.capitalize()), each.message)
    if each.node is None:
        if each.is_settled or is_canceled:
            return NodeDecision(each, Record.TERMINATED, NodeState.TERMINATED)
        return NodeDecision(each, Record.IN_PROGRESS, NodeState.SETTLING, _settling(each))
    if each.is_ending:
        if is_canceled:
            message = "canceled, but it is being terminated, which cannot be taken back"
            return NodeDecision(each, Record.TERMINATED, NodeState.TERMINATING, message)
        return NodeDecision(each, Record.IN_PROGRESS, NodeState.TERMINATING, each.wait, blockers_of(each.plan))
    if each.rival:
        return NodeDecision(each, Record.PENDING, each.rival_state, f"driven by NodeDrain {each.rival}")
    if each.is_ours:
        return _decide_begun(drain, each, now)
    if each.record is Record.IN_PROGRESS:
        if each.is_drained:
            return NodeDecision(each, Record.DRAINED, NodeState.DRAINED)
        return NodeDecision(each, Record.FAILED, NodeState.FAILED, "uncordoned before it was drained")
    return _decide_pending(drain, each, now)


def _decide_begun(drain: NodeDrain, each: CampaignNode, now: float) -> NodeDecision:
    if each.is_drained:
        if drain.action is Action.TERMINATE:
            return NodeDecision(each, Record.IN_PROGRESS, NodeState.DRAINING, each.wait or "drained")
        if not each.is_settled:
            return NodeDecision(each, Record.IN_PROGRESS, NodeState.SETTLING, _settling(each))
        return NodeDecision(each, Record.DRAINED, NodeState.DRAINED)
    blocked_by = blockers_of(each.plan)
    is_late = _is_timed_out(drain, each.since, now)
    if (is_late or each.is_undrainable) and drain.on_undrainable is OnUndrainable.SKIP:
        return NodeDecision(each, Record.SKIPPED, NodeState.SKIPPED, _why(drain, each, is_late=is_late), blocked_by)
    if is_late or (each.is_undrainable and drain.on_undrainable is OnUndrainable.FAIL):
        return NodeDecision(each, Record.FAILED, NodeState.FAILED, _why(drain, each, is_late=is_late), blocked_by)
    message = _why(drain, each) if each.is_undrainable else ""
    return NodeDecision(each, Record.IN_PROGRESS, NodeState.DRAINING, message, blocked_by)


def _decide_pending(drain: NodeDrain, each: CampaignNode, now: float) -> NodeDecision:
    if each.obstacle:
        return NodeDecision(each, Record.FAILED, NodeState.FAILED, each.obstacle)
    if each.gates and not (drain.action is Action.TERMINATE and _is_gate_over(drain, each, now)):
        gates = listed([f"{names.GATE}{gate}" for gate in each.gates])
        if _is_gate_over(drain, each, now):
            record = Record.SKIPPED if drain.on_undrainable is OnUndrainable.SKIP else Record.FAILED
            message = f"held by {gates} for longer than its timeout"
            return NodeDecision(each, record, NodeState(record.value.capitalize()), message)
        return NodeDecision(each, Record.PENDING, NodeState.GATED, f"held by {gates}; its owner removes the annotation")
    return NodeDecision(each, Record.PENDING, NodeState.PENDING, each.wait)


def _set_aside(drain: NodeDrain, each: NodeDecision) -> NodeDecision:
    record = Record.SKIPPED if drain.on_undrainable is OnUndrainable.SKIP else Record.FAILED
    return NodeDecision(each.node, record, NodeState(record.value.capitalize()), _why(drain, each.node))


def _canceled(each: NodeDecision, reason: str) -> NodeDecision:
    return NodeDecision(each.node, Record.CANCELED, NodeState.CANCELED, reason)


def _pending(each: NodeDecision) -> NodeDecision:
    return NodeDecision(each.node, Record.PENDING, NodeState.PENDING, "tries again")


def _may_retry(each: NodeDecision) -> bool:
    """Whether it was skipped once, and is returned."""
    is_returned = each.node.node is not None and not each.node.is_ours
    return each.record is Record.SKIPPED and is_returned and not each.node.was_retried


def _is_held(each: CampaignNode) -> bool:
    """Whether the node has to be returned."""
    return each.node is not None and each.is_ours and not each.is_ending


def _takes_a_place(each: NodeDecision) -> bool:
    """Whether no other node may begin in its place: it is in progress, or takes no pods until it is returned."""
    return each.record is Record.IN_PROGRESS or (each.record in SET_ASIDE and _is_held(each.node))


def _is_to_delete(drain: NodeDrain, each: NodeDecision) -> bool:
    if drain.action is not Action.TERMINATE or each.record is not Record.IN_PROGRESS or not _is_held(each.node):
        return False
    return each.node.is_drained


def _is_timed_out(drain: NodeDrain, since: float, now: float) -> bool:
    return drain.action is Action.DRAIN and drain.timeout is not None and now >= since + drain.timeout


def _is_gate_over(drain: NodeDrain, each: CampaignNode, now: float) -> bool:
    return drain.timeout is not None and each.gated_since is not None and now >= each.gated_since + drain.timeout


def _settling(each: CampaignNode) -> str:
    return f"waits at most {PATIENCE_SECONDS / 60:.0f} min for {listed(each.awaited)}"


def _why(drain: NodeDrain, each: CampaignNode, *, is_late: bool = False) -> str:
    if is_late and drain.timeout is not None:
        return f"not drained within its timeout, at {format_time(each.since + drain.timeout)}"
    assert each.forecast is not None
    assert isinstance(each.forecast.answer, Never)
    causes = [f"pod {cause.pod}: {cause.reason}" for cause in each.forecast.answer.causes]
    return f"never drained: {listed(causes)}"


def _ordered(drain: NodeDrain, nodes: Iterable[CampaignNode]) -> list[CampaignNode]:
    def key(each: CampaignNode) -> tuple[object, ...]:
        name = natural_key(each.name)
        if drain.order is Order.BY_NAME:
            return (each.was_retried, name)
        if drain.order is Order.OLDEST_FIRST:
            return (each.was_retried, 0.0 if each.node is None else each.node.created, name)
        return (each.was_retried, (1, 0.0) if each.forecast is None else each.forecast.rank, name)

    return sorted(nodes, key=key)


def _next_change(drain: NodeDrain, found: Iterable[NodeDecision], hold: Hold | None, now: float) -> float | None:
    instants = [] if hold is None or hold.until is None else [hold.until]
    if drain.timeout is not None:
        begun = [each.node.since for each in found if each.state is NodeState.DRAINING]
        gated = [each.node.gated_since for each in found if each.state is NodeState.GATED]
        starts = [at for at in (*begun, *gated) if at is not None]
        instants += [at + drain.timeout for at in starts]
    return min((at for at in instants if at > now), default=None)


def blockers_of(plan: Plan | None) -> tuple[Blocker, ...]:
    """The first few objects that block a node, the most urgent first."""
    if plan is None:
        return ()
    held = [entry for entry in by_urgency(plan.left) if entry.blocker is not None]
    found: dict[tuple[str, str, str], Blocker] = {}
    for entry in held:
        kind, (namespace, name) = "Pod", entry.pod.key
        if entry.budgets:
            kind, (namespace, name) = "PodDisruptionBudget", entry.budgets[0]
        blocker = Blocker(kind, namespace, name, explain_pod(entry), entry.until)
        found.setdefault((kind, namespace, name), blocker)
        if len(found) == MOST_BLOCKERS:
            break
    return tuple(found.values())


def is_blocked(each: NodeDecision) -> bool:
    """Whether a person has to act, or a protection to end, before this node in progress is drained."""
    if each.state is not NodeState.DRAINING:
        return False
    left = () if each.node.plan is None else each.node.plan.left
    return each.node.is_undrainable or any(entry.blocker in LASTING for entry in left)


def is_whole(budget: PodDisruptionBudget, allowed: int | None) -> bool:
    """Whether a budget is as it was before a drain, when it allowed that many disruptions (None: unknown)."""
    if budget.current_healthy >= budget.expected_pods:
        return True
    return budget.disruptions_allowed >= (1 if allowed is None else allowed)


def beats(one: NodeDrain, other: NodeDrain) -> bool:
    """Whether a campaign drives a node that both would begin: Terminate before Drain, then the older one."""

    def rank(drain: NodeDrain) -> tuple[bool, float, str]:
        return (drain.action is not Action.TERMINATE, drain.created, drain.name)

    return rank(one) < rank(other)
