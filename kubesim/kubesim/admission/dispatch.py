"""Dispatch to webhooks: mutating ones one after another, validating ones concurrently.

Invariants: a mutating webhook sees the object as the previous one left it; a webhook with IfNeeded is called a second
time if another one changed the object later; every validating webhook is called, and the first refusal wins.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import orjson

from kubesim.admission.caller import WebhookCaller, body_of, post_failed
from kubesim.admission.failures import (
    CallFailed,
    call_failed,
    denied,
    internal_error,
    modifies_nothing,
    no_dry_run,
)
from kubesim.admission.index import Index
from kubesim.admission.matching import Matcher
from kubesim.admission.responses import Verdict, verdict
from kubesim.admission.reviews import Match, review
from kubesim.admission.shapes import OF_THE_OBJECT, Objects, shown, stored
from kubesim.admission.webhooks import Webhook
from kubesim.server.api import JsonObject, Request
from kubesim.server.calls import Call, Operation, Write
from kubesim.server.goformat import decoded_as
from kubesim.server.jsonpatch import PatchFault, patched
from kubesim.server.stamps import Stamps
from kubesim.server.status import Refusal
from kubesim.values import parse_seconds

Pause = Callable[[str], Awaitable[None]]
"""Something that happens before a webhook of that name is reached (a fault), on the webhook's time."""

Decode = Callable[[Call, JsonObject], JsonObject]
"""Reads the object of a POST as Go would decode it (BodyCheck.sent). Raises Refusal for a value of a wrong type."""


LIMIT: Final = 34.0
"""Seconds after which kube-apiserver gives up any write, whatever its client says."""


async def _at_once(name: str) -> None:
    pass


def _as_it_is(call: Call, object_: JsonObject) -> JsonObject:
    return object_


