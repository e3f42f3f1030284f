"""Machines that shut down: an agent on the simulated cluster, simulated pods, the shutdown sequence."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
import orjson
from kubesim.controllers.paths import PRIORITY_CLASSES
from kubesim.server.api import JsonObject

from gracectl.agent.reporting import disruption_target
from gracectl.agent.sequence import SequenceResult, ShutdownSequence
from gracectl.agent.watch import Machine as LogindMachine
from gracectl.agent.watch import ShutdownListener, WatchState
from gracectl.app.agent import NodeAgent
from gracectl.config import Settings
from gracectl.eviction.deleter import Deletion, PodDeleter
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.settings import EvictionSettings
from gracectl.interruption.metadata import Service
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.requests import Selection
from gracectl.kube.resources import PODS
from gracectl.model.pod import Pod
from gracectl.policy.shutdown import RangeEnded, RangeStarted, ShutdownState, ShutdownStep, ShutdownView, begin, step
from gracectl.policy.waves import DrainOrder, by_priority
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.telemetry.spans import SpanSink
from support.builders import NOW
from support.inprocess import uid_of
from support.stage import Stage, a_pod_manifest, staged, the_settings
from support.stories import START
from support.virtual import ShiftedClock

# Simulated shutdowns: pods that stop as they are deleted, and the step function that deletes them.

KEP = by_priority([(100_000, 300.0), (10_000, 180.0), (1_000, 120.0), (0, 60.0)])
"""The KEP's first table."""


def at(elapsed: float, *pods: Pod) -> ShutdownView:
    """What is seen so many seconds after a shutdown began, which it did at NOW."""
    return ShutdownView(pods, elapsed, NOW + elapsed)


def told(order: DrainOrder, pods: Sequence[Pod], node_deadline: float | None = None) -> dict[str, int]:
    """By name, the grace of pods that are deleted when a shutdown with time enough begins."""
    seen = ShutdownView(tuple(pods), 0.0, NOW, node_deadline)
    return {notice.pod.name: notice.grace for notice in step(begin(order, 10_000, seen), seen).deletions}


class Machine:
    """Drives the step function with pods that take `seconds` (by name) to end, all of their grace if they are not in
    there, and more than that if they are `immortal`. Instants are seconds since the shutdown began."""

    def __init__(
        self,
        order: DrainOrder,
        pods: Iterable[Pod],
        available: float | None = None,
        known_at: float = 0.0,
        immortal: Iterable[str] = (),
        seconds: dict[str, float] | None = None,
    ) -> None:
        self.elapsed = known_at
        self.node_deadline: float | None = None
        self.told: list[tuple[str, float, int]] = []
        self.began: dict[int, float] = {}
        self.ended: list[RangeEnded] = []
        self.over = math.nan
        self.steps: list[ShutdownStep] = []
        self._immortal = set(immortal)
        self._seconds = seconds or {}
        self._ends: dict[str, float] = {}
        self._pods: dict[str, Pod] = {}
        self.add(*pods)
        if available is None:
            available = sum(wave.period for wave in order.waves)
        self._shutdown: ShutdownState = begin(order, available, self._seen())

    def add(self, *pods: Pod) -> None:
        """These come up."""
        for pod in pods:
            self._pods[pod.uid] = pod
            if pod.deletion_timestamp is not None:
                self._stop(pod, pod.deletion_timestamp - NOW - self.elapsed)

    def run(self) -> None:
        """Until all of it is over."""
        while not self._step().shutdown.is_over:
            self._move_on(math.inf)
        self.over = self.elapsed

    def look(self, until: float) -> None:
        """As long as nothing after that instant has happened."""
        while not self._step().shutdown.is_over:
            if self._move_on(until):
                return

    def _seen(self) -> ShutdownView:
        return ShutdownView(tuple(self._pods.values()), self.elapsed, NOW + self.elapsed, self.node_deadline)

    def _step(self) -> ShutdownStep:
        decided = step(self._shutdown, self._seen())
        self.steps.append(decided)
        self._shutdown = decided.shutdown
        for dedup_key in decided.events:
            if isinstance(dedup_key, RangeStarted):
                self.began[dedup_key.number] = dedup_key.at
            else:
                self.ended.append(dedup_key)
        for notice in sorted(decided.deletions, key=lambda each: each.pod.name):
            self.told.append((notice.pod.name, self.elapsed, notice.grace))
            self._stop(notice.pod, notice.grace)
            marked = math.floor(NOW + self.elapsed) + notice.grace
            self._pods[notice.pod.uid] = msgspec.structs.replace(
                notice.pod, deletion_timestamp=float(marked), deletion_grace_seconds=notice.grace
            )
        return decided

    def _stop(self, pod: Pod, grace: float) -> None:
        if pod.name not in self._immortal:
            ends = self.elapsed + min(grace, self._seconds.get(pod.name, grace))
            self._ends[pod.uid] = min(ends, self._ends.get(pod.uid, ends))

    def _move_on(self, until: float) -> bool:
        """To the next instant at which something happens, but no further than `until`; whether that was reached."""
        following = min((self._shutdown.ends, *(self._ends[uid] for uid in self._pods if uid in self._ends)))
        self.elapsed = max(min(following, until), self.elapsed)
        self._pods = {uid: pod for uid, pod in self._pods.items() if self._ends.get(uid, math.inf) > self.elapsed}
        return following >= until


