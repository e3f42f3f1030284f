"""How the steps of an end are walked, and what is told of one that keeps failing.

Invariant: a failure that lasts is told on the object, once for each step and cause, whatever else about the object
cannot be written: Events are objects of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from gracectl.kube.conditions import Word
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.termination.announce import announce
from gracectl.termination.conditions import set_condition
from gracectl.termination.ending import E
from gracectl.termination.steps import Answer, Proceed, Release, Step, Tools, Wait


async def walk(
    steps: Iterable[Step[E]], ending: E, take: Callable[[Step[E], E], Awaitable[Answer]], tools: Tools
) -> Wait | Release | None:
    """Take one step after the other until one has to wait or finds that there is nothing left; None: all are done."""
    for step in steps:
        ending.pass_through(step.name, tools.clock.now())
        try:
            answer = await take(step, ending)
        except NotLeading:
            raise
        except ApiError as error:
            ending.journal.failed(step.name, error, tools.clock.now())
            await _tell_of_failure(tools, ending, step.name, error)
            raise
        ending.failures.succeeded(step.name)
        if isinstance(answer, Wait):
            ending.rest_at(step.name, tools.clock.now(), answer.reason)
        if not isinstance(answer, Proceed):
            return answer
    return None


async def _tell_of_failure(tools: Tools, ending: E, step: str, error: ApiError) -> None:
    """An Event, and a condition where one can be written: which says what else the end has come to stays as it is."""
    message = f"step {step} fails: {error}; it is tried again"
    ending.waits_for = message
    if ending.failures.failed(step, type(error).__name__, tools.clock.monotonic()):
        announce(tools, ending.objects, names.EventReason.STEP_FAILING, message, "Warning")
    if ending.failures.lasts(step, tools.clock.monotonic()):
        drained = condition_of(ending.held.state.conditions, names.DRAINED)
        is_drained = drained is not None and drained.status == names.TRUE
        type_, status = (names.INSTANCE_TERMINATING, names.TRUE) if is_drained else (names.DRAINED, names.FALSE)
        await set_condition(tools, ending.objects, Word(type_, status, names.STEP_FAILING, message))
