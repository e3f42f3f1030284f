"""How many walks may wait for the provider in the same moment.

A provider that does not answer holds each walk for up to a minute. With many nodes or claims it would soon hold all
workers, and none would be left for those that need something else: to be cordoned, to be deleted.
"""

from __future__ import annotations

from gracectl.controllers.pipeline.state import E
from gracectl.controllers.pipeline.steps import Answer, Step, StepContext, Wait

LATER_SECONDS = 5.0
"""Who finds no place comes again after this long."""


class ProviderSlots:
    """Three quarters of the `workers`; the others are never at the provider, but for what is urgent."""

    def __init__(self, workers: int) -> None:
        self._count = max(workers * 3 // 4, 1)
        self._taken = 0

    async def run(self, step: Step[E], context: StepContext, state: E, *, is_urgent: bool = False) -> Answer:
        """Take a step that speaks to the provider, or wait until there is a place for it."""
        if self._taken >= self._count and not (is_urgent and not state.instance.was_tried):
            return Wait(LATER_SECONDS, state.waits_for or "many others wait for the provider")
        self._taken += 1
        try:
            return await step.run(context, state)
        finally:
            self._taken -= 1
