"""Cordon: a node takes no more pods and no more traffic from outside, before the first pod leaves.

Invariant: each write is computed from the very state that it changes, so one that is no longer needed is never sent.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection

from gracectl.controllers.pipeline.state import NodeState
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, StepContext, Wait
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.policy.cordon import SPELT, Mark, lacking, recorded, takes_pods


async def cordon(context: StepContext, state: NodeState) -> Answer:
    """Cordon a node: spec.unschedulable, the taint and the load balancer label in one write."""

    async def write() -> Node | None:
        # Beside the deadline: the server may be as slow as its webhooks.
        return await context.background.join(("cordon", state.uid), lambda: write_marks(context, state, missing))

    return await apply_cordon(context, state, missing, write)


async def apply_cordon(
    context: StepContext,
    state: NodeState,
    needed: Callable[[Node], JsonPatch | None],
    write: Callable[[], Awaitable[Node | None]],
    is_requested: Callable[[Node], bool] = lambda _: True,
) -> Answer:
    """Write what is `needed` while it `is_requested`; proceed when no new pod can come.

    A webhook (in the very write) or a controller may undo it: then it is written again, less and less often, and the
    drain goes on as long as anything keeps new pods off. Without that the node waits, for its deadline at the latest.
    """
    before = state.node
    if needed(before) and context.clock.monotonic() >= state.next_cordon:
        after = await write()
        if after is None:
            return Release("the node is gone")
        if not is_requested(after):
            return Wait(0.0, "its cordon is not requested any more")
        state.next_cordon = context.clock.monotonic() + state.recordon.next()
        undone = tuple(lacking(after)) or (tuple(lacking(before)) if state.cordoned_at is not None else ())
        if undone:
            _report_undone(context, state, undone)
        else:
            message = f"cordoned; removed from external load balancers: it {state.activity}"
            emit_event(context, (state.tracked,), names.EventReason.CORDONED, message)
    wait = max(state.next_cordon - context.clock.monotonic(), 0.0) if needed(state.node) else math.inf
    if not takes_pods(state.node) or state.is_overdue(context.clock.now()):
        if state.cordoned_at is None:
            state.cordoned_at = context.clock.now()
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


def missing(node: Node) -> JsonPatch | None:
    """What is still needed; taints of others are left exactly as they are."""
    operations = list(lacking(node).values())
    return JsonPatch(operations) if operations else None
