"""An API server that knows only evictions: its answers are those of the test, and it records requests."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import msgspec

from gracectl.eviction.evictor import Evictor
from gracectl.eviction.pdb_queue import EvictionCandidate, EvictionSettings
from gracectl.kube.cache import Cache
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.errors import ApiError
from gracectl.kube.transport import Request, Response, Stream
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.model.selectors import selects
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.fence import Fence
from support.builders import NOW, a_pod
from support.inprocess import uid_of

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
    async with anyio.create_task_group() as group:
        group.start_soon(stage.evictor.run)
        yield stage
        group.cancel_scope.cancel()


def loose(count: int, prefix: str = "job") -> list[Pod]:
    """Pods without a budget."""
    return [a_pod(f"{prefix}-{n}", labels={"app": prefix}) for n in range(count)]


def web(count: int) -> list[Pod]:
    """Pods that the budget `web` selects."""
    return [a_pod(f"web-{n}") for n in range(1, count + 1)]
