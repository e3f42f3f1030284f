"""A node that is drained for maintenance and stays: it is asked for, cordoned, drained, rests, and is given back.

The steps of a termination, as far as pods are concerned, and then none: nobody is deleted, there is no deadline, and
neither instance nor finalizer nor claim is touched (ADR 0014). Invariant: the record of what was put on the node goes
last, so whoever takes over from us at any moment knows what is still to be taken off.
"""

from __future__ import annotations

import math
from functools import partial

import anyio

from gracectl.controllers.node.cordon import apply_cordon, write_marks
from gracectl.controllers.node.drain import cancel_drain, drain
from gracectl.controllers.node.volumes import await_volume_detachment
from gracectl.controllers.pipeline.runner import requeue, run_steps
from gracectl.controllers.pipeline.state import KEPT, InstanceWait, NodeState
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, Step, StepContext, Wait
from gracectl.controllers.reporting.conditions import remove_conditions, report_step_failure
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.errors import NotFound
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import JsonPatch, MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.cordon import SPELT, Mark, annotation, lacking, marks_on, recorded, removals, without
from gracectl.policy.health import unhealthy_conditions
from gracectl.policy.maintenance import (
    is_in_maintenance,
    is_maintenance_ending,
    is_maintenance_requested,
    is_uncordoned,
    maintenance_since,
    recorded_marks,
)
from gracectl.runtime.workers import Requeue

OURS = (names.DRAINED, names.VOLUMES_DETACHED)
"""The conditions that a kept node has from us."""


def request(node: Node, now: float) -> MergePatch | None:
    """The patch that asks to drain a node and to keep it so (`now`: Unix seconds); None when that is asked for already,
    or when the node is being deleted."""
    if node.deletion_timestamp is not None or is_maintenance_requested(node):
        return None
    asked = {"metadata": {"annotations": {names.KEEP_DRAINED: format_time(now)}}}
    # Somebody has uncordoned it, and nobody has taken note of that yet: this request must not go with the last one.
    return MergePatch({**asked, "spec": {"unschedulable": True}} if is_uncordoned(node) else asked)


def withdrawal(node: Node) -> MergePatch | None:
    """The patch that gives a node back: the request is taken off, and the node is schedulable, as after `kubectl
    uncordon`. None when it is so already, or when the node is being deleted, which nobody can take back."""
    patch: dict[str, dict[str, object]] = {}
    if node.deletion_timestamp is None and names.KEEP_DRAINED in node.annotations:
        patch["metadata"] = {"annotations": {names.KEEP_DRAINED: None}}
    if node.deletion_timestamp is None and node.unschedulable:
        patch["spec"] = {"unschedulable": None}
    return MergePatch(patch) if patch else None


class MaintenanceState(NodeState):
    """The memory of a node that is kept drained, until nothing of that is left on it."""

    kind = "kept"
    fate = "is drained for maintenance"
    outcome = "is no longer drained for maintenance"

    def __init__(self, node: Node, instance: InstanceWait, now: float) -> None:
        super().__init__(node, instance, now)
        drained = condition_of(node.conditions, names.DRAINED)
        self.started = maintenance_since(node, now)
        self.is_resumed = drained is not None
        self.is_resting = drained is not None and drained.status == names.TRUE
        self.is_returned = False
        """Its return was begun; a state that asks for it may be from before that."""
        self.scope: anyio.CancelScope | None = None  # of the walk that is under way, or was last

    @property
    def drained_condition(self) -> tuple[str, str]:
        """See Termination."""
        return KEPT, (
            "all pods are gone but those that stay with the node; it is kept so until somebody gives it back: "
            f"gracectl uncordon {self.node.name}, or kubectl uncordon {self.node.name}"
        )

    def matches_node(self, node: Node) -> bool:
        """See Termination."""
        return node.uid == self.uid and is_in_maintenance(node)

    def begin_anew(self, now: float) -> None:
        """It was given back, and is asked for once more: that is another drain."""
        self.plan = self.protected_pods = self.cordoned_at = self.stalled_since = None
        self.next_cordon = 0.0
        self.recordon.reset()
        self.invalid_annotations = {}
        self.is_resumed = self.is_resting = self.is_returned = False
        self.started = maintenance_since(self.node, now)
        self.forget_steps(now)


async def cordon_for_maintenance(context: StepContext, kept: MaintenanceState) -> Answer:
    """Cordon a node that stays, and record on it, in the same write, what its return is to take off."""
    # The return of the node interrupts it.
    write = partial(write_marks, context, kept, missing_on_kept)
    return await apply_cordon(context, kept, missing_on_kept, write, is_requested=is_maintenance_requested)


async def rest(context: StepContext, kept: MaintenanceState) -> Answer:
    """Nothing is left to be done until somebody gives the node back, or a late pod comes."""
    _, message = kept.drained_condition
    if not kept.is_resting:
        kept.is_resting = True
        emit_event(context, kept.objects, names.EventReason.DRAINED, message)
    return Wait(math.inf, message)


async def uncordon(context: StepContext, kept: MaintenanceState) -> Answer:
    """Take off in one write what the cordon has put on the node, and the request; nobody is asked to leave any more."""
    cancel_drain(context, kept.node.name)
    kept.is_returned = True
    before = kept.node

    def needed(node: Node) -> JsonPatch | None:
        is_ill = bool(unhealthy_conditions(node, context.settings.policy.health))
        return superfluous(node, format_time(context.clock.now()) if is_ill else None)

    if needed(before):
        after = await patch_with_retry(context.client, kept.tracked.cancellable, before, needed)
        if after is None:
            return Release("the node is gone")
        kept.tracked.wrote(after)
        if not is_maintenance_ending(after):
            return Wait(0.0, "nobody asks for its return any more")
        emit_event(context, kept.objects, names.EventReason.UNCORDONED, _words(before, after))
    return Proceed()


