"""A forecast as one JSON object: all that the table says and more, under names that stay.

Instants are RFC 3339, by the server's clock; what ends in `Seconds` is a number of seconds. docs/plan.md explains every
field. Invariant: fields are added, never renamed or taken away; the order of lists is that of the table.
"""

from __future__ import annotations

import msgspec

from gracectl.cli.plan.groups import in_order
from gracectl.cli.plan.messages import Ground, budgets_of, ground_of, held, how
from gracectl.inspect.forecast import NodeOutlook, Outlook
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.foreign import visible_json
from gracectl.model.times import format_time
from gracectl.policy.bounds import PodForecast, Window
from gracectl.policy.budgets import failure_of
from gracectl.policy.deadlines import grace_of
from gracectl.policy.eviction_queues import QueuePosition
from gracectl.policy.protection import Protection
from gracectl.policy.simulation import PodRemoval
from gracectl.policy.warnings import PlanWarning


class Reported(msgspec.Struct, frozen=True, rename="camel"):
    """Part of a JSON object."""


class SpanReport(Reported, frozen=True):
    """Between which instants something happens; `latest` null: perhaps never. Seconds count from `at` of the whole."""

    earliest: str
    latest: str | None
    earliest_seconds: float
    latest_seconds: float | None
    certain: bool


class OrderReport(Reported, frozen=True):
    """A pod is told to leave: `how` is evicted or deleted, with so many seconds of the grace that it asks for."""

    at: str
    at_seconds: float
    how: str
    grace_seconds: int


class LaneReport(Reported, frozen=True):
    """A pod's place among those who wait for the same budget. `open`: its place may be any other of the same turn's."""

    number: int
    of: int
    after: str | None
    open: bool


class ProtectionReport(Reported, frozen=True):
    """What protects a pod. `until` null: for ever; `valid` false: nobody understands the value."""

    kind: str
    value: str
    until: str | None
    valid: bool
    capped: bool


class PodReport(Reported, frozen=True, kw_only=True):
    """What becomes of a pod. `kept`: what keeps it in the end, if it may be that it never leaves."""

    namespace: str
    name: str
    uid: str
    wave: str
    outcome: str
    reason: str
    until: str | None
    how: str
    told: SpanReport | None
    gone: SpanReport | None
    certain: bool
    ways: tuple[str, ...]
    orders: tuple[OrderReport, ...]
    grace_seconds: int
    delete_at: str | None
    deadline: str | None
    budgets: tuple[str, ...]
    lane: LaneReport | None
    protection: ProtectionReport | None
    kept: str | None


class CautionReport(Reported, frozen=True):
    """What to know. `grave`: the node will not be drained, or not gracefully."""

    kind: str
    grave: bool
    message: str
    objects: tuple[str, ...]


class DeadlineReport(Reported, frozen=True):
    """A deadline. `source`: claim, nodeGroup or annotation; `holder`: which one has it."""

    at: str
    at_seconds: float
    source: str
    holder: str
    grace_period_seconds: float | None


class WaveReport(Reported, frozen=True):
    """Pods that leave together, the first ones first."""

    name: str
    period_seconds: float


class NodeReport(Reported, frozen=True, kw_only=True):
    """What becomes of a node. `deletedAt`: when it was deleted, or is taken to be; `drained` null: never."""

    name: str
    ending: bool
    deleted_at: str
    deadline: DeadlineReport | None
    drained: SpanReport | None
    cautions: tuple[CautionReport, ...]
    waves: tuple[WaveReport, ...]
    pods: tuple[PodReport, ...]


class WaitingReport(Reported, frozen=True):
    """One who waits in a lane."""

    node: str
    pod: str


class BudgetReport(Reported, frozen=True, kw_only=True):
    """A budget over pods of these nodes. `lane`: who waits for it now, in this order, over all nodes that end."""

    namespace: str
    name: str
    allowed: int
    healthy: int
    required: int
    expected: int
    failure: str | None
    lane: tuple[WaitingReport, ...]


class AssumptionsReport(Reported, frozen=True):
    """What it rests on beside the cluster's objects. `settings`: the file; null: all defaults."""

    replacement_seconds: float
    eviction_qps: float
    eviction_burst: int
    settings: str | None


class Report(Reported, frozen=True, kw_only=True):
    """The whole object. `alsoDraining`: other nodes whose pods are leaving already, and wait under the same budgets."""

    at: str
    assumptions: AssumptionsReport
    nodes: tuple[NodeReport, ...]
    also_draining: tuple[str, ...]
    budgets: tuple[BudgetReport, ...]


