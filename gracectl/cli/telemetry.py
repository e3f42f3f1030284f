"""Where traces and metrics of a command go: to the collector that the OTEL_* variables name, to a file, or nowhere."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gracectl.config import ConfigError
from gracectl.runtime.clock import SystemClock
from gracectl.telemetry.settings import metric_export_seconds, traces_enabled

if TYPE_CHECKING:
    from gracectl.telemetry.otlp_metrics import MetricExport
    from gracectl.telemetry.tracing import Tracing

LAST_SPANS_SECONDS = 3.0
"""At the end a collector that does not answer has this long."""


@asynccontextmanager
async def traced(
    file: Path | None = None, *, cluster: str = "", is_dry_run: bool = False
) -> AsyncIterator[Tracing | None]:
    """Export of traces while the block runs, None if it is off; what waits at the end is exported before it returns.

    The `file` is written at the end, also when the block has failed. Raises ConfigError for variables with invalid
    values, and for a file that cannot be written: before the block, as far as that is known then.
    """
    with _explained():
        is_wanted = traces_enabled(os.environ)
        if file is not None:
            file.open("ab").close()
    if not is_wanted and file is None:
        yield None
        return
    # Imported when needed: it takes a third of a second.
    from gracectl.telemetry.tracefile import TraceFile
    from gracectl.telemetry.tracing import Tracing, over_http

    kept = TraceFile()
    with _explained():
        monotonic = SystemClock().monotonic
        exporters = [*([kept] if file is not None else []), *([over_http(monotonic)] if is_wanted else [])]
        tracing = Tracing(exporters, monotonic, _identity(), cluster, is_dry_run=is_dry_run)
    try:
        yield tracing
    finally:
        await tracing.close(LAST_SPANS_SECONDS)
        if file is not None:
            with _explained():
                kept.write(file)


def metric_export(cluster: str = "", *, is_dry_run: bool = False) -> MetricExport | None:
    """Export of metrics; None if the variables do not ask for it. Raises ConfigError for invalid ones."""
    with _explained():
        interval = metric_export_seconds(os.environ)
        if interval is None:
            return None
        from gracectl.telemetry.otlp_metrics import MetricExport  # when needed, as above

        return MetricExport(interval, SystemClock().monotonic, _identity(), cluster, is_dry_run=is_dry_run)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"--trace-file: cannot write {error.filename}: {reason}; choose another file") from error
    except ValueError as error:
        raise ConfigError(f"environment variable {error}") from error


@cache
def _identity() -> str:
    """Identity of this process; previous and concurrent processes on the same host have another."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
