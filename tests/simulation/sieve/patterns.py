"""Sieve's three patterns (OSDI 2022), struck at one point of a run: at one write of the controller, or at one event of
its watches.

A write is what changes something outside of the controller: every request that is no read, and the provider's
`terminate`. Reads, and requests for permissions, change nothing. Points are counted from 1, of the first controller
only; up to its point a run is the undisturbed one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from enum import StrEnum
from typing import Final, TypeVar

import anyio
import msgspec
import orjson
from kubesim.server.status import expired
from support.inprocess import InProcessTransport, Line, uid_of
from support.stage import CloudProvider, Stage

from gracectl.cloud.provider import InstanceState, NodeIdentity, ProviderUnavailable
from gracectl.kube.errors import Unreachable
from gracectl.kube.transport import Request, Response, Stream
from gracectl.kube.transport.operation import operation_of

LEAST: Final = 1.0
"""Seconds by which news is late at least."""
MOST: Final = 8.0
"""Seconds after which news comes though the controller has done nothing."""
EXPIRED: Final = orjson.dumps({"type": "ERROR", "object": expired("too old resource version").body()}) + b"\n"

Result = TypeVar("Result")


class Pattern(StrEnum):
    """What the points of a story are counted by."""

    CRASH = "crash around a write"
    WATCH = "event late or never seen"
    RESTART = "restart with an older cache"


class Kind(StrEnum):
    """What happens at a point."""

    KILLED_BEFORE = "killed before write"
    """The request never reaches the server."""
    KILLED_AFTER = "killed after write"
    """It is carried out, and the answer is lost."""
    DELAYED = "late event"
    """The event, and with it its watch, is late until the controller has acted (LEAST, MOST)."""
    SWALLOWED = "swallowed event"
    """The watch falls silent before the event, until there is another one of its object and the controller has acted;
    then the server has forgotten that history (410), and the state is seen by a new list."""
    OVERTAKEN = "restart before write"
    """Killed with the request on its way. The next controller lists first, then the request is carried out; its watches
    are late until it has acted. Its lists at version 0 are older still."""
    LAGGING = "restart after write"
    """Killed when it was carried out. The watches of the next controller are late likewise, and its lists at version
    0."""


KINDS: Final[Mapping[Pattern, tuple[Kind, Kind]]] = {
    Pattern.CRASH: (Kind.KILLED_BEFORE, Kind.KILLED_AFTER),
    Pattern.WATCH: (Kind.DELAYED, Kind.SWALLOWED),
    Pattern.RESTART: (Kind.OVERTAKEN, Kind.LAGGING),
}
OF_EVENTS: Final = KINDS[Pattern.WATCH]
OLDER: Final = KINDS[Pattern.RESTART]
OF_WRITES: Final = (*KINDS[Pattern.CRASH], *OLDER)


class Point(msgspec.Struct, frozen=True):
    """One point: what happens, and at which write or event."""

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Object(msgspec.Struct, frozen=True):
    kind: str = ""
    metadata: _Metadata = _Metadata()


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Object = _Object()


class SieveTransport(InProcessTransport):
    """The way of all controllers of a run to the server. `reaches` is asked at each point whether the run is to be
    disturbed there, which it is once at most."""

    def __init__(self, stage: Stage, reaches: Callable[[Point], bool]) -> None:
        super().__init__(stage.server, stage.clock)
        self.point: Point | None = None
        """Where the run was disturbed."""
        self._reaches = reaches
        self.writes: list[str] = []
        self.events: list[str] = []
        """Those of the first controller, in words."""
        self.is_over = False
        """Nothing counts any more: what a controller writes when it stops is no point."""
        self.killed = anyio.Event()
        """The first controller is to be killed."""
        self.killed_at: float | None = None
        self.overtaken = ""
        """The pod (uid) whose eviction was on its way when its sender was killed: another one may be sent and agreed
        to, as the pod terminates only once."""
        self._in_flight: Callable[[], Awaitable[object]] | None = None
        self._lives = 0
        self._acted = anyio.Event()
        self._caught_up: anyio.Event | None = None

    def line(self) -> Line:
        """The way of the next controller."""
        self._lives += 1
        return super().line()

    def provider(self, provider: CloudProvider) -> SieveProvider:
        """The provider of the next controller."""
        return SieveProvider(self, provider, self._lives + 1)

    async def land(self) -> None:
        """Carry out the write that was on its way, now that the next controller has listed."""
        if self._in_flight is not None:
            await _carried_out(self._in_flight)

    # -- writes --------------------------------------------------------------------------------------------------------

    async def send(self, request: Request) -> Response:
        """See Transport."""
        if self.is_dead(self._lives):
            await anyio.sleep_forever()

        async def deed() -> Response:
            return await InProcessTransport.send(self, request)

        if request.method == "GET" or "authorization.k8s.io" in request.path:
            return await deed()
        operation = operation_of(request)
        evicted = uid_of(request) if operation.resource == "pods/eviction" else ""
        return await self.write(str(operation), deed, is_action=operation.resource != "events", evicted=evicted)

    async def write(
        self, what: str, deed: Callable[[], Awaitable[Result]], *, is_action: bool = True, evicted: str = ""
    ) -> Result:
        """Carry out a write of the controller in charge, unless it is killed at it."""
        if self._lives == 1 and not self.is_over and self.point is None:
            self.writes.append(what)
            for kind in OF_WRITES:
                if self._reaches(point := Point(kind, len(self.writes))):
                    self.point = point
                    self.overtaken = evicted if kind is Kind.OVERTAKEN else ""
                    await self._strike(kind, deed)
        answer = await deed()
        if is_action:
            self._acted.set()
            self._acted = anyio.Event()
        return answer

    async def _strike(self, kind: Kind, deed: Callable[[], Awaitable[object]]) -> None:
        if kind is Kind.OVERTAKEN:
            self._in_flight = deed
        elif kind is not Kind.KILLED_BEFORE:
            await _carried_out(deed)
        self.killed_at = self.clock.monotonic()
        self.killed.set()
        await anyio.sleep_forever()

    def is_dead(self, life: int) -> bool:
        """Whether the controller of this number has been killed."""
        return life == 1 and self.killed.is_set()

    # -- watches -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """See Transport."""
        if self.is_dead(self._lives):
            await anyio.sleep_forever()
        async with super().stream(request) as stream:
            yield _SieveStream(self, stream)

    async def seen(self, lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The lines of a watch as the controller sees them."""
        if self._lives > 1 and self.point and self.point.kind in OLDER:
            await self._catching_up()
        async for line in lines:
            event = msgspec.json.decode(line, type=_Event)
            kind = None if event.type == "BOOKMARK" else self._kind_at(event)
            if kind is Kind.SWALLOWED:
                with anyio.move_on_after(MOST):
                    await _until_about(event.object, lines)
                await self._past_next_action()
                yield EXPIRED
                return
            if kind is Kind.DELAYED:
                await self._past_next_action()
            yield line

    def _kind_at(self, event: _Event) -> Kind | None:
        """What happens at an event of a watch; None: it is shown."""
        if self._lives != 1 or self.is_over or self.point is not None:
            return None
        self.events.append(f"{event.type} {event.object.kind} {event.object.metadata.name}")
        for kind in OF_EVENTS:
            if self._reaches(point := Point(kind, len(self.events))):
                self.point = point
                return kind
        return None

    async def _past_next_action(self) -> None:
        acted, began = self._acted, self.clock.monotonic()
        with anyio.move_on_after(MOST):
            await acted.wait()
        await self.clock.sleep(max(LEAST + began - self.clock.monotonic(), 0.01))

    async def _catching_up(self) -> None:
        """Wait until the watches of the second controller, all of which begin now, show anything."""
        if self._caught_up is None:
            caught_up = self._caught_up = anyio.Event()
            try:
                await self._past_next_action()
            finally:
                caught_up.set()
        await self._caught_up.wait()


