"""The rules in force, and what they do to a request on its way in and to an answer on its way out."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Final

import anyio
import msgspec

from kubesim.clock import Clock
from kubesim.faults.rules import (
    ON_STREAMS,
    CutBody,
    DropWatch,
    Expire,
    Fault,
    FreezeWatch,
    Latency,
    LateWatch,
    Partition,
    Refuse,
    RefuseEviction,
    Reset,
    Rule,
    SlowTail,
    SlowWebhook,
    StaleReads,
)
from kubesim.faults.streams import StruckStream
from kubesim.server.api import ConnectionLost, Request, Response, StreamEvent
from kubesim.server.options import is_true
from kubesim.server.status import Refusal, budget_refusal, expired

SERVER_FAULTS: Final = {
    500: ("InternalError", "Internal error occurred: injected"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "request did not complete within the requested timeout"),
}
FORGOTTEN: Final = "The resourceVersion for the provided {verb} is too old."
P99: Final = 2.3263478740408408
"""How many standard deviations above the middle the 99th of a hundred lies."""


class InForce:
    """A rule in force: how often it has struck, and the end of it. Rules are values: two that say the same are two."""

    __slots__ = ("fault", "lifted", "rule", "struck")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.fault = rule.fault
        self.struck = 0
        self.lifted = anyio.Event()


class Faults:
    """The rules in force. Rules may be added and removed while the server runs, and strike open watches as well."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._rules: list[InForce] = []
        # In the order in which they were opened: a rule that strikes some of them strikes the same ones every time.
        self._streams: dict[StruckStream, None] = {}

    def add(self, rule: Rule) -> None:
        """Put a rule in force."""
        added = InForce(rule)
        self._rules.append(added)
        if isinstance(rule.fault, ON_STREAMS):
            for stream in list(self._streams):
                if self._strikes(added, stream.request):
                    stream.strike(rule.fault, added.lifted)

    def remove(self, rule: Rule) -> None:
        """Take a rule out of force; one that says the same will do. Raises ValueError if none is in force."""
        same = [each for each in self._rules if each.rule == rule]
        if not same:
            raise ValueError(rule)
        removed = next((each for each in same if each.rule is rule), same[0])
        self._rules.remove(removed)
        removed.lifted.set()

    def clear(self) -> None:
        """Take all rules out of force."""
        for each in list(self._rules):
            self.remove(each.rule)

    def struck(self, rule: Rule) -> int:
        """How often a rule that is in force has struck."""
        return sum(each.struck for each in self._rules if each.rule is rule)

    def striking(self, request: Request) -> Sequence[InForce]:
        """The rules that strike this request."""
        if not self._rules:
            return ()
        return [rule for rule in self._rules if self._strikes(rule, request)]

    def _strikes(self, each: InForce, request: Request) -> bool:
        return each.rule.concerns(request) and _can_meet(each.fault, request) and self._by_chance(each)

    def _by_chance(self, each: InForce) -> bool:
        rule = each.rule
        if rule.count is not None and each.struck >= rule.count:
            return False
        if rule.probability < 1.0 and self._rng.random() >= rule.probability:
            return False
        each.struck += 1
        return True

    async def before(self, rules: Sequence[InForce], request: Request) -> Response | None:
        """Apply faults before the request is handled; a response replaces handling. Raises ConnectionLost."""
        for rule in rules:
            match rule.fault:
                case Latency(least=least, most=most):
                    await self._clock.sleep(self._rng.uniform(least, most))
                case SlowTail(median=median, p99=p99):
                    await self._clock.sleep(self._rng.lognormvariate(math.log(median), math.log(p99 / median) / P99))
                case Partition():
                    await rule.lifted.wait()
                case Reset(carried_out=False):
                    raise ConnectionLost
                case Refuse() as refuse:
                    return refusal(refuse)
                case RefuseEviction(retry_after=retry_after):
                    return spent(retry_after)
                case Expire() if not asks_to_watch(request):
                    return expired(FORGOTTEN.format(verb="list")).response()
        return None

    def after(self, rules: Sequence[InForce], request: Request, response: Response) -> Response:
        """Let the faults act on the answer. Raises ConnectionLost."""
        if response.stream is not None:
            return self._watched(rules, request, response)
        if not rules:
            return response
        for rule in rules:
            match rule.fault:
                case Reset(carried_out=True):
                    raise ConnectionLost
                case CutBody(share=share):
                    response = msgspec.structs.replace(response, cut=share)
        return response

    def _watched(self, rules: Sequence[InForce], request: Request, response: Response) -> Response:
        assert response.stream is not None
        stream = StruckStream(response.stream, request, self._clock, self._rng, self._closed)
        for rule in rules:
            match rule.fault:
                case Reset(carried_out=True):
                    raise ConnectionLost
                case Expire():
                    status = expired(FORGOTTEN.format(verb="watch")).body()
                    stream.end_with(StreamEvent("ERROR", status))
                case fault if isinstance(fault, ON_STREAMS):
                    stream.strike(fault, rule.lifted)
        self._streams[stream] = None
        return msgspec.structs.replace(response, stream=stream)

    def _closed(self, stream: StruckStream) -> None:
        self._streams.pop(stream, None)

    def looks_back(self, rules: Sequence[InForce]) -> float:
        """By how many seconds a read that these rules strike lags behind."""
        return max((rule.fault.seconds for rule in rules if isinstance(rule.fault, StaleReads)), default=0.0)

    @property
    def remember_seconds(self) -> float:
        """How far any read may have to look back while the present rules are in force."""
        return self.looks_back(self._rules) if self._rules else 0.0

    async def before_webhook(self, name: str) -> None:
        """Let an admission webhook take its time."""
        for each in list(self._rules):
            fault = each.fault
            if isinstance(fault, SlowWebhook) and re.search(fault.webhook, name) and self._by_chance(each):
                await self._clock.sleep(fault.seconds)


