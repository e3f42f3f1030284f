"""Reads of a cluster in which some writes count as done that were never sent, for dry runs.

Invariants: what is read, listed and watched shows the same changes; the version of an object grows with each of its
changes, real or not; a watch is resumed from a version that the server has sent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple

import anyio
import msgspec

from gracectl.kube.client.watch import OversizeLine
from gracectl.kube.patches import JsonObject, apply_difference, difference
from gracectl.kube.transport import Request, Response, Stream, Transport
from gracectl.kube.transport.operation import Operation, operation_of
from gracectl.model.encoding import encode
from gracectl.model.envelope import CHANGES
from gracectl.model.untrusted import Decoder

REMEMBERED: Final = 1000
"""Versions made here that a watch may be resumed from."""


class _Meta(msgspec.Struct):
    uid: str = ""
    resourceVersion: str = ""  # noqa: N815  the server's spelling


class _Head(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMeta(msgspec.Struct, rename={"continue_": "continue"}):
    continue_: str = ""


_LIST_META = Decoder(_ListMeta)
_HEAD, _EVENT = Decoder(_Head), Decoder(_Event)
_OBJECT, _PAGE, _ITEMS = Decoder(dict[str, Any]), Decoder(dict[str, msgspec.Raw]), Decoder(list[msgspec.Raw])


class Seen(msgspec.Struct, frozen=True):
    """An object as it is on the server, and as it is seen here."""

    operation: Operation
    """The read that has found it."""
    real: JsonObject
    thing: JsonObject


class _Change:
    """What was changed here of one object. `unseen`: the object, until a watch has shown it so."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.difference: Any = {}
        self.is_gone = False
        self.unseen: JsonObject | None = None
        self._real = ""
        self._shown = 0

    def apply(self, real: JsonObject) -> JsonObject:
        """The object as it is seen."""
        self.note(real["metadata"]["resourceVersion"])
        thing: JsonObject = apply_difference(real, self.difference)
        thing["metadata"] = {**thing["metadata"], "resourceVersion": str(self._shown)}
        if self.unseen is not None:
            self.unseen = thing
        return thing

    def note(self, version: str) -> None:
        """The server has this version of the object."""
        if version != self._real:
            self._real, self._shown = version, max(int(version), self._shown + 1)

    def turn(self) -> None:
        """It has changed here: it is seen under another version."""
        self._shown += 1


class _Line(NamedTuple):
    """Line of a watch; the change that it shows, and under which version."""

    text: bytes
    change: _Change | None = None
    version: str = ""


class _View:
    """A watch that shows the changes. `made`: by each of the last versions that were made here, the version at which
    the server was."""

    def __init__(self, stream: Stream, request: Request) -> None:
        query = dict(request.query)
        self.stream = stream
        self.operation = operation_of(request)
        self.has_selector = bool(query.get("labelSelector") or query.get("fieldSelector"))
        self.real = query.get("resourceVersion", "")
        self.made: OrderedDict[str, str] = OrderedDict()
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.failure: Exception | None = None
        self.sender, self.receiver = anyio.create_memory_object_stream[_Line](float("inf"))
        self.status, self.headers = stream.status, stream.headers

    def show(self, change: _Change) -> None:
        """Show an object as it was changed here, if the watch is about it, and none has shown it yet."""
        watched, kind = self.operation, change.operation
        if change.unseen is None or (watched.group, watched.plural) != (kind.group, kind.plural) or self.has_selector:
            return
        if watched.namespace in ("", change.unseen["metadata"].get("namespace", "")):
            self.put_changed("DELETED" if change.is_gone else "MODIFIED", change, change.unseen)

    def put_changed(self, type_: str, change: _Change, thing: JsonObject) -> None:
        """Show this state of an object."""
        version = thing["metadata"]["resourceVersion"]
        self.made[version] = self.real
        while len(self.made) > REMEMBERED:
            self.made.popitem(last=False)
        self.sender.send_nowait(_Line(encode({"type": type_, "object": thing}), change, version))

    def put(self, text: bytes, real: str = "") -> None:
        """Show a line of the server."""
        self.real = real or self.real
        self.sender.send_nowait(_Line(text))

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """See Stream."""
        async for text, change, version in self.receiver:
            yield text
            # Its reader wants the next one: it has taken this.
            unseen = None if change is None else change.unseen
            if change is not None and unseen is not None and unseen["metadata"]["resourceVersion"] == version:
                change.unseen = None
        if self.failure is not None:
            raise self.failure

    async def read(self) -> bytes:
        """See Stream."""
        return await self.stream.read()


