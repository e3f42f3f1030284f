"""Step "drain": hand the pods of the plan to the evictor and the deleter, and answer what the drain waits for.

Invariant: once the deadline has passed, nothing here waits for Events or conditions, or longer than a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial

import msgspec

from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.deadline import cached_deadline
from gracectl.controllers.termination.events import Event
from gracectl.controllers.termination.pod_events import pod_subject
from gracectl.controllers.termination.protection import protection_events
from gracectl.controllers.termination.replacing import replace_first
from gracectl.controllers.termination.report import emit, record
from gracectl.controllers.termination.state import STALL_REPORTED, DrainMemo, NodeState
from gracectl.controllers.termination.volumes import (
    note_volume_claims,
    read_staying_volume_claims,
    wait_for_detachment,
    waits_for_volumes_only,
)
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.conditions import ConditionUpdate
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.policy.deadlines import Deadline, earliest_deadline
from gracectl.policy.explain import explain, left_behind, stuck_text, summarize
from gracectl.policy.plan import Blocker, NodeView, Outcome, Plan, PodPlan
from gracectl.policy.planner import came_late, plan

STALL_SECONDS = 60.0
"""Time without a leaving pod after which a drain emits an Event."""
DELETIONS_FIRST_SECONDS = 0.2
"""A plan that is due at the instant of a deletion is made later: planning many nodes then would delay the deleter."""
MOVING = (Outcome.DELETE, Outcome.TERMINATING)
"""A pod whose eviction is requested moves when the server agrees."""


async def drain(context: StepContext, state: NodeState) -> Answer:
    """Offer the pods that may leave now; done when nothing remains and the minimum time has passed."""
    memo, name = state.drain, state.node.name
    memo.planned_from = context.clock.monotonic()
    memo.awaited.clear()  # pods that end while the plan is made may be in it
    view = await _view_of(context, state)
    now = context.clock.now()
    decision = plan(view, now)
    if decision.excludes_daemon_sets and not memo.excludes_daemon_sets:
        memo.excludes_daemon_sets = True
        if not decision.overdue:
            schedule_deletions(context, state, decision)
            return Answer(Next.WAIT, 0.0, "DaemonSet pods leave; waiting for the taint that keeps off new ones")
    present, before = {pod.uid for pod in view.pods}, memo.plan
    has_moved = before is not None and any(entry.pod.uid not in present for entry in before.left)
    _execute(context, state, decision, now)
    _announce(context, state, decision, view, is_first=before is None)
    if decision.overdue and state.must_hurry(context.clock):
        # The instance first, conditions later: the server may not respond, and the last deletions have the rest of a
        # second (see time_left).
        await context.deleter.settle(name)
        return Answer(Next.PROCEED)
    note_volume_claims(state, decision)
    until_read = await replace_first(context, decision)
    if until_read == 0.0:
        return Answer(Next.WAIT, 0.0, "workloads of pods are known")
    if waits_for_volumes_only(decision):
        until_read = min(until_read, await read_staying_volume_claims(context, state, decision.unread_claims))
        if until_read == 0.0:
            return Answer(Next.WAIT, 0.0, "volumes of pods that stay are known")
    answer = await _remaining(context, state, decision, has_moved=has_moved)
    seconds = min(answer.seconds, until_read) if answer.next is Next.WAIT else answer.seconds
    return msgspec.structs.replace(answer, seconds=seconds, events=(*_stuck_events(memo, decision), *answer.events))


async def watch_drain(context: StepContext, state: NodeState) -> Answer:
    """Plan what another owner evicts and deletes alone; nothing is sent."""
    memo = state.drain
    memo.planned_from = context.clock.monotonic()
    memo.awaited.clear()
    cancel_drain(context, state.node.name)  # it may have been assisted until now
    view, before = await _view_of(context, state), memo.plan
    decision, present = plan(view, context.clock.now()), {pod.uid for pod in view.pods}
    has_moved = before is not None and any(entry.pod.uid not in present for entry in before.left)
    _take_over(context, state, decision, context.clock.now())
    until_stall, _ = _stall(memo, decision, "", context.clock.monotonic(), has_moved=has_moved)
    return Answer(Next.WAIT, min(until_stall, _until_next_change(context, decision)), summarize(decision))


def _execute(context: StepContext, state: NodeState, decision: Plan, now: float) -> None:
    """Make the plan the current one, and hand its pods to the evictor and the deleter."""
    _take_over(context, state, decision, now)
    context.evictor.set_pods(state.node.name, candidates(decision.leaving, state))
    schedule_deletions(context, state, decision)


def _take_over(context: StepContext, state: NodeState, decision: Plan, now: float) -> None:
    """Make the plan the current one, for metrics and traces, too."""
    state.plan_made(decision)
    state.drain.looked_at, state.drain.blocking_budgets = context.clock.monotonic(), _budgets_of(decision)
    departed = context.pod_outcomes.note(state.node.name, decision, state.labels)
    state.observer.planned(decision, now, departed)


def _announce(context: StepContext, state: NodeState, decision: Plan, view: NodeView, *, is_first: bool) -> None:
    """Emit the Events of a plan: the one report before the answer, since later requests may take long (ADR 0072)."""
    emit(context, state.objects, *_events_of_plan(context, state, decision, view, is_first=is_first))
    # Only the first pod of such a queue is sent to the server; the others get the same Event. Not logged at every plan.
    for candidate in candidates((entry for entry in decision.leaving if entry.is_ambiguous), state):
        record(context.recorder, pod_subject(candidate), events.multiple_budgets(candidate))


async def _remaining(context: StepContext, state: NodeState, decision: Plan, *, has_moved: bool) -> Answer:
    """Pending pods of the plan. `has_moved`: a pod has left since the previous plan."""
    if decision.is_stuck or decision.drained:
        state.drain.stalled_since = None
    if decision.is_stuck:
        message = f"not drained: {stuck_text(decision)}"
        update = ConditionUpdate(names.DRAINED, names.FALSE, names.STUCK_PODS, message)
        return Answer(Next.WAIT, math.inf, message, (update,), is_final=True)
    if decision.drained:
        return Answer(Next.PROCEED, conditions=(_final_condition(state, decision),))
    if not decision.left:
        # The minimum time of a drain is two seconds: it needs no condition.
        reason = "no pod is left; waiting for pods bound at the time of the cordon"
        return Answer(Next.WAIT, _until_next_change(context, decision), reason)
    volumes = await wait_for_detachment(context, state, decision.attached) if waits_for_volumes_only(decision) else None
    message = explain(decision)
    if state.deadline is not None and context.clock.is_disputed():
        message += f"; deadline {format_time(state.deadline.at)} is paused: {events.CLOCKS_DISAGREE}"
    until_stall, emitted = _stall(state.drain, decision, message, context.clock.monotonic(), has_moved=has_moved)
    update = ConditionUpdate(names.DRAINED, names.FALSE, _reason_of(decision), message)
    seconds = min(until_stall, _until_next_change(context, decision))
    if volumes is None:
        return Answer(Next.WAIT, seconds, summarize(decision), (update,), emitted)
    seconds, emitted = min(seconds, volumes.seconds), (*emitted, *volumes.events)
    return Answer(Next.WAIT, seconds, summarize(decision), (update, *volumes.conditions), emitted)


def _reason_of(decision: Plan) -> str:
    """Reason of the condition: what others cannot see in the objects, else that it drains."""
    blockers = {entry.blocker for entry in decision.left}
    if Blocker.REFUSED in blockers:
        return names.EVICTION_REFUSED
    if Blocker.SETTLING in blockers:
        return names.BUDGET_SETTLING
    return names.REPLACING if any(entry.asks_for_replacement for entry in decision.left) else "Draining"


def _events_of_plan(
    context: StepContext, state: NodeState, decision: Plan, view: NodeView, *, is_first: bool
) -> list[Event]:
    """Events that the new plan demands, each once."""
    memo, emitted = state.drain, []
    if is_first and decision.left and not decision.overdue and not state.is_resumed:
        emitted.append(events.draining(decision))
    emitted += protection_events(context, state, decision)
    for entry in decision.left:
        came = came_late(view, entry.pod)
        if came is not None and came.is_lasting and came.controller not in memo.returning:
            memo.returning.add(came.controller)
            emitted.append(events.pods_return(came))
    if decision.overdue and decision.left and not memo.left_behind:
        memo.left_behind = left_behind(decision)
        emitted.append(events.deadline_passed(memo.left_behind))
    return emitted


def _budgets_of(decision: Plan) -> frozenset[tuple[str, str]]:
    """Budgets that select the pods in turn."""
    turns = (entry for entry in decision.left if entry.outcome in (Outcome.EVICT, Outcome.BLOCKED))
    return frozenset(budget for entry in turns for budget in entry.budgets)


def _until_next_change(context: StepContext, decision: Plan) -> float:
    """Seconds until the clock alone changes the plan."""
    at = decision.next_change
    if at is None:
        return math.inf
    seconds = at - context.clock.now()
    if at != decision.deadline and any(entry.delete_at == at for entry in decision.left):
        seconds += DELETIONS_FIRST_SECONDS
    return max(seconds, 0.0)


def schedule_deletions(context: StepContext, state: NodeState, decision: Plan | None = None) -> None:
    """Hand the deleter the pods that a deadline deletes: its only door.

    The deleter owns the instant and the grace of each DELETE. Without a plan of the drain, which may be unable to begin
    (the cordon cannot be written, no worker is free), a plan without budgets is made. Awaits nothing.
    """
    node = state.node
    if state.other is not None and not state.other.is_assisted:
        return  # its owner deletes its pods alone
    if decision is None:
        cached = cached_deadline(context, node) if state.other is None else None
        deadline = earliest_deadline(state.deadline, cached)
        if deadline is None or context.clock.is_disputed():
            return
        decision = plan(view_without_budgets(context, state, deadline), context.clock.now())
    context.deleter.set_pods(node.name, _scheduled_deletions(decision, state))


def cancel_drain(context: StepContext, node: str) -> None:
    """Cancel all evictions and scheduled deletions of a node."""
    context.evictor.remove_node(node)
    context.deleter.remove_node(node)


def _final_condition(state: NodeState, decision: Plan) -> ConditionUpdate:
    """The condition at the end of the drain: it keeps naming what was left at the deadline."""
    if state.drain.left_behind:
        status = names.FALSE if decision.left else names.TRUE
        return ConditionUpdate(names.DRAINED, status, "DeadlinePassed", state.drain.left_behind)
    return ConditionUpdate(names.DRAINED, names.TRUE, *state.drained_condition)


def _stuck_events(memo: DrainMemo, decision: Plan) -> tuple[Event, ...]:
    """An Event that names stuck pods, when there are others than before."""
    uids = frozenset(entry.pod.uid for entry in decision.stuck)
    is_news, memo.reported_stuck = bool(uids - memo.reported_stuck), uids
    return (events.pods_stuck(decision),) if is_news else ()


def _stall(
    memo: DrainMemo, decision: Plan, message: str, now: float, *, has_moved: bool
) -> tuple[float, tuple[Event, ...]]:
    """Seconds until the Event that no pod has left for STALL_SECONDS, and the Event if it is due `now` (monotonic)."""
    if any(entry.outcome in MOVING for entry in decision.left):
        memo.stalled_since = None
        return math.inf, ()
    if has_moved or memo.stalled_since is None:
        memo.stalled_since = now
    if now < memo.stalled_since + STALL_SECONDS:
        return memo.stalled_since + STALL_SECONDS - now, ()
    memo.stalled_since = STALL_REPORTED  # once in each stall; the condition keeps showing it
    return math.inf, (events.drain_blocked(STALL_SECONDS, message),)


def view_without_budgets(context: StepContext, state: NodeState, deadline: Deadline | None) -> NodeView:
    """View of the node for decisions that no budget changes: which pods stay, and which the deadline deletes."""
    view = context.cluster.view_without_budgets(state.node, context.settings.policy, deadline)
    return msgspec.structs.replace(view, cordoned_at=state.cordon.at, other=state.other)


async def _view_of(context: StepContext, state: NodeState) -> NodeView:
    """View of the node for its plan; from the deadline on without budgets."""
    node, deadline = state.node, state.counted_deadline(context.clock)
    if state.is_overdue(context.clock):
        return view_without_budgets(context, state, deadline)
    # Deletions for the deadline do not depend on budgets, and do not wait for them.
    meanwhile = partial(schedule_deletions, context, state)
    view = await context.cluster.view_in_slices(node, context.settings.policy, deadline, meanwhile)
    lost = await context.memberships.lost_budgets(view, meanwhile)
    refusals = {pod.uid: text for pod in view.pods if (text := context.evictor.refusal_of(pod.uid))}
    uids = frozenset(pod.uid for pod in view.pods)
    if state.drain.plan is None:
        state.drain.present = uids
    return msgspec.structs.replace(
        view,
        cordoned_at=state.cordon.at,
        lost_budgets=lost,
        late=uids - state.drain.present,
        refusals=refusals,
        other=state.other,
    )


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


def _scheduled_deletions(decision: Plan, state: NodeState) -> list[ScheduledDeletion]:
    """Deletions for the deleter: of pods that would outlive the deadline."""
    return [
        ScheduledDeletion(
            namespace=entry.pod.namespace,
            name=entry.pod.name,
            uid=entry.pod.uid,
            node=state.node.name,
            deadline=entry.deadline,
            cause=_reserved(decision, entry),
            node_goal=state.goal,
            owner="" if state.other is None else state.other.owner,
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
