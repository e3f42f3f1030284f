"""What happens to a node, told twice: as an Event on the node, and as a line of the log."""

from __future__ import annotations

import logging
from typing import Literal

from gracectl.kube.events import Subject
from gracectl.kube.resources import NODES
from gracectl.model.names import EventReason
from gracectl.termination.steps import Tools
from gracectl.termination.termination import Termination

logger = logging.getLogger(__name__)


def announce(
    tools: Tools,
    termination: Termination,
    reason: EventReason,
    message: str,
    type_: Literal["Normal", "Warning"] = "Normal",
) -> None:
    """Record an Event on the node, and log it; never blocks, never fails."""
    level = logging.WARNING if type_ == "Warning" else logging.INFO
    logger.log(level, "%s: %s", reason, message, extra={"node": termination.node.name})
    tools.recorder.record(Subject.of(NODES, termination.node), reason, message, type_)