# An agent on a machine whose logind the test plays, on virtual time on the simulated cluster.

BY_KEP: dict[str, Any] = {
    "shutdownGracePeriodByPodPriority": [
        {"priority": 100_000, "shutdownGracePeriodSeconds": 300},
        {"priority": 10_000, "shutdownGracePeriodSeconds": 180},
        {"priority": 1_000, "shutdownGracePeriodSeconds": 120},
        {"priority": 0, "shutdownGracePeriodSeconds": 60},
    ]
}


STUBBORN: dict[str, Any] = {"behaviour": {"stop-seconds": 100_000}}
"""A pod that runs until its grace is over."""


class PlayedLogind:
    """Grants locks of up to `most` seconds; the test says when the machine shuts down. Instants are monotonic."""

    def __init__(self, clock: Clock, most: float = 3600.0) -> None:
        self.most = most
        self.wanted: list[tuple[float, str]] = []
        self.is_held = False
        self.released_at: float | None = None
        self._clock = clock
        self._listener: ShutdownListener | None = None
        self.is_going_down = False

    def for_(self, listener: ShutdownListener) -> PlayedLogind:
        """As Machine wants it."""
        self._listener = listener
        return self

    def want(self, seconds: float, why: str) -> None:
        """See Watcher."""
        if (seconds, why) not in self.wanted[-1:]:
            self.wanted.append((seconds, why))
            self.say()

    def release(self) -> None:
        """See Watcher."""
        if self.is_held:
            self.is_held = False
            self.released_at = self._clock.monotonic()

    async def run(self) -> None:
        """See Watcher."""
        await anyio.sleep_forever()

    def say(self, **more: Any) -> None:
        """How it stands; a lock is granted unless the machine is going down."""
        if self.is_going_down or self._listener is None:
            return
        self.is_held = True
        wanted = self.wanted[-1][0]
        self._listener.state_changed(WatchState(is_locked=True, delay=min(wanted, self.most), wanted=wanted, **more))

    def shut_down(self) -> float:
        """PrepareForShutdown(true); returns the instant."""
        assert self._listener is not None
        self.is_going_down = True
        self.released_at = None
        self._listener.shutting_down(min(self.wanted[-1][0], self.most))
        return self._clock.monotonic()

    def call_off(self) -> None:
        """PrepareForShutdown(false): the lock is taken again first."""
        assert self._listener is not None
        self.is_going_down = False
        self.say()
        self._listener.cancelled()