class Reinvocation:
    """Which mutating webhooks must be asked a second time."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self.again: set[str] = set()
        self.changed = False

    def note(self, webhook: Webhook, *, changed: bool) -> None:
        """A webhook was called; those called before a change may be called again."""
        if changed:
            self.changed = True
            self.again |= self._asked
            self._asked = set()
        if webhook.reinvocable:
            self._asked.add(webhook.id)


class WebhookAdmission:
    """Admission (see hooks) by the webhook configurations in the store."""

    def __init__(
        self,
        index: Index,
        matcher: Matcher,
        stamps: Stamps,
        caller: WebhookCaller,
        *,
        pause: Pause = _at_once,
        decode: Decode = _as_it_is,
    ) -> None:
        """`pause`: see Pause; `decode`: what becomes of an object that a webhook has patched."""
        self._index = index
        self._matcher = matcher
        self._stamps = stamps
        self._caller = caller
        self._pause = pause
        self._decode = decode

    def concerns(self, call: Call, operation: Operation) -> bool:
        """See Admission."""
        return self._index.concerns(call.route, operation)

    async def aclose(self) -> None:
        """Let go of connections to webhooks."""
        await self._caller.aclose()

    # -- mutating ------------------------------------------------------------------------------------------------------

    async def mutate(self, write: Write, new: JsonObject | None, old: JsonObject | None) -> JsonObject | None:
        """See Admission."""
        with patience(write):
            return await self._all_mutated(write, new, old)
        raise too_late()

    async def _all_mutated(self, write: Write, new: JsonObject | None, old: JsonObject | None) -> JsonObject | None:
        reinvocation = Reinvocation()
        for webhook in self._index.mutating:
            new = await self._mutated(webhook, write, Objects(new, old), reinvocation)
        if reinvocation.changed:
            for webhook in self._index.mutating:
                if webhook.id in reinvocation.again:
                    new = await self._mutated(webhook, write, Objects(new, old), reinvocation)
        return new

    async def _mutated(
        self, webhook: Webhook, write: Write, objects: Objects, reinvocation: Reinvocation
    ) -> JsonObject | None:
        """The stored object as a webhook leaves it."""
        match = self._matcher.match(webhook, write, objects)
        if match is None:
            return objects.new
        seen = shown(match.resource, write, objects)
        try:
            answer = await self._ask(match, write, seen, mutating=True)
            made = self._patched(match, write, seen.new, answer)
        except CallFailed as reason:
            if not webhook.ignores_failures:
                raise call_failed(webhook.name, reason) from None
            made = seen.new
        changed = made != seen.new
        reinvocation.note(webhook, changed=changed)
        if not changed or made is None or objects.new is None:
            return objects.new
        return stored(match.resource, write, made, objects.new)

    def _patched(self, match: Match, write: Write, seen: JsonObject | None, answer: Verdict) -> JsonObject | None:
        name = match.webhook.name
        if not answer.patch:
            return seen
        operations = operations_of(answer.patch)
        if not operations:
            return seen
        if seen is None:
            raise modifies_nothing(name)
        if answer.patch_type != "JSONPatch":
            raise CallFailed(f'unsupported patch type "{answer.patch_type}"')
        try:
            made = patched(seen, operations)
        except PatchFault as fault:
            raise internal_error(str(fault)) from None
        return self._decoded(match, write, made, seen)

    def _decoded(self, match: Match, write: Write, made: JsonObject, seen: JsonObject) -> JsonObject:
        """What remains of a patched object once Go has decoded it; `seen` itself if that is no change."""
        route = write.call.route
        if route.subresource not in OF_THE_OBJECT:
            return made
        # A webhook's unknown fields go in silence, whatever the client wants to hear of its own.
        request = Request(method="POST", path=write.call.request.path, query={"fieldValidation": "Ignore"})
        call = Call(request, route._replace(resource=match.resource), write.call.user)
        try:
            decoded = self._decode(call, made)
        except Refusal as refusal:
            raise internal_error(decoding_fault(refusal.message)) from None
        return seen if decoded == self._decode(call, seen) else decoded

    # -- validating ----------------------------------------------------------------------------------------------------

    async def validate(self, write: Write, new: JsonObject | None, old: JsonObject | None) -> None:
        """See Admission."""
        with patience(write):
            return await self._all_validated(write, Objects(new, old))
        raise too_late()

    async def _all_validated(self, write: Write, objects: Objects) -> None:
        matched = (self._matcher.match(webhook, write, objects) for webhook in self._index.validating)
        matches = [match for match in matched if match is not None]
        refusals: list[Refusal] = []

        async def ask(match: Match) -> None:
            try:
                await self._ask(match, write, shown(match.resource, write, objects), mutating=False)
            except CallFailed as reason:
                if not match.webhook.ignores_failures:
                    refusals.append(call_failed(match.webhook.name, reason))
            except Refusal as refusal:
                refusals.append(refusal)

        if len(matches) == 1:
            await ask(matches[0])
        elif matches:
            async with anyio.create_task_group() as group:
                # The last goroutine that Go starts is the first to run, and where all deny at once it is its denial
                # that a real server shows.
                for match in (matches[-1], *matches[:-1]):
                    group.start_soon(ask, match)
        if refusals:
            raise refusals[0]

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _ask(self, match: Match, write: Write, objects: Objects, *, mutating: bool) -> Verdict:
        """Ask one webhook. Raises Refusal (it says no), CallFailed."""
        webhook = match.webhook
        if write.dry_run and webhook.has_side_effects:
            raise no_dry_run(webhook.name)
        uid = self._stamps.uid()
        question = review(match, write, objects, uid)
        seconds = min(webhook.timeout, math.ceil(limit(write.call)))
        url = f"{webhook.client.url}?timeout={seconds}s"
        body = await self._called(webhook, url, orjson.dumps(question))
        version = question["apiVersion"].rpartition("/")[2]
        answer = verdict(body, version, uid, mutating=mutating)
        _warn(write.call, answer.warnings)
        if not answer.allowed:
            raise denied(webhook.name, answer.status)
        return answer

    async def _called(self, webhook: Webhook, url: str, question: bytes) -> bytes:
        with anyio.move_on_after(webhook.timeout):
            await self._pause(webhook.name)
            return body_of(await self._caller.post(webhook.client, url, question))
        raise CallFailed(post_failed(url, "context deadline exceeded"))


def operations_of(raw: bytes) -> list[JsonObject]:
    """Read a webhook's JSON Patch. Raises CallFailed."""
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError:
        first = raw.decode(errors="replace").lstrip()[:1]
        raise undecodable(f"invalid character '{first}' looking for beginning of value") from None
    if not isinstance(parsed, list):
        raise undecodable(f"json: cannot unmarshal {decoded_as(parsed)} into Go value of type jsonpatch.Patch")
    for operation in parsed:
        if not isinstance(operation, dict):
            raise undecodable(
                f"json: cannot unmarshal {decoded_as(operation)} into Go value of type jsonpatch.Operation"
            )
    return parsed


def undecodable(why: str) -> CallFailed:
    """A response with an invalid patch."""
    return CallFailed(f"received undecodable patch in webhook response: {why}")


def limit(call: Call) -> float:
    """The seconds that a request may take: as many as its client gives it, and never more than LIMIT."""
    try:
        asked = parse_seconds(call.query.get("timeout", ""))
    except ValueError:
        return LIMIT
    return asked if 0 < asked < LIMIT else LIMIT


def patience(write: Write) -> anyio.CancelScope:
    """A scope that ends when the request has taken too long. A collection may take its time."""
    is_collection = write.operation == "DELETE" and not write.call.route.name
    return anyio.move_on_after(None if is_collection else limit(write.call))


def too_late() -> Refusal:
    """504: the webhooks together took longer than the request may."""
    message = "Timeout: request did not complete within requested timeout - context deadline exceeded"
    return Refusal(504, "Timeout", message, details={})


def decoding_fault(message: str) -> str:
    """What Go's decoder says, without the sentence that a request's refusal puts before it."""
    found, _, fault = message.partition("cannot be handled as a ")[2].partition(": ")
    return fault if found else message


def _warn(call: Call, warnings: list[str]) -> None:
    """Hand warnings on to the client, each once; those that no header can carry are dropped."""
    for text in warnings:
        if text and text not in call.warnings and all(character.isprintable() for character in text):
            call.warnings.append(text)
