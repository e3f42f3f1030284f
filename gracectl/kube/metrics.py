"""Metrics and readiness checks of the API client: requests, watches, Events and the server's clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gracectl.kube.cache import CacheStatistics
from gracectl.kube.cache.reflector import ReflectorStatistics
from gracectl.kube.client.statistics import VERBS, ClientStatistics
from gracectl.kube.events import EventStatistics
from gracectl.kube.leader.election import ElectionStatistics
from gracectl.kube.transport.skew import SkewStatistics, dispute_message
from gracectl.runtime.fence import FenceStatistics
from gracectl.runtime.histogram import Distribution
from gracectl.telemetry import metrics
from gracectl.telemetry.health import Check
from gracectl.telemetry.metrics import Metric, Sample


def api_samples(clients: Sequence[ClientStatistics]) -> Iterator[Sample]:
    """Requests of several clients to one server."""
    requests: Counter[tuple[str, str, str]] = Counter()
    for client in clients:
        for (verb, resource, outcome, _), number in client.attempts.items():
            requests[verb, resource, outcome] += number
    for labels, number in requests.items():
        yield Sample(metrics.API_REQUESTS, labels, number)
    for verb in VERBS:
        yield Sample(metrics.API_LATENCY, (verb,), _together([client.latency[verb] for client in clients]))
    yield Sample(metrics.API_RETRIES, (), sum(client.retries for client in clients))
    yield Sample(metrics.API_THROTTLED, (), sum(client.throttle_pauses for client in clients))
    yield Sample(metrics.API_THROTTLED_SECONDS, (), sum(client.throttled_seconds for client in clients))
    yield Sample(metrics.API_RETRY_AFTER_CAPPED, (), sum(client.capped_delays for client in clients))


def clock_samples(skew: SkewStatistics | None) -> Iterator[Sample]:
    """Offset of the server's clock; None where it is ours."""
    yield Sample(metrics.API_CLOCK_OFFSET, (), skew.offset if skew else 0.0)
    yield Sample(metrics.API_DATES_REFUSED, (), skew.refusals if skew else 0)
    yield Sample(metrics.CLOCK_DISPUTED, (), int(skew is not None and skew.disputed is not None))


def request_samples(
    metric: Metric,
    clients: Iterable[ClientStatistics],
    request: tuple[str, str],
    agreed: str,
    known: Iterable[tuple[str, str]],
) -> Iterator[Sample]:
    """Requests of one verb on one resource (`request`) by code and result; `agreed` names success, `known` are the
    pairs that are shown before they have occurred.
    """
    answers = Counter(dict.fromkeys(known, 0))
    for client in clients:
        for (verb, resource, outcome, code), number in client.attempts.items():
            if (verb, resource) == request:
                answers[code, agreed if outcome == "ok" else outcome] += number
    for labels, number in answers.items():
        yield Sample(metric, labels, number)


def watch_samples(
    watches: Iterable[ReflectorStatistics], caches: Iterable[CacheStatistics], now: float, begun: float
) -> Iterator[Sample]:
    """Watches and caches at `now` (monotonic), of a process that began at `begun`."""
    for watch in watches:
        labels = (watch.resource,)
        yield Sample(metrics.WATCH_LISTS, labels, watch.lists)
        yield Sample(metrics.WATCH_STREAMS, labels, watch.streams)
        yield Sample(metrics.WATCH_STALLS, labels, watch.stalls)
        yield Sample(metrics.WATCH_FAILURES, labels, watch.failures)
        yield Sample(metrics.WATCH_EVENTS, labels, watch.events)
        yield Sample(metrics.WATCH_SILENCE, labels, now - (begun if watch.last_line is None else watch.last_line))
    for cache in caches:
        yield Sample(metrics.CACHED, (cache.name,), cache.objects)
        yield Sample(metrics.UNDECODABLE, (cache.name,), cache.undecodable)


def event_samples(events: EventStatistics) -> Iterator[Sample]:
    """Recorder of Events."""
    yield Sample(metrics.EVENTS_RECORDED, (), events.recorded)
    for outcome, number in (
        ("written", events.written),
        ("merged", events.merged),
        ("dropped", events.dropped),
        ("failed", events.failed),
    ):
        yield Sample(metrics.EVENTS, (outcome,), number)
    yield Sample(metrics.EVENTS_BACKLOG, (), events.backlog)


def leader_samples(is_acting: bool, election: ElectionStatistics | None, fence: FenceStatistics) -> Iterator[Sample]:
    """Whether this process acts; its election, if there is one; and the writes that the fence refused or cut."""
    yield Sample(metrics.LEADER, (), int(is_acting))
    yield Sample(metrics.LEASE_TERMS, (), election.terms if election else 0)
    yield Sample(metrics.LEASE_RENEWALS, (), election.renewals if election else 0)
    yield Sample(metrics.LEASE_FAILURES, (), election.failures if election else 0)
    yield Sample(metrics.FENCED, ("refused",), fence.refused)
    yield Sample(metrics.FENCED, ("cut",), fence.cut)


def _together(seen: Sequence[Distribution]) -> Distribution:
    counts = tuple(map(sum, zip(*(each.counts for each in seen), strict=True)))
    return Distribution(counts, sum(each.total for each in seen))


SILENCED_SECONDS = 120.0
"""A server, or a proxy, that is busy for longer stops the program from doing its work."""


def throttling_check(clients: Iterable[ClientStatistics], now: float) -> Check:
    """Whether every response for long has been a pause; `now`: monotonic.

    A pause that ended long ago does not count, even if no request followed.
    """
    pauses = [client.silenced for client in clients if client.silenced is not None]
    longest = max((now - since for since, until in pauses if now < until + SILENCED_SECONDS), default=0.0)
    if longest >= SILENCED_SECONDS:
        return Check("api", False, f"throttled: every response in the last {longest:.0f} s was 429")
    return Check("api", True, "the server answers" if not longest else f"throttled for {longest:.0f} s")


def clock_checks(skew: SkewStatistics | None) -> Iterator[Check]:
    """Fails while the clocks are in dispute."""
    if skew and skew.disputed is not None:
        yield Check("clock", False, dispute_message(skew))
