"""The termination of a node, top to bottom: its ordered steps, and the runner of all steps.

Every reconcile runs the steps from the first one. Each looks at the objects and does what is still missing, so a crash,
a repeat or a late event changes nothing but the time. Invariants: no step before the termination of the instance
outlasts the deadline; the steps of a node stop when its name belongs to another node.
"""

from __future__ import annotations

import logging
import math

import anyio

from gracectl.controllers.termination.claim import delete_claim_of_node
from gracectl.controllers.termination.context import Answer, Next, Step, StepContext
from gracectl.controllers.termination.cordon import cordon
from gracectl.controllers.termination.deadline import publish_deadline
from gracectl.controllers.termination.drain import drain
from gracectl.controllers.termination.finalizer import remove_finalizer
from gracectl.controllers.termination.instance import terminate_instance_of_node
from gracectl.controllers.termination.notice import detect_lost_instance
from gracectl.controllers.termination.report import PATIENCE_SECONDS, report, report_step_failure
from gracectl.controllers.termination.state import E, NodeState
from gracectl.controllers.termination.volumes import await_volume_detachment
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.runtime.workers import Requeue

logger = logging.getLogger(__name__)

STEPS: tuple[Step[NodeState], ...] = (
    Step("claim", delete_claim_of_node, until_deadline=True),
    Step("deadline", publish_deadline, until_deadline=True),
    Step("notice", detect_lost_instance, until_deadline=True, uses_provider=True),
    Step("cordon", cordon, until_deadline=True),
    Step("drain", drain, until_deadline=True),
    Step("volumes", await_volume_detachment, until_deadline=True),
    Step("instance", terminate_instance_of_node, uses_provider=True),
    Step("finalizer", remove_finalizer, when_released=True),
)

LATER_SECONDS = 5.0
"""When to try again if all slots for calls to the provider are taken."""


class StepRunner:
    """Runs steps: deadline, provider slots, observer, and the report of each answer.

    Three quarters of the workers may wait for the provider. Without a limit, calls to a provider that does not respond
    would block all workers, and no node could be cordoned or drained. At its deadline a node exceeds the limit.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._clock = context.clock
        self._slots = max(context.settings.workers * 3 // 4, 1)
        self._taken = 0

    async def run(self, steps: tuple[Step[E], ...], state: E) -> Requeue | None:
        """Run the steps in order until one waits; returns when to run them again. Raises ApiError.

        A step that raises is reported, and the queue retries with backoff.
        """
        seconds, is_released = math.inf, False
        for step in steps:
            if is_released and not step.when_released:
                continue
            state.enter_step(step.name, self._clock.now())
            try:
                answer = await self._answer_in_time(step, state)
            except NotLeading:
                raise
            except ApiError as error:
                state.observer.failed(step.name, error, self._clock.now())
                await report_step_failure(self._context, state, step.name, error)
                raise
            state.failures.succeeded(step.name)
            if answer.next is Next.PROCEED:
                state.observer.recovered(step.name, self._clock.now())
            patience = state.time_left(self._clock) if step.until_deadline else PATIENCE_SECONDS
            seconds = min(seconds, await report(self._context, state.objects, answer, patience))
            if answer.next is Next.WAIT:
                state.wait_at(step.name, self._clock.now(), answer.reason)
                return None if seconds == math.inf else Requeue(seconds)
            is_released = is_released or answer.next is Next.RELEASE
        return None

    async def _answer_in_time(self, step: Step[E], state: E) -> Answer:
        """Run a step until the deadline, if that limits it.

        Before the deadline a step that fails is retried; from then on it is skipped. A write may be abandoned: the next
        run finds out what came of it.
        """
        if interruption := state.interruption(self._context.cluster, step.name):
            return Answer(Next.WAIT, 0.0, interruption)
        if not step.until_deadline:
            return await self._answer_in_slot(step, state)
        try:
            with anyio.move_on_after(state.time_left(self._clock)):
                return await self._answer_in_slot(step, state)
            failure = "no response in time"
        except NotLeading:
            raise
        except ApiError as error:
            if not state.is_overdue(self._clock):
                raise
            failure = str(error)
            state.observer.failed(step.name, error, self._clock.now())
        logger.warning("step %s skipped: deadline passed: %s", step.name, failure, extra=state.tracked.log_keys)
        return Answer(Next.PROCEED)

    async def _answer_in_slot(self, step: Step[E], state: E) -> Answer:
        """Run a step, in a slot if it calls the provider. Without a free slot, a step before the drain is skipped."""
        if not step.uses_provider:
            return await step.run(self._context, state)
        if self._taken >= self._slots:
            if step.until_deadline:
                return Answer(Next.PROCEED, LATER_SECONDS)
            if not state.must_hurry(self._clock):
                return Answer(Next.WAIT, LATER_SECONDS, state.waits_for or "waiting for a free provider slot")
        self._taken += 1
        try:
            return await step.run(self._context, state)
        finally:
            self._taken -= 1
