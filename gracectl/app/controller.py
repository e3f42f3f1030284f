"""Composition root of the controller: builds every component from the settings and runs them together.

A component gets only its own part of the settings. When one fails, the process exits with its name and reason, and a
new one finds everything it needs in the cluster's objects. Components that read the cluster live as long as the
process; the manager, which changes it, as long as a term of leadership.
"""

from __future__ import annotations

import gc
import logging
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import anyio
import msgspec

from gracectl.admission.admission import Admission, AdmissionDependencies
from gracectl.admission.server import empty_samples
from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import admission_permissions
from gracectl.app.clocks import ClockReporter
from gracectl.app.dry_run import DryRunTransport
from gracectl.app.forecasts import NodeForecaster
from gracectl.app.notifications import Notifier, Send
from gracectl.app.process import Process, Program
from gracectl.app.settings_reload import SettingsReloader
from gracectl.cloud.provider import Provider, UsesCluster, instance_key_of
from gracectl.cloud.wrappers import DryRunProvider, FencedProvider, MeteredProvider
from gracectl.config import ConfigError, Settings
from gracectl.config.changes import CONTROLLER_SCOPE
from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.controllers.cluster.informers import Reflectors
from gracectl.controllers.drains import Dependencies
from gracectl.controllers.interruption.recorder import Recorder
from gracectl.controllers.karpenter import KarpenterPresence
from gracectl.controllers.manager import ManagerStatistics, idle_manager, open_manager
from gracectl.controllers.metrics import Work, interruption_samples, protection_samples, work_samples
from gracectl.controllers.rbac import CLUSTER_API_RIGHTS, MissingPermissions, freeze_rights, rights_for
from gracectl.controllers.termination.pod_counts import count_protected_pods
from gracectl.controllers.termination.state import Progress
from gracectl.controllers.termination.statistics import TerminationStatistics
from gracectl.interruption.recording import Counts
from gracectl.interruption.source import ReadsNodes, Serves, Source
from gracectl.kube.auth.credentials import own_namespace
from gracectl.kube.cache import Cache, CacheStatistics
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import INTERACTIVE, ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.client.statistics import ClientStatistics
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventRecorder, EventStatistics, Subject
from gracectl.kube.leader.election import (
    Election,
    ElectionSettings,
    ElectionStatistics,
)
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE
from gracectl.kube.metrics import (
    leader_samples,
)
from gracectl.kube.rbac import READS, Permission, missing_permissions
from gracectl.kube.resources import LEASES, NODE_BUDGETS, NODE_CLAIMS, NODE_DRAINS, NODES, PODS
from gracectl.kube.transport import Transport
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.nodedrain import NodeDrain
from gracectl.nodebudgets.admitter import Admitter, node_budget_samples
from gracectl.policy.finalizers import FinalizerRule, finalizer_rule
from gracectl.policy.interruption import is_urgent
from gracectl.runtime.clock import Clock
from gracectl.runtime.fence import Fence, FenceStatistics
from gracectl.runtime.supervise import Component, run_components
from gracectl.telemetry.health import (
    Check,
    check_of_queues,
    check_of_timers,
)
from gracectl.telemetry.metrics import DRY_RUN, FROZEN, Sample
from gracectl.telemetry.node_labels import NodeLabels
from gracectl.telemetry.server import CannotListen
from gracectl.telemetry.spans import SpanSink

logger = logging.getLogger(__name__)

# Seconds for writes in progress at shutdown. Releasing the Lease and the last Events have their own time. All of
# it takes well below Kubernetes' 30 s, even if the server does not respond.
_LAST_WRITES_SECONDS = 10.0

# Timeout of reading a pod after a DELETE for a deadline with an unknown outcome. The DELETE itself has the timeout
# of every write.
_READ_SECONDS = 10.0

# `check` has shown that everything may be read: a later refusal is that of a server that has not read its roles yet.
_CHECKED = ReflectorSettings(proven=True)

# A worker may have the same key for this long before the process counts as hung: longer than all timeouts and retries
# against an unresponsive server.
_HUNG_SECONDS, _HUNG_REQUESTS = 900.0, 20


def _without_writers(settings: Settings) -> Settings:
    """The settings of a dry run: it contends for no Lease, and answers no webhooks."""
    election = msgspec.structs.replace(settings.leader_election, enabled=False)
    return msgspec.structs.replace(settings, leader_election=election, admission=AdmissionSettings())


