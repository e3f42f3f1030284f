"""Observers of terminations: what tracing implements, so that the pipeline does not know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.policy.plan import Plan


class TerminationObserver:
    """Observer of one termination; this one ignores all that happens. No method may fail or block."""

    @property
    def traceparent(self) -> str | None:
        """The trace context to write on the object; None without a trace."""
        return None

    def step_over(self, step: str, since: float, until: float, waits_for: str) -> None:
        """The termination has been at `step` from `since` to `until` (Unix seconds), and is no longer."""

    def failed(self, step: str, error: Exception, now: float) -> None:
        """The step has failed; it is tried again."""

    def planned(self, plan: Plan, now: float, departed: Mapping[str, PodOutcome]) -> None:
        """A new plan of the drain; `departed`: outcomes, by UID, of the pods that it no longer lists."""


NO_OBSERVER: Final = TerminationObserver()
