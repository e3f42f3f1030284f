"""What all programs that drain nodes have in common, and what is counted of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from benchmarks.ground.site import Site

EVICTION = "create pods/eviction"


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a contender has asked of the API server and taken of the machine, from its beginning to its end.

    `requests`: how many, by verb and resource (`create pods/eviction`). `refused`: answers 429 among them. `failed`:
    answers of other kinds that were no success. `cpu` in seconds, `memory` in MiB at its peak; None where it runs in a
    process that does other things as well. `lateness`: seconds by which deletes for deadlines were late, at most, by
    percentile.
    """

    requests: Mapping[str, int]
    refused: int
    failed: int = 0
    cpu: float | None = None
    memory: float | None = None
    lateness: Mapping[str, float] = {}

    def per_pod(self, operation: str, pods: int) -> float:
        """Requests of this verb and resource for each pod."""
        return self.requests.get(operation, 0) / pods

    def and_then(self, other: Usage) -> Usage:
        """What both have taken, one after the other."""
        return Usage(
            requests=dict(Counter(self.requests) + Counter(other.requests)),
            refused=self.refused + other.refused,
            failed=self.failed + other.failed,
            cpu=None if self.cpu is None or other.cpu is None else self.cpu + other.cpu,
            memory=None if self.memory is None or other.memory is None else max(self.memory, other.memory),
        )


class Entry(msgspec.Struct, frozen=True):
    """A contender at the start: `go` empties the nodes, `usage` counts since. `goes_on`: also when `go` has ended;
    if not, the nodes that are not empty then stay so."""

    go: Callable[[], Coroutine[Any, Any, None]]
    usage: Callable[[], Coroutine[Any, Any, Usage]]
    goes_on: bool = False


class Contender(Protocol):
    """A program that drains nodes."""

    @property
    def name(self) -> str:
        """In tables and plots."""

    def entered(self, site: Site, old: tuple[str, ...]) -> AbstractAsyncContextManager[Entry]:
        """Make ready to empty the nodes `old` of a site; whatever was started ends with the block."""


class Tally:
    """Counts of requests and answers, of its own client or read from metrics."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.refused = 0
        self.failed = 0

    def add(self, method: str, path: str, status: int) -> None:
        """One request (path with its query) and its HTTP status."""
        self.requests[operation(method, path)] += 1
        self.refused += status == 429
        self.failed += status >= 400 and status not in (404, 429)

    def usage(self, cpu: float | None, memory: float | None) -> Usage:
        """What has come together."""
        return Usage(requests=dict(self.requests), refused=self.refused, failed=self.failed, cpu=cpu, memory=memory)


def operation(method: str, path: str) -> str:
    """Verb and resource of a request (`list nodes`, `create pods/eviction`), `get discovery` for the rest."""
    path, _, query = path.partition("?")
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    if not parts:
        return "get discovery"
    resource, named = "/".join([parts[0], *parts[2:]]), len(parts) > 1
    if method == "GET" and not named:
        return f"{'watch' if 'watch=' in query else 'list'} {resource}"
    verbs = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return f"{verbs[method]} {resource}"
