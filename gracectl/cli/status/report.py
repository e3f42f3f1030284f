"""How nodes stand as one JSON object: all that the table says and more, under names that stay.

Instants are RFC 3339, by the server's clock; what ends in `Seconds` is a number of seconds. docs/status.md explains
every field. Invariant: fields are added, never renamed or taken away; the order of lists is that of the table.
"""

from __future__ import annotations

import msgspec

from gracectl.cli.plan.report import (
    CautionReport,
    LaneReport,
    ProtectionReport,
    Reported,
    caution_of,
    instant,
    lane_of,
    protection_of,
)
from gracectl.cli.status import messages as words
from gracectl.cli.status.follow import Scene
from gracectl.inspect.leadership import Leadership
from gracectl.inspect.status import NodeClaimStatus, NodeStatus, PodStatus
from gracectl.inspect.watcher import ConnectionLoss
from gracectl.model.foreign import visible_json
from gracectl.model.times import format_time
from gracectl.policy.deadlines import Deadline


class PodReport(Reported, frozen=True, kw_only=True):
    """A pod that holds its node. `state`: as in the table. `since`: at least since then."""

    namespace: str
    name: str
    uid: str
    state: str
    since: str
    since_seconds: float
    reason: str
    why: str
    until: str | None
    delete_at: str | None
    budgets: tuple[str, ...]
    lane: LaneReport | None
    protection: ProtectionReport | None


class DeadlineReport(Reported, frozen=True):
    """A deadline. `inSeconds` is negative when it has passed."""

    at: str
    in_seconds: float
    source: str | None
    holder: str | None
    grace_period_seconds: float | None


class NodeReport(Reported, frozen=True, kw_only=True):
    """A node. `state`: ending, kept, returning, pending or idle. `pods` null: they have not been listed yet."""

    name: str
    uid: str
    state: str
    since: str | None
    since_seconds: float | None
    step: str
    done: bool
    waits_for: str
    pods_left: int | None
    deadline: DeadlineReport | None
    cautions: tuple[CautionReport, ...]
    pods: tuple[PodReport, ...] | None


class ClaimReport(Reported, frozen=True, kw_only=True):
    """A node claim that ends, and whose node nobody has deleted yet, or that has none."""

    name: str
    nodes: tuple[str, ...]
    since: str
    since_seconds: float
    deadline: DeadlineReport | None
    waits_for: str


class GoneReport(Reported, frozen=True):
    """A node that has gone while somebody watched; `afterSeconds` null: nobody saw its end begin."""

    name: str
    uid: str
    after_seconds: float | None


class InterruptionReport(Reported, frozen=True):
    """The connection fails; what is shown is as of `since` (null: nothing was seen yet)."""

    since: str | None
    error: str


class ControllerReport(Reported, frozen=True):
    """Whether a controller leads. `state`: leads, nobody or unknown; `lease` null: none was found or may be read."""

    state: str
    lease: str | None
    holder: str | None
    renewed: str | None


class Report(Reported, frozen=True, kw_only=True):
    """The whole object. `settings`: their file; null: all defaults. `longest_protection_seconds`: null: no maximum."""

    at: str
    settings: str | None
    longest_protection_seconds: float | None
    interruption: InterruptionReport | None
    controller: ControllerReport
    nodes: tuple[NodeReport, ...]
    claims: tuple[ClaimReport, ...]
    gone: tuple[GoneReport, ...]


def report(scene: Scene, settings: str | None = None) -> Report:
    """Of a scene. `settings`: the name of their file."""
    return Report(
        at=format_time(scene.at),
        settings=settings,
        longest_protection_seconds=scene.longest_protection,
        interruption=_interruption(scene.interruption),
        controller=_controller(scene.leadership),
        nodes=tuple(_node(node, scene.at) for node in scene.nodes),
        claims=tuple(_claim(claim, scene.at) for claim in scene.claims),
        gone=tuple(GoneReport(each.name, each.uid, each.after_seconds) for each in scene.gone),
    )


def as_line(told: Report) -> str:
    """One JSON object on one line, for those who read one after the other."""
    return visible_json(msgspec.json.encode(told).decode())


def _node(node: NodeStatus, at: float) -> NodeReport:
    return NodeReport(
        name=node.name,
        uid=node.uid,
        state=node.state.value,
        since=instant(node.since),
        since_seconds=None if node.since is None else round(at - node.since, 3),
        step=node.step,
        done=node.is_done,
        waits_for=node.waits_for,
        pods_left=None if node.pods is None else len(node.pods),
        deadline=_deadline(node.deadline, at, node),
        cautions=tuple(map(caution_of, node.obstacles)),
        pods=None if node.pods is None else tuple(_pod(pod, at) for pod in node.pods),
    )


def _pod(pod: PodStatus, at: float) -> PodReport:
    entry = pod.entry
    return PodReport(
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        uid=entry.pod.uid,
        state=words.state_of(pod),
        since=format_time(pod.since),
        since_seconds=round(at - pod.since, 3),
        reason=entry.reason,
        why=words.why(pod, at),
        until=instant(entry.until),
        delete_at=instant(entry.delete_at),
        budgets=tuple("/".join(key) for key in entry.budgets),
        lane=lane_of(pod.place),
        protection=protection_of(entry.protection),
    )


def _deadline(deadline: Deadline | None, at: float, node: NodeStatus | None = None) -> DeadlineReport | None:
    if deadline is None:
        return None
    origin = None if node is None else node.origin
    return DeadlineReport(
        at=format_time(deadline.at),
        in_seconds=round(deadline.at - at, 3),
        source=None if origin is None else origin.source,
        holder=None if origin is None else origin.object,
        grace_period_seconds=deadline.grace_period,
    )


def _claim(claim: NodeClaimStatus, at: float) -> ClaimReport:
    return ClaimReport(
        name=claim.name,
        nodes=claim.nodes,
        since=format_time(claim.since),
        since_seconds=round(at - claim.since, 3),
        deadline=_deadline(claim.deadline, at),
        waits_for=claim.waits_for,
    )


def _controller(leadership: Leadership) -> ControllerReport:
    return ControllerReport(
        state=leadership.state.value,
        lease=leadership.lease or None,
        holder=leadership.holder or None,
        renewed=instant(leadership.renewed),
    )


def _interruption(interruption: ConnectionLoss | None) -> InterruptionReport | None:
    if interruption is None:
        return None
    return InterruptionReport(instant(interruption.since), interruption.error)
