"""Maintenance of a node: it is cordoned, drained, and stays until it is returned.

The steps of a termination as far as pods are concerned: neither instance nor finalizer nor claim is touched, and pods
are deleted only for a deadline that the request names (ADR 0014, 0076). Invariant: the record of the additions to the
node is removed last, so any later process knows which additions remain.
"""

from __future__ import annotations

import math
from functools import partial

import anyio

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, Step, StepContext
from gracectl.controllers.termination.cordon import apply_cordon, write_marks
from gracectl.controllers.termination.deadline import report_invalid_deadline
from gracectl.controllers.termination.drain import cancel_drain, drain
from gracectl.controllers.termination.report import emit, remove_conditions
from gracectl.controllers.termination.state import CordonMemo, DrainMemo, InstanceMemo, NodeState, VolumesMemo
from gracectl.controllers.termination.steps import StepRunner
from gracectl.controllers.termination.volumes import await_volume_detachment
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import JsonPatch, MergePatch
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.cordon import (
    KUBECTL_MARKS,
    OPEN_TO_DAEMON_SETS,
    Mark,
    Operation,
    annotation,
    missing_marks,
    recorded,
    removals,
    without,
)
from gracectl.policy.health import unhealthy_conditions
from gracectl.policy.maintenance import (
    drain_deadline,
    is_in_maintenance,
    is_maintenance_ending,
    is_maintenance_requested,
    is_uncordoned,
    maintenance_request,
    maintenance_since,
    recorded_marks,
)
from gracectl.policy.plan import Plan
from gracectl.runtime.workers import Requeue

REQUEST = (names.KEEP_DRAINED, names.DRAIN_DEADLINE, names.NODE_DRAIN)
"""Annotations of the request, and the one that names the campaign that has made it."""

OURS = (names.DRAINED, names.VOLUMES_DETACHED)
"""Conditions that a node in maintenance has from us."""


def request_patch(node: Node, now: float, seconds: float | None = None) -> MergePatch | None:
    """Patch that requests maintenance (`now`: Unix seconds) with a deadline after `seconds`; None if it is requested
    already, or the node is being deleted."""
    annotations = maintenance_request(node, now, seconds)
    if node.deletion_timestamp is not None or not annotations:
        return None
    patch = {"metadata": {"annotations": annotations}}
    # It was uncordoned, which the controller has not seen yet: this request must not be removed with the last one.
    return MergePatch({**patch, "spec": {"unschedulable": True}} if is_uncordoned(node) else patch)


def withdrawal_patch(node: Node) -> MergePatch | None:
    """Patch that ends the maintenance: removes the request, and makes the node schedulable, as `kubectl uncordon` does.
    None if there is nothing to change, or the node is being deleted."""
    patch: dict[str, dict[str, object]] = {}
    # What a command has recorded: a controller would also have to remove conditions, or its label.
    is_only_ours = recorded_marks(node) <= KUBECTL_MARKS and not any(
        condition_of(node.conditions, each) for each in OURS
    )
    withdrawn = (*REQUEST, names.CORDONED) if is_only_ours else REQUEST
    if node.deletion_timestamp is None and any(each in node.annotations for each in withdrawn):
        patch["metadata"] = {"annotations": {each: None for each in withdrawn if each in node.annotations}}
    if node.deletion_timestamp is None and node.unschedulable:
        patch["spec"] = {"unschedulable": None}
    return MergePatch(patch) if patch else None


