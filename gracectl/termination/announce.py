"""Events about a termination, on its node."""

from __future__ import annotations

from typing import Literal

from gracectl.kube.events import Subject
from gracectl.kube.resources import NODES
from gracectl.model.names import EventReason
from gracectl.termination.steps import Tools
from gracectl.termination.termination import Termination


def announce(
    tools: Tools,
    termination: Termination,
    reason: EventReason,
    message: str,
    type_: Literal["Normal", "Warning"] = "Normal",
) -> None:
    """Record an Event on the node; never blocks, never fails."""
    tools.recorder.record(Subject.of(NODES, termination.node), reason, message, type_)
