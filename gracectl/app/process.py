"""Process: what controller and agent have in common, which is everything that only observes their work.

Metrics and probes with their servers, the export of metrics, the reloading of settings, and the state of clients,
caches and the clock in all of them. A program adds the samples and checks that only it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from gracectl.app.settings_reload import SettingsReloader, reload_checks, reload_samples
from gracectl.config import ConfigError, Settings
from gracectl.eviction.metrics import answer_samples
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector
from gracectl.kube.client import KubeClient
from gracectl.kube.client.statistics import ClientStatistics
from gracectl.kube.events import EventRecorder
from gracectl.kube.metrics import (
    api_samples,
    clock_checks,
    clock_samples,
    event_samples,
    throttling_check,
    watch_samples,
)
from gracectl.kube.transport.skew import SkewEstimate, SkewStatistics
from gracectl.runtime.clock import Clock
from gracectl.runtime.loop_monitor import LoopMonitor
from gracectl.runtime.supervise import Component, ComponentStatus
from gracectl.telemetry.connections import ConnectionStatistics
from gracectl.telemetry.exposition import PATH, PROCESS_COLLECTOR, Exposition, Source
from gracectl.telemetry.health import Check, check_of_components, check_of_event_loop, probes
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.runtime_metrics import NO_SPANS, connection_samples, process_samples
from gracectl.telemetry.server import CannotListen, Endpoint, Servers
from gracectl.telemetry.spans import SpanSink

if TYPE_CHECKING:
    from gracectl.telemetry.otlp_metrics import MetricExport  # the SDK is imported only when it is needed


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """The program of a process. `sources`, `health` and `readiness`: samples and checks that only it has."""

    clients: tuple[KubeClient, ...]
    recorder: EventRecorder
    reflectors: Callable[[], Iterable[Reflector[Any]]]
    caches: Callable[[], Iterable[Cache[Any]]]
    sources: tuple[Source, ...]
    health: Callable[[], Iterable[Check]] = tuple
    readiness: Callable[[], Iterable[Check]] = tuple
    requests: Callable[[], tuple[ClientStatistics, ...]] = tuple
    """Statistics of requests that none of `clients` sends."""
    listeners: Callable[[], Mapping[str, ConnectionStatistics]] = dict
    """Connections of its own servers, by the setting with the address."""


class Process:
    """One long-running process. Set `skew`, `reloader` and `export` before `open` is called."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        program: Program,
        *,
        spans: SpanSink | None = None,
        node_labels: tuple[str, ...] = (),
    ) -> None:
        self.skew: SkewEstimate | None = None
        """The estimate of the server's clock."""
        self.reloader: SettingsReloader | None = None
        """Reloader of the settings file; None without a file."""
        self.export: MetricExport | None = None
        """Export of metrics; None if metrics are only scraped."""
        self.components = ComponentStatus()
        self._clock = clock
        self._program = program
        self._spans = spans
        self._loop_monitor = LoopMonitor(clock)
        self._started = clock.monotonic()
        self._exposition = Exposition(clock, (*program.sources, self._samples), (PROCESS_COLLECTOR,), node_labels)
        self._servers = Servers(
            (
                Endpoint("metrics.listen", settings.metrics.listen, {PATH: self._exposition.handle}),
                Endpoint("probes.listen", settings.probes.listen, probes(self.health, self.readiness)),
            ),
            clock,
        )

    async def open(self) -> dict[str, Component]:
        """Listen for metrics and probes; returns the components to run, before all others. Raises ConfigError."""
        try:
            await self._servers.open()
        except CannotListen as error:
            raise ConfigError(f"{error}; choose another address") from error
        components: dict[str, Component] = {}
        if self._servers.is_enabled:
            components["metrics and probes"] = self._servers.run
        if self.export is not None:
            components["metric export"] = partial(self.export.run, self._exposition, self._clock)
        if components:
            components["loop monitor"] = self._loop_monitor.run
        return {**components, "settings": self.reloader.run} if self.reloader else components

    async def close(self) -> None:
        """Close the servers."""
        await self._servers.close()

    def skew_statistics(self) -> SkewStatistics | None:
        """Measured skew of the server's clock."""
        return self.skew.statistics() if self.skew else None

    def samples(self) -> Iterator[Sample | None]:
        """All samples for the metrics; see exposition.Source."""
        return chain(*(source() for source in self._program.sources), self._samples())

    def health(self) -> Iterator[Check]:
        """Liveness: whether a restart would help. Independent of the API server."""
        yield check_of_event_loop(self._loop_monitor.statistics(), self._clock.monotonic())
        yield check_of_components(self.components.statistics())
        yield from self._program.health()

    def readiness(self) -> Iterator[Check]:
        """Readiness: the program is ready, the caches are filled, and the server answers."""
        yield from self._program.readiness()
        for cache in (cache.statistics() for cache in self._program.caches()):
            reason = f"{cache.objects} objects" if cache.live else "waiting for its first list"
            yield Check(f"cache of {cache.name}", cache.live, reason)
        clients = [client.statistics() for client in self._program.clients]
        yield throttling_check(clients, self._clock.monotonic())
        yield from clock_checks(self.skew_statistics())
        yield from reload_checks(self.reloader)

    def _samples(self) -> Iterator[Sample]:
        clients = [client.statistics() for client in self._program.clients]
        watches = [reflector.statistics() for reflector in self._program.reflectors()]
        caches = [cache.statistics() for cache in self._program.caches()]
        yield from answer_samples(clients)
        yield from api_samples([*clients, *self._program.requests()])
        yield from clock_samples(self.skew_statistics())
        yield from watch_samples(watches, caches, self._clock.monotonic(), self._started)
        yield from connection_samples({**self._servers.statistics(), **self._program.listeners()})
        yield from event_samples(self._program.recorder.statistics())
        spans = NO_SPANS if self._spans is None else self._spans.statistics()
        yield from process_samples(self._loop_monitor.statistics(), spans)
        yield from reload_samples(self.reloader)
