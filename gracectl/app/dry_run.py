"""Transport of a dry run: reads are sent; writes are answered here, and each is logged once.

Nothing that uses it can write: it is the only way to the server. A changed object shows its change in later reads, so
that no controller takes its own write for undone by others. A pod that would leave is not shown any longer, and volumes
count as detached. Nothing else follows: budgets stay as they are, and no replacement starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import msgspec

from gracectl.kube.cache import Cache
from gracectl.kube.client.watch import OversizeLine
from gracectl.kube.requests import JsonPatch, StrategicPatch, list_request
from gracectl.kube.resources import BUDGETS, PODS, VOLUME_ATTACHMENTS, Resource
from gracectl.kube.transport import Request, Response, Stream, Transport
from gracectl.kube.transport.operation import Operation, operation_of
from gracectl.model.encoding import encode
from gracectl.model.envelope import CHANGES
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time
from gracectl.model.untrusted import Decoder
from gracectl.policy.budgets import Allowance, eviction_verdict
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

REPORTED: Final = 50_000
"""Pairs of object and action that are logged once. Beyond that the oldest are forgotten."""

RESUMED: Final = 1000
"""Versions made here that a watch may be resumed from."""

REVIEWS: Final = ("authorization.k8s.io", "authentication.k8s.io")
"""API groups of objects that are created to ask something, and never stored."""

JsonObject = dict[str, Any]

_BY_TYPE: Final = "conditions by type"  # no field has this name


class InvalidPatch(ValueError):
    """The patch cannot be applied to this object."""


class _Meta(msgspec.Struct):
    uid: str = ""


class _Head(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Change(msgspec.Struct, frozen=True):
    """Merge patch that makes an object what it would be. At version `real` of the server it is shown as `version`."""

    patch: JsonObject
    real: str
    version: int


_OBJECT, _PAGE, _ANY = Decoder(JsonObject), Decoder(dict[str, msgspec.Raw]), Decoder(Any)
_HEAD, _EVENT, _ITEMS = Decoder(_Head), Decoder(_Event), Decoder(list[msgspec.Raw])


class DryRunTransport:
    """Transport that sends only reads over another transport."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._clock = clock
        self._changes: dict[str, _Change | None] = {}  # by uid; None: it would be gone
        self._reported: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._real_versions: OrderedDict[str, str] = OrderedDict()  # by version made here: the server's
        self.caches: tuple[tuple[Resource[Any], Cache[Any]], ...] = ()
        """Caches of watched kinds. They learn of writes here, because no watch shows them."""

    async def send(self, request: Request) -> Response:
        """See Transport."""
        operation = operation_of(request)
        if request.method == "GET":
            return self._shown(operation, await self._transport.send(request))
        if operation.verb == "create" and operation.group in REVIEWS:
            return await self._transport.send(request)
        if operation.plural == "events":  # the log says what they say
            return Response(status=201 if operation.verb == "create" else 200, body=request.body or b"{}")
        if operation.verb == "create" and operation.resource != "pods/eviction":
            name = str(_OBJECT.decode(request.body or b"{}").get("metadata", {}).get("name", ""))
            self._report(name, f"create {operation.qualified} {name}", {})
            return Response(status=201, body=request.body or b"{}")
        path = request.path.removesuffix(f"/{operation.subresource}") if operation.subresource else request.path
        response = await self._transport.send(Request(method="GET", path=path, timeout=request.timeout))
        if response.status >= 300:
            return response
        real = _OBJECT.decode(response.body)
        if (seen := self._as_seen(real)) is None:
            return _not_found(operation)
        content: Any = _ANY.decode(request.body or b"{}")
        if operation.verb == "create":
            return await self._evict(operation, seen, content.get("deleteOptions", {}))
        if operation.verb == "delete":
            return self._delete(operation, real, seen, content)
        try:
            result = content if request.method == "PUT" else apply_patch(seen, content, request.content_type)
        except InvalidPatch as error:
            return _refusal(422, "Invalid", str(error))
        return self._change(operation, real, seen, result)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """See Transport."""
        made = self._real_versions
        query = tuple(
            (name, made.get(value, value) if name == "resourceVersion" else value) for name, value in request.query
        )
        async with self._transport.stream(msgspec.structs.replace(request, query=query)) as stream:
            yield _ShownStream(stream, self, operation_of(request))

    # -- writes --------------------------------------------------------------------------------------------------------

    def _change(self, operation: Operation, real: JsonObject, seen: JsonObject, result: JsonObject) -> Response:
        if (stale := _stale(operation, seen, result["metadata"])) is not None:
            return stale
        if change := merge_patch(seen, result):
            metadata = result["metadata"]
            is_gone = "deletionTimestamp" in metadata and not metadata.get("finalizers")
            end = "; it would be gone" if is_gone else ""
            self._report_on(seen, "change", f": {', '.join(changed_fields(change))}{end}")
            if is_gone:
                self._remove(operation, seen)
            else:
                result = self._remember(operation, real, result)
        return Response(status=200, body=encode(result))

    def _delete(self, operation: Operation, real: JsonObject, seen: JsonObject, options: JsonObject) -> Response:
        if (stale := _stale(operation, seen, options.get("preconditions", {}))) is not None:
            return stale
        grace, metadata = options.get("gracePeriodSeconds"), seen["metadata"]
        self._report_on(seen, "delete", "" if grace is None else f", with {grace} s of grace")
        if not metadata.get("finalizers") or operation.plural == PODS.plural:
            self._remove(operation, seen)
        elif "deletionTimestamp" not in metadata:
            stamp = {"deletionTimestamp": format_time(self._clock.now()), "deletionGracePeriodSeconds": 0}
            seen = self._remember(operation, real, {**seen, "metadata": {**metadata, **stamp}})
        return Response(status=200, body=encode(seen))

    async def _evict(self, operation: Operation, pod: JsonObject, options: JsonObject) -> Response:
        if (stale := _stale(operation, pod, options.get("preconditions", {}))) is not None:
            return stale
        if (refused := await self._refused_by_budgets(pod)) is not None:
            return refused
        self._report_on(pod, "evict")
        self._remove(operation, pod)
        return Response(status=201, body=encode({"kind": "Status", "apiVersion": "v1", "status": "Success"}))

    async def _refused_by_budgets(self, thing: JsonObject) -> Response | None:
        """The eviction API's refusal for the budgets as they are; None: it would agree."""
        response = await self._transport.send(list_request(BUDGETS, thing["metadata"]["namespace"]))
        if response.status >= 300:
            return response
        pod = PODS.decode(encode(thing))
        budgets = (BUDGETS.read(raw) for raw in _ITEMS.decode(_PAGE.decode(response.body).get("items") or b"[]"))
        selecting = tuple(each for each in budgets if each.selector is not None and each.selector.matches(pod.labels))
        verdict = eviction_verdict(pod, selecting)
        if verdict.allowance in (Allowance.ALLOWED, Allowance.UNCHARGED):
            return None
        if verdict.allowance is Allowance.AMBIGUOUS:
            return _refusal(500, "InternalError", f"more than one PodDisruptionBudget: {verdict.reason}")
        return _refusal(429, "TooManyRequests", verdict.reason, causes=[{"reason": "DisruptionBudget"}])

    def _remove(self, operation: Operation, thing: JsonObject) -> None:
        """Show the object no longer."""
        self._changes[uid := thing["metadata"]["uid"]] = None
        for _, cache in self._followed(operation):
            # Once the response has been handled, as a watch would.
            asyncio.get_running_loop().call_soon(cache.learn_gone, (operation.namespace, operation.name), uid)

    def _remember(self, operation: Operation, real: JsonObject, result: JsonObject) -> JsonObject:
        """Show the object as `result` from now on; returns it with its version."""
        uid, real_version = real["metadata"]["uid"], real["metadata"]["resourceVersion"]
        before = self._changes.get(uid)
        version = max(int(real_version), before.version if before is not None else 0) + 1
        unversioned = {**result, "metadata": {**result["metadata"], "resourceVersion": real_version}}
        self._changes[uid] = _Change(merge_patch(_keyed(real), _keyed(unversioned)), real_version, version)
        answer = self._changed(real)
        for resource, cache in self._followed(operation):
            asyncio.get_running_loop().call_soon(cache.put, resource.decode(encode(answer)))
        return answer

    def _followed(self, operation: Operation) -> Iterator[tuple[Resource[Any], Cache[Any]]]:
        kind = operation.group, operation.plural
        return (each for each in self.caches if (each[0].group, each[0].plural) == kind)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def _as_seen(self, real: JsonObject) -> JsonObject | None:
        """The object with its change, if it has one; None if it would be gone."""
        uid = real["metadata"]["uid"]
        if uid not in self._changes:
            return real
        return None if self._changes[uid] is None else self._changed(real)

    def _changed(self, real: JsonObject) -> JsonObject:
        """The object with its change, under a version that grows with each change here and on the server."""
        metadata = real["metadata"]
        change = self._changes[metadata["uid"]]
        assert change is not None
        if metadata["resourceVersion"] != change.real:
            version = max(int(metadata["resourceVersion"]), change.version + 1)
            change = _Change(change.patch, metadata["resourceVersion"], version)
            self._changes[metadata["uid"]] = change
            self._real_versions[str(version)] = change.real
            while len(self._real_versions) > RESUMED:
                self._real_versions.popitem(last=False)
        thing = _listed(_merge(_keyed(real), change.patch))
        return {**thing, "metadata": {**thing["metadata"], "resourceVersion": str(change.version)}}

    def _shown(self, operation: Operation, response: Response) -> Response:
        is_hidden = operation.plural == VOLUME_ATTACHMENTS.plural
        if not (self._changes or is_hidden) or response.status >= 300:
            return response
        if operation.verb != "list":
            if _HEAD.decode(response.body).metadata.uid not in self._changes:
                return response
            seen = self._as_seen(_OBJECT.decode(response.body))
            return msgspec.structs.replace(response, body=encode(seen)) if seen is not None else _not_found(operation)
        page = _PAGE.decode(response.body)
        items: list[Any] = []
        for raw in () if is_hidden else _ITEMS.decode(page.get("items") or b"[]"):
            is_changed = _HEAD.decode(raw).metadata.uid in self._changes
            items.append(self._as_seen(_OBJECT.decode(raw)) if is_changed else raw)
        body = encode({**page, "items": [item for item in items if item is not None]})
        return msgspec.structs.replace(response, body=body)

    def shown_line(self, operation: Operation, line: bytes) -> bytes | None:
        """The line of a watch with the change of its object; None if that is not shown."""
        is_hidden = operation.plural == VOLUME_ATTACHMENTS.plural
        if not (self._changes or is_hidden) or isinstance(line, OversizeLine):
            return line
        try:
            event = _EVENT.decode(line)
            uid = _HEAD.decode(event.object).metadata.uid
        except msgspec.DecodeError:
            return line
        if event.type not in CHANGES or not (uid in self._changes or is_hidden):
            return line
        if event.type == "DELETED":
            self._changes.pop(uid, None)
            return line
        seen = None if is_hidden else self._as_seen(_OBJECT.decode(event.object))
        return None if seen is None else encode({"type": event.type, "object": seen})

    # -- log -----------------------------------------------------------------------------------------------------------

    def _report_on(self, thing: JsonObject, verb: str, details: str = "") -> None:
        metadata = thing["metadata"]
        kind, name = str(thing["kind"]).lower(), str(metadata["name"])
        place = f"{metadata['namespace']}/{name}" if metadata.get("namespace") else name
        extra = {kind if kind in ("node", "pod") else "key": place}
        self._report(metadata["uid"], f"{verb} {kind} {place}{details}", extra)

    def _report(self, uid: str, action: str, extra: Mapping[str, str]) -> None:
        if (uid, action) not in self._reported:
            logger.info("would %s", harmless(action, 1000), extra=extra)
        self._reported[uid, action] = None
        self._reported.move_to_end((uid, action))
        while len(self._reported) > REPORTED:
            self._reported.popitem(last=False)


