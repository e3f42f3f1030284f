"""The termination of a node, top to bottom: its ordered steps, and how long each of them may take.

Every reconcile runs the steps from the first one. Each looks at the objects and does what is still missing, so a crash,
a repeat or a late event changes nothing but the time. Invariants: no step before the termination of the instance
outlasts the deadline; the pipeline of a node stops when its name belongs to another node.
"""

from __future__ import annotations

import logging

import anyio

from gracectl.controllers.termination.claim import delete_claim_of_node
from gracectl.controllers.termination.context import (
    Answer,
    Proceed,
    Release,
    Step,
    StepContext,
    Wait,
    requeue,
    run_steps,
)
from gracectl.controllers.termination.cordon import cordon
from gracectl.controllers.termination.deadline import publish_deadline
from gracectl.controllers.termination.drain import cancel_drain, drain
from gracectl.controllers.termination.finalizer import remove_finalizer
from gracectl.controllers.termination.instance import (
    ProviderSlots,
    detect_lost_instance,
    record_gone,
    terminate_instance_of_node,
)
from gracectl.controllers.termination.report import report_step_failure
from gracectl.controllers.termination.state import NodeState
from gracectl.controllers.termination.volumes import await_volume_detachment
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.runtime.workers import Requeue

logger = logging.getLogger(__name__)

LOST_INSTANCE: Step[NodeState] = Step("notice", detect_lost_instance)
INSTANCE: Step[NodeState] = Step("instance", terminate_instance_of_node)
FINALIZER: Step[NodeState] = Step("finalizer", remove_finalizer)

STEPS: tuple[Step[NodeState], ...] = (
    Step("claim", delete_claim_of_node),
    Step("deadline", publish_deadline),
    LOST_INSTANCE,
    Step("cordon", cordon),
    Step("drain", drain),
    Step("volumes", await_volume_detachment),
    INSTANCE,
    FINALIZER,
)


class NodePipeline:
    """Runs the steps of all nodes that are being terminated; ProviderSlots bounds how many wait for the provider."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._slots = ProviderSlots(context.settings.workers)

    async def run(self, state: NodeState) -> Requeue | None:
        """Bring the termination as far as it comes now; returns when to call again. Raises ApiError."""
        answer = await run_steps(STEPS, state, self._run_step, self._context, report_step_failure)
        if not isinstance(answer, Release):
            return requeue(answer)
        cancel_drain(self._context, state.node.name)
        await record_gone(self._context, state)
        last = await run_steps((FINALIZER,), state, self._run_step, self._context, report_step_failure)
        return requeue(Wait(min(answer.seconds, last.seconds), last.reason)) if isinstance(last, Wait) else None

    def is_replaced(self, state: NodeState) -> bool:
        """Whether the name of the node belongs to another one by now."""
        node = self._context.cluster.node(state.node.name)
        return node is not None and node.uid != state.uid

    async def _run_step(self, step: Step[NodeState], state: NodeState) -> Answer:
        """Run a step; one that comes before the termination of the instance ends at the deadline at the latest.

        Before the deadline a step that fails is retried; from then on it is skipped. A write of such a step may be
        abandoned: the next run finds out what came of it.
        """
        if self.is_replaced(state):
            return Wait(0.0, "its name belongs to another node")  # the pods of that node must not be taken for its own
        if step is FINALIZER:
            return await step.run(self._context, state)
        if step is INSTANCE:
            # At the deadline the provider is called even if all slots are taken.
            is_urgent = state.is_overdue(self._context.clock)
            return await self._slots.run(step, self._context, state, is_urgent=is_urgent)
        try:
            with anyio.move_on_after(state.time_left(self._context.clock)):
                if step is LOST_INSTANCE:
                    answer = await self._slots.run(step, self._context, state)
                    return Proceed(answer.seconds) if isinstance(answer, Wait) else answer  # the drain goes on
                return await step.run(self._context, state)
            failure = "no answer in time"
        except NotLeading:
            raise
        except ApiError as error:
            if not state.is_overdue(self._context.clock):
                raise
            failure = str(error)
            state.observer.failed(step.name, error, self._context.clock.now())
        extra = {"node": state.node.name}
        logger.warning("step %s skipped: deadline passed: %s", step.name, failure, extra=extra)
        return Proceed()