def _can_meet(fault: Fault, request: Request) -> bool:
    """Whether such a request can meet the fault at all."""
    version = request.query.get("resourceVersion", "")
    match fault:
        case RefuseEviction():
            return request.method == "POST" and request.path.endswith("/eviction")
        case StaleReads(consistent=consistent):
            is_read = request.method == "GET" and not asks_to_watch(request)
            return is_read and (version == "0" or (consistent and not version))
        case Expire():
            return request.method == "GET" and (version not in ("", "0") or "continue" in request.query)
        case DropWatch() | FreezeWatch() | LateWatch():
            return asks_to_watch(request)
        case CutBody():
            return not asks_to_watch(request)
        case SlowWebhook():
            return False
    return True


def asks_to_watch(request: Request) -> bool:
    """Whether a request is for a watch."""
    return is_true(request.query, "watch") or "/watch/" in request.path


def refusal(refuse: Refuse) -> Response:
    """What an injected refusal looks like."""
    status, retry_after, body = refuse.status, refuse.retry_after, refuse.body
    if body is None and status != 429:
        reason, message = SERVER_FAULTS.get(status, ("InternalError", "injected"))
        return Refusal(status, reason, message, details={}, retry_after=retry_after).response()
    if body is None:
        body, retry_after = "Too many requests, please try again later.\n", retry_after or 1
    kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    headers = {"content-type": kind} | ({} if retry_after is None else {"retry-after": str(retry_after)})
    return Response(status=status, headers=headers, body=body)


def spent(retry_after: int | None) -> Response:
    """What an eviction is answered when its budget is spent (or still being counted)."""
    if retry_after is not None:
        return budget_refusal(
            "The disruption budget injected is still being processed by the server.", retry_after=retry_after
        ).response()
    return budget_refusal("The disruption budget injected needs 1 healthy pods and has 1 currently").response()
