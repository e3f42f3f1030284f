"""What controller and agent have in common."""

from __future__ import annotations

from support.servers import ScriptedTransport

from gracectl.app.process import Process, Program
from gracectl.config import Settings
from gracectl.kube.client import KubeClient
from gracectl.kube.events import EventRecorder
from gracectl.runtime.clock import LoopClock
from gracectl.telemetry.otlp_metrics import MetricExport


async def test_an_export_of_metrics_needs_no_server_of_metrics() -> None:
    clock = LoopClock()
    client = KubeClient(ScriptedTransport(clock), clock)
    recorder = EventRecorder(client, clock)
    program = Program(clients=(client,), recorder=recorder, reflectors=tuple, caches=tuple, sources=())
    process = Process(Settings(), clock, program)
    assert await process.open() == {}
    process.export = MetricExport(600.0, lambda: 0.0)
    assert list(await process.open()) == ["metric export", "loop monitor"]