class Overlay:
    """Reads over a transport, with changes applied. Watches need `run`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changes: dict[str, _Change] = {}  # by uid
        self._unlisted: dict[tuple[str, str], set[str]] = {}  # by kind, uids that a list in progress has not had yet
        self._views: dict[_View, None] = {}
        self._made: dict[Request, OrderedDict[str, str]] = {}  # by watch, without its version: see _View
        self._follow: Callable[[_View], object] | None = None
        self._is_running = anyio.Event()

    async def run(self) -> None:
        """Follow watches until cancelled."""
        async with anyio.create_task_group() as group:
            self._follow = lambda view: group.start_soon(self._read_on, view)
            self._is_running.set()
            await anyio.sleep_forever()

    async def send(self, request: Request) -> Response:
        """The answer to a read."""
        response = await self._transport.send(request)
        if not self._changes or response.status >= 300:
            return response
        operation = operation_of(request)
        if operation.verb == "list":
            return msgspec.structs.replace(response, body=self._changed_page(request, operation, response.body))
        return self._changed_object(operation, response)

    async def find(self, request: Request) -> Seen | Response:
        """The object that a GET reads; the answer if there is none."""
        response = await self._transport.send(request)
        if response.status >= 300:
            return response
        operation, real = operation_of(request), _OBJECT.decode(response.body)
        change = self._changes.get(real["metadata"]["uid"])
        if change is None:
            return Seen(operation, real, real)
        return not_found(operation) if change.is_gone else Seen(operation, real, change.apply(real))

    def write(self, seen: Seen, result: JsonObject) -> JsonObject:
        """Have the object be `result` from now on, whose version does not count; returns it."""
        if is_gone(result):
            self.remove(seen)
            return result
        change = self._change_of(seen)
        unversioned = {
            **result,
            "metadata": {**result["metadata"], "resourceVersion": seen.real["metadata"]["resourceVersion"]},
        }
        change.difference = difference(seen.real, unversioned)
        return self._show(change, seen)

    def remove(self, seen: Seen) -> None:
        """Have the object be gone from now on."""
        change = self._change_of(seen)
        change.is_gone = True
        self._show(change, seen)

    def _change_of(self, seen: Seen) -> _Change:
        change = self._changes.setdefault(seen.real["metadata"]["uid"], _Change(seen.operation))
        change.note(seen.real["metadata"]["resourceVersion"])
        change.turn()
        return change

    def _show(self, change: _Change, seen: Seen) -> JsonObject:
        change.unseen = thing = change.apply(seen.real)
        for view in self._views:
            view.show(change)
        return thing

    # -- what the server sends, with the changes -----------------------------------------------------------------------

    def _changed_object(self, operation: Operation, response: Response) -> Response:
        change = self._changes.get(_HEAD.decode(response.body).metadata.uid)
        if change is None:
            return response
        if change.is_gone:
            return not_found(operation)
        return msgspec.structs.replace(response, body=encode(change.apply(_OBJECT.decode(response.body))))

    def _changed_page(self, request: Request, operation: Operation, body: bytes) -> bytes:
        page = _PAGE.decode(body)
        items: list[Any] = []
        listed = set()
        for raw in _ITEMS.decode(page.get("items") or b"[]"):
            listed.add(uid := _HEAD.decode(raw).metadata.uid)
            change = self._changes.get(uid)
            if change is None:
                items.append(raw)
            elif not change.is_gone:
                items.append(change.apply(_OBJECT.decode(raw)))
        has_more = bool(_LIST_META.decode(page.get("metadata") or b"{}").continue_)
        self._forget_unlisted(request, operation, listed, has_more=has_more)
        return encode({**page, "items": items})

    def _forget_unlisted(self, request: Request, operation: Operation, listed: set[str], *, has_more: bool) -> None:
        """Forget what was changed of objects that a complete list, of which this is a page, does not have."""
        query, kind = dict(request.query), (operation.group, operation.plural)
        if operation.namespace or query.get("labelSelector") or query.get("fieldSelector"):
            return
        if "continue" not in query:
            changes = self._changes.items()
            same = {uid for uid, each in changes if (each.operation.group, each.operation.plural) == kind}
            self._unlisted[kind] = same
        unlisted = self._unlisted.get(kind, set())
        unlisted -= listed
        if not has_more:
            for uid in unlisted:
                self._changes.pop(uid, None)
            self._unlisted.pop(kind, None)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """See Transport."""
        await self._is_running.wait()
        assert self._follow is not None
        watch = _without_version(request)
        made = self._made.get(watch, OrderedDict())
        query = (
            (name, made.get(value, value) if name == "resourceVersion" else value) for name, value in request.query
        )
        request = msgspec.structs.replace(request, query=tuple(query))
        async with self._transport.stream(request) as stream:
            if stream.status >= 300:
                yield stream
                return
            view = _View(stream, request)
            view.made = made
            self._views[view] = None
            for change in self._changes.values():  # while there was no watch, or its reader had gone
                view.show(change)
            self._follow(view)
            try:
                yield view
            finally:
                del self._views[view]
                self._made[watch] = view.made
                view.scope.cancel()
                with anyio.CancelScope(shield=True):
                    await view.ended.wait()
                view.receiver.close()

    async def _read_on(self, view: _View) -> None:
        try:
            with view.scope:
                async with aclosing(view.stream.lines()) as lines:
                    async for line in lines:
                        self._pass(view, line)
        except Exception as error:  # raised to the reader of the view
            view.failure = error
        finally:
            view.sender.close()
            view.ended.set()

    def _pass(self, view: _View, line: bytes) -> None:
        """Show a line of the server, changed if need be; that an object has changed that is gone here is not shown."""
        try:
            event = _EVENT.decode(line)
            head = _HEAD.decode(event.object).metadata
        except msgspec.DecodeError:
            return view.put(line)
        change = self._changes.get(head.uid)
        if isinstance(line, OversizeLine) or change is None or event.type not in CHANGES:
            return view.put(line, real=head.resourceVersion)
        if event.type == "DELETED":
            del self._changes[head.uid]
            return view.put(line, real=head.resourceVersion)
        if change.is_gone:
            view.real = head.resourceVersion
            return None
        view.real = head.resourceVersion
        return view.put_changed(event.type, change, change.apply(_OBJECT.decode(event.object)))


def is_gone(thing: JsonObject) -> bool:
    """Whether the object is deleted, and nothing holds it."""
    return "deletionTimestamp" in thing["metadata"] and not thing["metadata"].get("finalizers")


def _without_version(request: Request) -> Request:
    """The watch, whatever its beginning and its length."""
    query = tuple(each for each in request.query if each[0] not in ("resourceVersion", "timeoutSeconds"))
    return Request(method=request.method, path=request.path, query=query)


def not_found(operation: Operation) -> Response:
    """The answer for an object that is gone."""
    return refusal(404, "NotFound", f'{operation.qualified} "{operation.name}" not found', name=operation.name)


def refusal(code: int, reason: str, message: str, **details: object) -> Response:
    """An answer that is a metav1.Status."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return Response(status=code, body=encode({**status, "message": message, "details": details}))
