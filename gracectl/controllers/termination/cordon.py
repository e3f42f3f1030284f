"""Step "cordon": a node takes no more pods and no more traffic from outside, before the first pod leaves.

Invariant: each write is computed from the very state that it changes, so one that is no longer needed is never sent.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.drain import cancel_drain, view_without_budgets
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch
from gracectl.model.node import DISRUPTED_TAINT, Node, tolerates
from gracectl.policy.cordon import EVERY_MARK, OPEN_TO_DAEMON_SETS, Mark, missing_marks, takes_pods
from gracectl.policy.planner import plan
from gracectl.policy.waves import is_daemon


async def cordon(context: StepContext, state: NodeState) -> Answer:
    """Cordon a node: spec.unschedulable and the load balancer label in one write, and the taint as soon as DaemonSet
    pods leave."""
    if not state.drain.excludes_daemon_sets:
        state.drain.excludes_daemon_sets = _excludes_daemon_sets(context, state)
    marks = EVERY_MARK if state.drain.excludes_daemon_sets else OPEN_TO_DAEMON_SETS
    patch_of = partial(cordon_patch, marks=marks)

    async def write() -> Node | None:
        # In the background, not to outlast the deadline: the server may be as slow as its webhooks.
        return await context.background.join(("cordon", state.uid), lambda: write_marks(context, state, patch_of))

    return await apply_cordon(context, state, marks, patch_of, write)


def _excludes_daemon_sets(context: StepContext, state: NodeState) -> bool:
    """Whether the cordon keeps DaemonSet pods off from now on. Once the drain has begun, the drain decides it."""
    if state.is_overdue(context.clock):
        return True
    if state.drain.plan is not None:
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
    patch_of: Callable[[Node], JsonPatch | None],
    write: Callable[[], Awaitable[Node | None]],
    is_requested: Callable[[Node], bool] = lambda _: True,
) -> Answer:
    """Write these marks while the cordon `is_requested`; proceed when no new pod can come.

    A webhook (in the very write) or a controller may undo the cordon. It is written again with backoff, and the drain
    continues while anything keeps new pods off. Otherwise the node waits, until its deadline at the latest.
    """
    before, memo = state.node, state.cordon
    event = None
    is_extended = bool(memo.marks) and not memo.marks.issuperset(marks)  # and not undone
    if patch_of(before) and (is_extended or context.clock.monotonic() >= memo.next_write):
        after = await write()
        if after is None:
            cancel_drain(context, before.name)
            return Answer(Next.RELEASE, reason="the node is gone")
        if not is_requested(after):
            return Answer(Next.WAIT, 0.0, "its cordon is no longer requested")
        memo.next_write = context.clock.monotonic() + memo.backoff.next()
        undone = tuple(missing_marks(after, marks)) or tuple(missing_marks(before, memo.marks))
        if undone:
            event = events.cordon_undone(state.tracked, undone, takes_pods=takes_pods(state.node))
        elif missing_marks(before, OPEN_TO_DAEMON_SETS.intersection(marks)):
            event = events.cordoned(state.tracked, state.activity, marks)
    seconds = max(memo.next_write - context.clock.monotonic(), 0.0) if patch_of(state.node) else math.inf
    emitted = () if event is None else (event,)
    if takes_pods(state.node) and not state.is_overdue(context.clock):
        reason = "its cordon is undone by a webhook or another controller, and it would take new pods"
        return Answer(Next.WAIT, seconds, reason, events=emitted)
    if memo.at is None:
        memo.at = context.clock.now()
    memo.marks = frozenset(marks)
    return Answer(Next.PROCEED, seconds, events=emitted)


async def write_marks(
    context: StepContext, state: NodeState, patch_of: Callable[[Node], JsonPatch | None]
) -> Node | None:
    """Write the patch, if one is needed; returns the node as written, None when it is gone."""
    after = await patch_with_retry(context.client, state.tracked.cancellable, state.node, patch_of)
    if after is not None:
        state.tracked.wrote(after)
    return after


def cordon_patch(node: Node, marks: Collection[Mark]) -> JsonPatch | None:
    """Patch that adds the missing marks; other taints stay exactly as they are."""
    operations = list(missing_marks(node, marks).values())
    return JsonPatch(operations) if operations else None
