"""Components that only observe the others: servers of metrics and probes, the export of metrics, the loop monitor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gracectl.runtime.clock import Clock
from gracectl.runtime.loop_monitor import LoopMonitor
from gracectl.runtime.supervise import Component
from gracectl.telemetry.exposition import Exposition
from gracectl.telemetry.server import Servers

if TYPE_CHECKING:
    from gracectl.telemetry.otlp_metrics import MetricExport  # the SDK is imported only when it is needed


class Observers:
    """Observers of one process. `export` is set before `components` is called, if metrics are exported."""

    def __init__(self, servers: Servers, monitor: LoopMonitor, exposition: Exposition, clock: Clock) -> None:
        self._servers = servers
        self._monitor = monitor
        self._exposition = exposition
        self._clock = clock
        self.export: MetricExport | None = None

    def components(self) -> dict[str, Component]:
        """Those that are wanted; the servers listen already."""
        wanted: dict[str, Component] = {}
        if self._servers.is_enabled:
            wanted["metrics and probes"] = self._servers.run
        if self.export is not None:
            wanted["metric export"] = partial(self.export.run, self._exposition, self._clock)
        return {**wanted, "loop monitor": self._monitor.run} if wanted else {}
