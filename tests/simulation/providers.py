"""Provider with moods: it raises anything, answers late, or says that a machine is gone which runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, cast

from support.contest import Candidate, Contest, WatchedProvider

from gracectl.cloud.provider import InstanceGone, InstanceState, NodeIdentity, ProviderRefused, ProviderUnavailable

ERRORS: Final[dict[str, Callable[[], BaseException]]] = {
    "unavailable": lambda: ProviderUnavailable("throttled\nby \x1b[31mthe cloud"),
    "refused": lambda: ProviderRefused("termination protection is on", "take it off"),
    "gone, where none may be": lambda: InstanceGone("no such instance"),
    "a bug": lambda: KeyError("Instances"),
    "an empty error": lambda: RuntimeError(),
    "a long error": lambda: ValueError("x" * 100_000),
    "a broken connection": lambda: ConnectionResetError(104, "Connection reset by peer"),
    "a timeout": lambda: TimeoutError(),
    "several errors": lambda: ExceptionGroup("unhandled errors in a TaskGroup", [OSError("a"), ValueError("b")]),
    "a stray cancellation": lambda: asyncio.CancelledError(),
}
"""What providers raise, those that are not as they should be too."""


class MoodyProvider(WatchedProvider):
    """See the module. `mood`: of the fault "provider" while it lasts; None: well."""

    mood: dict[str, Any] | None = None

    def __init__(self, candidate: Candidate, contest: Contest) -> None:
        super().__init__(candidate, contest)
        self._rng = random.Random(f"provider/{candidate.name}")
        self._time = contest.stage.clock

    async def state(self, provider_id: str) -> InstanceState:
        state = await super().state(provider_id)
        if self._has_mood("state", "lies"):
            self.said_gone.setdefault(provider_id, self._time.monotonic())
            return InstanceState.GONE
        if self._has_mood("state", "nonsense"):
            return cast(InstanceState, self._rng.choice([None, "gone?", 404]))
        return InstanceState.UNKNOWN if self._has_mood("state", "cannot tell") else state

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        if self._has_mood("terminate", "lies"):
            self.said_gone.setdefault(provider_id, self._time.monotonic())
            raise InstanceGone(provider_id)
        await super().terminate(provider_id, node)

    async def _call(self, verb: str, method: str, provider_id: str) -> tuple[int, Any]:
        if self.mood is not None:
            self.failures[provider_id] = self._time.monotonic()
        if self._has_mood(verb, "raises"):
            assert self.mood is not None
            error = ERRORS[self.mood["error"]]()
            if isinstance(error, InstanceGone):  # an explicit word, though not where the interface has it
                self.said_gone.setdefault(provider_id, self._time.monotonic())
            raise error
        if self._has_mood(verb, "late"):
            assert self.mood is not None
            await self._time.sleep(self.mood["delay"])
        answer = await super()._call(verb, method, provider_id)
        if self._has_mood(verb, "loses answers"):
            raise ProviderUnavailable("the answer was lost")
        return answer

    def _has_mood(self, verb: str, mood: str) -> bool:
        now = self.mood
        return (
            now is not None and now["mood"] == mood and verb in now["verbs"] and self._rng.random() < now["probability"]
        )
