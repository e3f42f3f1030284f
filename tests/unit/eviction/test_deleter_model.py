"""Random pods, deadlines, manual deletions, lags, failures and restarts: none early, none twice, all in the end."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st
from support.eviction import DENIED, FAULT, LOST, REFUSED, Asked, DeletionStage, busy
from support.virtual import VirtualLoop

from gracectl.eviction.deleter import PodDeleter
from gracectl.policy.deadlines import DEFAULT_GRACE_SECONDS

END = 400.0
NAMES = ("a", "b", "c", "d")
FAILURES = (DENIED, FAULT, LOST, REFUSED, busy(2))

graces = st.one_of(st.none(), st.integers(0, 40), st.integers(0, 300))
instants = st.floats(0, 250).map(lambda at: round(at, 3))


def chances(most: int) -> st.SearchStrategy[list[tuple[float, str]]]:
    return st.lists(st.tuples(instants, st.sampled_from(NAMES)), max_size=most, unique_by=lambda each: each[1])


plays = st.fixed_dictionaries(
    {
        "graces": st.fixed_dictionaries(dict.fromkeys(NAMES, graces)), "deadline": st.integers(0, 250),
        "begins": instants, "tightened": st.one_of(st.none(), st.tuples(instants, st.integers(0, 250))),
        "restarts": st.lists(instants, max_size=3), "people": chances(2), "spared": chances(1),
        "failures": st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(FAILURES)), max_size=4),
        "losses": st.lists(st.sampled_from(NAMES), max_size=2), "lag": st.sampled_from([0.0, 0.0, 0.5, 3.0, 30.0]),
        "seconds": st.sampled_from([0.0, 0.0, 0.005, 1.5]),
    },
)  # fmt: skip


class Play:
    """One run of what the strategy has drawn; afterwards, what has left and what the server has."""

    def __init__(self, drawn: dict[str, Any]) -> None:
        self.drawn = drawn
        self.stage = DeletionStage(max_in_flight=1)
        self.wanted: dict[str, list[tuple[float, float]]] = defaultdict(list)  # by name: from when on, which deadline
        self.spared: dict[str, float] = {}
        self.deadline = float(drawn["deadline"])
        self.deleter: PodDeleter | None = None

    async def run(self) -> None:
        drawn, stage = self.drawn, self.stage
        acts: list[tuple[float, Any]] = [(drawn["begins"], self.restart)]
        acts += [(drawn["begins"] + at, self.restart) for at in drawn["restarts"]]
        acts += [(at, lambda name=name: self.hurry(name)) for at, name in drawn["people"]]
        acts += [(at, lambda name=name: self.spare(name)) for at, name in drawn["spared"]]
        if drawn["tightened"]:
            acts.append((drawn["tightened"][0], self.tighten))
        async with anyio.create_task_group() as group:
            self.group = group
            await stage.run(group)
            await stage.add(**drawn["graces"])
            if drawn["lag"]:
                stage.let_the_watch_lag(drawn["lag"])
            stage.wire.seconds = drawn["seconds"]
            for name, answer in drawn["failures"]:
                stage.wire.refusals[name].append(answer)
            for name in drawn["losses"]:
                stage.wire.losses[name].append(LOST)
            for at, act in sorted(acts, key=lambda each: each[0]):
                await stage.until(max(at, stage.clock.monotonic()))
                await act()
            await stage.until(max(END, drawn["begins"] + 260 + END))
            group.cancel_scope.cancel()

    async def restart(self) -> None:
        if self.deleter is not None:
            self.scope.cancel()
            # What is in flight is finished; meanwhile another process takes over.
        self.deleter = self.stage.another()
        self.group.start_soon(self._live, self.deleter)
        await self.stage.rest()
        self.set_pods()

    async def _live(self, deleter: PodDeleter) -> None:
        with anyio.CancelScope() as self.scope:
            await deleter.run()

    def set_pods(self) -> None:
        stage = self.stage
        if self.deleter is None:
            return
        names = [name for name in NAMES if name not in self.spared and stage.pods.get("default", name)]
        for name in names:
            if not self.wanted[name] or self.wanted[name][-1][1] != self.deadline:
                self.wanted[name].append((stage.now, self.deadline))
        self.deleter.set_pods("n1", [stage.deletion(name, self.deadline) for name in names])

    async def hurry(self, name: str) -> None:
        await self.stage.delete(name)
        self.set_pods()

    async def spare(self, name: str) -> None:
        self.spared.setdefault(name, self.stage.now)
        self.set_pods()

    async def tighten(self) -> None:
        self.deadline = min(self.deadline, float(self.drawn["tightened"][1]))
        self.set_pods()

    def grace(self, name: str) -> int:
        drawn: int | None = self.drawn["graces"][name]
        return DEFAULT_GRACE_SECONDS if drawn is None else drawn

    def deadlines_of(self, asked: Asked) -> set[float]:
        """Those that counted in that instant: more than one if it is the one at which they changed."""
        known = self.wanted[asked.name]
        ends = [since for since, _ in known[1:]] + [math.inf]
        return {at for (since, at), end in zip(known, ends, strict=True) if since <= asked.at <= end}

    def is_right(self, asked: Asked, deadline: float, is_hurried: bool) -> bool:
        """Whether this DELETE comes not before its time and leaves the pod all that is left."""
        grace, left = self.grace(asked.name), max(1, math.ceil(round(deadline - asked.at, 6)))
        if asked.at >= deadline:
            return asked.grace == 1
        if asked.grace == max(1, min(grace, left)) and asked.at >= deadline - grace - 1e-6:
            return True
        return is_hurried and asked.grace == left

    def of(self, name: str) -> list[Asked]:
        return [each for each in self.stage.asked if each.name == name]


async def played(drawn: dict[str, Any]) -> Play:
    play = Play(drawn)
    await play.run()
    return play


@settings(max_examples=80, deadline=None)
@given(plays)
def test_no_pod_early_none_twice_all_in_the_end(drawn: dict[str, Any]) -> None:
    play = anyio.run(played, drawn, backend_options={"loop_factory": VirtualLoop})
    hurried = {name for _, name in drawn["people"]}
    troubled = {name for name, _ in drawn["failures"]} | set(drawn["losses"])
    for name in NAMES:
        asked = play.of(name)
        for each in asked:
            assert any(play.is_right(each, deadline, name in hurried) for deadline in play.deadlines_of(each))
            assert name not in play.spared or each.at <= play.spared[name], "was spared"
        graces = [each.grace for each in asked]
        # A process that has just begun knows no more than the watch.
        is_informed = not drawn["restarts"] or drawn["lag"] == drawn["seconds"] == 0
        if name not in troubled and is_informed:
            assert graces == sorted(set(graces), reverse=True), "twice, or longer than before"
        if name not in play.spared and play.wanted[name]:
            assert name in hurried or play.stage.grace_at_the_server(name) is not None, "was never deleted"
            # A pod that was deleted by hand without any grace is gone.
            assert (play.stage.grace_at_the_server(name) or 0) <= 1, "has outlived its deadline"
