"""Faults, and the rules that select the requests that meet them: plain values, as scenario files write them.

Times are seconds of the server's clock.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from kubesim.server.api import JsonObject, Request


class Latency(msgspec.Struct, frozen=True, tag=True):
    """The request waits between `least` and `most` seconds before it is looked at, all of them equally likely."""

    least: float
    most: float


class SlowTail(msgspec.Struct, frozen=True, tag=True):
    """The request waits before it is looked at as requests to busy servers do: half of them less than `median`
    seconds, one in a hundred longer than `p99` (log-normal)."""

    median: float
    p99: float


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """The request is answered with `status` and not carried out. 429 is the server being busy, in plain text as
    priority-and-fairness words it, with Retry-After `retry_after` seconds; others are a Status. `body`: the whole
    answer instead, a Status or plain text."""

    status: int
    retry_after: int | None = None
    body: JsonObject | str | None = None


class RefuseEviction(msgspec.Struct, frozen=True, tag=True):
    """An eviction is refused (429) as if its budget were spent, or, with `retry_after`, not yet counted. No budget is
    touched. Other requests pass."""

    retry_after: int | None = None


class Reset(msgspec.Struct, frozen=True, tag=True):
    """The connection breaks: before the request is looked at, or (`carried_out`) after it took effect."""

    carried_out: bool = False


class CutBody(msgspec.Struct, frozen=True, tag=True):
    """The request is carried out; the connection breaks after this `share` of the response body. Not for watches."""

    share: float = 0.5


class Expire(msgspec.Struct, frozen=True, tag=True):
    """Lists that name a version or a page, and watches from a version, are answered with 410: the past is forgotten.
    A list or watch from the newest state passes."""


class StaleReads(msgspec.Struct, frozen=True, tag=True):
    """GET and LIST with resourceVersion=0 show the state of up to so many seconds ago, like an API server
    with a lagging cache. `consistent`: also reads that ask for the newest state (no healthy server does that)."""

    seconds: float
    consistent: bool = False


class DropWatch(msgspec.Struct, frozen=True, tag=True):
    """The stream of a watch breaks so many seconds after it began (or, if it was open before, after the rule came)."""

    after: float


class FreezeWatch(msgspec.Struct, frozen=True, tag=True):
    """A watch stays open and silent, so many seconds after it began, or after the rule came if that was later."""

    after: float


class LateWatch(msgspec.Struct, frozen=True, tag=True):
    """Every event of a watch is shown between `least` and `most` seconds late, in order."""

    least: float
    most: float


class Partition(msgspec.Struct, frozen=True, tag=True):
    """Nothing reaches the server and nothing comes back, without any error, until the rule is taken out of force; then
    everything goes on where it stopped. Watches fall silent."""


class SlowWebhook(msgspec.Struct, frozen=True, tag=True):
    """Admission webhooks with a name that matches `webhook` (a regular expression) answer so many seconds later."""

    seconds: float
    webhook: str = ""


Fault = (
    Latency
    | SlowTail
    | Refuse
    | RefuseEviction
    | Reset
    | CutBody
    | Expire
    | StaleReads
    | DropWatch
    | FreezeWatch
    | LateWatch
    | Partition
    | SlowWebhook
)
ON_STREAMS = (DropWatch, FreezeWatch, LateWatch, Partition)
"""Faults that streams can meet which were open before the rule came."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A fault and its requests: regular expressions for method, path and client (user agent). `count`: maximum
    strikes."""

    fault: Fault
    method: str = ""
    path: str = ""
    client: str = ""
    probability: float = 1.0
    count: int | None = None

    def concerns(self, request: Request) -> bool:
        """Whether the rule is for such a request."""
        return (
            (not self.method or _pattern(self.method).search(request.method) is not None)
            and (not self.path or _pattern(self.path).search(request.path) is not None)
            and (not self.client or _pattern(self.client).search(request.headers.get("user-agent", "")) is not None)
        )


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)