def _words(before: Node, after: Node) -> str:
    """What people are told of a node that was given back: why, and what keeps pods or traffic from it all the same."""
    is_by_hand = names.KEEP_DRAINED in before.annotations
    why = "somebody has uncordoned it" if is_by_hand else f"annotation {names.KEEP_DRAINED} was taken off"
    left = " and ".join(SPELT[mark] for mark in marks_on(after))
    return f"is no longer kept drained: {why}{f'; it keeps {left}, which gracectl has not put there' if left else ''}"


async def clean_up(context: StepContext, kept: MaintenanceState) -> Answer:
    """Our conditions come off, and then the record: as long as it stands, a successor of ours would do all this."""
    await remove_conditions(context, kept.tracked, OURS)
    after = await patch_with_retry(context.client, kept.tracked.cancellable, kept.node, forgotten)
    if after is not None:
        kept.tracked.wrote(after)
    return Proceed()


def missing_on_kept(node: Node) -> JsonPatch | None:
    """What is still needed on a node that is kept, with the record of it; None also when it is not to be kept any more.

    A taint or label that was there before is somebody else's. That the node is unschedulable is recorded whoever has
    made it so: an uncordon makes it schedulable, as kubectl's does.
    """
    if not is_maintenance_requested(node):
        return None
    additions = lacking(node)
    record = recorded({*recorded_marks(node), *additions, Mark.UNSCHEDULABLE})
    operations = list(additions.values())
    if node.annotations.get(names.CORDONED) != record:
        operations.append(annotation(names.CORDONED, record))
    return JsonPatch(operations) if operations else None


def superfluous(node: Node, since: str | None = None) -> JsonPatch | None:
    """What is to come off a node that is given back: what is recorded, and the request; None also when it is not (any
    more). The record stays, empty: our conditions are still there.

    `since`: the instant to count its health from; None if it is well.
    """
    if not is_maintenance_ending(node):
        return None
    operations = removals(node, recorded_marks(node))
    if names.KEEP_DRAINED in node.annotations:
        operations.append(without(names.KEEP_DRAINED))
    if node.annotations[names.CORDONED]:
        operations.append(annotation(names.CORDONED, ""))
    if not operations:
        return None
    if since is not None:
        operations.append(annotation(names.UNCORDONED, since))
    elif names.UNCORDONED in node.annotations:
        operations.append(without(names.UNCORDONED))
    return JsonPatch(operations)


def forgotten(node: Node) -> JsonPatch | None:
    """The patch that takes the empty record off a node that was given back; None when that is not so (any more)."""
    if not is_maintenance_ending(node) or node.annotations[names.CORDONED]:
        return None
    return JsonPatch([without(names.CORDONED)])


Steps = tuple[Step[MaintenanceState], ...]

KEEPING: Steps = (
    Step("cordon", cordon_for_maintenance),
    Step("drain", drain),
    Step("volumes", await_volume_detachment),
    Step("kept", rest),
)
GIVING_BACK: Steps = (Step("uncordon", uncordon), Step("conditions", clean_up))


def steps_of(node: Node) -> Steps:
    """What a node asks for."""
    if is_maintenance_requested(node):
        return KEEPING
    return GIVING_BACK if is_maintenance_ending(node) else ()


class MaintenancePipeline:
    """Walks the steps of all such nodes."""

    def __init__(self, context: StepContext) -> None:
        self._context = context

    async def run(self, kept: MaintenanceState) -> Requeue | None:
        """Bring the node as far as it comes now; when to look at it again. Raises ApiError."""
        with anyio.CancelScope() as kept.scope:
            if kept.is_returned and is_maintenance_requested(kept.node) and not await self._read(kept):
                return None  # the watch will show what is there
            answer = await run_steps(steps_of(kept.node), kept, self._run_step, self._context, report_step_failure)
            return requeue(answer)
        return None  # broken off by a change that has put the node on the queue, too

    def interrupt(self, kept: MaintenanceState, node: Node) -> None:
        """Break off the walk that is under way if this newer state of the node does not ask for it."""
        if kept.scope is not None and (node.uid != kept.uid or steps_of(node) is not steps_of(kept.node)):
            kept.scope.cancel()

    async def _read(self, kept: MaintenanceState) -> bool:
        """Read the node from the server; False if it is gone.

        It was returned, and shows a request for maintenance: another one, or the watch is late, and pods would be
        evicted from a node that takes them again.
        """
        try:
            node = await self._context.client.get(NODES, kept.node.key)
        except NotFound:
            return False
        if node.uid != kept.uid:
            return False
        kept.tracked.wrote(node)
        if is_maintenance_requested(node):
            kept.begin_anew(self._context.clock.now())
        return True

    async def _run_step(self, step: Step[MaintenanceState], kept: MaintenanceState) -> Answer:
        """Run a step, unless the node asks for others by now: an answer to a write of ours may tell that first."""
        assert kept.scope is not None
        if kept.scope.cancel_called or step not in steps_of(kept.node):
            return Wait(0.0, "somebody wants something else of it")
        answer = await step.run(self._context, kept)
        if kept.plan is not None and kept.plan.left:
            kept.is_resting = False  # a late pod
        return answer