class ControllerStatistics(ManagerStatistics, frozen=True, kw_only=True):
    """Snapshot of every component of the last manager and of the process."""

    client: ClientStatistics
    election: ElectionStatistics | None
    """Statistics of the leader election; None if it is disabled."""
    fence: FenceStatistics
    events: EventStatistics
    caches: tuple[CacheStatistics, ...]


class Controller:
    """The whole controller over one transport, on one clock; `rng` seeds all jitter, `spans` takes traces.

    Over a DryRunTransport it only observes: it does not take part in the election, registers no webhooks, terminates no
    instance, and hears only the interruptions that nodes show.
    """

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        clock: Clock,
        provider: Provider,
        *,
        rng: random.Random | None = None,
        spans: SpanSink | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._transport = transport
        self._is_dry_run = isinstance(transport, DryRunTransport)
        self._clock = clock
        if self._is_dry_run:
            settings = _without_writers(settings)
        self._sources: tuple[Source, ...] = ()
        self._interruptions: Counts = Counter()
        self._notifier: Notifier | None = None
        self._provider = MeteredProvider(DryRunProvider(provider) if self._is_dry_run else provider, clock)
        self._settings = settings
        client_settings = ClientSettings(timeout=settings.client.request_timeout_seconds)
        self._cluster = cluster = empty_cluster_cache(instance_key_of(provider))
        self._client = KubeClient(transport, clock, settings=client_settings, rng=rng, witness=cluster.witness)
        self._recorder = EventRecorder(self._client, clock, instance=socket.gethostname())
        self._statistics = TerminationStatistics(labels=NodeLabels(settings.metrics.labels))
        # A separate client: each try has its own grace, and deadlines do not wait for other requests to a busy
        # server.
        once = ClientSettings(timeout=min(client_settings.timeout, _READ_SECONDS), retry=RetrySettings(attempts=1))
        reflectors = Reflectors(self._client, cluster, clock, settings=_CHECKED, rng=rng)
        self._identity = reflectors.identity
        # Every replica admits and writes to the store, not only the leader: resource versions keep replicas apart.
        self._admitter = Admitter(self._client, cluster.nodes, Cache("node-budgets"), clock, rng=rng)
        self._node_drains: Cache[NodeDrain] = Cache("node-drains")
        if isinstance(transport, DryRunTransport):
            followed = (PODS, cluster.pods), (NODES, cluster.nodes), (NODE_CLAIMS, cluster.claims)
            budgets, drains = (NODE_BUDGETS, self._admitter.budgets), (NODE_DRAINS, self._node_drains)
            transport.caches = (*followed, budgets, drains)
        self._reflectors: tuple[Reflector[Any], ...] = (
            reflectors.of_pods(cluster.pods),
            *reflectors.whole,
            reflectors.of_node_budgets(self._admitter.budgets),
            reflectors.of_freeze(cluster.freezes, self._namespace),
            reflectors.of_node_drains(self._node_drains),
            *((reflectors.of_machines(cluster.machines),) if settings.assist.cluster_api else ()),
        )
        self._deleting = KubeClient(transport, clock, settings=once, rng=rng, witness=cluster.witness)
        self._stop = anyio.Event()
        self._fence = fence = Fence(clock)
        self._provider_rights: tuple[Permission, ...] = ()
        if isinstance(provider, UsesCluster):
            provider.use(self._client.fenced(fence))
            self._provider_rights = provider.rights()
        self._karpenter = KarpenterPresence(
            self._client, clock, cluster.presence, lambda: self._manager.look_at_finalizers()
        )
        self._election = self._make_election(rng)
        program = Program(
            clients=(self._client, self._deleting),
            recorder=self._recorder,
            reflectors=lambda: self._reflectors,
            caches=lambda: self._caches,
            sources=(self._samples_of_work, self._samples_of_protection, self._samples_of_parts),
            health=self._checks_of_work,
            readiness=self._checks_of_leadership,
            requests=lambda: (self._election.requests(),) if self._election else (),
            listeners=lambda: self._admission.connections() if self._admission else {},
        )
        self.process = Process(settings, clock, program, spans=spans, node_labels=settings.metrics.labels)
        self._dependencies = Dependencies(
            client=self._client.fenced(fence),
            deleting=self._deleting.fenced(fence),
            cluster=cluster,
            admitter=self._admitter,
            provider=FencedProvider(self._provider, fence),
            recorder=self._recorder,
            clock=clock,
            eviction=settings.eviction,
            termination=settings.termination,
            claim_resource=lambda: reflectors.claims.resource,
            statistics=self._statistics,
            interruptions=self._interruptions,
            component_status=self.process.components,
            spans=spans,
            finalizer=self._finalizer,
            node_drains=self._node_drains,
            forecast=NodeForecaster(cluster, lambda: self._dependencies.termination, clock),
            led_until=lambda: None if self._election is None else self._election.led_until,
            rng=rng,
        )
        self._admission = self._make_admission() if settings.admission.is_wanted else None
        self._manager = idle_manager(self._dependencies)
        clock.subscribe(lambda: self._manager.clock_jumped())
        self._is_leading = False
        self._clocks = ClockReporter(clock, self._recorder, self.process.skew_statistics, self._disputed_subjects)

    async def check(self) -> str:
        """Check the server and the permissions, and look for Karpenter; returns the server's version.

        Raises ApiError or MissingPermissions.
        """
        client = KubeClient(self._transport, self._clock, settings=INTERACTIVE)
        version = await client.server_version()
        lease = None if self._election is None else self._lease
        rights = await rights_for(client, lease, replaces=self._settings.replace_first.is_wanted)
        rights += freeze_rights(self._namespace)
        rights += admission_permissions(self._settings.admission) + self._provider_rights
        rights += CLUSTER_API_RIGHTS if self._settings.assist.cluster_api else ()
        if self._is_dry_run:
            rights = tuple(right for right in rights if right.verb in READS)
        if missing := await missing_permissions(client, rights):
            raise MissingPermissions(missing)
        with suppress(ApiError):  # asked again while it runs
            await self._karpenter.look()
        return version

    async def run(self, stop: anyio.Event) -> None:
        """Run until `stop` is set; returns when writes in progress are finished. Raises ComponentFailed or
        ConfigError."""
        self._stop = stop
        try:
            # First to start and last to stop, and opened before anything is changed.
            components = await self._open_servers()
            components |= {f"watch of {r.statistics().resource}": r.run for r in self._reflectors}
            components |= self._admission.components if self._admission else {}
            components |= {f"interruptions by {each.name}": each.serve for each in self._serving}
            components |= {"events": self._recorder.run, "leader election": self._lead}
            components |= {"notifications": self._notifier.run} if self._notifier else {}
            components |= {"clocks": self._clocks.run, "karpenter": self._karpenter.run}
            components["write limit"] = self._limit_writes  # last, and so the first to be stopped
            await run_components(components, stop, status=self.process.components)
        finally:
            with anyio.CancelScope(shield=True):
                await self.process.close()
                if self._admission:
                    await self._admission.close()
                for source in self._serving:
                    await source.close()
                await self._provider.aclose()

    async def _lead(self) -> None:
        """Run the manager whenever this process leads, until cancelled."""
        if self._election is not None:
            await self._election.run(self._run_manager)
        else:
            self._fence.open()
            await self._run_manager()

    async def _run_manager(self) -> None:
        """Run the manager until cancelled."""
        # Controllers decide nothing before: to hear of each object of the first lists takes as long as to decode it.
        await self._cluster.wait_live()
        dependencies = self._dependencies
        try:
            async with open_manager(dependencies) as self._manager:
                self._is_leading = True
                if self._dependencies is not dependencies:  # the settings have changed meanwhile
                    self._manager.configure(self._dependencies.eviction, self._dependencies.termination)
                async with anyio.create_task_group() as group:
                    if self._admission:
                        group.start_soon(self._admission.lead)
                    await self._manager.run()
                    group.cancel_scope.cancel()
        finally:
            self._is_leading = False
            if not self._stop.is_set():  # a standby keeps no state of its term
                self._manager = idle_manager(self._dependencies)
                gc.collect()  # which is rare otherwise: the manager of the term has kept something of each node

    async def _limit_writes(self) -> None:
        """Limit writes from the shutdown, or the failure of a component, on, so that none delays the exit for long."""
        try:
            await anyio.sleep_forever()
        finally:
            self._fence.limit(_LAST_WRITES_SECONDS)

    async def _open_servers(self) -> dict[str, Component]:
        """Components of the process; all servers listen already. Raises ConfigError."""
        components = await self.process.open()
        try:
            if self._admission:
                await self._admission.open()
            managed = self._dependencies.termination.managed
            for source in self._serving:
                # Like admission, in every replica: nodes are written under their versions.
                recorder = Recorder(self._client, self._cluster, managed, self._clock, self._interruptions)
                await source.open(recorder.handler(source.name))
        except CannotListen as error:
            raise ConfigError(f"{error}; choose another address") from error
        except ValueError as error:
            raise ConfigError(f"{error}; provide a PEM file, or correct the path") from error
        return components

    def compare_clusters(self) -> None:
        """List everything again if a lost connection led to another cluster (see `kube.cache.identity`)."""
        self._identity.is_compared = True

    def _disputed_subjects(self) -> Iterator[Subject]:
        """Objects that wait while clocks are in dispute, for Events."""
        if self._election is not None:
            yield Subject(LEASES.api_version, LEASES.kind, *self._lease, self._election.lease_uid)
        for resource, progress in (
            (NODES, self.under_way()),
            (self._dependencies.claim_resource(), self.claims_under_way()),
        ):
            for each in progress:
                if each.deadline is not None:
                    yield Subject(resource.api_version, resource.kind, "", each.name, each.uid)

    def hear_from(self, sources: Iterable[Source]) -> None:
        """Sources of interruptions. To be called before `run`."""
        self._sources = tuple(each for each in sources if not self._is_dry_run or isinstance(each, ReadsNodes))
        self._dependencies = msgspec.structs.replace(self._dependencies, sources=self._sources)

    def notify_by(self, send: Send) -> None:
        """Notify people of what happens. To be called before `run`."""
        self._notifier = Notifier(self._settings.notifications, self._settings.cluster, self._clock, send)
        self._recorder.listen(self._notifier.record)

    def reload_from(self, read: Callable[[], Settings]) -> None:
        """Reload settings from `read`, as far as they need no restart. To be called before `run`. `read` raises
        ConfigError for invalid settings."""
        observed = (lambda: _without_writers(read())) if self._is_dry_run else read
        self.process.reloader = SettingsReloader(
            observed, self._settings, self._clock, CONTROLLER_SCOPE, self._apply_settings
        )

    def _apply_settings(self, settings: Settings) -> None:
        """Apply settings that differ only in what may change at run time."""
        self._settings = settings
        self._dependencies = msgspec.structs.replace(
            self._dependencies, eviction=settings.eviction, termination=settings.termination
        )
        if self._is_leading:  # else the next manager starts with them
            self._manager.configure(settings.eviction, settings.termination)

    def _make_election(self, rng: random.Random) -> Election | None:
        """Election for the configured Lease; None without leader election."""
        wanted = self._settings.leader_election
        if not wanted.enabled:
            return None
        settings = ElectionSettings(
            namespace=self._namespace,
            name=wanted.name,
            identity=f"{socket.gethostname()}_{rng.getrandbits(64):016x}",
            lease_duration=wanted.lease_duration_seconds,
            renew_deadline=wanted.renew_deadline_seconds,
            retry_period=wanted.retry_period_seconds,
        )
        return Election(self._transport, self._clock, self._fence, settings, rng=rng)

    def _finalizer(self) -> FinalizerRule:
        """The finalizer that holds our nodes and claims now."""
        return finalizer_rule(self._dependencies.termination.finalizer, has_karpenter=self._karpenter.is_installed)

    def _make_admission(self) -> Admission:
        """The admission server."""
        dependencies = AdmissionDependencies(
            client=self._client,
            leading=self._dependencies.client,
            admitter=self._admitter,
            managed=self._dependencies.termination.managed,
            finalizer=self._finalizer,
            clock=self._clock,
            nodes_of=self._nodes_of,
            is_urgent=self._is_urgent,
            freeze=lambda: self._cluster.freeze(self._clock.now()),
        )
        return Admission(self._settings.admission, dependencies)

    @property
    def _serving(self) -> tuple[Serves, ...]:
        return tuple(each for each in self._sources if isinstance(each, Serves))

    def _nodes_of(self, claim: NodeClaim) -> tuple[Node, ...] | None:
        """The nodes of a claim of which a client says name and UID; None: not known yet."""
        if not self._cluster.claims.live:
            return None
        known = self._cluster.claim(claim.name)
        return () if known is None or known.uid != claim.uid else self._cluster.nodes_of(known)

    def _is_urgent(self, node: Node) -> bool:
        """Whether budgets for nodes must not stop the deletion of a node: its machine goes anyway, or the deadline of
        another owner runs since the deletion of its claim, which the budgets have allowed."""
        claims = self._cluster.claims_of(node)
        is_anothers = any(each.deletion_timestamp is not None and self._cluster.owner_of_claim(each) for each in claims)
        return is_anothers or is_urgent(node, self._clock.now(), self._dependencies.termination.policy.lead_seconds)

    @property
    def _namespace(self) -> str:
        """Namespace of the Lease and of the freeze."""
        return self._settings.leader_election.namespace or own_namespace() or DEFAULT_NAMESPACE

    @property
    def _lease(self) -> tuple[str, str]:
        return self._namespace, self._settings.leader_election.name

    async def wait_live(self) -> None:
        """Wait until every cache has its first complete list."""
        await self._cluster.wait_live()
        await self._admitter.wait_live()
        await self._node_drains.wait_live()

    def under_way(self) -> tuple[Progress, ...]:
        """Progress of active terminations."""
        return self._manager.terminations.registry.in_progress() if self._is_leading else ()

    def finished(self) -> tuple[Progress, ...]:
        """Progress of the last completed terminations of this manager."""
        return self._manager.terminations.registry.finished()

    def claims_under_way(self) -> tuple[Progress, ...]:
        """Progress of active terminations of node claims."""
        return self._manager.claims.registry.in_progress() if self._is_leading else ()

    def trace_id(self, keys: Mapping[str, object]) -> str | None:
        """Trace id for a log line with these keys; None if there is none."""
        return self._manager.tracer.trace_id(keys)

    def _samples_of_work(self) -> Iterator[Sample]:
        return work_samples(self._work(), self._statistics, self._clock.now())

    def _work(self) -> Work:
        return self._manager.work() if self._is_leading else Work()

    def _samples_of_protection(self) -> Iterator[Sample | None]:
        settings = self._dependencies.termination
        found = yield from count_protected_pods(
            self._cluster, settings.managed, settings.policy.protection, self._clock.now()
        )
        yield from protection_samples(found, self._statistics)

    def _samples_of_parts(self) -> Iterator[Sample]:
        yield from node_budget_samples(self._admitter)
        yield from self._admission.samples() if self._admission else empty_samples()
        yield from self._provider.samples()
        yield from interruption_samples(self._sources, self._interruptions)
        yield from self._notifier.samples() if self._notifier else ()
        election = None if self._election is None else self._election.statistics()
        yield from leader_samples(self._is_leading, election, self._fence.statistics())
        yield Sample(DRY_RUN, (), int(self._is_dry_run))
        yield Sample(FROZEN, (), int(self._cluster.freeze(self._clock.now()) is not None))

    @property
    def _caches(self) -> tuple[Cache[Any], ...]:
        return (*self._cluster.caches, self._admitter.budgets, self._node_drains)

    def _checks_of_work(self) -> Iterator[Check]:
        """Liveness of the work queues and timers."""
        work, eviction = self._work(), self._settings.eviction
        limit = max(_HUNG_SECONDS, _HUNG_REQUESTS * self._settings.client.request_timeout_seconds)
        if eviction.qps:
            limit = max(limit, eviction.max_in_flight / eviction.qps)
        yield check_of_queues(work.queues, limit)
        yield check_of_timers(work.deleter.wheel, self._clock.monotonic())

    def _checks_of_leadership(self) -> Iterator[Check]:
        """Readiness, besides that of the process: it is not stopping; a standby replica is ready as well."""
        is_stopping = self._stop.is_set()
        yield Check("running", not is_stopping, "stopping" if is_stopping else "running")
        if self._admission:
            yield self._admission.readiness()
        if self._is_dry_run:
            yield Check("dry run", True, "observes only: nothing is written")
        if self._karpenter.is_installed:
            yield Check("karpenter", True, f"installed: its nodes are left to it; ours have {self._finalizer().name}")

    def statistics(self) -> ControllerStatistics:
        """Statistics of every component."""
        return ControllerStatistics(
            **msgspec.structs.asdict(self._manager.statistics()),
            client=self._client.statistics(),
            election=self._election.statistics() if self._election else None,
            fence=self._fence.statistics(),
            events=self._recorder.statistics(),
            caches=tuple(cache.statistics() for cache in self._caches),
        )
