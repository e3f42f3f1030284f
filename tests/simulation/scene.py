"""Scene of a run: the cluster, the processes, and what acts need to do something to them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import anyio
import msgspec
from kubesim.admission.caller import InProcessWebhooks
from kubesim.faults import Faults, Rule
from support.contest import Candidate, Contest
from support.inprocess import Stutter
from support.stage import Stage

from simulation.invariants import Invariants
from simulation.plan import Act, NodePlan, Plan
from simulation.providers import MoodyProvider

MERGE = "application/merge-patch+json"
PERSISTENCE_SECONDS = 120.0
"""How long people repeat what the server refuses."""


class Scene:
    """See the module. `log`: (instant, who, what) of all that was done, in order; instants count from `start`."""

    def __init__(self, stage: Stage, contest: Contest, plan: Plan, webhooks: InProcessWebhooks) -> None:
        self.stage = stage
        self.contest = contest
        self.plan = plan
        self.webhooks = webhooks
        self.nodes: dict[str, NodePlan] = {node.name: node for node in plan.nodes}
        self.start = 0.0
        self.log: list[tuple[float, str, str]] = []
        self._rules: list[tuple[str, Rule]] = []
        self._mood: dict[str, Any] | None = None
        self._stutter = Stutter()
        self._lives: dict[str, ExitStack] = {}
        self.judge: Invariants | None = None
        contest.provider = MoodyProvider
        contest.welcome = self._welcome

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.stage.clock.monotonic() - self.start

    def note(self, who: str, what: str) -> None:
        """Add a line to the log."""
        self.log.append((self.now, who, what))

    def begin(self) -> None:
        """All is settled: acts count their time from now."""
        self.start = self.stage.clock.monotonic()
        self.log = [(0.0, "run", "begins")]
        if self.judge is not None:
            self.judge.begin()

    def ended(self, candidate: Candidate) -> None:
        """A process has been killed, or told to stop."""
        if candidate in self.contest.living:
            self.contest.living.remove(candidate)
        self._lives[candidate.name].close()

    def end(self, *, calm: bool) -> None:
        """All is over: what was not done is judged as well."""
        for life in self._lives.values():
            life.close()
        self.stage.living[:] = [each.controller for each in self.contest.living]
        if self.judge is not None:
            self.judge.check_end(calm)

    async def attempt(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> int:
        """One request of another client, whatever comes of it; returns the status."""
        status, _ = await self.stage.cluster.api.call(method, path, body, content_type=content_type)
        return int(status)

    async def insist(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> bool:
        """Repeat a request until it succeeds, or cannot; returns whether it did."""
        until = self.now + PERSISTENCE_SECONDS
        while (status := await self.attempt(method, path, body, content_type)) >= 300:
            if status in (404, 422) or (status == 409 and method == "POST") or self.now > until:
                return False
            await self.stage.clock.sleep(2.0)
        return True

    async def patch(self, path: str, patch: Any) -> bool:
        """A merge patch, insisted on."""
        return await self.insist("PATCH", path, patch, MERGE)

    def some(self, subject: str) -> list[Candidate]:
        """The processes of that name: `all`, `leader` (or the oldest), `other` (or that)."""
        living = self.contest.living
        if subject == "all" or not living:
            return list(living)
        leader = self.contest.leader or living[0]
        others = [each for each in living if each is not leader]
        return [others[0] if subject == "other" and others else leader]

    def add_rules(self, act: Act) -> Callable[[], None]:
        """Put the rules of an act in force; the answer takes them out again."""
        rules = [(each["side"], msgspec.convert(each["rule"], Rule)) for each in act.value]
        chosen = self.some(act.subject)
        if act.subject == "all":
            self._rules += rules
        for candidate in chosen:
            for side, rule in rules:
                _side(candidate, side).add(rule)

        def remove() -> None:
            for each in rules:
                if each in self._rules:
                    self._rules.remove(each)
            for candidate in self.contest.living if act.subject == "all" else chosen:
                for side, rule in rules:
                    with suppress(ValueError):
                        _side(candidate, side).remove(rule)

        return remove

    def set_mood(self, mood: dict[str, Any] | None) -> None:
        """Of the provider, of all processes."""
        self._mood = mood
        for each in self.contest.living:
            self._be_moody(each)

    def set_stutter(self, stutter: Stutter) -> None:
        """Of the watches of all processes."""
        self._stutter = stutter
        for each in self.contest.living:
            each.wire.stutter = stutter

    def calm(self) -> None:
        """Take all faults away."""
        if self.judge is not None and self.judge.terms.faults_end > 0:
            self.judge.faults_end()
        self._rules, self._mood, self._stutter = [], None, Stutter()
        for each in self.contest.living:
            each.process.thaw()
            each.wire.is_listening, each.wire.stutter = True, Stutter()
            each.wire.before.clear()
            each.wire.behind.clear()
            each.clock.offset = self.stage.cluster.server_clock.offset
            self._be_moody(each)

    def _welcome(self, candidate: Candidate) -> None:
        candidate.wire.stutter = self._stutter
        candidate.clock.offset = self.stage.cluster.server_clock.offset
        for side, rule in self._rules:
            _side(candidate, side).add(rule)
        self._be_moody(candidate)

        self._lives[candidate.name] = ExitStack()
        if self.judge is not None and self.plan.terms.fair:
            self._lives[candidate.name].enter_context(self.judge.life())
        self.note(candidate.name, "starts")

    def _be_moody(self, candidate: Candidate) -> None:
        provider = candidate.provider
        assert isinstance(provider, MoodyProvider)
        provider.mood = self._mood


def _side(candidate: Candidate, side: str) -> Faults:
    return candidate.wire.before if side == "before" else candidate.wire.behind


async def wait_for(scene: Scene, condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, looked at each half second, for so long at most; returns whether it does."""
    with anyio.move_on_after(seconds):
        while not condition():
            await scene.stage.clock.sleep(0.5)
    return condition()
