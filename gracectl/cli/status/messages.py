"""Texts about the status of nodes: the step of each, what blocks it, and for how long.

Invariant: the same whether printed once, live or line by line. Instants are Unix seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gracectl.cli.format import (
    NO_DEADLINE,
    age_text,
    blocked_by,
    deadline_cause,
    drained_in,
    elapsed,
    elapsed_answer,
    queue_text,
)
from gracectl.cli.output import command
from gracectl.cli.status.follow import StatusFrame, TerminatedNode
from gracectl.inspect.draining import PodStatus
from gracectl.inspect.status import NodeClaimStatus, NodePhase, NodeStatus
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.model.times import format_time
from gracectl.policy.answers import Never
from gracectl.policy.explain import HELD, URGENCY, counted, listed, urgency_of
from gracectl.policy.freeze import Freeze
from gracectl.policy.plan import Outcome
from gracectl.policy.warnings import WarningKind

T = TypeVar("T")

FEW = 10
"""Pods of a node that are listed; the others are counted."""

FEW_NODES = 8
"""Nodes that are shown with their pods; of more nodes only the causes are shown."""

FEW_ALIKE = 3
"""Pods that are listed of those with the same cause."""

UNLIMITED = "protection.maximumSeconds is not set: pods with indefinite protection block their nodes indefinitely"

DRAINING = "being drained for maintenance"

STATES = {
    NodePhase.TERMINATING: "terminating",
    NodePhase.MAINTENANCE: "drained for maintenance",
    NodePhase.UNCORDONING: "uncordoning",
    NodePhase.PENDING: "pending termination",
    NodePhase.IDLE: "idle",
}

POD_STATES = {
    Outcome.DELETE: "deleted",
    Outcome.EVICT: "leaving",
    Outcome.REPLACE: "replacing",
    Outcome.RETURN: "replacing",
}
"""Names of outcomes that are verbs."""


def is_unlimited(frame: StatusFrame) -> bool:
    """Whether a pod is protected indefinitely, without a maximum."""
    pods = (pod for node in frame.nodes for pod in node.pods or ())
    return frame.longest_protection is None and any(
        pod.entry.protection is not None and pod.entry.protection.lasting != "time" for pod in pods
    )


def title(frame: StatusFrame) -> str:
    """`2 nodes are terminating, 1 is drained for maintenance (2026-01-01T00:00:00Z by the server's clock)`."""
    if not frame.is_complete:
        return "Reading the cluster"
    found = Counter(map(state_text, frame.nodes))
    parts: list[str] = []
    for state in (STATES[NodePhase.TERMINATING], DRAINING, *STATES.values()):
        if number := found.pop(state, 0):
            parts.append(f"{number if parts else counted(number, 'node')} {'is' if number == 1 else 'are'} {state}")
    text = ", ".join(parts) or "No node is terminating or drained"
    return f"{text} ({format_time(frame.at)} by the server's clock)"


def freeze_text(freeze: Freeze) -> str:
    """`frozen until 2026-01-01T00:00:00Z by jane (release); nothing voluntary begins; run gracectl unfreeze …`."""
    return f"{freeze}; nothing voluntary begins; run {command('unfreeze')} to end it"


def state_text(node: NodeStatus) -> str:
    """`terminating`, `being drained for maintenance`."""
    return DRAINING if node.state is NodePhase.MAINTENANCE and not node.is_done else STATES[node.state]


def step_of(node: NodeStatus) -> str:
    """The step of its termination, or what there is in place of one."""
    return node.step or ("-" if node.state is NodePhase.IDLE else "none")


def age_of(node: NodeStatus, at: float) -> str:
    """The time since the request; empty if unknown."""
    return "" if node.since is None else elapsed(at - node.since)


def pods_left(node: NodeStatus) -> str:
    """How many pods block it."""
    if not node.step or node.state in (NodePhase.UNCORDONING, NodePhase.PENDING):
        return ""
    return "?" if node.pods is None else str(len(node.pods))


def deadline_in(node: NodeStatus, at: float) -> str:
    """The time until its deadline."""
    if node.deadline is None:
        return "-"
    return elapsed(node.deadline.at - at) if node.deadline.at > at else "overdue"


def trace_of(node: NodeStatus, frame: StatusFrame) -> str:
    """Address of its trace, or else the id; `-` without one."""
    return "-" if node.trace_id is None else frame.tracing.link(node.trace_id) or node.trace_id


def left_of(node: NodeStatus, at: float) -> str:
    """The time until it is drained, by its forecast: `0:05-0:40`, `unknown`, `never`; `-` if no pod blocks it."""
    return "-" if node.drained is None else elapsed_answer(node.drained, at)


def most_urgent(nodes: Iterable[NodeStatus]) -> tuple[NodeStatus, ...]:
    """The nodes with what a person can act on first."""

    def urgency(node: NodeStatus) -> tuple[bool, bool, int]:
        is_blocked = any(each.kind.is_blocking for each in node.warnings)
        first = min((urgency_of(pod.entry) for pod in node.pods or ()), default=len(URGENCY))
        return not node.is_in_progress, not is_blocked, first

    return tuple(sorted(nodes, key=urgency))


def waits_for(node: NodeStatus) -> str:
    """Cause for which a node waits, in one line; empty if unknown."""
    if node.state is NodePhase.PENDING and node.pending is not None and node.pending.hold:
        return node.waits_for
    warnings = (each for each in node.warnings if each.kind is not WarningKind.NEVER_DRAINS)
    return next((each.message for each in warnings if each.kind.is_blocking), "") or node.waits_for


def status_line(node: NodeStatus, at: float) -> str:
    """A node in one line."""
    line, reason = headline(node, at), waits_for(node)
    if node.is_never_drained:
        line = f"{line}, never drained"
    return line if not reason or reason in line else f"{line}: {reason}"


def shown_pods(node: NodeStatus, *, verbose: bool) -> Sequence[PodStatus]:
    """The pods that are listed, the most urgent first. `verbose`: every pod."""
    pods = node.pods or ()
    return pods if verbose or len(pods) <= FEW else _most_urgent(pods)


def with_remedies(node: NodeStatus, pods: Sequence[PodStatus]) -> set[str]:
    """UIDs of the pods that are shown with their remedy: one for each cause, unless a warning has it."""
    warned = {name for warning in node.warnings if warning.remedy for name in warning.objects}
    firsts = _first_of_each(pods, _likeness, 1)
    return {pod.entry.pod.uid for pod in firsts if pod.entry.pod.full_name not in warned}


def _most_urgent(pods: Iterable[PodStatus]) -> Sequence[PodStatus]:
    """Most urgent pods, from pods sorted by urgency; pods that are not blocked are left out."""
    found = _first_of_each(pods, _likeness, FEW_ALIKE)
    return [pod for pod in found if pod.entry.outcome is not Outcome.EVICT][:FEW]


def _first_of_each(things: Iterable[T], kind: Callable[[T], object], most: int) -> list[T]:
    """At most `most` items of each kind, in order."""
    alike: Counter[object] = Counter()
    found = []
    for thing in things:
        alike[kind(thing)] += 1
        if alike[kind(thing)] <= most:
            found.append(thing)
    return found


def _likeness(pod: PodStatus) -> tuple[object, ...]:
    """Equal for pods with the same cause."""
    entry = pod.entry
    return entry.outcome, entry.budgets, entry.protection and entry.protection.description


def headline(node: NodeStatus, at: float) -> str:
    """`terminating for 1:00, since 2026-01-01T00:00:00Z; step drain, 2 pods left`."""
    if node.state is NodePhase.IDLE:
        return "no drain or termination requested"
    since = "" if node.since is None else f" for {elapsed(at - node.since)}, since {format_time(node.since)}"
    campaign = f" by NodeDrain {node.campaign}" if node.campaign else ""
    return f"{state_text(node)}{campaign}{since}; {_where(node)}"


def _where(node: NodeStatus) -> str:
    if node.owner is not None:
        assists = ", and gracectl assists" if node.is_assisted else ""
        return f"{node.owner}{assists}: {_step_text(node)}"
    return _step_text(node)


def _step_text(node: NodeStatus) -> str:
    if node.pods is None:
        return f"step {step_of(node)}, pods not listed yet"
    if node.pods and node.step == "drain":
        return f"step drain, {counted(len(node.pods), 'pod')} left"
    if node.is_done or node.state is NodePhase.PENDING:
        return node.waits_for
    where = f"step {node.step}" if node.step else "not managed"
    return f"{where}: {node.waits_for}" if node.step and node.waits_for else where


def deadline_text(node: NodeStatus, at: float) -> str:
    """Its deadline, with the cause; empty where none applies."""
    if node.deadline is None:
        return NO_DEADLINE if node.state is NodePhase.TERMINATING else ""
    left, instant = node.deadline.at - at, format_time(node.deadline.at)
    when = f"in {elapsed(left)} ({instant})" if left > 0 else f"passed {elapsed(-left)} ago ({instant})"
    return f"deadline: {when}, {deadline_cause(node.deadline, node.deadline_origin)}"


def forecast_text(node: NodeStatus, at: float) -> str:
    """`forecast: drained in 0:05-0:40`; empty if it never is: a warning says so."""
    if node.drained is None or isinstance(node.drained, Never):
        return ""
    made = None if node.forecast is None else node.forecast.at
    return f"forecast: {drained_in(node.drained, at)}{age_text(made, at)}"


def pod_state(pod: PodStatus) -> str:
    """`blocked`, `protected`, `replacing`, `waiting`, `terminating`, `leaving`, `deleted`."""
    return POD_STATES.get(pod.entry.outcome, pod.entry.outcome.value)


def pod_reason(pod: PodStatus, at: float) -> str:
    """Why a pod is still there, until when at least, and when the deadline deletes it."""
    entry = pod.entry
    if entry.outcome is Outcome.TERMINATING:
        text = _grace(entry.until, at)
    elif entry.outcome is Outcome.EVICT:
        queued = queue_text(entry, pod.queue_position)
        text = f"budget {'/'.join(entry.budgets[0])} allows it in turn: {queued}" if queued else "eviction requested"
        text = f"{pod.owner} evicts it when it tries next" if pod.owner else text
    elif entry.outcome is Outcome.BLOCKED:
        text = "; ".join(filter(None, (entry.reason, queue_text(entry, pod.queue_position))))
    else:
        text = blocked_by(entry) or entry.reason
        if entry.until is not None:
            wait = elapsed(max(entry.until - at, 0.0))
            text += f", for at most {wait}" if entry.outcome is Outcome.REPLACING else f", in {wait}"
    if entry.deleted_by is not None and entry.outcome in HELD:
        text += f"; deleted within {elapsed(max(entry.deleted_by - at, 0.0))}"
    return text


def _grace(until: float | None, at: float) -> str:
    if until is None:
        return "deletion requested"
    return f"grace ends in {elapsed(until - at)}" if until > at else f"grace ended {elapsed(at - until)} ago"


def others_text(node: NodeStatus, shown: Sequence[PodStatus]) -> str:
    """`and 12 more: 9 waiting, 3 leaving`; empty if all pods are shown."""
    uids = {pod.entry.pod.uid for pod in shown}
    pods = [pod for pod in node.pods or () if pod.entry.pod.uid not in uids]
    if not pods:
        return ""
    found = ", ".join(f"{number} {state}" for state, number in Counter(map(pod_state, pods)).most_common())
    return f"and {len(pods)} more: {found} (-v lists them)"


# -- claims, terminated nodes, connection ------------------------------------------------------------------------------


def claim_text(claim: NodeClaimStatus, at: float) -> str:
    """A terminating NodeClaim that no node shows."""
    node = f"node {listed(claim.nodes)} not deleted yet" if claim.nodes else "no node"
    deadline = "" if claim.deadline is None else f", deadline {format_time(claim.deadline.at)}"
    reason = f": {claim.waits_for}" if claim.waits_for else ""
    return f"NodeClaim {claim.name}: terminating for {elapsed(at - claim.since)}{deadline}, {node}{reason}"


def terminated_text(node: TerminatedNode) -> str:
    """`worker-1: terminated after 5:03`."""
    return f"{node.name}: terminated{'' if node.after_seconds is None else f' after {elapsed(node.after_seconds)}'}"


def all_terminated_text(nodes: Iterable[TerminatedNode], most: int = 3) -> str:
    """The last ones first; the others are counted."""
    return listed([terminated_text(node) for node in nodes][::-1], most)


def connection_loss_text(loss: ConnectionLoss, now: float) -> str:
    """Message that the shown status may be old."""
    if loss.since is None:
        return f"not connected yet, retrying: {loss.error}"
    age = elapsed(max(now - loss.since, 0.0))
    return f"connection lost, retrying; this status is {age} old: {loss.error}"