class Played:
    """An agent that runs, and its logind."""

    def __init__(self, agent: NodeAgent, logind: PlayedLogind, stop: anyio.Event) -> None:
        self.agent = agent
        self.logind = logind
        self.stop = stop
        self.has_ended = False

    async def run(self) -> None:
        await self.agent.run(self.stop)
        self.has_ended = True

    async def live(self) -> None:
        """Wait until it sees its node and pods and holds its lock."""
        await self.agent.agent.nodes.wait_live()
        await self.agent.agent.pods.wait_live()
        await anyio.sleep(0.5)
        assert self.logind.is_held


@asynccontextmanager
async def an_agent(
    stage: Stage,
    settings: Settings | None = None,
    *,
    node: str = "n1",
    own_uid: str = "",
    reread: Callable[[], Settings] | None = None,
    spans: SpanSink | None = None,
    seed: int = 0,
    metadata: Service | None = None,
) -> AsyncIterator[Played]:
    """An agent of `node`; on leaving it is stopped, as by SIGTERM."""
    logind = PlayedLogind(stage.clock)
    machine = LogindMachine(node, logind.for_, own_uid, metadata)
    line = stage.transport.line()
    first = settings or the_settings(**BY_KEP)
    program = NodeAgent(reread or (lambda: first), line, stage.clock, machine, rng=random.Random(seed), spans=spans)
    played = Played(program, logind, anyio.Event())
    async with anyio.create_task_group() as group:
        group.start_soon(played.run)
        yield played
        played.stop.set()


async def a_pod_of(stage: Stage, name: str, priority: int, grace: int = 30, **more: Any) -> None:
    """A pod with this priority on n1."""
    if priority:
        metadata = {"name": f"class-of-{name}"}
        await stage.call("POST", PRIORITY_CLASSES, {"metadata": metadata, "value": priority})
        more["priorityClassName"] = metadata["name"]
    await stage.create(a_pod_manifest(name, "n1", terminationGracePeriodSeconds=grace, **more))


def deletions(stage: Stage, start: float) -> list[tuple[str, float, int]]:
    """(pod, seconds after `start`, grace) of each DELETE that the server agreed to."""
    return [
        (
            each.operation.name,
            round(each.instant - start, 1),
            orjson.loads(each.request.body or b"{}")["gracePeriodSeconds"],
        )
        for each in stage.transport.of("delete", "pods")
        if each.instant >= start and each.status == 200
    ]


# A machine of the embedded cluster that shuts down: its pods' cache, a deleter, and the sequence that tells them.
#
# The world's clock is virtual; instants are seconds since the shutdown began, which it does at START.

NODE = "n1"
PRIORITIES = {"regular": 0, "c": 1_000, "b": 10_000, "a": 100_000}
"""The classes of the KEP's example; pods are named after them."""


def a_classed_pod(name: str, grace: int = 3600, **behaviour: Any) -> JsonObject:
    """A pod of NODE whose class is the part of its name before a dash; it stops after `stop-seconds`, if given, else
    takes all the grace that it is granted."""
    stops = {key.replace("_", "-"): value for key, value in (behaviour or {"ignores_sigterm": "true"}).items()}
    class_ = {"priorityClassName": f"custom-class-{name[0]}"} if PRIORITIES[name.split("-")[0]] else {}
    return a_pod_manifest(name, NODE, behaviour=stops, terminationGracePeriodSeconds=grace, **class_)


class Ears:
    """Listens to a sequence and its deleter; `said` in their order, by whole milliseconds."""

    def __init__(self, machine: ShuttingMachine) -> None:
        self._machine = machine
        self.began: dict[int, float] = {}
        self.ended: list[tuple[int, float, list[str]]] = []
        self.granted: list[tuple[str, int]] = []
        self.refused: list[str] = []
        self.result: SequenceResult | None = None

    def range_began(self, dedup_key: RangeStarted) -> None:
        self.began[dedup_key.number] = self._machine.elapsed

    def range_over(self, dedup_key: RangeEnded) -> None:
        self.ended.append((dedup_key.number, self._machine.elapsed, sorted(pod.name for pod in dedup_key.left)))

    def over(self, result: SequenceResult) -> None:
        assert self.result is None
        self.result = result

    def deleted(self, deletion: Deletion) -> None:
        self.granted.append((deletion.pod.name, deletion.granted))

    def not_deleted(self, pod: ScheduledDeletion, refusal: errors.ApiError) -> None:
        self.refused.append(pod.name)