class SieveProvider:
    """The provider of one controller: none of its calls is carried out once that is killed."""

    needs_provider_id = True

    def __init__(self, sieve: SieveTransport, provider: CloudProvider, life: int) -> None:
        self.name = provider.name
        self.instance_key = provider.instance_key
        self._sieve = sieve
        self._provider = provider
        self._life = life

    async def state(self, provider_id: str) -> InstanceState:
        """See Provider."""
        return await self._alive(lambda: self._provider.state(provider_id))

    async def terminate(self, provider_id: str, node: NodeIdentity | None = None) -> None:
        """See Provider."""

        async def deed() -> None:
            await self._provider.terminate(provider_id, node)

        name = node.name if node else provider_id
        await self._alive(lambda: self._sieve.write(f"terminate the instance of {name}", deed))

    async def aclose(self) -> None:
        """See Provider."""

    async def _alive(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of a call. A killed process hears none, and its cancellation must not hang."""
        if self._sieve.is_dead(self._life):
            raise ProviderUnavailable("killed")
        results: list[Result] = []
        failures: list[Exception] = []

        async def ask() -> None:
            try:
                results.append(await call())
            except Exception as error:  # whatever a provider raises
                failures.append(error)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            if self._life == 1:
                await self._sieve.killed.wait()
                group.cancel_scope.cancel()
        if failures:
            raise failures[0]
        if not results:
            raise ProviderUnavailable("killed")
        return results[0]


class _SieveStream:
    """A watch through the sieve."""

    def __init__(self, sieve: SieveTransport, stream: Stream) -> None:
        self.status = stream.status
        self.headers = stream.headers
        self._sieve = sieve
        self._stream = stream

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """See Stream."""
        async with aclosing(self._stream.lines()) as lines, aclosing(self._sieve.seen(lines)) as seen:
            async for line in seen:
                yield line

    async def read(self) -> bytes:
        """See Stream."""
        return await self._stream.read()


async def _until_about(about: _Object, lines: AsyncGenerator[bytes, None]) -> None:
    async for line in lines:
        if msgspec.json.decode(line, type=_Event).object == about:
            return


async def _carried_out(deed: Callable[[], Awaitable[object]]) -> None:
    with suppress(Unreachable, Exception):
        await deed()
