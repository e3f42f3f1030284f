"""Provider slots: a limit of concurrent calls to the provider.

A provider that does not answer blocks each call for up to a minute; without a limit it would block all workers, and no
node could be cordoned or drained.
"""

from __future__ import annotations

from gracectl.controllers.pipeline.state import E
from gracectl.controllers.pipeline.steps import Answer, Step, StepContext, Wait

LATER_SECONDS = 5.0
"""When to try again if all slots are taken."""


class ProviderSlots:
    """Slots for three quarters of the `workers`; urgent calls may exceed them."""

    def __init__(self, workers: int) -> None:
        self._count = max(workers * 3 // 4, 1)
        self._taken = 0

    async def run(self, step: Step[E], context: StepContext, state: E, *, is_urgent: bool = False) -> Answer:
        """Run a step that calls the provider, or wait for a slot."""
        if self._taken >= self._count and not (is_urgent and not state.instance.was_tried):
            return Wait(LATER_SECONDS, state.waits_for or "waiting for a free provider slot")
        self._taken += 1
        try:
            return await step.run(context, state)
        finally:
            self._taken -= 1
