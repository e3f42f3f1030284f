"""A machine of the embedded cluster that shuts down: its pods' cache, a deleter, and the sequence that tells them.

The world's clock is virtual; instants are seconds since the shutdown began, which it does at START.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec
from kubesim.server.api import JsonObject

from gracectl.agent.reporting import disruption_target
from gracectl.agent.sequence import SequenceResult, ShutdownSequence
from gracectl.eviction.deleter import Deletion, PodDeleter
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionSettings
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.requests import Selection
from gracectl.kube.resources import PODS
from gracectl.model.pod import Pod
from gracectl.policy.shutdown import RangeEnded, RangeStarted
from gracectl.policy.waves import DrainOrder
from gracectl.runtime.backoff import Backoff
from support.deadlines import START
from support.inprocess import uid_of
from support.shifted import ShiftedClock
from support.shutdowns import KEP
from support.stage import Stage, a_pod_manifest, staged

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
        found = []
        for each in self.stage.transport.of("delete", "pods"):
            assert uid_of(each.request)
            body = msgspec.json.decode(each.request.body or b"{}")
            found.append((round(each.instant - START, 3), each.operation.name, body["gracePeriodSeconds"]))
        return [(name, instant, grace) for instant, name, grace in sorted(found)]

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