class MaintenanceState(NodeState):
    """State of the maintenance of a node, until nothing of it is left on the node."""

    kind = "maintenance"
    activity = "is drained for maintenance"
    goal = "drained"
    outcome = "is no longer drained for maintenance"

    def __init__(self, node: Node, instance: InstanceMemo, now: float) -> None:
        super().__init__(node, instance, now)
        drained = condition_of(node.conditions, names.DRAINED)
        self.started = maintenance_since(node, now)
        self.is_resumed = drained is not None
        self.is_resting = drained is not None and drained.status == names.TRUE
        self.is_returned = False
        """Whether the return has begun; a request for maintenance in the watch may be older than the return."""
        self.scope: anyio.CancelScope | None = None  # of the run in progress, or the last one

    @property
    def drained_condition(self) -> tuple[str, str]:
        """Reason and message of the condition Drained when no pod blocks the node."""
        return names.MAINTENANCE, (
            "drained, but for pods that stay with the node; to return it: "
            f"gracectl uncordon {self.node.name}, or kubectl uncordon {self.node.name}"
        )

    def matches_node(self, node: Node) -> bool:
        """Whether this object is the node of this state, and still in maintenance."""
        return node.uid == self.uid and is_in_maintenance(node)

    def interruption(self, cluster: ClusterCache, step: str) -> str:
        """The node may request other steps by now: the response to a write may show that first."""
        is_cancelled = self.scope is not None and self.scope.cancel_called
        is_requested = any(each.name == step for each in steps_of(self.node))
        return "" if is_requested and not is_cancelled else "other steps are requested"

    def plan_made(self, plan: Plan) -> None:
        """Take over a new plan of the drain."""
        super().plan_made(plan)
        if plan.left or plan.is_stuck:
            self.is_resting = False  # a late pod, or the kubelet is back and does not stop one

    def interrupt(self, node: Node) -> None:
        """Interrupt the run in progress if this newer state of the node requests other steps."""
        if self.scope is not None and (node.uid != self.uid or steps_of(node) is not steps_of(self.node)):
            self.scope.cancel()

    def begin_anew(self, now: float) -> None:
        """The node was returned, and maintenance is requested again: start over."""
        self.cordon, self.drain, self.volumes = CordonMemo(), DrainMemo(), VolumesMemo()
        self.is_resumed = self.is_resting = self.is_returned = False
        self.started = maintenance_since(self.node, now)
        self.forget_steps(now)


async def cordon_for_maintenance(context: StepContext, state: MaintenanceState) -> Answer:
    """Cordon a node that stays, and record on it, in the same write, what its return must remove."""
    # The return of the node interrupts it.
    marks = OPEN_TO_DAEMON_SETS if context.leaves_marks else KUBECTL_MARKS
    patch_of = partial(maintenance_cordon_patch, marks=marks)
    write = partial(write_marks, context, state, patch_of)
    return await apply_cordon(context, state, marks, patch_of, write, is_requested=is_maintenance_requested)


async def rest(context: StepContext, state: MaintenanceState) -> Answer:
    """The node is drained: wait for its return, or a late pod, for which no deadline counts."""
    await write_marks(context, state, _deadline_removal_patch)
    state.deadline = None
    _, message = state.drained_condition
    emitted = () if state.is_resting else (events.drained_for_maintenance(message),)
    state.is_resting = True
    return Answer(Next.WAIT, math.inf, message, events=emitted)


async def uncordon(context: StepContext, state: MaintenanceState) -> Answer:
    """Remove in one write what the cordon has put on the node, and the request; cancel the drain."""
    cancel_drain(context, state.node.name)
    state.is_returned = True
    before = state.node

    def patch_of(node: Node) -> JsonPatch | None:
        is_ill = bool(unhealthy_conditions(node, context.settings.policy.health))
        return uncordon_patch(node, format_time(context.clock.now()) if is_ill else None)

    if patch_of(before) is None:
        return Answer(Next.PROCEED)
    after = await write_marks(context, state, patch_of)
    if after is None:
        return Answer(Next.RELEASE, reason="the node is gone")
    if not is_maintenance_ending(after):
        return Answer(Next.WAIT, 0.0, "its return is no longer requested")
    return Answer(Next.PROCEED, events=(events.uncordoned(before, after),))


async def clean_up(context: StepContext, state: MaintenanceState) -> Answer:
    """Remove our conditions, and then the record, which tells a later process to do so."""
    await remove_conditions(context, state.tracked, OURS)
    await write_marks(context, state, record_removal_patch)
    return Answer(Next.PROCEED)


