"""The composition root of `gracectl agent`: the agent of one node, its clients, metrics and probes, and its settings.

The settings file is followed: another order for shutdowns counts for the next one. Whatever else it says (addresses,
how logs are written) counts from the next start.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

import anyio

from gracectl.agent.agent import Agent, AgentDependencies
from gracectl.agent.metrics import agent_samples
from gracectl.agent.rbac import RIGHTS
from gracectl.agent.watch import Machine
from gracectl.app.following import SettingsFollower, following_checks, following_samples
from gracectl.config import ConfigError, Settings
from gracectl.config.changes import OF_AGENT
from gracectl.eviction.metrics import answer_samples
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventRecorder
from gracectl.kube.metrics import (
    api_samples,
    clock_checks,
    clock_samples,
    event_samples,
    throttling_check,
    watch_samples,
)
from gracectl.kube.rbac import missing_permissions
from gracectl.kube.retry import RetrySettings
from gracectl.kube.skew import SkewEstimate
from gracectl.kube.transport import Transport
from gracectl.runtime.clock import Clock
from gracectl.runtime.loop_monitor import LoopMonitor
from gracectl.runtime.supervise import Component, ComponentStatus, run_components
from gracectl.telemetry.exposition import PATH, PROCESS_COLLECTOR, Exposition
from gracectl.telemetry.health import Check, check_of_components, check_of_event_loop, probes
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.runtime_metrics import NO_SPANS, connection_samples, process_samples
from gracectl.telemetry.server import CannotListen, Endpoint, Servers
from gracectl.telemetry.spans import SpanSink

logger = logging.getLogger(__name__)

LONGEST_READ: Final = 10.0
"""Seconds for one look: a shutdown has better things to do than to wait for an answer that does not come. A write has
the patience that webhooks need, and nothing waits for it but the pod or node that it is about."""

RIGHTS_SECONDS: Final = 10.0
"""How long after a failure the API server is asked again what it allows us."""


class NodeAgent:
    """The whole agent of a machine over one transport, on one clock; `settings` gives those of now, or raises
    ConfigError; `rng` seeds every jitter, `spans` takes traces."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        transport: Transport,
        clock: Clock,
        machine: Machine,
        *,
        rng: random.Random | None = None,
        spans: SpanSink | None = None,
    ) -> None:
        rng = rng or random.Random()
        current = settings()
        self._follower = SettingsFollower(settings, current, clock, OF_AGENT, self._take_over)
        self._clock = clock
        self._spans = spans
        self._skew: SkewEstimate | None = None
        timeout = min(current.client.request_timeout_seconds, LONGEST_READ)
        self._client = KubeClient(transport, clock, settings=ClientSettings(timeout=timeout), rng=rng)
        # A client of its own: each try has its own grace.
        once = ClientSettings(timeout=timeout, retry=RetrySettings(attempts=1))
        self._deleting = KubeClient(transport, clock, settings=once, rng=rng)
        self._recorder = EventRecorder(self._client, clock, instance=socket.gethostname())
        self._begun = clock.monotonic()
        self._loop_monitor, self._component_status = LoopMonitor(clock), ComponentStatus()
        self._stop = anyio.Event()
        means = AgentDependencies(
            machine=machine,
            client=self._client,
            deleting=self._deleting,
            recorder=self._recorder,
            clock=clock,
            eviction=current.eviction,
            spans=spans,
            rng=rng,
        )
        self._policy = current.shutdown
        self.agent = Agent(means, self._policy, self._disabled)
        exposition = Exposition(clock, (self._samples,), (PROCESS_COLLECTOR,))
        self._servers = Servers(
            (
                Endpoint("metrics.listen", current.metrics.listen, {PATH: exposition.handle}),
                Endpoint("probes.listen", current.probes.listen, probes(self.health, self.readiness)),
            ),
            clock,
        )

    def heed(self, skew: SkewEstimate | None) -> None:
        """To be called before `run`: what `skew` makes of the server's clock is shown by metrics and probes."""
        self._skew = skew

    async def run(self, stop: anyio.Event) -> None:
        """Run until `stop` is set, or until no settings are left for this node; a shutdown of the machine that is under
        way is finished first. Raises ComponentFailed, or ConfigError."""
        try:
            parts = await self._open_doors()
            parts |= {"events": self._recorder.run, **self.agent.components}
            parts |= {"rights": self._look_at_rights, "settings": self._follower.run}
            async with anyio.create_task_group() as group:
                group.start_soon(self._stop_after, stop)
                await run_components(parts, self._stop, status=self._component_status)
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._servers.close()

    async def _stop_after(self, stop: anyio.Event) -> None:
        await stop.wait()
        await self.agent.settled()
        self._stop.set()

    async def _open_doors(self) -> dict[str, Component]:
        try:
            await self._servers.open()
        except CannotListen as error:
            raise ConfigError(f"{error}; choose another address") from error
        return (
            {"metrics and probes": self._servers.run, "loop monitor": self._loop_monitor.run}
            if self._servers.is_enabled
            else {}
        )

    def _disabled(self, reason: str) -> None:
        logger.info("graceful shutdown is disabled: %s; the agent ends", reason)
        self._stop.set()

    async def _look_at_rights(self) -> None:
        """A part: tell what is missing as soon as the server can be asked; the agent goes on, and does what it may."""
        while True:
            try:
                missing = await missing_permissions(self._client, RIGHTS)
                break
            except ApiError as error:
                logger.warning("the API server cannot be asked what it allows: %s; it is asked again", error)
                await self._clock.sleep(RIGHTS_SECONDS)
        if missing:
            listed = "; ".join(str(right) for right in missing)
            logger.error("the credentials do not allow all that the agent does; grant them: %s", listed)
        await anyio.sleep_forever()

    def _take_over(self, settings: Settings) -> None:
        if settings.shutdown != self._policy:
            self._policy = settings.shutdown
            self.agent.configure(self._policy)

    def _samples(self) -> Iterator[Sample]:
        clients = (self._client.statistics(), self._deleting.statistics())
        watches = [reflector.statistics() for reflector in self.agent.reflectors]
        caches = [self.agent.nodes.statistics(), self.agent.pods.statistics()]
        return chain(
            agent_samples(self.agent.statistics()),
            answer_samples(clients),
            api_samples(clients),
            clock_samples(self._skew.statistics() if self._skew else None),
            watch_samples(watches, caches, self._clock.monotonic(), self._begun),
            following_samples(self._follower),
            connection_samples(self._servers.statistics()),
            event_samples(self._recorder.statistics()),
            process_samples(
                self._loop_monitor.statistics(), NO_SPANS if self._spans is None else self._spans.statistics()
            ),
        )

    def health(self) -> Iterator[Check]:
        """Whether the process lives."""
        yield check_of_event_loop(self._loop_monitor.statistics(), self._clock.monotonic())
        yield check_of_components(self._component_status.statistics())

    def readiness(self) -> Iterator[Check]:
        """Whether the machine would wait for its pods, long enough, and they are known."""
        yield from self.agent.readiness()
        yield throttling_check((self._client.statistics(), self._deleting.statistics()), self._clock.monotonic())
        yield from clock_checks(self._skew.statistics() if self._skew else None)
        yield from following_checks(self._follower)
        for cache in (self.agent.nodes.statistics(), self.agent.pods.statistics()):
            seen = f"{cache.objects} are known" if cache.live else "its first list is awaited"
            yield Check(f"cache of {cache.name}", cache.live, seen)
