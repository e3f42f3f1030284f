"""Client of the API server: typed objects in, typed objects or errors by meaning out.

Invariants: no request is repeated unless a repeat is safe (`retry.py`); a busy server slows the whole client; a write
that has begun is finished before a cancellation takes effect, so that its outcome is known; a fenced client sends no
write that its fence does not admit, and cuts those in flight at the fence's end.
"""

from __future__ import annotations

import builtins
import copy
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Generic, Self

import anyio
import anyio.lowlevel
import msgspec
from tenacity import RetryCallState

from gracectl.kube import errors, requests
from gracectl.kube.client.retry import RetrySettings, retry_wait, retryable
from gracectl.kube.client.statistics import ClientStatistics, RequestRecorder
from gracectl.kube.client.watch import Watch
from gracectl.kube.requests import ALL, Json, JsonPatch, Key, Patch, Preconditions, Selection
from gracectl.kube.resources import Resource, T
from gracectl.kube.transport import Request, Response, Transport
from gracectl.kube.transport.operation import Operation, operation_of
from gracectl.model.envelope import UndecodableObject, decode_envelope, decode_page_in_slices, token_ahead
from gracectl.model.untrusted import Decoder
from gracectl.runtime.backoff import retried
from gracectl.runtime.clock import Clock
from gracectl.runtime.fence import Fence, FenceClosed
from gracectl.runtime.ratelimit import TokenBucket
from gracectl.runtime.slices import Slices

# A pod takes 30 µs to decode: this keeps the event loop's longest pause while listing at a few milliseconds. Where
# objects are large, it is their bytes that take the time.
_DECODED_BETWEEN_YIELDS = 100
_BYTES_BETWEEN_YIELDS = 1024 * 1024

# Of the event loop, from the start of a task until its request is in the socket: before that the decoding of a page
# would hold it up by milliseconds.
_TURNS_UNTIL_SENT = 3

# A server builds the whole of a page that is then abandoned: 16 s for 40 budgets with 100,000 labels (Kubernetes 1.37).
_CUT = 64

LARGEST_PAGE, HEAVY_PAGE = 32 * 1024 * 1024, 8 * 1024 * 1024
"""Bytes. A page of more than the first is abandoned and requested again with fewer objects, unless it is of one; after
a page of more than the second `limit` is halved, after others doubled up to the page size. 500 ordinary pods have 3 MB;
500 of the largest that a server stores, with every character escaped, 4.5 GB."""


WRITE_TIMEOUT_SECONDS = 40.0
"""A server waits up to 30 s for a webhook (timeoutSeconds; 10 by default), then lets the write pass if the
webhook may fail. A shorter timeout would never get anything written.
"""


