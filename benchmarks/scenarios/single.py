"""Single replicas leave a node that ends: how long is no pod of theirs Ready, with and without a replacement first?"""

from __future__ import annotations

from statistics import median
from typing import Any

import msgspec

from benchmarks.contenders.gracectl import Gracectl
from benchmarks.ground.ground import Ground, Pace
from benchmarks.ground.site import DEPLOYMENTS, NEW, OLD, App, Site, site
from benchmarks.report import Figure, Outcome
from benchmarks.trial import ROUNDS

FIRST = App("replaced-first", 1, {"minAvailable": 1}, asks=True)
PLAIN = App("evicted", 1)


async def run(ground: Ground, rounds: int = ROUNDS) -> Outcome:
    """Both on one node, which is deleted."""
    pace = Pace()
    found = [await _round(ground, pace, f"single-{number}") for number in range(rounds)]
    return Outcome(
        scenario="single",
        about="two Deployments of one pod leave a node that ends: one pod is replaced first, one is evicted",
        figures=(
            Figure("without a Ready pod, replaced first", max(each[FIRST.name] for each in found), " s", 0),
            Figure("without a Ready pod, plain eviction", median(each[PLAIN.name] for each in found), " s"),
            Figure("changes of the Deployments", max(each["changes"] for each in found), "", 0),
        ),
        parameters={"rounds": rounds, **pace.in_words},
    )


async def _round(ground: Ground, pace: Pace, name: str) -> dict[str, float]:
    """Seconds without a Ready pod by app, and how often the Deployments were changed."""
    async with site(ground, name) as one:
        old = await one.add_nodes(OLD, 1, pods=8)
        await one.deploy(FIRST, PLAIN, pace=pace)
        await one.add_nodes(NEW, 2, pods=8)
        before = await _generations(one)
        async with Gracectl().entered(one, old) as entry:
            downtimes = {app.name: _Downtime(one, app.name) for app in (FIRST, PLAIN)}
            leaving = {pod.uid for app in (FIRST, PLAIN) for pod in one.of(app.name)}
            await entry.go()
            await one.until(
                lambda: leaving.isdisjoint(pod.uid for pod in one.pods.values()) and one.settled(FIRST, PLAIN),
                "both pods to be replaced",
            )
        after = await _generations(one)
        changes = sum(after[name] - before[name] for name in before)
        return {**{name: each.seconds for name, each in downtimes.items()}, "changes": changes}


class _Downtime:
    """Seconds without a Ready pod of an app, as a watch shows them."""

    def __init__(self, one: Site, app: str) -> None:
        self.seconds = 0.0
        self._site = one
        self._app = app
        self._since: float | None = None
        one.pods.subscribe(lambda old, new: self._look())

    def _look(self) -> None:
        now = self._site.clock.monotonic()
        if self._site.healthy(self._app):
            self.seconds += 0.0 if self._since is None else now - self._since
            self._since = None
        elif self._since is None:
            self._since = now


async def _generations(one: Site) -> dict[str, int]:
    found: dict[str, int] = {}
    for app in (FIRST, PLAIN):
        raw: bytes = await one.client.get(DEPLOYMENTS, (one.name, app.name))
        body: Any = msgspec.json.decode(raw)
        found[app.name] = body["metadata"]["generation"]
    return found
