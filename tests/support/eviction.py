"""The evictor and the pod deleter against an API server of the test."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
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
from gracectl.eviction.evictor import Evictor
from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.eviction.settings import EvictionSettings
from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.errors import ApiError
from gracectl.kube.resources import PODS
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import operation_of
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.model.selectors import selects
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import Fence
from gracectl.runtime.supervise import while_running
from support.builders import NOW, a_pod
from support.inprocess import InProcessTransport, uid_of
from support.virtual import ShiftedClock

# An API server that knows only evictions: its answers are those of the test, and it records requests.

AGREED = Response(status=201, body=b'{"kind":"Status","status":"Success","code":201}')


def a_status(code: int, message: str = "", headers: dict[str, str] | None = None, **details: Any) -> Response:
    """A refusal with a Status body."""
    status = {"kind": "Status", "status": "Failure", "code": code, "message": message, "details": details}
    return Response(status=code, headers=headers or {}, body=msgspec.json.encode(status))


SPENT = a_status(429, "Cannot evict pod", causes=[{"reason": "DisruptionBudget", "message": "needs 2 has 2"}])
PROCESSING = a_status(
    429, "processing", {"retry-after": "10"}, causes=[{"reason": "DisruptionBudget"}], retryAfterSeconds=10
)
TWO_BUDGETS = a_status(500, "This pod has more than one PodDisruptionBudget, which is not supported.")
FAULT = a_status(500, "etcdserver: request timed out")
ANOTHER_UID = a_status(409, "Precondition failed: UID in precondition: a, UID in object meta: b", name="x")
DENIED = a_status(400, 'admission webhook "guard.example" denied the request: it leads')
TERMINATING = a_status(403, "is being terminated", causes=[{"reason": "NamespaceTerminating"}])


def gone(name: str) -> Response:
    """404 of a pod."""
    return a_status(404, f'pods "{name}" not found', name=name, kind="pods")


def busy(seconds: int) -> Response:
    """429 of a server that has too much to do, in plain text."""
    return Response(status=429, headers={"retry-after": str(seconds)}, body=b"Too many requests")


class EvictionServer:
    """A transport. Every answer takes `seconds`, or what `slow` says of the pod, else of its namespace; what it is
    stands in `answers` by pod name, else it is agreement."""

    def __init__(self, clock: LoopClock, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.slow: dict[str, float] = {}
        self.answers: defaultdict[str, deque[Response | ApiError]] = defaultdict(deque)
        self.pods: dict[str, Response] = {}
        self.asked: list[tuple[float, str]] = []
        self.uids: list[str] = []
        """The preconditions of these requests."""
        self.looked_at: list[tuple[float, str]] = []
        self.patched: list[tuple[float, str]] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._clock = clock

    async def send(self, request: Request) -> Response:
        if request.path == "/version":
            return Response(status=200, body=b"{}")  # a connection is opened
        namespace, name = request.path.split("/")[4:7:2]
        log = {"GET": self.looked_at, "PATCH": self.patched}.get(request.method, self.asked)
        log.append((round(self._clock.monotonic(), 6), name))
        if request.method not in ("GET", "PATCH"):
            self.uids.append(uid_of(request))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self._clock.sleep(self.slow.get(name, self.slow.get(namespace, self.seconds)))
        finally:
            self.in_flight -= 1
        if request.method == "GET":
            return self.pods.get(name) or gone(name)
        if request.method == "PATCH":
            return gone(name)
        answer = self.answers[name].popleft() if self.answers[name] else AGREED
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        raise AssertionError("there is no watch here")

    def instants_of(self, name: str) -> list[float]:
        """When the server was asked to evict this pod."""
        return [instant for instant, asked in self.asked if asked == name]

    @property
    def names(self) -> list[str]:
        """The pods in requests for eviction, in order."""
        return [name for _, name in self.asked]


def a_candidate(pod: Pod, budgets: Iterable[PodDisruptionBudget], node: str = "n1") -> EvictionCandidate:
    """A pod of a termination that began at NOW, with those of the budgets that select it."""
    keys = (each.key for each in budgets if each.namespace == pod.namespace and selects(each.selector, pod.labels))
    return EvictionCandidate(pod.namespace, pod.name, pod.uid, node, tuple(sorted(keys)), NOW)


class EvictionStage:
    """An evictor, its caches and its server, on the loop's time."""

    def __init__(self, seconds: float = 0.0, **settings: Any) -> None:
        self.clock = LoopClock()
        self.server = EvictionServer(self.clock, seconds)
        client_settings = ClientSettings(timeout=5.0, write_timeout=5.0, retry=RetrySettings(attempts=1))
        self.client = KubeClient(self.server, self.clock, settings=client_settings, rng=random.Random(1))
        self.pods: Cache[Pod] = Cache("pods")
        self.budgets: Cache[PodDisruptionBudget] = Cache("budgets")
        chosen = EvictionSettings(**settings)
        backoff = partial(
            Backoff, chosen.backoff_initial_seconds, chosen.backoff_maximum_seconds, jitter=0.0, rng=random.Random(1)
        )
        self.fence = Fence(self.clock)
        self.fence.open()
        self.evictor = Evictor(self.client.fenced(self.fence), self.pods, self.budgets, self.clock, chosen, backoff)
        self._versions = 100

    def show(self, *objects: Pod | PodDisruptionBudget) -> None:
        """The watch shows these in a new version."""
        for object_ in objects:
            self._versions += 1
            versioned = msgspec.structs.replace(object_, resource_version=str(self._versions))
            if isinstance(versioned, Pod):
                self.pods.put(versioned)
            else:
                self.budgets.put(versioned)

    def show_terminating(self, *names: str) -> None:
        """The watch shows that these pods of `shop` are on their way."""
        for name in names:
            pod = self.pods.get("shop", name)
            assert pod is not None
            self.show(msgspec.structs.replace(pod, deletion_timestamp=NOW + 30))

    def set_pods(self, node: str, *pods: Pod) -> None:
        """As a drain would: each pod with the budgets that select it now."""
        self.evictor.set_pods(node, [self.candidate(pod, node) for pod in pods])

    def candidate(self, pod: Pod, node: str = "n1") -> EvictionCandidate:
        return a_candidate(pod, self.budgets.values(), node)


@asynccontextmanager
async def evicting(seconds: float = 0.0, **settings: Any) -> AsyncIterator[EvictionStage]:
    """A stage whose evictor runs."""
    stage = EvictionStage(seconds, **settings)
    async with while_running(stage.evictor.run):
        yield stage


def loose(count: int, prefix: str = "job") -> list[Pod]:
    """Pods without a budget."""
    return [a_pod(f"{prefix}-{n}", labels={"app": prefix}) for n in range(count)]


def web(count: int) -> list[Pod]:
    """Pods that the budget `web` selects."""
    return [a_pod(f"web-{n}") for n in range(1, count + 1)]


# A pod deleter against an embedded API server, on virtual time; pods stop there only when they are deleted.
#
# The wire between them remembers every DELETE that leaves, and fails as a test wants it to.

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
        pod = self.server.store.table("pods").get(NAMESPACE, name)
        grace: int | None = pod["metadata"].get("deletionGracePeriodSeconds") if pod else None
        return grace


@asynccontextmanager
async def deleting(**settings: Any) -> AsyncIterator[DeletionStage]:
    """A stage whose deleter runs."""
    stage = DeletionStage(**settings)
    async with anyio.create_task_group() as group:
        await stage.run(group)
        yield stage
        group.cancel_scope.cancel()
