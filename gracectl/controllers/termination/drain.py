"""Step "drain": hand the pods of the plan to the evictor and the deleter, and report what the drain waits for.

Invariant: once the deadline has passed, nothing here waits for Events or conditions, or longer than a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import msgspec

from gracectl.controllers.termination.context import Answer, Proceed, StepContext, Wait
from gracectl.controllers.termination.deadline import CLOCKS_DISAGREE, cached_deadline
from gracectl.controllers.termination.events import emit_event, report_multiple_budgets
from gracectl.controllers.termination.protection import report_protection
from gracectl.controllers.termination.report import set_condition
from gracectl.controllers.termination.state import STALL_REPORTED, NodeState
from gracectl.controllers.termination.volumes import (
    note_claims,
    read_staying_claims,
    report_attached,
    waits_for_volumes_only,
)
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.conditions import ConditionUpdate
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.policy.deadlines import Deadline, earliest_deadline
from gracectl.policy.explain import explain, left_behind, stuck_text, summarize
from gracectl.policy.plan import Blocker, NodeView, Outcome, Plan, PodPlan, came_late, plan
from gracectl.policy.returning import LONGEST_SECONDS

STALL_SECONDS = 60.0
"""A drain in which no pod leaves for so long is worth an Event."""
DELETIONS_FIRST_SECONDS = 0.2
"""A plan that is due at the instant of a deletion is made later: planning many nodes then would delay the deleter."""
MOVING = (Outcome.DELETE, Outcome.TERMINATING)
"""A pod whose eviction is requested moves when the server agrees."""


async def drain(context: StepContext, state: NodeState) -> Answer:
    """Offer the pods whose turn it is; done when nothing is waited for and the minimum time has passed."""
    state.planned_from = context.clock.monotonic()
    state.awaited.clear()  # pods that end while the plan is made may be in it
    view = await _view_of(context, state)
    now = context.clock.now()
    decision = plan(view, now)
    if decision.excludes_daemon_sets and not state.excludes_daemon_sets:
        state.excludes_daemon_sets = True
        if not decision.overdue:
            context.deleter.set_pods(state.node.name, scheduled_deletions(decision, state.node.name))
            return Wait(0.0, "DaemonSet pods leave; waiting for the taint that keeps off new ones")
    is_first_look = state.plan is None
    present = {pod.uid for pod in view.pods}
    has_moved = state.plan is not None and any(entry.pod.uid not in present for entry in state.plan.left)
    state.plan, state.looked_at = decision, context.clock.monotonic()
    state.blocking_budgets = _budgets_of(decision)
    departed = context.pod_outcomes.note(state.node.name, decision, state.labels)
    state.observer.planned(decision, now, departed)
    state.awaited, state.ended = set(decision.awaited), set()
    context.evictor.set_pods(state.node.name, candidates(decision.leaving, state))
    context.deleter.set_pods(state.node.name, scheduled_deletions(decision, state.node.name))
    _report_plan(context, state, view, is_first=is_first_look)
    if decision.overdue:
        _report_overdue(context, state, decision)
        if not state.instance.was_tried:
            # The instance first, conditions later: the server may not answer, and the last deletions have what is left
            # of a second (see time_left).
            await context.deleter.settle(state.node.name)
            return Proceed()
    patience = state.time_left(context.clock)
    note_claims(state, decision)
    until_read = math.inf
    if waits_for_volumes_only(decision):
        until_read = await read_staying_claims(context, state, decision.unread_claims)
        if until_read == 0.0:
            return Wait(0.0, "volumes of pods that stay are known")
    _report_stuck(context, state, decision)
    if decision.is_stuck:
        state.stalled_since = None
        message = f"not drained: {stuck_text(decision)}"
        word = ConditionUpdate(names.DRAINED, names.FALSE, names.STUCK_PODS, message)
        wait = await set_condition(context, state.objects, word, seconds=patience, is_final=True)
        return Wait(wait, message)
    if decision.drained:
        state.stalled_since = None
        return Proceed(await set_condition(context, state.objects, _final_condition(state, decision), seconds=patience))
    # The minimum time of a drain is two seconds: it needs no condition.
    waits_for = summarize(decision) or "no pod is left; waiting for pods bound at the time of the cordon"
    seconds = math.inf
    if decision.left:
        message = explain(decision)
        if state.deadline is not None and context.clock.is_disputed():
            message += f"; deadline {format_time(state.deadline.at)} is paused: {CLOCKS_DISAGREE}"
        until_event = _report_stall(context, state, decision, message, has_moved=has_moved)
        word = ConditionUpdate(names.DRAINED, names.FALSE, _reason_of(decision), message)
        until_written = await set_condition(context, state.objects, word, seconds=patience)
        seconds = min(until_event, until_written)
        if waits_for_volumes_only(decision):
            until_reported, _ = await report_attached(context, state, decision.attached)
            seconds = min(seconds, until_reported, until_read)
    return Wait(min(seconds, _until_next_change(context, decision)), waits_for)


def _reason_of(decision: Plan) -> str:
    """Reason of the condition: what others cannot see in the objects, else that it drains."""
    blockers = {entry.blocker for entry in decision.left}
    if Blocker.REFUSED in blockers:
        return names.EVICTION_REFUSED
    return names.BUDGET_SETTLING if Blocker.SETTLING in blockers else "Draining"


def _report_plan(context: StepContext, state: NodeState, view: NodeView, *, is_first: bool) -> None:
    """Emit the Events that the new plan asks for."""
    decision = state.plan
    assert decision is not None
    if is_first and decision.left and not decision.overdue and not state.is_resumed:
        emit_event(context, state.objects, names.EventReason.DRAINING, explain(decision))
    # Only the first pod of such a queue is sent to the server; the others get the same Event.
    for candidate in candidates((entry for entry in decision.leaving if entry.is_ambiguous), state):
        report_multiple_budgets(context.recorder, candidate)
    report_protection(context, state, decision)
    _report_returns(context, state, view, decision)


def _report_returns(context: StepContext, state: NodeState, view: NodeView, decision: Plan) -> None:
    """Emit an Event for each workload that makes pods on this node after the cordon, once."""
    for entry in decision.left:
        came = came_late(view, entry.pod)
        if came is not None and came.is_lasting and came.controller not in state.returning:
            state.returning.add(came.controller)
            message = (
                f"{came.workload}: its pods come back to this node after each eviction: {came.cause}; "
                f"evicting them every {LONGEST_SECONDS:g} s at most"
            )
            reason = names.EventReason.PODS_RETURN
            emit_event(context, state.objects, reason, message, "Warning", dedup_key=came.controller)


def _budgets_of(decision: Plan) -> frozenset[tuple[str, str]]:
    """The budgets that pods whose turn it is depend on."""
    turns = (entry for entry in decision.left if entry.outcome in (Outcome.EVICT, Outcome.BLOCKED))
    return frozenset(budget for entry in turns for budget in entry.budgets)


def _until_next_change(context: StepContext, decision: Plan) -> float:
    """Seconds until the clock alone changes the plan."""
    at = decision.next_change
    if at is None:
        return math.inf
    seconds = at - context.clock.now()  # counted from now: the condition may have taken its time
    if at != decision.deadline and any(entry.delete_at == at for entry in decision.left):
        seconds += DELETIONS_FIRST_SECONDS
    return max(seconds, 0.0)


def schedule_deletions(context: StepContext, state: NodeState) -> None:
    """Schedule the deletions that the deadline demands although the drain cannot begin (the cordon cannot be written,
    no worker is free). Awaits nothing, and depends on no earlier step."""
    node = state.node
    deadline = earliest_deadline(state.deadline, cached_deadline(context, node))
    if deadline is not None and not context.clock.is_disputed():
        view = view_without_budgets(context, state, deadline)
        context.deleter.set_pods(node.name, scheduled_deletions(plan(view, context.clock.now()), node.name))


def cancel_drain(context: StepContext, node: str) -> None:
    """Cancel all evictions and scheduled deletions of a node."""
    context.evictor.remove_node(node)
    context.deleter.remove_node(node)


def _report_overdue(context: StepContext, state: NodeState, decision: Plan) -> None:
    """Emit an Event that names the pods that are left at the deadline."""
    if decision.left and not state.left_behind:
        state.left_behind = left_behind(decision)
        reason = names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRED
        emit_event(context, state.objects, reason, state.left_behind, "Warning")


def _final_condition(state: NodeState, decision: Plan) -> ConditionUpdate:
    """The condition at the end of the drain: it keeps naming what was left at the deadline."""
    if state.left_behind:
        status = names.FALSE if decision.left else names.TRUE
        return ConditionUpdate(names.DRAINED, status, "DeadlinePassed", state.left_behind)
    return ConditionUpdate(names.DRAINED, names.TRUE, *state.drained_condition)


def _report_stuck(context: StepContext, state: NodeState, decision: Plan) -> None:
    """Emit an Event that names stuck pods, when there are others than before."""
    uids = frozenset(entry.pod.uid for entry in decision.stuck)
    if uids - state.reported_stuck:
        ends = f"the drain continues without waiting for {'it' if len(uids) == 1 else 'them'}"
        message = f"{stuck_text(decision)}; {ends}"
        emit_event(context, state.objects, names.EventReason.PODS_STUCK, message, "Warning")
    state.reported_stuck = uids


def _report_stall(context: StepContext, state: NodeState, decision: Plan, message: str, *, has_moved: bool) -> float:
    """Emit an Event when no pod has left for STALL_SECONDS; returns the seconds until that is due.

    `has_moved`: a pod has left since the plan before.
    """
    now = context.clock.monotonic()
    if any(entry.outcome in MOVING for entry in decision.left):
        state.stalled_since = None
        return math.inf
    if has_moved or state.stalled_since is None:
        state.stalled_since = now
    if now >= state.stalled_since + STALL_SECONDS:
        state.stalled_since = STALL_REPORTED  # once in each stall; the condition keeps showing it
        blocked = f"no pod has left for {STALL_SECONDS:g} s; {message}"
        emit_event(context, state.objects, names.EventReason.DRAIN_BLOCKED, blocked, "Warning")
    return math.inf if state.stalled_since == STALL_REPORTED else state.stalled_since + STALL_SECONDS - now


def view_without_budgets(context: StepContext, state: NodeState, deadline: Deadline | None) -> NodeView:
    """View of the node for decisions that no budget changes: which pods stay, and which the deadline deletes."""
    view = context.cluster.view_without_budgets(state.node, context.settings.policy, deadline)
    return msgspec.structs.replace(view, cordoned_at=state.cordoned_at)


async def _view_of(context: StepContext, state: NodeState) -> NodeView:
    """The same with budgets, before the deadline."""
    node, deadline = state.node, state.counted_deadline(context.clock)
    if state.is_overdue(context.clock):
        return view_without_budgets(context, state, deadline)
    # Deletions for the deadline do not depend on budgets, and do not wait for them.
    meanwhile = partial(schedule_deletions, context, state)
    view = await context.cluster.view_in_slices(node, context.settings.policy, deadline, meanwhile)
    lost = await context.memberships.lost_budgets(view, meanwhile)
    refusals = {pod.uid: text for pod in view.pods if (text := context.evictor.refusal_of(pod.uid))}
    if state.plan is None:
        state.present = frozenset(pod.uid for pod in view.pods)
    late = frozenset(pod.uid for pod in view.pods) - state.present
    return msgspec.structs.replace(view, cordoned_at=state.cordoned_at, lost_budgets=lost, late=late, refusals=refusals)


def candidates(entries: Iterable[PodPlan], state: NodeState) -> list[EvictionCandidate]:
    """Candidates for the evictor."""
    return [
        EvictionCandidate(
            namespace=entry.pod.namespace,
            name=entry.pod.name,
            uid=entry.pod.uid,
            node=state.node.name,
            budgets=entry.budgets,
            terminating_since=state.started,
            deadline=entry.deadline,
            node_activity=state.activity,
        )
        for entry in entries
    ]


def scheduled_deletions(decision: Plan, node: str) -> list[ScheduledDeletion]:
    """Deletions for the deleter: of pods that would outlive the deadline."""
    return [
        ScheduledDeletion(
            entry.pod.namespace, entry.pod.name, entry.pod.uid, node, entry.deadline, _reserved(decision, entry)
        )
        for entry in decision.left
        if entry.delete_at is not None and entry.deadline is not None
    ]


def _reserved(decision: Plan, entry: PodPlan) -> str:
    """Message: what the time between the pod's own deadline and the node's is reserved for."""
    if entry.deadline == decision.deadline:
        return ""
    assert decision.deadline is not None
    mine = decision.order.waves[entry.wave].pods
    return f"{mine} must be gone by then: those of a higher priority have until {format_time(decision.deadline)}"
