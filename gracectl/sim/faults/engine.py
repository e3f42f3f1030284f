"""The rules in force, and what they do to a request on its way in and to an answer on its way out."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Final

import anyio
import msgspec

from gracectl.runtime.clock import Clock
from gracectl.sim.faults.rules import (
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
from gracectl.sim.faults.streams import StruckStream
from gracectl.sim.server.api import ConnectionLost, Request, Response, StreamEvent
from gracectl.sim.server.options import is_true
from gracectl.sim.server.status import Refusal, budget_refusal, expired

SERVER_FAULTS: Final = {
    500: ("InternalError", "Internal error occurred: injected"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "request did not complete within the requested timeout"),
}
FORGOTTEN: Final = "The resourceVersion for the provided {verb} is too old."
P99: Final = 2.3263478740408408
"""How many standard deviations above the middle the 99th of a hundred lies."""


class Faults:
    """The rules in force. Rules may be added and removed while the server runs, and strike open watches as well."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._rules: list[Rule] = []
        self._struck: dict[int, int] = {}
        self._lifted: dict[int, anyio.Event] = {}
        self._streams: set[StruckStream] = set()

    def add(self, rule: Rule) -> None:
        """Put a rule in force."""
        self._rules.append(rule)
        self._struck[id(rule)] = 0
        self._lifted[id(rule)] = anyio.Event()
        if isinstance(rule.fault, ON_STREAMS):
            for stream in list(self._streams):
                if self._strikes(rule, stream.request):
                    stream.strike(rule.fault, self._lifted[id(rule)])

    def remove(self, rule: Rule) -> None:
        """Take a rule out of force. Raises ValueError if it is not in force."""
        self._rules.remove(rule)
        self._lifted[id(rule)].set()

    def clear(self) -> None:
        """Take all rules out of force."""
        for rule in list(self._rules):
            self.remove(rule)

    def struck(self, rule: Rule) -> int:
        """How often a rule has struck."""
        return self._struck.get(id(rule), 0)

    def striking(self, request: Request) -> Sequence[Rule]:
        """The rules that strike this request."""
        if not self._rules:
            return ()
        return [rule for rule in self._rules if self._strikes(rule, request)]

    def _strikes(self, rule: Rule, request: Request) -> bool:
        struck = self._struck[id(rule)]
        if rule.count is not None and struck >= rule.count:
            return False
        if not rule.concerns(request) or not _can_meet(rule.fault, request):
            return False
        if rule.probability < 1.0 and self._rng.random() >= rule.probability:
            return False
        self._struck[id(rule)] = struck + 1
        return True

    async def before(self, rules: Sequence[Rule], request: Request) -> Response | None:
        """Let the faults act before the request is looked at; an answer means that it never will be.

        Raises ConnectionLost.
        """
        for rule in rules:
            match rule.fault:
                case Latency(least=least, most=most):
                    await self._clock.sleep(self._rng.uniform(least, most))
                case SlowTail(median=median, p99=p99):
                    await self._clock.sleep(self._rng.lognormvariate(math.log(median), math.log(p99 / median) / P99))
                case Partition():
                    await self._lifted[id(rule)].wait()
                case Reset(carried_out=False):
                    raise ConnectionLost
                case Refuse(status=status, retry_after=retry_after):
                    return refusal(status, retry_after)
                case RefuseEviction(retry_after=retry_after):
                    return spent(retry_after)
                case Expire() if not asks_to_watch(request):
                    return expired(FORGOTTEN.format(verb="list")).response()
        return None

    def after(self, rules: Sequence[Rule], request: Request, response: Response) -> Response:
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

    def _watched(self, rules: Sequence[Rule], request: Request, response: Response) -> Response:
        assert response.stream is not None
        stream = StruckStream(response.stream, request, self._clock, self._rng, self._streams.discard)
        self._streams.add(stream)
        for rule in rules:
            match rule.fault:
                case Reset(carried_out=True):
                    raise ConnectionLost
                case Expire():
                    status = expired(FORGOTTEN.format(verb="watch")).body()
                    stream.end_with(StreamEvent("ERROR", status))
                case fault if isinstance(fault, ON_STREAMS):
                    stream.strike(fault, self._lifted[id(rule)])
        return msgspec.structs.replace(response, stream=stream)

    def looks_back(self, rules: Sequence[Rule]) -> float:
        """By how many seconds a read that these rules strike lags behind."""
        return max((rule.fault.seconds for rule in rules if isinstance(rule.fault, StaleReads)), default=0.0)

    @property
    def remember_seconds(self) -> float:
        """How far any read may have to look back while the present rules are in force."""
        return self.looks_back(self._rules) if self._rules else 0.0

    async def before_webhook(self, name: str) -> None:
        """Let an admission webhook take its time."""
        for rule in self._rules:
            fault = rule.fault
            if isinstance(fault, SlowWebhook) and re.search(fault.webhook, name):
                self._struck[id(rule)] += 1
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


def refusal(status: int, retry_after: int | None) -> Response:
    """What an injected refusal looks like."""
    if status == 429:
        headers = {"content-type": "text/plain; charset=utf-8", "retry-after": str(retry_after or 1)}
        return Response(status=429, headers=headers, body="Too many requests, please try again later.\n")
    reason, message = SERVER_FAULTS.get(status, ("InternalError", "injected"))
    return Refusal(status, reason, message, details={}, retry_after=retry_after).response()


def spent(retry_after: int | None) -> Response:
    """What an eviction is answered when its budget is spent (or still being counted)."""
    if retry_after is not None:
        return budget_refusal(
            "The disruption budget injected is still being processed by the server.", retry_after=retry_after
        ).response()
    return budget_refusal("The disruption budget injected needs 1 healthy pods and has 1 currently").response()
