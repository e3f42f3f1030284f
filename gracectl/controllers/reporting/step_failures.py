"""Reports of steps that keep failing: an Event, and a condition where one can be written.

Invariant: a failure that lasts is reported once for each step and cause, even if nothing else can be written.
"""

from __future__ import annotations

from gracectl.controllers.pipeline.state import E
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.controllers.reporting.conditions import set_condition
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.meta import condition_of


async def report_step_failure(context: StepContext, state: E, step: str, error: ApiError) -> None:
    """An Event, and a condition where one can be written: which says what else the end has come to stays as it is."""
    message = f"step {step} fails: {error}; it is tried again"
    state.waits_for = message
    if state.failures.failed(step, type(error).__name__, context.clock.monotonic()):
        emit_event(context, state.objects, names.EventReason.STEP_FAILING, message, "Warning")
    if state.failures.lasts(step, context.clock.monotonic()):
        drained = condition_of(state.tracked.latest.conditions, names.DRAINED)
        is_drained = drained is not None and drained.status == names.TRUE
        type_, status = (names.INSTANCE_TERMINATING, names.TRUE) if is_drained else (names.DRAINED, names.FALSE)
        await set_condition(context, state.objects, ConditionUpdate(type_, status, names.STEP_FAILING, message))
