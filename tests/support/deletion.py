"""A pod deleter against an embedded API server, on virtual time; pods stop there only when they are deleted.

The wire between them remembers every DELETE that leaves, and fails as a test wants it to.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import msgspec
from kubesim.apiserver import ApiServer
from kubesim.faults import LateWatch, Rule
from kubesim.server import api

from gracectl.controllers.termination.events import disruption_target
from gracectl.eviction.deleter import Deletion, PodDeleter
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.pdb_queue import EvictionSettings
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.resources import PODS
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import operation_of
from gracectl.model.pod import Pod
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import Fence
from support.inprocess import InProcessTransport, uid_of
from support.shifted import ShiftedClock

NAMESPACE = "default"
PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"
LOST = errors.Unreachable(
    operation_of(Request(method="DELETE", path=f"{PATH}/x")), "the connection was reset", sent=True
)
REFUSED = errors.Unreachable(operation_of(Request(method="DELETE", path=f"{PATH}/x")), "no connection", sent=False)

Answer = Response | errors.ApiError


class Asked(NamedTuple):
    """A DELETE as it left: when (seconds since the test began), for which pod, with how much grace."""

    at: float
    name: str
    grace: int


class Wire:
    """A transport. `refusals` of a pod are returned instead of the server's answer; with `losses` its own answer is
    replaced after the request. Each answer takes `seconds`."""

    def __init__(self, transport: InProcessTransport) -> None:
        self.transport = transport
        self.refusals: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self.losses: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self.down: Answer | None = None
        self.seconds = 0.0
        self.asked: list[Asked] = []
        self.uids: list[str] = []
        """The preconditions of these requests."""
        self.looked_at: list[tuple[float, str]] = []
        self.opened: list[float] = []
        """When a connection was opened."""
        self.in_flight = self.most_in_flight = 0
        self.patched: list[tuple[float, str, Any]] = []
        """The patches of pods: when, which, and their bodies."""
        self.patch_seconds = 0.0
        self.patch_refusal: errors.ApiError | None = None

    async def send(self, request: Request) -> Response:
        name = request.path.removeprefix(PATH).strip("/")
        if not name:
            return await self.transport.send(request)
        instant = round(self.transport.clock.monotonic(), 6)
        if request.path == "/version":
            self.opened.append(instant)
            await anyio.sleep(self.seconds)
            return await self.transport.send(request)
        if request.method == "PATCH":
            return await self._patched(request, name.removesuffix("/status"))
        if request.method == "GET":
            self.looked_at.append((instant, name))
        else:
            self.asked.append(Asked(instant, name, msgspec.json.decode(request.body or b"")["gracePeriodSeconds"]))
            self.uids.append(uid_of(request))
        self.in_flight += 1
        self.most_in_flight = max(self.in_flight, self.most_in_flight)
        try:
            await anyio.sleep(self.seconds)
            return await self._answered(request, name)
        finally:
            self.in_flight -= 1

    async def _patched(self, request: Request, name: str) -> Response:
        self.patched.append(
            (round(self.transport.clock.monotonic(), 6), name, msgspec.json.decode(request.body or b""))
        )
        await anyio.sleep(self.patch_seconds)
        if self.patch_refusal is not None:
            raise self.patch_refusal
        return await self.transport.send(request)

    async def _answered(self, request: Request, name: str) -> Response:
        answer = self.down
        if answer is None and request.method != "GET" and self.refusals[name]:
            answer = self.refusals[name].popleft()
        if answer is None:
            answer = await self.transport.send(request)
            if request.method != "GET" and self.losses[name]:
                answer = self.losses[name].popleft()
        if isinstance(answer, errors.ApiError):
            raise answer
        return answer

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        return self.transport.stream(request)


class Ears:
    """A listener."""

    def __init__(self) -> None:
        self.deletions: list[Deletion] = []
        self.refusals: list[tuple[str, errors.ApiError]] = []

    def deleted(self, deletion: Deletion) -> None:
        self.deletions.append(deletion)

    def not_deleted(self, pod: ScheduledDeletion, refusal: errors.ApiError) -> None:
        self.refusals.append((pod.name, refusal))


class DeletionStage:
    """See the module. Times are seconds since the test began; `ours` is the deleter's clock, the server has `clock`."""

    def __init__(self, **settings: Any) -> None:
        self.clock = LoopClock()
        self.ours = ShiftedClock(self.clock)
        self.start = self.clock.now()
        self.server = ApiServer(self.clock)
        self.transport = InProcessTransport(self.server, self.clock)
        self.wire = Wire(self.transport)
        self.settings = EvictionSettings(**settings)
        self.pods: Cache[Pod] = Cache("pods")
        self.ears = Ears()
        self.fence = Fence(self.clock)
        self.fence.open()
        self.deleter = self.another()

    def another(self) -> PodDeleter:
        """What a process has that begins now."""
        once = ClientSettings(timeout=5.0, write_timeout=5.0, retry=RetrySettings(attempts=1))
        client = KubeClient(self.wire, self.ours, settings=once, rng=random.Random(1)).fenced(self.fence)
        backoff = partial(Backoff, 0.1, 10.0, jitter=0.0)
        deleter = PodDeleter(client, self.pods, self.ours, self.settings, backoff, disruption_target)
        deleter.listen(self.ears)
        return deleter

    async def run(self, group: anyio.abc.TaskGroup) -> None:
        """The watch, and the deleter; returns when the cache is live."""
        client = KubeClient(self.transport, self.clock, rng=random.Random(2))
        group.start_soon(Reflector(client, PODS, self.pods, self.clock, rng=random.Random(3)).run)
        group.start_soon(self.deleter.run)
        await self.pods.wait_live()

    @property
    def now(self) -> float:
        return round(self.clock.monotonic(), 6)

    @property
    def asked(self) -> list[Asked]:
        return self.wire.asked

    async def add(self, **graces: int | None) -> None:
        """Pods on `n1` by name, with the grace that they ask for; returns when the cache shows them."""
        for name, grace in graces.items():
            spec: dict[str, Any] = {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}
            if grace is not None:
                spec["terminationGracePeriodSeconds"] = grace
            await self.call("POST", PATH, {"metadata": {"name": name}, "spec": spec})
        await self.rest()
        assert all(self.pods.get(NAMESPACE, name) for name in graces)

    def set_pods(self, deadline: float, *only: str, node: str = "n1", begins: float | None = None) -> None:
        """What a drain does: all cached pods of the node (or `only` some) are deleted by `deadline`.
        With `begins`, what a shutdown does."""
        names = only or [pod.name for pod in self.pods.values() if pod.node_name == node]
        deletion = [self.deletion(name, deadline, node) for name in names]
        if begins is not None:
            deletion = [msgspec.structs.replace(each, begins=self.start + begins) for each in deletion]
        self.deleter.set_pods(node, deletion)

    def deletion(self, name: str, deadline: float, node: str = "n1") -> ScheduledDeletion:
        pod = self.pods.get(NAMESPACE, name)
        assert pod is not None
        return ScheduledDeletion(NAMESPACE, name, pod.uid, node, self.start + deadline)

    async def until(self, instant: float) -> None:
        """Wait until so many seconds after the test began, and until all that is due then has been done."""
        await anyio.sleep(instant - self.clock.monotonic())
        await self.rest()

    async def rest(self) -> None:
        """Let other tasks run as far as they can without any time passing."""
        for _ in range(100):
            await anyio.lowlevel.checkpoint()

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """A request of another client."""
        answer = await self.server.handle(
            api.Request(method=method, path=path, headers={"content-type": content_type}, body=body)
        )
        assert answer.status < 300, answer.body
        return answer.body

    async def delete(self, name: str, grace: int | None = None) -> None:
        """An operator's request."""
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        await self.call("DELETE", f"{PATH}/{name}", options)

    async def touch(self, name: str) -> None:
        """A change that does not matter."""
        labels = {"metadata": {"labels": {"touched": str(self.server.store.revision)}}}
        await self.call("PATCH", f"{PATH}/{name}", labels, "application/merge-patch+json")

    def let_the_watch_lag(self, seconds: float) -> None:
        self.transport.before.add(Rule(fault=LateWatch(seconds, seconds)))

    def grace_at_the_server(self, name: str) -> int | None:
        """The seconds with which the pod terminates; None if it does not, or is gone."""
        found = self.server.store.table("pods").get(NAMESPACE, name)
        grace: int | None = found["metadata"].get("deletionGracePeriodSeconds") if found else None
        return grace


@asynccontextmanager
async def deleting(**settings: Any) -> AsyncIterator[DeletionStage]:
    """A stage whose deleter runs."""
    stage = DeletionStage(**settings)
    async with anyio.create_task_group() as group:
        await stage.run(group)
        yield stage
        group.cancel_scope.cancel()