def report(outlook: Outlook, settings: str | None = None) -> Report:
    """Of a forecast. `settings`: the name of their file."""
    ground, whole = ground_of(outlook), outlook.whole
    asked = {node.name for node in outlook.nodes}
    return Report(
        at=format_time(whole.at),
        assumptions=AssumptionsReport(
            replacement_seconds=whole.assumptions.replacement_seconds,
            eviction_qps=whole.assumptions.rate.qps,
            eviction_burst=whole.assumptions.rate.burst,
            settings=settings,
        ),
        nodes=tuple(_node(node, ground) for node in outlook.nodes),
        also_draining=tuple(node.name for node in whole.nodes if node.name not in asked),
        budgets=tuple(_budget(budget, outlook) for budget in budgets_of(outlook)),
    )


def as_json(told: msgspec.Struct) -> str:
    """One JSON object, indented."""
    return visible_json(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())


def _node(node: NodeOutlook, ground: Ground) -> NodeReport:
    prospect = node.prospect
    waves = prospect.plan.order.waves
    return NodeReport(
        name=node.name,
        ending=node.is_ending,
        deleted_at=format_time(prospect.draining.since),
        deadline=_deadline(node, ground),
        drained=_span(prospect.drained, ground),
        cautions=tuple(map(caution_of, node.cautions)),
        waves=tuple(WaveReport(wave.name, wave.period) for wave in waves),
        pods=tuple(_pod(pod, waves[pod.entry.wave].name, ground) for pod in in_order(prospect.pods, ground)),
    )


def _pod(pod: PodForecast, wave: str, ground: Ground) -> PodReport:
    entry = pod.entry
    return PodReport(
        namespace=entry.pod.namespace,
        name=entry.pod.name,
        uid=entry.pod.uid,
        wave=wave,
        outcome=entry.outcome.value,
        reason=entry.reason,
        until=instant(entry.until),
        how=how(pod, ground),
        told=_span(pod.removal, ground),
        gone=_span(pod.terminated, ground),
        certain=pod.is_certain,
        ways=tuple(way.value for way in pod.methods),
        orders=tuple(_order(order, ground) for order in pod.removals),
        grace_seconds=grace_of(entry.pod),
        delete_at=instant(entry.delete_at),
        deadline=instant(entry.deadline),
        budgets=tuple("/".join(key) for key in entry.budgets),
        lane=lane_of(ground.places.get(entry.pod.uid)),
        protection=protection_of(entry.protection),
        kept=None if pod.final_entry is None else held(pod.final_entry),
    )


def lane_of(place: QueuePosition | None) -> LaneReport | None:
    """A place, if there is one."""
    if place is None:
        return None
    ahead = None if place.ahead is None else "/".join(place.ahead.entry.pod.key)
    return LaneReport(place.number, place.of, ahead, place.is_undecided)


def protection_of(protection: Protection | None) -> ProtectionReport | None:
    """What protects a pod, if anything does."""
    if protection is None:
        return None
    until = instant(protection.until)
    return ProtectionReport(protection.kind, protection.value, until, protection.is_valid, protection.is_capped)


def caution_of(caution: PlanWarning) -> CautionReport:
    """One thing to know."""
    return CautionReport(caution.kind.value, caution.kind.is_blocking, caution.message, caution.objects)


def _deadline(node: NodeOutlook, ground: Ground) -> DeadlineReport | None:
    if node.deadline is None or node.origin is None:
        return None
    return DeadlineReport(
        at=format_time(node.deadline.at),
        at_seconds=_seconds(node.deadline.at, ground),
        source=node.origin.source,
        holder=node.origin.object,
        grace_period_seconds=node.deadline.grace_period,
    )


def _budget(budget: PodDisruptionBudget, outlook: Outlook) -> BudgetReport:
    waiting = [each for keys, lane in outlook.whole.queues.items() if budget.key in keys for each in lane]
    return BudgetReport(
        namespace=budget.namespace,
        name=budget.name,
        allowed=budget.disruptions_allowed,
        healthy=budget.current_healthy,
        required=budget.desired_healthy,
        expected=budget.expected_pods,
        failure=failure_of(budget),
        lane=tuple(WaitingReport(each.node, "/".join(each.entry.pod.key)) for each in waiting),
    )


def _span(span: Window | None, ground: Ground) -> SpanReport | None:
    if span is None:
        return None
    return SpanReport(
        earliest=format_time(span.earliest),
        latest=instant(span.latest),
        earliest_seconds=_seconds(span.earliest, ground),
        latest_seconds=None if span.latest is None else _seconds(span.latest, ground),
        certain=span.is_certain,
    )


def _order(order: PodRemoval, ground: Ground) -> OrderReport:
    return OrderReport(format_time(order.at), _seconds(order.at, ground), order.method.value, order.grace)


def instant(at: float | None) -> str | None:
    """RFC 3339, if there is one."""
    return None if at is None else format_time(at)


def _seconds(at: float, ground: Ground) -> float:
    return round(at - ground.at, 3)