class _ShownStream:
    """A watch that shows the changes."""

    def __init__(self, stream: Stream, transport: DryRunTransport, operation: Operation) -> None:
        self.status, self.headers = stream.status, stream.headers
        self._operation = operation
        self._stream = stream
        self._transport = transport

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """See Stream."""
        async with aclosing(self._stream.lines()) as lines:
            async for line in lines:
                if (shown := self._transport.shown_line(self._operation, line)) is not None:
                    yield shown

    async def read(self) -> bytes:
        """See Stream."""
        return await self._stream.read()


def _stale(operation: Operation, seen: JsonObject, wanted: Mapping[str, Any]) -> Response | None:
    """Conflict if the request is for another object, or another state of it."""
    metadata, message = seen["metadata"], f"{operation.target} has been changed"
    if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
        return _refusal(409, "Conflict", f"UID in precondition: {message}")
    if wanted.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
        return _refusal(409, "Conflict", message)
    return None


def _not_found(operation: Operation) -> Response:
    name = operation.name
    return _refusal(404, "NotFound", f'{operation.plural} "{name}" not found', name=name, kind=operation.plural)


def _refusal(code: int, reason: str, message: str, **details: object) -> Response:
    """A response that is a metav1.Status."""
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return Response(status=code, body=encode({**status, "message": message, "details": details}))