class ShuttingMachine:
    """See the module."""

    def __init__(self, stage: Stage, own_uid: str = "", ahead: float = 0.0) -> None:
        self.stage = stage
        self.clock = ShiftedClock(stage.clock, ahead)
        self.line = stage.transport.line()
        self.pods: Cache[Pod] = Cache("pods")
        once = ClientSettings(timeout=10.0, write_timeout=10.0, retry=RetrySettings(attempts=1))
        client = KubeClient(self.line, self.clock, settings=once, rng=random.Random(1))
        backoff = partial(Backoff, 0.1, 10.0, jitter=0.0)
        self.deleter = PodDeleter(client, self.pods, self.clock, EvictionSettings(), backoff, disruption_target)
        self.ears = Ears(self)
        self.deleter.listen(self.ears)
        self.sequence = ShutdownSequence(NODE, self.pods, self.deleter, self.clock, self.ears, own_uid)
        follow = KubeClient(self.line, stage.clock, rng=random.Random(2))
        settings = ReflectorSettings(selection=Selection(fields=f"spec.nodeName={NODE}"), maximum_pause=1.0)
        self._reflector = Reflector(follow, PODS, self.pods, stage.clock, settings=settings, rng=random.Random(3))
        self.node_deadline: float | None = None

    async def live(self, group: anyio.abc.TaskGroup) -> None:
        """The watch, and the deleter."""
        group.start_soon(self._reflector.run)
        group.start_soon(self.deleter.run)

    @property
    def elapsed(self) -> float:
        return round(self.stage.clock.monotonic() - START, 3)

    async def until(self, instant: float) -> None:
        """Wait until so many seconds after START."""
        await self.stage.clock.sleep(START + instant - self.stage.clock.monotonic())

    async def shut_down(self, available: float | None = None, order: DrainOrder = KEP) -> SequenceResult:
        """From START to the end."""
        await self.until(0)
        total = sum(wave.period for wave in order.waves)
        return await self.sequence.run(order, total if available is None else available, lambda: self.node_deadline)

    @property
    def asked(self) -> list[tuple[str, float, int]]:
        """(pod, instant, grace) of every DELETE that has reached the server, whatever it answered, sorted by instant.
        Each named the uid of the pod that was meant."""
        requests = []
        for each in self.stage.transport.of("delete", "pods"):
            assert uid_of(each.request)
            body = msgspec.json.decode(each.request.body or b"{}")
            requests.append((round(each.instant - START, 3), each.operation.name, body["gracePeriodSeconds"]))
        return [(name, instant, grace) for instant, name, grace in sorted(requests)]

    @property
    def names(self) -> list[str]:
        """Of the pods that the server still has."""
        return sorted(pod["metadata"]["name"] for pod in self.stage.pods_on(NODE))


@asynccontextmanager
async def machine_with(
    *pods: JsonObject, is_watched: bool = True, ahead: float = 0.0
) -> AsyncIterator[ShuttingMachine]:
    """A machine with these pods, all running, before START; its cache is live unless it is to be watched later.
    `ahead`: the seconds that its clock is ahead of the server's."""
    async with staged(NODE) as stage:
        for name, value in PRIORITIES.items():
            await stage.cluster.create(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": {"name": f"custom-class-{name}"},
                    "value": value,
                }
            )
        if pods:
            await stage.create(*pods)
        machine = ShuttingMachine(stage, ahead=ahead)
        async with anyio.create_task_group() as group:
            if is_watched:
                await machine.live(group)
                await machine.pods.wait_live()
            yield machine
            group.cancel_scope.cancel()


def of_all_classes(names: Iterable[str] = PRIORITIES, **behaviour: Any) -> list[JsonObject]:
    """A pod of each class."""
    return [a_classed_pod(name, **behaviour) for name in names]
