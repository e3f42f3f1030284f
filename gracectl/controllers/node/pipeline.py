"""How a node's end is walked: its steps in their order, and how long each of them may take.

Invariants: no step before the end of the instance outlasts the deadline; the walk of a node ends when its name belongs
to another one.
"""

from __future__ import annotations

import logging

import anyio

from gracectl.controllers.node.claim import end_claim
from gracectl.controllers.node.cordon import cordon
from gracectl.controllers.node.deadline import set_deadline
from gracectl.controllers.node.drain import drain, withdraw
from gracectl.controllers.node.finalizer import release
from gracectl.controllers.node.instance import end_nodes_instance, notice_loss, record_gone
from gracectl.controllers.node.volumes import detach
from gracectl.controllers.pipeline.provider_slots import ProviderSlots
from gracectl.controllers.pipeline.runner import walk
from gracectl.controllers.pipeline.state import NodeState
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, Step, StepContext, Wait
from gracectl.controllers.reporting.conditions import report_step_failure
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.runtime.workers import Requeue

logger = logging.getLogger(__name__)

NOTICE: Step[NodeState] = Step("notice", notice_loss)
INSTANCE: Step[NodeState] = Step("instance", end_nodes_instance)
RELEASE: Step[NodeState] = Step("finalizer", release)
STEPS: tuple[Step[NodeState], ...] = (
    Step("claim", end_claim),
    Step("deadline", set_deadline),
    NOTICE,
    Step("cordon", cordon),
    Step("drain", drain),
    Step("volumes", detach),
    INSTANCE,
    RELEASE,
)


class NodePipeline:
    """Walks the ends of all nodes; no more of them at the provider than there are places."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._places = ProviderSlots(context.settings.workers)

    async def go(self, state: NodeState) -> Requeue | None:
        """Bring the end of a node as far as it comes now; when to look at it again. Raises ApiError."""
        answer = await walk(STEPS, state, self._take, self._context, report_step_failure)
        if isinstance(answer, Release):
            withdraw(self._context, state.node.name)
            await record_gone(self._context, state)
            answer = await walk((RELEASE,), state, self._take, self._context, report_step_failure)
        return Requeue(answer.seconds) if isinstance(answer, Wait) else None

    def is_replaced(self, state: NodeState) -> bool:
        """Whether the name of its node belongs to another one by now."""
        node = self._context.cluster.node(state.node.name)
        return node is not None and node.uid != state.uid

    async def _take(self, step: Step[NodeState], state: NodeState) -> Answer:
        """Run a step, but let none that comes before the end of the instance outlast the deadline.

        Before the deadline a step that fails is tried again; from then on it is passed over. What such a step writes
        may be abandoned: the next walk finds out what came of it.
        """
        if self.is_replaced(state):
            return Wait(0.0, "its name belongs to another node")  # whose pods would be taken for those of this one
        is_overdue = state.is_overdue(self._context.clock.now())
        if step is RELEASE:
            return await step.run(self._context, state)
        if step is INSTANCE:
            # At the deadline the provider is asked, whoever else waits for it.
            return await self._places.run(step, self._context, state, is_urgent=is_overdue)
        try:
            with anyio.move_on_after(state.time_left(self._context.clock)):
                if step is NOTICE:
                    answer = await self._places.run(step, self._context, state)
                    return Proceed() if isinstance(answer, Wait) else answer  # the drain goes on meanwhile
                return await step.run(self._context, state)
            failure = "no answer in time"
        except NotLeading:
            raise
        except ApiError as error:
            if not state.is_overdue(self._context.clock.now()):
                raise
            failure = str(error)
            state.observer.failed(step.name, error, self._context.clock.now())
        extra = {"node": state.node.name}
        logger.warning("step %s is passed over, the deadline has come: %s", step.name, failure, extra=extra)
        return Proceed()
