"""Faults on request: what an unlucky client meets, by rule and by seed.

A rule says which requests it is for, how likely it strikes and how often at most; the fault says what happens.
Everything random comes from one seeded source, so a run with the same seed and the same requests meets the same faults.
"""

from __future__ import annotations

import random
import re
from typing import Final

import anyio
import msgspec

from gracectl.runtime.clock import Clock
from gracectl.sim.server.api import ConnectionLost, EventStream, Request, Response, StreamEvent
from gracectl.sim.server.status import Refusal

SERVER_FAULTS: Final = {
    500: ("InternalError", "Internal error occurred: injected"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "request did not complete within the requested timeout"),
}


class Latency(msgspec.Struct, frozen=True, tag=True):
    """The request waits between `least` and `most` seconds before it is looked at."""

    least: float
    most: float


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """The request is answered with `status` and not carried out. 429 is the server being busy, in plain text as
    priority-and-fairness words it, with Retry-After `retry_after` seconds; others are a Status."""

    status: int
    retry_after: int | None = None


class Reset(msgspec.Struct, frozen=True, tag=True):
    """The connection breaks: before the request is looked at, or (`carried_out`) after it took effect."""

    carried_out: bool = False


class DropWatch(msgspec.Struct, frozen=True, tag=True):
    """The stream of a watch breaks so many seconds after it began."""

    after: float


class FreezeWatch(msgspec.Struct, frozen=True, tag=True):
    """The stream of a watch stays open and shows nothing more, so many seconds after it began."""

    after: float


Fault = Latency | Refuse | Reset | DropWatch | FreezeWatch


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A fault and the requests it is for: regular expressions over method and path, both searched for.

    `count`: how often it strikes at most (None: no limit).
    """

    fault: Fault
    method: str = ""
    path: str = ""
    probability: float = 1.0
    count: int | None = None


class Faults:
    """The rules in force. Rules may be added and removed while the server runs."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._rules: list[Rule] = []
        self._struck: dict[int, int] = {}

    def add(self, rule: Rule) -> None:
        """Put a rule in force."""
        self._rules.append(rule)
        self._struck[id(rule)] = 0

    def remove(self, rule: Rule) -> None:
        """Take a rule out of force. Raises ValueError if it is not in force."""
        self._rules.remove(rule)

    def clear(self) -> None:
        """Take all rules out of force."""
        self._rules.clear()

    def struck(self, rule: Rule) -> int:
        """How often a rule has struck."""
        return self._struck.get(id(rule), 0)

    def striking(self, request: Request) -> list[Fault]:
        """The faults that this request meets."""
        return [rule.fault for rule in self._rules if self._strikes(rule, request)]

    def _strikes(self, rule: Rule, request: Request) -> bool:
        struck = self._struck[id(rule)]
        if rule.count is not None and struck >= rule.count:
            return False
        if not re.search(rule.method, request.method) or not re.search(rule.path, request.path):
            return False
        if rule.probability < 1.0 and self._rng.random() >= rule.probability:
            return False
        self._struck[id(rule)] = struck + 1
        return True

    async def before(self, faults: list[Fault]) -> Response | None:
        """Let the faults act before the request is looked at; an answer means that it never will be.

        Raises ConnectionLost.
        """
        for fault in faults:
            match fault:
                case Latency(least=least, most=most):
                    await self._clock.sleep(self._rng.uniform(least, most))
                case Reset(carried_out=False):
                    raise ConnectionLost
                case Refuse(status=status, retry_after=retry_after):
                    return refusal(status, retry_after)
        return None

    def after(self, faults: list[Fault], response: Response) -> Response:
        """Let the faults act on the answer. Raises ConnectionLost."""
        for fault in faults:
            match fault:
                case Reset(carried_out=True):
                    raise ConnectionLost
                case DropWatch() | FreezeWatch() if response.stream is not None:
                    stream = FaultyStream(response.stream, self._clock, fault)
                    response = Response(status=200, headers=response.headers, stream=stream)
        return response


class FaultyStream:
    """A watch that breaks, or falls silent, after a while."""

    def __init__(self, stream: EventStream, clock: Clock, fault: DropWatch | FreezeWatch) -> None:
        self._stream = stream
        self._clock = clock
        self._drops = isinstance(fault, DropWatch)
        self._until = clock.monotonic() + fault.after

    def __aiter__(self) -> FaultyStream:
        return self

    async def __anext__(self) -> StreamEvent:
        left = self._until - self._clock.monotonic()
        if left > 0:
            with anyio.move_on_after(left):
                return await self._stream.__anext__()
        if self._drops:
            raise ConnectionLost
        await anyio.sleep_forever()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop reading."""
        await self._stream.aclose()


def refusal(status: int, retry_after: int | None) -> Response:
    """What the injected refusal looks like."""
    if status == 429:
        headers = {"content-type": "text/plain; charset=utf-8", "retry-after": str(retry_after or 1)}
        return Response(status=429, headers=headers, body="Too many requests, please try again later.\n")
    reason, message = SERVER_FAULTS.get(status, ("InternalError", "injected"))
    return Refusal(status, reason, message, details={}, retry_after=retry_after).response()
