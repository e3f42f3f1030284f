"""How the steps of an end are walked, and what is told of one that keeps failing.

Invariant: a failure that lasts is told on the object, once for each step and cause, whatever else about the object
cannot be written: Events are objects of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from gracectl.controllers.pipeline.state import E
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, Step, StepContext, Wait
from gracectl.kube.errors import ApiError, NotLeading


async def walk(
    steps: Iterable[Step[E]],
    state: E,
    take: Callable[[Step[E], E], Awaitable[Answer]],
    context: StepContext,
    report_failure: Callable[[StepContext, E, str, ApiError], Awaitable[None]],
) -> Wait | Release | None:
    """Run the steps in order until one answers Wait or Release, and return that; None when all are done.

    A step that raises is reported by `report_failure`, and the error is raised again: the queue retries with backoff.
    """
    for step in steps:
        state.pass_through(step.name, context.clock.now())
        try:
            answer = await take(step, state)
        except NotLeading:
            raise
        except ApiError as error:
            state.observer.failed(step.name, error, context.clock.now())
            await report_failure(context, state, step.name, error)
            raise
        state.failures.succeeded(step.name)
        if isinstance(answer, Wait):
            state.rest_at(step.name, context.clock.now(), answer.reason)
        if not isinstance(answer, Proceed):
            return answer
    return None