def maintenance_cordon_patch(node: Node, marks: frozenset[Mark] = OPEN_TO_DAEMON_SETS) -> JsonPatch | None:
    """Patch that adds the missing marks and the record of them; None if none is missing, or maintenance is not
    requested.

    A label that was there before is not recorded, as it is not ours. `spec.unschedulable` always is: an uncordon makes
    the node schedulable, as kubectl's does. A recorded taint comes from an earlier release, or from a shutdown that has
    ended, and is removed: it would keep off the DaemonSet pods.
    """
    if not is_maintenance_requested(node):
        return None
    additions, before = missing_marks(node, marks), recorded_marks(node)
    record = recorded({*(before & OPEN_TO_DAEMON_SETS), *additions, Mark.UNSCHEDULABLE})
    operations = [*additions.values(), *removals(node, before - OPEN_TO_DAEMON_SETS)]
    if node.annotations.get(names.CORDONED) != record:
        operations.append(annotation(names.CORDONED, record))
    return JsonPatch(operations) if operations else None


def uncordon_patch(node: Node, since: str | None = None) -> JsonPatch | None:
    """Patch that removes the recorded marks and the request; None if there are none, or the node is not being returned.
    The record stays, empty: our conditions are still there.

    `since`: the instant to count its health from; None if it is healthy.
    """
    if not is_maintenance_ending(node):
        return None
    operations = removals(node, recorded_marks(node))
    operations += _request_removals(node, REQUEST)
    if node.annotations[names.CORDONED]:
        operations.append(annotation(names.CORDONED, ""))
    if not operations:
        return None
    if since is not None:
        operations.append(annotation(names.UNCORDONED, since))
    elif names.UNCORDONED in node.annotations:
        operations.append(without(names.UNCORDONED))
    return JsonPatch(operations)


def _deadline_removal_patch(node: Node) -> JsonPatch | None:
    operations = _request_removals(node, (names.DRAIN_DEADLINE,)) if is_maintenance_requested(node) else []
    return JsonPatch(operations) if operations else None


def _request_removals(node: Node, annotations: tuple[str, ...]) -> list[Operation]:
    return [without(each) for each in annotations if each in node.annotations]


def record_removal_patch(node: Node) -> JsonPatch | None:
    """Patch that removes the empty record of a returned node; None if it has none."""
    if not is_maintenance_ending(node) or node.annotations[names.CORDONED]:
        return None
    return JsonPatch([without(names.CORDONED)])


Steps = tuple[Step[MaintenanceState], ...]

KEEPING: Steps = (
    Step("cordon", cordon_for_maintenance),
    Step("drain", drain),
    Step("volumes", await_volume_detachment),
    Step("drained", rest),
)
GIVING_BACK: Steps = (Step("uncordon", uncordon), Step("conditions", clean_up))


def steps_of(node: Node) -> Steps:
    """The steps that the node requests."""
    if is_maintenance_requested(node):
        return KEEPING
    return GIVING_BACK if is_maintenance_ending(node) else ()


async def run_maintenance(context: StepContext, runner: StepRunner, state: MaintenanceState) -> Requeue | None:
    """Run the steps that the node requests; returns when to run them again. Raises ApiError."""
    with anyio.CancelScope() as state.scope:
        if state.is_returned and is_maintenance_requested(state.node) and not await _read(context, state):
            return None  # the watch will show what is there
        _find_deadline(context, state)
        return await runner.run(steps_of(state.node), state)
    return None  # interrupted by an event, which has queued the node, too


def _find_deadline(context: StepContext, state: MaintenanceState) -> None:
    """Take over the deadline that the node shows now, and emit an Event that says what happens then."""
    before, state.deadline = state.deadline, drain_deadline(state.node)
    report_invalid_deadline(context, state, state.tracked, names.DRAIN_DEADLINE)
    if state.deadline is not None and state.deadline != before:
        is_paused = context.clock.is_disputed()
        emit(
            context, state.objects, events.deadline_announced(state.deadline, context.clock.now(), is_paused=is_paused)
        )


async def _read(context: StepContext, state: MaintenanceState) -> bool:
    """Read the node from the server; False if it is gone.

    It was returned, and shows a request for maintenance. Either that is a new request, or the watch is late and pods
    would be evicted from a node that accepts pods again.
    """
    try:
        node = await context.client.get(NODES, state.node.key)
    except NotFound:
        return False
    if node.uid != state.uid:
        return False
    state.tracked.wrote(node)
    if is_maintenance_requested(node):
        state.begin_anew(context.clock.now())
    return True
