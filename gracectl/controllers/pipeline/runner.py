"""Runner of the steps of a termination."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable

from gracectl.controllers.pipeline.state import E
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, Step, StepContext, Wait
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.runtime.workers import Requeue


async def run_steps(
    steps: Iterable[Step[E]],
    state: E,
    take: Callable[[Step[E], E], Awaitable[Answer]],
    context: StepContext,
    report_failure: Callable[[StepContext, E, str, ApiError], Awaitable[None]],
) -> Answer:
    """Run the steps in order until one answers Wait or Release, and return that; Proceed when all are done.

    The seconds of the answer are the earliest of all steps that were run. A step that raises is reported by
    `report_failure`, and the error is raised again: the queue retries with backoff.
    """
    earliest = math.inf
    for step in steps:
        state.enter_step(step.name, context.clock.now())
        try:
            answer = await take(step, state)
        except NotLeading:
            raise
        except ApiError as error:
            state.observer.failed(step.name, error, context.clock.now())
            await report_failure(context, state, step.name, error)
            raise
        state.failures.succeeded(step.name)
        earliest = min(earliest, answer.seconds)
        if isinstance(answer, Release):
            return Release(answer.reason, earliest)
        if isinstance(answer, Wait):
            state.wait_at(step.name, context.clock.now(), answer.reason)
            return Wait(earliest, answer.reason)
    return Proceed(earliest)


def requeue(answer: Answer) -> Requeue | None:
    """When the work queue is to hand the object out again; None: on its next event."""
    return None if answer.seconds == math.inf else Requeue(answer.seconds)