Witness = Callable[[Operation], Callable[[], None] | None]
"""Gets the operation of each request about one object before it is sent; the result is called if the server answers
NotFound."""


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`timeout`: seconds for one attempt to read; `write_timeout`: for one to write, if that is longer; `page_size`:
    objects per page of a list; `longest_pause`: seconds for which a busy server may silence the client; `pool`: see
    transport.Request; `reads_as`: the user to impersonate in reads ("": none)."""

    timeout: float = 30.0
    write_timeout: float = WRITE_TIMEOUT_SECONDS
    longest_pause: float = float("inf")
    pool: str = ""
    page_size: int = 500
    reads_as: str = ""
    retry: RetrySettings = RetrySettings()


INTERACTIVE = ClientSettings(timeout=10.0, retry=RetrySettings(attempts=2))
"""For commands: a server that does not answer is reported soon. Elsewhere longer timeouts are better."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Part of a list; every part has the version of the whole.

    `items` has stand-ins for the `undecodable` objects.
    """

    items: tuple[T, ...]
    resource_version: str
    undecodable: tuple[UndecodableObject, ...] = ()
    continue_token: str = ""


class KubeClient:
    """Client of one API server over one transport. A key is (namespace, name), the namespace "" for cluster-scoped
    kinds.

    Every verb raises `errors.ApiError` by meaning. `witness`: learns of objects that the server does not find.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        *,
        limiter: TokenBucket | None = None,
        settings: ClientSettings | None = None,
        rng: random.Random | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._transport = transport
        self._witness = witness
        self._clock = clock
        self._limiter = limiter or TokenBucket(clock, qps=0, burst=1)
        self._settings = settings or ClientSettings()
        self._rng = rng or random.Random()
        self._fence: Fence | None = None
        self._tally = RequestRecorder()

    def fenced(self, fence: Fence) -> Self:
        """Copy of this client, with shared limits and statistics, that sends writes only through `fence`. A write, and
        each of its repeats, raises NotLeading if the fence is closed.
        """
        sibling = copy.copy(self)
        sibling._fence = fence
        return sibling

    @property
    def in_flight(self) -> int:
        """Requests that wait for their response, watches not counted."""
        return self._tally.in_flight

    async def get(self, resource: Resource[T], key: Key) -> T:
        """One object. Repeated on any transient failure."""
        return await self._decoded(resource, requests.get_request(resource, key), repeatable=True)

    async def list(
        self, resource: Resource[T], *, namespace: str = "", selection: Selection = ALL, not_older: str = ""
    ) -> AsyncGenerator[Page[T], None]:
        """The objects page by page, all of one consistent version.

        Each page is repeated on a transient failure; Gone when the server compacted its history between two
        pages. Pages have as many objects as fit into a bounded number of bytes; while one is decoded the next one is on
        its way, unless they are large. `not_older`: any version will do that is not older than this one ("0": any at
        all), so that the server's cache can answer instead of etcd; it does so in one page, and only if none is asked
        for.
        """
        token, limit = "", self._settings.page_size
        fetched: bytes | errors.ApiError | None = None

        async def fetch() -> None:
            nonlocal fetched
            request = requests.list_request(
                resource,
                namespace,
                limit=0 if not_older else limit,
                continue_token=token,
                selection=selection,
                not_older=not_older,
            )
            if limit > 1:
                request = msgspec.structs.replace(request, largest=LARGEST_PAGE)
            try:
                fetched = (await self._call(request, repeatable=True)).body
            except errors.ApiError as error:
                fetched = error  # raised when the page before has been taken

        while True:
            if fetched is None:
                await fetch()
            if isinstance(fetched, errors.ApiError):
                if not isinstance(fetched, errors.TooLarge) or limit <= 1:
                    raise fetched
                limit = limit if not_older else max(limit // _CUT, 1)
                not_older, fetched = "", None  # in pages, then
                continue
            assert fetched is not None
            body, fetched, not_older = fetched, None, ""
            is_heavy = len(body) > HEAVY_PAGE
            limit = max(limit // 2, 1) if is_heavy else min(2 * limit, self._settings.page_size)
            async with anyio.create_task_group() as group:
                if not is_heavy and (token := token_ahead(body)):
                    group.start_soon(fetch)
                    for _ in range(_TURNS_UNTIL_SENT):
                        await anyio.lowlevel.checkpoint()
                page = await self._decoded_page(resource, body, None if is_heavy else resource.wire_type)
            del body
            if isinstance(page, msgspec.DecodeError):  # the task group would wrap an exception
                operation = operation_of(requests.list_request(resource, namespace))
                raise _not_understood(operation, f"a list of {resource.plural}", page) from page
            token = page.continue_token
            yield page
            if not token:
                return

    async def create(self, resource: Resource[T], namespace: str, body: Json, *, dry_run: bool = False) -> T:
        """Create an object; apiVersion and kind are filled in. Never repeated once the server may have seen it."""
        request = requests.create_request(resource, namespace, body, dry_run=dry_run)
        return await self._decoded(resource, request, repeatable=False)

    async def ask(self, resource: Resource[T], question: Json) -> T:
        """Create an object that the server only answers and never stores (an access review). Repeats on any transient
        failure."""
        return await self._decoded(resource, requests.create_request(resource, "", question), repeatable=True)

    async def update(self, resource: Resource[T], key: Key, body: Json) -> T:
        """Replace an object by `body`, which is the whole of it as it was read, changed; Conflict if it has changed
        since. Repeated on any transient failure (the second execution is a Conflict).
        """
        repeatable = bool(body["metadata"]["resourceVersion"])
        return await self._decoded(resource, requests.update_request(resource, key, body), repeatable=repeatable)

    async def patch(
        self,
        resource: Resource[T],
        key: Key,
        patch: Patch,
        *,
        subresource: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> T:
        """Change an object, or its `status` subresource; Conflict unless it is the one that is meant.

        Repeated on any transient failure if `resource_version` is given (the second execution is a Conflict)
        or, for a merge, if `uid` is given (the second one writes the same values to the same object). A JSON
        patch under a mere uid may append twice, and is never repeated once the server may have seen it.
        """
        preconditions = Preconditions(uid, resource_version)
        request = requests.patch_request(resource, key, patch, subresource=subresource, preconditions=preconditions)
        repeatable = bool(resource_version) or (bool(uid) and not isinstance(patch, JsonPatch))
        return await self._decoded(resource, request, repeatable=repeatable)

    async def delete(
        self,
        resource: Resource[T],
        key: Key,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        precondition: Callable[[], bool] = lambda: True,
    ) -> None:
        """Delete an object; NotFound when it is gone. With a uid or version repeated on any transient failure.

        `grace_seconds` None leaves the grace to the object. A repeat may find it gone: that NotFound means
        done as well. `precondition` is asked as by `evict`: seconds of grace may no longer be right after a wait.
        """
        request = requests.delete_request(resource, key, Preconditions(uid, resource_version), grace_seconds)
        repeatable = bool(uid or resource_version)
        await self._call(request, repeatable=repeatable, finish=not resource.cancellable, precondition=precondition)

    async def evict(
        self,
        key: Key,
        *,
        uid: str,
        grace_seconds: int | None = None,
        precondition: Callable[[], bool] = lambda: True,
    ) -> None:
        """Evict the pod of that uid. Raises BudgetExhausted, MultipleBudgets, Conflict (uid_mismatch).
        `grace_seconds` None: the pod's own.

        Asked once: repeated only when the server surely did not execute it. After RequestTimeout, ServerError
        or Unreachable with `sent` the eviction may have happened: look at the pod before asking again. A uid
        that no longer holds is refused, *and has spent the budget all the same*: so `precondition` is asked when
        only the network lies between the request and the server, before each try; False raises Superseded.
        """
        request = requests.evict_request(key, uid, grace_seconds)
        await self._call(request, repeatable=False, precondition=precondition)

    async def server_version(self) -> str:
        """The server's version (`v1.31.0`): the cheapest question that shows whether it is there and knows us."""
        request = Request(method="GET", path="/version", timeout=self._settings.timeout)
        response = await self._call(request, repeatable=True)
        try:
            return _VERSION.decode(response.body).gitVersion
        except msgspec.DecodeError as error:
            raise _not_understood(operation_of(request), "a version", error) from error

    async def serves(self, resource: Resource[T]) -> bool:
        """Whether the server has this resource in this version. Asked of its discovery, which needs no right to the
        resource itself: without one the server refuses what it does not serve just as well (403, not 404)."""
        path = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        request = Request(method="GET", path=path, timeout=self._settings.timeout)
        try:
            response = await self._call(request, repeatable=True)
            served = _SERVED_VERSION.decode(response.body).resources
        except errors.NotServed:
            return False
        except msgspec.DecodeError as error:
            raise _not_understood(operation_of(request), "a list of resources", error) from error
        return any(each.name == resource.plural for each in served)

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource[T],
        resource_version: str,
        *,
        namespace: str = "",
        selection: Selection = ALL,
        timeout_seconds: int,
    ) -> AsyncIterator[Watch]:
        """The changes after `resource_version`, for at most `timeout_seconds`. Repeating is the reflector's work."""
        request = requests.watch_request(
            resource,
            resource_version,
            namespace=namespace,
            timeout_seconds=timeout_seconds,
            selection=selection,
        )
        settings = self._settings
        request = msgspec.structs.replace(request, pool=settings.pool, impersonate=settings.reads_as)
        operation = operation_of(request)
        await self._limiter.acquire()
        began = self._clock.monotonic()
        status: int | None = None
        async with AsyncExitStack() as stack:
            try:
                with anyio.fail_after(self._settings.timeout):
                    stream = await stack.enter_async_context(self._transport.stream(request))
                    status = stream.status
                    body = await stream.read() if stream.status >= 300 else b""
                if stream.status >= 300:
                    raise errors.error_for(request, Response(status=stream.status, headers=stream.headers, body=body))
            except TimeoutError as error:
                failure = errors.RequestTimeout(operation, waited=self._settings.timeout)
                self._note(operation, failure, status, began)
                raise failure from error
            except errors.ApiError as error:
                self._note(operation, error, status, began)
                raise
            self._note(operation, None, status, began)
            yield Watch(request, stream, resource.wire_type)

    def statistics(self) -> ClientStatistics:
        """Requests so far."""
        return self._tally.statistics()

    async def _decoded_page(self, resource: Resource[T], body: bytes, of: type | None) -> Page[T] | msgspec.DecodeError:
        """The page in this body, or why it is none; `of` as for decode_page_in_slices."""
        try:
            page = await Slices().run(decode_page_in_slices(body, of))
        except msgspec.DecodeError as error:
            return error
        items: builtins.list[T] = []
        undecodable = []
        decoded, decode, is_raw = 0, resource.decode, isinstance(next(iter(page.items), None), msgspec.Raw)
        for number, raw in enumerate(page.items, start=1):
            try:
                items.append(decode(raw))
            except msgspec.DecodeError as error:
                found = decode_envelope(raw, error)
                undecodable.append(found)
                if resource.stand_in is not None:
                    items.append(resource.stand_in(found))
            decoded += len(memoryview(raw)) if is_raw else 0
            if number % _DECODED_BETWEEN_YIELDS == 0 or decoded > _BYTES_BETWEEN_YIELDS:
                decoded = 0
                await anyio.lowlevel.checkpoint()
        return Page(tuple(items), page.resource_version, tuple(undecodable), page.continue_token)

    async def _decoded(self, resource: Resource[T], request: Request, *, repeatable: bool) -> T:
        response = await self._call(request, repeatable=repeatable, finish=not resource.cancellable)
        try:
            return resource.decode(response.body)
        except msgspec.DecodeError as error:
            raise _not_understood(operation_of(request), resource.kind, error) from error

    async def _call(
        self,
        request: Request,
        *,
        repeatable: bool,
        finish: bool = True,
        precondition: Callable[[], bool] = lambda: True,
    ) -> Response:
        settings, is_write = self._settings, request.method != "GET"
        timeout = max(settings.timeout, settings.write_timeout) if is_write else settings.timeout
        reads_as = "" if is_write else settings.reads_as
        request = msgspec.structs.replace(request, timeout=timeout, pool=settings.pool, impersonate=reads_as)
        operation = operation_of(request)
        hung = 0.0

        async def attempt() -> Response:
            nonlocal hung
            await self._limiter.acquire()
            if not precondition():
                raise errors.Superseded(operation)
            began = self._clock.monotonic()
            try:
                return await self._attempt(request, operation, began, finish=finish)
            except errors.ApiError:
                hung += self._clock.monotonic() - began
                raise

        def stop(state: RetryCallState) -> bool:
            has_hung = is_write and hung >= settings.retry.hanging
            return has_hung or state.attempt_number >= settings.retry.attempts

        return await retried(
            attempt,
            may_repeat=retryable(settings.retry, repeatable=repeatable),
            wait=lambda: retry_wait(settings.retry, self._rng),
            sleep=self._wait_before_retry,
            stop=stop,
        )

    async def _wait_before_retry(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        self._tally.note_retry()

    async def _attempt(self, request: Request, operation: Operation, began: float, *, finish: bool) -> Response:
        is_write = request.method != "GET"
        response = None
        # Before the request: another object may have the name by the time of the response.
        on_absence = self._witness(operation) if self._witness is not None and operation.name else None
        self._tally.in_flight += 1
        try:
            # A write in flight is shielded: a SIGTERM waits for its answer, at most `timeout` seconds.
            deadline = anyio.current_time() + request.timeout
            scope = anyio.CancelScope(deadline=deadline, shield=finish and is_write)
            # Outside of the scope, which begins with the deadline that counts: to move one means another timer.
            passage = self._fence.passage(scope) if is_write and self._fence is not None else nullcontext()
            with passage, scope:
                response = await self._transport.send(request)
            if response is None:
                raise errors.RequestTimeout(operation, waited=self._clock.monotonic() - began)
        except FenceClosed as error:
            raise errors.NotLeading(operation) from error
        except errors.ApiError as error:
            self._note(operation, error, None, began)
            raise
        finally:
            self._tally.in_flight -= 1
        if response.status >= 300:
            refusal = errors.error_for(request, response)
            self._note(operation, refusal, response.status, began)
            if on_absence is not None and isinstance(refusal, errors.NotFound):
                on_absence()
            raise refusal
        self._note(operation, None, response.status, began)
        return response

    def _note(self, operation: Operation, error: errors.ApiError | None, status: int | None, began: float) -> None:
        self._tally.note(operation, error, status, began=began, now=self._clock.monotonic())
        if isinstance(error, errors.Throttled):
            self._limiter.pause(min(error.delay, self._settings.longest_pause))


class _Version(msgspec.Struct):
    gitVersion: str  # noqa: N815  the server's spelling


class _ServedResource(msgspec.Struct):
    name: str


class _ServedVersion(msgspec.Struct):
    resources: list[_ServedResource]


_VERSION = Decoder(_Version)
_SERVED_VERSION = Decoder(_ServedVersion)


def _not_understood(operation: Operation, expected: str, error: msgspec.DecodeError) -> errors.ServerError:
    return errors.ServerError(operation, f"the answer is not {expected}: {error}")
