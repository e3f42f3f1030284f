"""Status of a campaign, as it is written: conditions, counts, the most interesting nodes, and the record of all.

Invariants: at most MOST_SHOWN nodes are listed; the record is written only if it has changed; the estimated end alone
causes no write; texts of others are harmless.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gracectl.controllers.nodedrain.campaign import Campaign
from gracectl.kube.conditions import ConditionUpdate
from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of, natural_key, turned_at
from gracectl.model.nodedrain import MOST_SHOWN, Blocker, NodeDrain, NodeState, Scope
from gracectl.model.times import format_time
from gracectl.policy.disruption import Hold
from gracectl.policy.explain import listed
from gracectl.policy.nodedrain import CampaignDecision, NodeDecision, Record, is_blocked, maximum_of

LONGEST: Final = 500
"""Characters of a message."""

ESTIMATE_SECONDS: Final = 60.0
"""The estimated end is rounded up to this."""

_ORDER: Final = (
    *(NodeState.SETTLING, NodeState.TERMINATING, NodeState.DRAINING, NodeState.FAILED, NodeState.SKIPPED),
    *(NodeState.GATED, NodeState.PENDING, NodeState.CANCELED, NodeState.DRAINED, NodeState.TERMINATED),
)

_SCOPE_NAMES: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Scope)}


def status_of(
    campaign: Campaign, decision: CampaignDecision, hold: Hold | None, now: float, traces: dict[str, str]
) -> dict[str, Any]:
    """The status for a merge patch, without a record that is written already. `hold`: what keeps nodes from
    beginning; `traces`: by reference."""
    drain, counts = campaign.drain, decision.counts()
    conditions = conditions_of(drain, decision, hold)
    is_finished = decision.is_finished and drain.deletion_timestamp is None
    end = _estimated_end(campaign, decision, hold, now)
    status: dict[str, Any] = {
        "observedGeneration": drain.generation,
        "startTime": format_time(drain.start_time if drain.start_time is not None else now),
        "completionTime": format_time(drain.completion_time or now) if is_finished else None,
        "estimatedEnd": None if end is None or is_finished else format_time(end),
        "counts": msgspec.to_builtins(counts),
        "nodes": [_entry(campaign, each, traces) for each in _shown(decision)],
        "conditions": [_condition(drain, each, now) for each in conditions],
    }
    records = {each.node.reference: each.record for each in decision.nodes}
    retried = campaign.retried | {*decision.retried}
    if records != campaign.records or retried != campaign.retried or drain.start_time is None:
        status["scope"] = scope_of(records.items(), retried)
    return status


def scope_of(records: Iterable[tuple[str, Record]], retried: Iterable[str] = ()) -> dict[str, list[str]]:
    """The record of all nodes."""
    scope: dict[str, list[str]] = {name: [] for name in _SCOPE_NAMES.values()}
    for reference, record in records:
        scope[_SCOPE_NAMES[record.value]].append(reference)
    return {**scope, "retried": sorted(retried)}


def is_change(before: dict[str, Any] | None, after: dict[str, Any]) -> bool:
    """Whether a status has to be written."""
    if before is None or "scope" in after:
        return True
    return {**before, "estimatedEnd": None} != {**after, "estimatedEnd": None}


def conditions_of(drain: NodeDrain, decision: CampaignDecision, hold: Hold | None) -> tuple[ConditionUpdate, ...]:
    """The four conditions."""
    counts, is_canceled = decision.counts(), drain.deletion_timestamp is not None
    failed = [each for each in decision.nodes if each.record is Record.FAILED]
    done = f"{counts.done} of {counts.total} nodes done"
    others = {"in progress": counts.in_progress, "skipped": counts.skipped, "failed": counts.failed}
    others["canceled"] = counts.canceled
    summary = ", ".join([done, *(f"{number} {word}" for word, number in others.items() if number)])
    blocked = [each for each in decision.nodes if is_blocked(each)]
    gated = [each for each in decision.nodes if each.state is NodeState.GATED]
    progressing = (names.TRUE, "InProgress", summary)
    if is_canceled:
        progressing = (names.FALSE if decision.is_finished else names.TRUE, "Canceled", summary)
    elif decision.is_finished:
        progressing = (names.FALSE, "NodesFailed" if failed else "Completed", summary)
    elif hold is not None:
        progressing = (names.TRUE if counts.in_progress else names.FALSE, str(hold.reason), f"{summary}; {hold.text}")
    block = (names.FALSE, "NotBlocked", "")
    if blocked and not decision.is_finished:
        reason = "Undrainable" if any(each.node.is_undrainable for each in blocked) else "PodsBlock"
        block = (names.TRUE, reason, listed([_blocked(each) for each in blocked]))
    elif gated and not counts.in_progress and not decision.candidates:
        block = (names.TRUE, "Gated", listed([f"node {each.node.name}: {each.message}" for each in gated]))
    is_over = decision.is_finished and not is_canceled
    complete = (names.TRUE, "Completed", summary) if is_over and not failed else (names.FALSE, "NotCompleted", summary)
    failure = (names.FALSE, "NotFailed", "")
    if failed and (is_over or counts.canceled):
        failure = (names.TRUE, "NodesFailed", listed([f"node {each.node.name}: {each.message}" for each in failed]))
    found = {names.PROGRESSING: progressing, names.BLOCKED: block, names.COMPLETE: complete, names.FAILED: failure}
    return tuple(
        ConditionUpdate(type_, status, reason, harmless(message, LONGEST))
        for type_, (status, reason, message) in found.items()
    )


def refused_status(drain: NodeDrain, message: str, now: float) -> dict[str, Any]:
    """Status of a campaign that cannot begin."""
    conditions = (
        ConditionUpdate(names.PROGRESSING, names.FALSE, "Refused", message),
        ConditionUpdate(names.BLOCKED, names.FALSE, "NotBlocked", ""),
        ConditionUpdate(names.COMPLETE, names.FALSE, "NotCompleted", ""),
        ConditionUpdate(names.FAILED, names.TRUE, "Refused", message),
    )
    return {
        "observedGeneration": drain.generation,
        "startTime": format_time(now),
        "completionTime": format_time(now),
        "conditions": [_condition(drain, each, now) for each in conditions],
    }


def _condition(drain: NodeDrain, update: ConditionUpdate, now: float) -> dict[str, Any]:
    turned = turned_at(condition_of(drain.conditions, update.type), update.status, now)
    return {**update.entry(turned), "observedGeneration": drain.generation}


def _blocked(each: NodeDecision) -> str:
    causes = [each.message] if each.message else [blocker.message for blocker in each.blocked_by]
    return f"node {each.node.name}: {listed(causes)}"


def _shown(decision: CampaignDecision) -> list[NodeDecision]:
    places = {reference: place for place, reference in enumerate(decision.candidates)}

    def key(each: NodeDecision) -> tuple[Any, ...]:
        place = places.get(each.node.reference, len(places))
        return (_ORDER.index(each.state), place, natural_key(each.node.name))

    return heapq.nsmallest(MOST_SHOWN, decision.nodes, key)


def _entry(campaign: Campaign, each: NodeDecision, traces: dict[str, str]) -> dict[str, Any]:
    _, since, message = campaign.shown[each.node.reference]
    name, _, uid = each.node.reference.partition("/")
    entry: dict[str, Any] = {"name": name, "uid": uid, "state": str(each.state), "since": format_time(since)}
    if each.node.plan is not None and each.record is Record.IN_PROGRESS:
        entry["podsLeft"] = len(each.node.plan.left)
    if each.blocked_by:
        entry["blockedBy"] = [_blocker(blocker) for blocker in each.blocked_by]
    if message:
        entry["message"] = harmless(message, LONGEST)
    if trace := traces.get(each.node.reference):
        entry["traceID"] = trace
    return entry


def _blocker(blocker: Blocker) -> dict[str, Any]:
    entry = {field: value for field, value in msgspec.structs.asdict(blocker).items() if value}
    entry["message"] = harmless(blocker.message, LONGEST)
    if blocker.until is not None:
        entry["until"] = format_time(blocker.until)
    return entry


def _estimated_end(campaign: Campaign, decision: CampaignDecision, hold: Hold | None, now: float) -> float | None:
    """When the last node will be finished if nodes take as long as the ones before; None: unknown."""
    nodes = [each for each in decision.nodes if each.record in (Record.PENDING, Record.IN_PROGRESS)]
    if hold is not None or not campaign.durations or any(is_blocked(each) or each.message for each in nodes):
        return None
    mean = sum(campaign.durations) / len(campaign.durations)
    begun = [each.node.since for each in nodes if each.record is Record.IN_PROGRESS]
    ends = [max(since + mean, now) for since in begun]
    idle = maximum_of(campaign.drain, len(decision.nodes)) - len(ends)
    slots = ends + [now] * max(idle, 0)
    heapq.heapify(slots)
    last = max(ends, default=now)
    for _ in range(len(nodes) - len(begun)):
        end = heapq.heappushpop(slots, slots[0] + mean) + mean
        last = max(last, end)
    return -(-last // ESTIMATE_SECONDS) * ESTIMATE_SECONDS
