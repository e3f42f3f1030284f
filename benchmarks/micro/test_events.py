"""A watched pod event, from its line to its place in the cache, by the reflector and the indexes of the controller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle

import msgspec
import pytest

from benchmarks.micro import pods
from benchmarks.micro.conftest import Measure
from benchmarks.micro.watched import Watched
from gracectl.controllers.cluster.cache import ClusterCache, empty_cluster_cache
from gracectl.controllers.cluster.informers import Reflectors
from gracectl.kube.client import KubeClient
from gracectl.model import wire
from gracectl.model.decode import PodDecoder
from gracectl.model.envelope import decode_event
from gracectl.model.pod import Pod
from gracectl.runtime.clock import SystemClock

EVENTS = 1000
"""In a round, each of another pod."""
SETS = 8
"""Of pods, one a round: where many are cached, those that are told of are not at hand."""


class Following(msgspec.Struct, frozen=True):
    """Caches that follow a server: tell it of `news`, which is other news each time, on the loop of `runner`."""

    runner: asyncio.Runner
    server: Watched
    observed: ClusterCache
    news: Iterator[Sequence[bytes]]

    def follow(self) -> None:
        """Deal with the next events."""
        self.runner.run(self.server.tell(next(self.news)))


@pytest.fixture(scope="module", params=[1_000, 150_000])
def following(request: pytest.FixtureRequest) -> Iterator[Following]:
    """With so many pods cached."""
    count: int = request.param
    server, observed, clock = Watched(count, partial(pods.pod, of=count)), empty_cluster_cache(), SystemClock()
    reflector = Reflectors(KubeClient(server, clock), observed, clock).of_pods(observed.pods)
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(reflector.run())
        runner.run(observed.pods.wait_live())
        assert len(observed.pods) == count
        yield Following(runner, server, observed, cycle(_news(count)))
        task.cancel()


def _news(count: int) -> list[Sequence[bytes]]:
    """Rounds of events: each set of pods twice, so that they are Ready and no longer, and no version is told twice."""
    turns: list[Sequence[bytes]] = []
    for turn in range(2 * SETS):
        chosen = random.Random(turn % SETS).sample(range(count), EVENTS)
        ready = (turn + turn // SETS) % 2 == 0
        turns.append([pods.event("MODIFIED", pods.pod(n, count, version=2 + turn, ready=ready)) for n in chosen])
    return turns


def test_events(following: Following, measure: Measure) -> None:
    cached = len(following.observed.pods)
    measure(f"pod event, {cached:,} pods cached", EVENTS, following.follow)
    seen = following.observed.pods.statistics()
    assert seen.updated >= EVENTS * 17, "what was told was no news"


def test_decode(measure: Measure) -> None:
    decode, lines = PodDecoder(), _news(EVENTS)[0]

    def work() -> None:
        for line in lines:
            _read(decode, line)

    measure("of it: its line decoded", EVENTS, work)


def test_put(following: Following, measure: Measure) -> None:
    decode, cache = PodDecoder(), following.observed.pods
    turns = cycle([[_read(decode, line) for line in lines] for lines in _news(len(cache))])

    def work() -> None:
        for thing in next(turns):
            cache.put(thing)

    measure(f"of it: into the cache of {len(cache):,}", EVENTS, work)


def _read(decode: PodDecoder, line: bytes) -> Pod:
    return decode(decode_event(line, wire.Pod).object)
