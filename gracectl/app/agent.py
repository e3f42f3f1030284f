"""Composition root of `gracectl agent`: the agent of one node, its clients, metrics and probes, and its settings.

The settings file is reloaded: another shutdown order applies to the next shutdown. All else (addresses, log format)
needs a restart.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import anyio
import msgspec

from gracectl.agent.agent import Agent, AgentDependencies, rights
from gracectl.agent.interruptions import NodeNotices, source_of
from gracectl.agent.shutdown import agent_samples
from gracectl.agent.watch import Machine
from gracectl.app.process import Process, Program
from gracectl.app.settings_reload import SettingsReloader
from gracectl.config import Settings
from gracectl.config.changes import AGENT_SCOPE
from gracectl.controllers.metrics import interruption_samples
from gracectl.interruption.metadata import HttpService, open_session
from gracectl.interruption.source import Polls
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.connection import closed_despite_cancellation
from gracectl.kube.errors import ApiError, Forbidden, NotFound
from gracectl.kube.events import EventRecorder
from gracectl.kube.rbac import missing_permissions, own_username
from gracectl.kube.resources import NODES
from gracectl.kube.transport import Transport
from gracectl.model.foreign import harmless
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import run_components, while_running
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.spans import SpanSink

logger = logging.getLogger(__name__)

READ_SECONDS: Final = 10.0
"""Seconds for a read, which must not delay a shutdown. A write has the time that webhooks need; only its own pod or
node waits for it."""

KUBELET_PREFIX: Final = "system:node:"
"""Before the node's name in the username of a kubelet."""

PERMISSIONS_SECONDS: Final = 10.0
"""Pause until the permissions are checked again after a failure."""


class NodeAgent:
    """The whole agent of a machine over one transport, on one clock; `settings` returns the present ones, or raises
    ConfigError; `rng` seeds all jitter, `spans` takes traces."""

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
        self._clock = clock
        self._node = machine.node
        timeout = min(current.client.request_timeout_seconds, READ_SECONDS)
        self._reads_as = KUBELET_PREFIX + machine.node if current.agent.impersonate_node else ""
        client = ClientSettings(timeout=timeout, reads_as=self._reads_as)
        self._client = KubeClient(transport, clock, settings=client, rng=rng)
        # A separate client: each try has its own grace.
        once = msgspec.structs.replace(client, retry=RetrySettings(attempts=1))
        self._deleting = KubeClient(transport, clock, settings=once, rng=rng)
        self._recorder = EventRecorder(self._client, clock, instance=socket.gethostname())
        self._stop = anyio.Event()
        dependencies = AgentDependencies(
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
        self.agent = Agent(dependencies, self._policy, self._disabled)
        self._settings = current.agent
        self._metadata = machine.metadata
        self._notices = NodeNotices(machine.node, self.agent.nodes, self._client, clock)
        self._source: Polls | None = None
        program = Program(
            clients=(self._client, self._deleting),
            recorder=self._recorder,
            reflectors=lambda: self.agent.reflectors,
            caches=lambda: (self.agent.nodes, self.agent.pods),
            sources=(lambda: agent_samples(self.agent.statistics()), self._interruption_samples),
            readiness=self.agent.readiness,
        )
        self.process = Process(current, clock, program, spans=spans)
        self.process.reloader = SettingsReloader(settings, current, clock, AGENT_SCOPE, self._apply_settings)

    async def run(self, stop: anyio.Event) -> None:
        """Run until `stop` is set, or until the settings have no order for this node; a shutdown under way is completed
        first. Raises ComponentFailed, or ConfigError."""
        try:
            components = await self.process.open()
            components |= {"events": self._recorder.run, **self.agent.components}
            components["rights"] = self._check_permissions
            if self._settings.interruption_source != "none":
                components["interruptions"] = self._hear_interruptions
            async with while_running(partial(self._stop_after, stop)):
                await run_components(components, self._stop, status=self.process.components)
        finally:
            with anyio.CancelScope(shield=True):
                await self.process.close()

    async def _stop_after(self, stop: anyio.Event) -> None:
        await stop.wait()
        await self.agent.settled()
        self._stop.set()

    def _disabled(self, reason: str) -> None:
        logger.info("graceful shutdown disabled: %s; exiting", reason)
        self._stop.set()

    async def _hear_interruptions(self) -> None:
        """Component: record what the metadata service says about the end of the machine."""
        async with closed_despite_cancellation(open_session()) as session:
            service = self._metadata or HttpService(session, self._settings.metadata_url)
            kind, approves = self._settings.interruption_source, self._settings.approve_events
            self._source = source_of(kind, service, approves=approves)
            await self._notices.run(self._source)

    def _interruption_samples(self) -> Iterator[Sample]:
        sources = () if self._source is None else (self._source,)
        return interruption_samples(sources, self._notices.counts)

    async def _check_permissions(self) -> None:
        """Component: log missing permissions as soon as the server can be reached; the agent still runs."""
        while True:
            try:
                user = await own_username(self._client)
                is_kubelet = user.startswith(KUBELET_PREFIX)
                # The Node authorizer answers for single objects only.
                needed = () if is_kubelet else rights(impersonates=bool(self._reads_as))
                missing = await missing_permissions(self._client, needed)
                refusal = await self._impersonation_refusal()
                break
            except ApiError as error:
                logger.warning("permissions: cannot be checked: %s; retrying", error)
                await self._clock.sleep(PERMISSIONS_SECONDS)
        if is_kubelet and user != KUBELET_PREFIX + self._node:
            logger.error(
                "credentials: of %s: cannot read node %s; use the kubeconfig of that node's kubelet, or another "
                "--node-name",
                harmless(user),
                self._node,
            )
        if missing:
            listed = "; ".join(str(right) for right in missing)
            logger.error("missing permissions: %s", listed)
        if refusal is not None:
            logger.error(
                "impersonation: cannot read node %s as %s: %s; Kubernetes 1.36 or newer, its feature gate "
                "ConstrainedImpersonation, and the token of a pod on that node are needed, else set "
                "agent.impersonateNode to false",
                self._node,
                self._reads_as,
                refusal,
            )
        await anyio.sleep_forever()

    async def _impersonation_refusal(self) -> Forbidden | None:
        """Why the server does not let the agent impersonate its node; None if it does, or need not. Raises ApiError.

        A role can grant what the server does not know, so access reviews do not tell.
        """
        if not self._reads_as:
            return None
        try:
            await self._client.get(NODES, ("", self._node))
        except Forbidden as error:
            return error
        except NotFound:
            pass
        return None

    def _apply_settings(self, settings: Settings) -> None:
        if settings.shutdown != self._policy:
            self._policy = settings.shutdown
            self.agent.configure(self._policy)
