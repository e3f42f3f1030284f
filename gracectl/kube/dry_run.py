"""Transport of a dry run: reads are sent, writes are answered here as the server would, and reported.

Nothing that uses it can write: it is the one way to the server. What the writes would have changed is seen in every
later read and watch (`overlay`), so that each controller goes on as after a real write, and neither repeats nor misses
it. A pod that would be evicted or deleted is gone at once, with the attachments of its volumes; budgets stay as they
are, and no replacement is made.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import msgspec

from gracectl.kube.overlay import Overlay, Seen, is_gone, refusal
from gracectl.kube.patches import InvalidPatch, JsonObject, apply_patch, changed_fields, difference
from gracectl.kube.requests import get_request, list_request
from gracectl.kube.resources import BUDGETS, PODS, VOLUME_ATTACHMENTS, VOLUME_CLAIMS
from gracectl.kube.transport import Request, Response, Stream, Transport
from gracectl.kube.transport.operation import operation_of
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.encoding import encode
from gracectl.model.foreign import harmless
from gracectl.model.times import format_time
from gracectl.model.untrusted import Decoder
from gracectl.policy.budgets import Allowance, eviction_verdict
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

REPORTED: Final = 50_000
"""Pairs of object and action that are reported once; beyond that the oldest are forgotten."""

REVIEWS: Final = ("authorization.k8s.io", "authentication.k8s.io")
"""API groups of objects that are created to ask something, and never stored."""


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_OBJECT, _PAGE, _ANY = Decoder(dict[str, Any]), Decoder(_Page), Decoder(Any)


class DryRunTransport:
    """Transport that sends reads only, over another one. Watches need `run`."""

    def __init__(self, transport: Transport, clock: Clock) -> None:
        self._transport = transport
        self._overlay = Overlay(transport)
        self._clock = clock
        self._reported: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def run(self) -> None:
        """Serve watches until cancelled."""
        await self._overlay.run()

    def stream(self, request: Request) -> AbstractAsyncContextManager[Stream]:
        """See Transport."""
        return self._overlay.stream(request)

    async def send(self, request: Request) -> Response:
        """See Transport."""
        operation = operation_of(request)
        if request.method == "GET":
            return await self._overlay.send(request)
        if operation.verb == "create" and operation.group in REVIEWS:
            return await self._transport.send(request)
        if operation.plural == "events":  # what they say is in the log
            return Response(status=201 if operation.verb == "create" else 200, body=request.body or b"{}")
        body = _OBJECT.decode(request.body or b"{}") if operation.verb != "patch" else {}
        if operation.verb == "create" and operation.resource != "pods/eviction":
            name = str(body.get("metadata", {}).get("name", ""))
            self._report(name, f"create {operation.qualified} {name}", {})
            return Response(status=201, body=request.body or b"{}")
        path = request.path.removesuffix(f"/{operation.subresource}") if operation.subresource else request.path
        seen = await self._overlay.find(Request(method="GET", path=path, timeout=request.timeout))
        if isinstance(seen, Response):
            return seen
        if operation.verb == "create":
            return await self._evict(seen, body.get("deleteOptions", {}))
        if operation.verb == "delete":
            return await self._delete(seen, body)
        return self._change(seen, request)

    def _change(self, seen: Seen, request: Request) -> Response:
        try:
            content: Any = _ANY.decode(request.body or b"{}")
            result: JsonObject = (
                content if request.method == "PUT" else apply_patch(seen.thing, content, request.content_type)
            )
        except InvalidPatch as error:
            return refusal(422, "Invalid", str(error))
        if (stale := _stale(seen, result["metadata"])) is not None:
            return stale
        if change := difference(seen.thing, result):
            end = "; it would be gone" if is_gone(result) else ""
            self._report_on(seen, "change", f": {', '.join(changed_fields(change))}{end}")
            result = self._overlay.write(seen, result)
        return Response(status=200, body=encode(result))

    async def _delete(self, seen: Seen, options: JsonObject) -> Response:
        if (stale := _stale(seen, options.get("preconditions", {}))) is not None:
            return stale
        grace, metadata = options.get("gracePeriodSeconds"), seen.thing["metadata"]
        self._report_on(seen, "delete", "" if grace is None else f", with {grace} s of grace")
        if seen.operation.plural == PODS.plural:
            await self._remove_pod(seen)
        elif not metadata.get("finalizers"):
            self._overlay.remove(seen)
        elif "deletionTimestamp" not in metadata:
            stamped = {**metadata, "deletionTimestamp": format_time(self._clock.now()), "deletionGracePeriodSeconds": 0}
            self._overlay.write(seen, {**seen.thing, "metadata": stamped})
        return Response(status=200, body=encode(seen.thing))

    async def _evict(self, seen: Seen, options: JsonObject) -> Response:
        if (stale := _stale(seen, options.get("preconditions", {}))) is not None:
            return stale
        if (refused := await self._refused_by_budgets(seen.thing)) is not None:
            return refused
        self._report_on(seen, "evict")
        await self._remove_pod(seen)
        return Response(status=201, body=encode({"kind": "Status", "apiVersion": "v1", "status": "Success"}))

    async def _refused_by_budgets(self, thing: JsonObject) -> Response | None:
        """The eviction API's refusal for the budgets as they are; None: it would agree."""
        response = await self._overlay.send(list_request(BUDGETS, thing["metadata"]["namespace"]))
        if response.status >= 300:
            return response
        pod = PODS.decode(encode(thing))
        budgets = [BUDGETS.read(raw) for raw in _PAGE.decode(response.body).items or ()]
        verdict = eviction_verdict(pod, tuple(each for each in budgets if _selects(each, pod.labels)))
        if verdict.allowance in (Allowance.ALLOWED, Allowance.UNCHARGED):
            return None
        if verdict.allowance is Allowance.AMBIGUOUS:
            return refusal(500, "InternalError", f"more than one PodDisruptionBudget: {verdict.reason}")
        return refusal(429, "TooManyRequests", verdict.reason, causes=[{"reason": "DisruptionBudget"}])

    async def _remove_pod(self, seen: Seen) -> None:
        """The pod is gone, and its volumes are detached from its node."""
        self._overlay.remove(seen)
        metadata, spec = seen.thing["metadata"], seen.thing["spec"]
        volumes = set()
        for volume in spec.get("volumes") or ():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName", f"{metadata['name']}-{volume['name']}")
            if "persistentVolumeClaim" in volume or "ephemeral" in volume:
                found = await self._overlay.find(get_request(VOLUME_CLAIMS, (metadata["namespace"], claim)))
                volumes.add(found.thing["spec"].get("volumeName") if isinstance(found, Seen) else None)
        if not volumes - {None}:
            return
        listing = list_request(VOLUME_ATTACHMENTS)
        response = await self._overlay.send(listing)
        for raw in (_PAGE.decode(response.body).items or ()) if response.status < 300 else ():
            attachment = _OBJECT.decode(raw)
            volume = attachment["spec"]["source"].get("persistentVolumeName")
            if volume in volumes and attachment["spec"]["nodeName"] == spec.get("nodeName"):
                self._overlay.remove(Seen(operation_of(listing), attachment, attachment))

    def _report_on(self, seen: Seen, verb: str, details: str = "") -> None:
        metadata = seen.thing["metadata"]
        kind, name = str(seen.thing["kind"]).lower(), str(metadata["name"])
        place = f"{metadata['namespace']}/{name}" if metadata.get("namespace") else name
        self._report(
            metadata["uid"], f"{verb} {kind} {place}{details}", {kind if kind in ("node", "pod") else "key": place}
        )

    def _report(self, uid: str, action: str, extra: dict[str, str]) -> None:
        """Log what would be done, once."""
        if (uid, action) not in self._reported:
            logger.info("would %s", harmless(action, 1000), extra=extra)
        self._reported[uid, action] = None
        self._reported.move_to_end((uid, action))
        while len(self._reported) > REPORTED:
            self._reported.popitem(last=False)


def _stale(seen: Seen, wanted: JsonObject) -> Response | None:
    """The refusal if another object, or another state of it, is meant."""
    is_, message = seen.thing["metadata"], f"{seen.operation.target} has been changed"
    if wanted.get("uid", is_["uid"]) != is_["uid"]:
        return refusal(409, "Conflict", f"UID in precondition: {message}")
    if wanted.get("resourceVersion", is_["resourceVersion"]) != is_["resourceVersion"]:
        return refusal(409, "Conflict", message)
    return None


def _selects(budget: PodDisruptionBudget, labels: Any) -> bool:
    return budget.selector is not None and budget.selector.matches(labels)
