"""Cordon: a node takes no more pods and no more traffic from outside, before the first pod leaves.

Invariant: each write is computed from the very state that it changes, so one that is no longer needed is never sent.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from gracectl.controllers.termination.context import Answer, Proceed, Release, StepContext, Wait
from gracectl.controllers.termination.drain import view_without_budgets
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch
from gracectl.model import names
from gracectl.model.node import DISRUPTED_TAINT, Node, tolerates
from gracectl.policy.cordon import EVERY_MARK, OPEN_TO_DAEMON_SETS, SPELT, Mark, lacking, recorded, takes_pods
from gracectl.policy.plan import plan
from gracectl.policy.waves import is_daemon


async def cordon(context: StepContext, state: NodeState) -> Answer:
    """Cordon a node: spec.unschedulable and the load balancer label in one write, and the taint as soon as DaemonSet
    pods leave."""
    if not state.excludes_daemon_sets:
        state.excludes_daemon_sets = _excludes_daemon_sets(context, state)
    marks = EVERY_MARK if state.excludes_daemon_sets else OPEN_TO_DAEMON_SETS
    needed = partial(missing, marks=marks)

    async def write() -> Node | None:
        # Beside the deadline: the server may be as slow as its webhooks.
        return await context.background.join(("cordon", state.uid), lambda: write_marks(context, state, needed))

    return await apply_cordon(context, state, marks, needed, write)


def _excludes_daemon_sets(context: StepContext, state: NodeState) -> bool:
    """Whether the cordon keeps DaemonSet pods off from now on. The drain decides it once it has begun."""
    if state.is_overdue(context.clock):
        return True
    if state.plan is not None:
        return False
    pods = context.cluster.pods_on(state.node.name)
    if not any(is_daemon(pod) and not tolerates(pod.tolerations, DISRUPTED_TAINT) for pod in pods):
        return True  # one write for everything
    view = view_without_budgets(context, state, state.counted_deadline(context.clock))
    return plan(view, context.clock.now()).excludes_daemon_sets


async def apply_cordon(
    context: StepContext,
    state: NodeState,
    marks: Collection[Mark],
    needed: Callable[[Node], JsonPatch | None],
    write: Callable[[], Awaitable[Node | None]],
    is_requested: Callable[[Node], bool] = lambda _: True,
) -> Answer:
    """Write what is `needed` for these marks while it `is_requested`; proceed when no new pod can come.

    A webhook (in the very write) or a controller may undo it: then it is written again, less and less often, and the
    drain goes on as long as anything keeps new pods off. Without that the node waits, for its deadline at the latest.
    """
    before = state.node
    is_extended = bool(state.cordon_marks) and not state.cordon_marks.issuperset(marks)  # and not undone
    if needed(before) and (is_extended or context.clock.monotonic() >= state.next_cordon):
        after = await write()
        if after is None:
            return Release("the node is gone")
        if not is_requested(after):
            return Wait(0.0, "its cordon is not requested any more")
        state.next_cordon = context.clock.monotonic() + state.recordon.next()
        undone = tuple(lacking(after, marks)) or tuple(lacking(before, state.cordon_marks))
        if undone:
            _report_undone(context, state, undone)
        elif lacking(before, OPEN_TO_DAEMON_SETS):
            message = f"cordoned; removed from external load balancers: it {state.activity}"
            emit_event(context, (state.tracked,), names.EventReason.CORDONED, message)
    wait = max(state.next_cordon - context.clock.monotonic(), 0.0) if needed(state.node) else math.inf
    if not takes_pods(state.node) or state.is_overdue(context.clock):
        if state.cordoned_at is None:
            state.cordoned_at = context.clock.now()
        state.cordon_marks = frozenset(marks)
        return Proceed(wait)
    return Wait(wait, "its cordon is undone by a webhook or another controller, and it would take new pods")


async def write_marks(
    context: StepContext, state: NodeState, needed: Callable[[Node], JsonPatch | None]
) -> Node | None:
    """Write what is needed; returns the node as written, None when it is gone."""
    after = await patch_with_retry(context.client, state.tracked.cancellable, state.node, needed)
    if after is not None:
        state.tracked.wrote(after)
    return after


def _report_undone(context: StepContext, state: NodeState, undone: Collection[Mark]) -> None:
    listed = " and ".join(SPELT[mark] for mark in undone)
    takes = takes_pods(state.node)
    goes_on = "no pod is asked to leave until the node takes no new ones" if takes else "the drain goes on"
    message = (
        f"{listed}: taken off again by a webhook or another controller; it is written again, less and less often, and "
        f"{goes_on}"
    )
    emit_event(
        context, (state.tracked,), names.EventReason.CORDON_UNDONE, message, "Warning", dedup_key=recorded(undone)
    )


def missing(node: Node, marks: Collection[Mark]) -> JsonPatch | None:
    """Patch that adds what is missing of these marks; taints of others are left exactly as they are."""
    operations = list(lacking(node, marks).values())
    return JsonPatch(operations) if operations else None