def changed_fields(change: JsonObject) -> Iterator[str]:
    """Paths of the fields of a merge patch, two levels deep: `spec.taints`."""
    for section, fields in change.items():
        if isinstance(fields, dict) and fields:
            yield from (f"{section}.{name}" for name in fields)
        else:
            yield section


def merge_patch(old: JsonObject, new: JsonObject) -> JsonObject:
    """The JSON merge patch (RFC 7386) that makes `old` become `new`; {} if nothing differs."""
    patch: JsonObject = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if name not in old or before != value:
            is_inner = isinstance(before, dict) and isinstance(value, dict)
            patch[name] = merge_patch(dict(before or {}), value) if is_inner else value
    return patch


def apply_patch(thing: JsonObject, body: Any, content_type: str) -> JsonObject:
    """The object with the patch applied; the original is unchanged. Raises InvalidPatch.

    Of strategic merge patches only conditions are merged, by their type: gracectl sends no other lists in them.
    """
    if content_type == StrategicPatch.content_type:
        return _listed(_merge(_keyed(thing), _keyed(body)))
    if content_type != JsonPatch.content_type:
        merged: JsonObject = _merge(thing, body)
        return merged
    for operation in body:
        thing = _operate(thing, operation)
    return thing


def _keyed(thing: JsonObject) -> JsonObject:
    """The object with its conditions by type, so that a merge patch can name one; None deletes it."""
    status = thing.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    if not isinstance(conditions, list) or not all(isinstance(each, dict) for each in conditions):
        return thing
    by_type = {str(each.get("type")): None if each.get("$patch") == "delete" else each for each in conditions}
    kept = {name: value for name, value in (status or {}).items() if name != "conditions"}
    return {**thing, "status": {**kept, _BY_TYPE: by_type}}


