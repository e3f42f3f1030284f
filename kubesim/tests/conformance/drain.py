"""The kubelet that the recorder played during its drain, and what it saw: when which pod was in which state.

Recording node-drain-end-to-end: a pod needs 0.4 s to end and 0.05 s to start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from conformance.player import Offstage, Player
from conformance.tape import Sent
from kubesim.server.api import Json, JsonObject

PODS = "/api/v1/namespaces/rec-drain/pods"
BUDGETS = "/apis/policy/v1/namespaces/rec-drain/poddisruptionbudgets"
STRATEGIC = "application/strategic-merge-patch+json"
STARTING, ENDING = 0.05, 0.4
BUDGET = "budget"
PATIENCE = 30.0


class Timeline:
    """What happened, as (name, what) in order; plays the kubelet while it looks on."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._clock = player.target.clock
        self._rows: list[tuple[str, str]] = []
        self._news = anyio.Event()
        self.since = 0

    async def follow(self, path: str, read: Callable[[str, JsonObject], None]) -> None:
        """Read a watch for as long as it lasts."""
        response = await self._player.send(Sent("GET", path, {"watch": "1"}))
        assert response.stream is not None
        async for event in response.stream:
            read(event.type, event.object)

    def pod(self, kind: str, pod: JsonObject) -> None:
        """Something happened to a pod."""
        metadata, name = pod["metadata"], pod["metadata"]["name"]
        if kind == "DELETED":
            self._note(name, "DELETED")
        elif "deletionTimestamp" in metadata:
            grace = metadata["deletionGracePeriodSeconds"]
            if self._note(name, f"{kind} terminating, grace {grace}") and grace:
                self._player.tasks.start_soon(self._end, name)
        else:
            conditions = pod["status"].get("conditions", ())
            is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            is_bound = bool(pod["spec"].get("nodeName"))
            fresh = self._note(name, f"{kind} {'ready' if is_ready else 'bound' if is_bound else 'unbound'}")
            if fresh and is_bound and not is_ready:
                self._player.tasks.start_soon(self._start, name)

    def budget(self, kind: str, budget: JsonObject) -> None:
        """Something happened to the budget."""
        status = budget["status"]
        self._note(
            BUDGET,
            f"{kind} allowed {status['disruptionsAllowed']}, healthy {status['currentHealthy']} of "
            f"{status['expectedPods']}, {len(status.get('disruptedPods') or {})} disrupted",
        )

    def _note(self, name: str, what: str) -> bool:
        if what == next((each for who, each in reversed(self._rows) if who == name), None):
            return False
        self._rows.append((name, what))
        self._news.set()
        self._news = anyio.Event()
        return True

    async def _start(self, name: str) -> None:
        await self._clock.sleep(STARTING)
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "conditions": [ready]}
        await self._player.call("PATCH", f"{PODS}/{name}/status", {"status": status}, STRATEGIC)

    async def _end(self, name: str) -> None:
        await self._clock.sleep(ENDING)
        await self._player.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    async def when(self, since: int, happened: Callable[[str, str], bool]) -> int:
        """The row after the first one since row `since` for which that holds. TimeoutError."""
        with anyio.fail_after(PATIENCE):
            while True:
                for index, row in enumerate(self._rows[since:], since):
                    if happened(*row):
                        return index + 1
                await self._news.wait()

    async def settled(self) -> list[tuple[str, str]]:
        """The rows of this eviction, once its pod is gone and its budget allows the next one."""
        spent = await self.when(self.since, lambda name, what: name == BUDGET and "allowed 0" in what)
        await self.when(spent, lambda name, what: name == BUDGET and "allowed 1" in what)
        await self.when(self.since, lambda name, what: what == "DELETED")
        await self._clock.sleep(0.1)
        return self._rows[self.since :]

    def begin(self) -> None:
        """What comes now belongs to the next eviction."""
        self.since = len(self._rows)


async def next_eviction(player: Player) -> None:
    """A little time between two evictions; before the first, the timeline begins."""
    timeline = player.memory.get("timeline")
    if timeline is None:
        await player.target.clock.sleep(0.3)  # The scheduler has seen the cordon.
        timeline = player.memory["timeline"] = Timeline(player)
        player.tasks.start_soon(timeline.follow, PODS, timeline.pod)
        player.tasks.start_soon(timeline.follow, BUDGETS, timeline.budget)
        await timeline.when(0, lambda name, what: name == BUDGET)
    await player.target.clock.sleep(0.3)
    timeline.begin()


async def lives(player: Player) -> Json:
    """What each pod went through."""
    seen: dict[str, list[str]] = {}
    for name, what in await player.memory["timeline"].settled():
        if name != BUDGET:
            seen.setdefault(name, []).append(what)
    return {"lives": sorted(seen.values())}


async def timeline_of(player: Player) -> Json:
    """All events, in order; instants are not ours to compare."""
    rows = await player.memory["timeline"].settled()
    return {"events": [f"{name} {what}" for name, what in rows]}


def has_same_order(recorded: Json, here: Json) -> bool:
    """The budget's events begin and end as recorded, with a recount more or less between them. (The order between
    events of pods and of budgets is that of two watches.)"""
    wanted, actual = ([each.split(": ")[-1] for each in facts["events"]] for facts in (recorded, here))
    budgets = [[each for each in events if each.startswith(BUDGET)] for events in (wanted, actual)]
    ends = [(events[0], events[-1]) for events in budgets]
    return ends[0] == ends[1] and len(budgets[1]) in (3, 4)


EVICTIONS = (13, 16, 19)
DRAIN_MEASURES: dict[int, Callable[[Player], Awaitable[Json]]] = {
    **{index + 1: lives for index in EVICTIONS},
    **{index + 2: timeline_of for index in EVICTIONS},
}
DRAIN = Offstage(
    before=dict.fromkeys(EVICTIONS, next_eviction),
    measured=DRAIN_MEASURES,
    loosely={index + 2: has_same_order for index in EVICTIONS},
)
