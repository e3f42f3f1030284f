"""What happens to a node or claim, told twice: as an Event on it, and as a line of the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from gracectl.controllers.cluster.tracked import AnyTracked
from gracectl.controllers.pipeline.steps import StepContext
from gracectl.kube.events import EventType
from gracectl.model.names import EventReason

logger = logging.getLogger(__name__)


def emit_event(
    context: StepContext,
    objects: Sequence[AnyTracked],
    reason: EventReason,
    message: str,
    type_: EventType = "Normal",
    *,
    news: str = "",
) -> None:
    """Record an Event on each of `objects` (a node, its claim), and log it once; never blocks, never fails.

    `news`: see EventRecorder.record.
    """
    level = logging.WARNING if type_ == "Warning" else logging.INFO
    logger.log(level, "%s: %s", reason, message, extra=objects[0].log_keys)
    for tracked in objects:
        context.recorder.record(tracked.subject, reason, message, type_, news=news)