def _listed(thing: JsonObject) -> JsonObject:
    """Undo `_keyed`."""
    status = thing.get("status")
    if not isinstance(status, dict) or _BY_TYPE not in status:
        return thing
    kept = {name: value for name, value in status.items() if name != _BY_TYPE}
    return {**thing, "status": {**kept, "conditions": [*status[_BY_TYPE].values()]}}


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _operate(thing: JsonObject, operation: JsonObject) -> JsonObject:
    """The object after one operation of RFC 6902: add, replace, remove or test.

    Only objects on the path are copied: the rest may be nested too deeply for a recursion.
    """
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    result = dict(thing)
    place: Any = result
    try:
        for part in parents:
            step = int(part) if isinstance(place, list) else part
            place[step] = place = _shallow_copy(place[step])
        key: Any = last
        if isinstance(place, list):
            key = len(place) if last == "-" else int(last)
        match operation["op"]:
            case "add" if isinstance(place, list):
                place.insert(key, operation["value"])
            case "add":
                place[key] = operation["value"]
            case "replace":
                place[key]  # must be there
                place[key] = operation["value"]
            case "remove":
                del place[key]
            case "test" if place[key] == operation["value"]:
                pass
            case other:
                raise InvalidPatch(f"{other} {operation['path']}: not as expected")
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise InvalidPatch(f"{operation['op']} {operation['path']}: {error}") from error
    return result


def _shallow_copy(place: Any) -> Any:
    if not isinstance(place, (dict, list)):
        raise TypeError(f"{type(place).__name__} has no members")
    return place.copy()
