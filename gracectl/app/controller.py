"""The composition root: builds every part of the controller from the settings and runs them as one.

No part knows more of the settings than its own, and none outlives the others: when one dies, the process goes down with
its name and reason, and a new one finds everything it needs in the cluster's objects. What follows the cluster lives as
long as the process; what changes it, for a tenure at a time.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import anyio
import msgspec

from gracectl.admission.admission import Admission, AdmissionDependencies
from gracectl.admission.metrics import admission_samples, empty_statistics
from gracectl.admission.rbac import admission_permissions
from gracectl.app.following import SettingsFollower, following_checks, following_samples
from gracectl.cloud.provider import Provider, UsesCluster, instance_key_of
from gracectl.cloud.wrappers import FencedProvider, MeteredProvider
from gracectl.config import ConfigError, Settings
from gracectl.config.changes import OF_CONTROLLER
from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.controllers.cluster.informers import Reflectors
from gracectl.controllers.karpenter import KarpenterWatch
from gracectl.controllers.manager import Dependencies, ManagerStatistics, tenure
from gracectl.controllers.metrics import Work, protection_samples, work_samples
from gracectl.controllers.pipeline.state import Progress
from gracectl.controllers.pipeline.statistics import TerminationStatistics
from gracectl.controllers.rbac import MissingPermissions, rights_for
from gracectl.controllers.reporting.pod_counts import count_protected_pods
from gracectl.eviction.metrics import answer_samples
from gracectl.kube.cache import Cache, CacheStatistics
from gracectl.kube.client import INTERACTIVE, ClientSettings, KubeClient
from gracectl.kube.credentials import own_namespace
from gracectl.kube.election import PERMISSION_SECONDS, SETTLING_SECONDS, Election, ElectionSettings, ElectionStatistics
from gracectl.kube.errors import ApiError
from gracectl.kube.events import EventRecorder, EventStatistics, Subject
from gracectl.kube.metrics import (
    api_samples,
    clock_checks,
    clock_samples,
    event_samples,
    leader_samples,
    throttling_check,
    watch_samples,
)
from gracectl.kube.rbac import Permission, missing_permissions
from gracectl.kube.reflector import Reflector
from gracectl.kube.request_statistics import ClientStatistics
from gracectl.kube.resources import LEASES, NODES
from gracectl.kube.retry import RetrySettings
from gracectl.kube.settings import DEFAULT_NAMESPACE
from gracectl.kube.skew import SkewEstimate
from gracectl.kube.transport import Transport
from gracectl.model.names import EventReason
from gracectl.nodebudgets.admitter import Admitter, node_budget_samples
from gracectl.runtime.clock import Clock
from gracectl.runtime.fence import Fence, FenceStatistics
from gracectl.runtime.loop_monitor import LoopMonitor
from gracectl.runtime.supervise import Component, ComponentStatus, run_components
from gracectl.telemetry.exposition import PATH, PROCESS_COLLECTOR, Exposition
from gracectl.telemetry.health import (
    Check,
    check_of_components,
    check_of_event_loop,
    check_of_queues,
    check_of_timers,
    probes,
)
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.runtime_metrics import NO_SPANS, connection_samples, process_samples
from gracectl.telemetry.server import CannotListen, Endpoint, Servers
from gracectl.telemetry.spans import SpanSink

logger = logging.getLogger(__name__)

# Seconds for the writes that are under way when we are told to stop. What comes after them has its own: giving up the
# Lease, the last Events. All of it is over well before Kubernetes' 30 s, even if the server does not answer.
_LAST_WRITES_SECONDS = 10.0

# Seconds for a look at a pod whose DELETE for a deadline may have been carried out. The DELETE itself has the patience
# that every write has.
_LONGEST_LOOK = 10.0

# A controller that stands by without a Lease of its own looks this often whether the Karpenter is gone.
_CLEAR_SECONDS = 2.0

# Seconds that a worker may have the same key before the process counts as hung: more than all the patience that one has
# with a server that does not answer.
_PATIENCE, _PATIENT_REQUESTS = 900.0, 20


class ControllerStatistics(ManagerStatistics, frozen=True, kw_only=True):
    """A snapshot of every part: those of the last tenure, and those that live as long as the process."""

    client: ClientStatistics
    election: ElectionStatistics | None
    """None: we lead without one."""
    fence: FenceStatistics
    events: EventStatistics
    caches: tuple[CacheStatistics, ...]


class Controller:
    """The whole controller over one transport, on one clock; `rng` seeds every jitter, `spans` takes traces."""

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
        self._clock = clock
        self._provider = MeteredProvider(provider, clock)
        self._settings = settings
        self._spans = spans
        patient = ClientSettings(timeout=settings.client.request_timeout_seconds)
        self._client = KubeClient(transport, clock, settings=patient, rng=rng)
        self._cluster = cluster = empty_cluster_cache(instance_key_of(provider))
        self._recorder = EventRecorder(self._client, clock, instance=socket.gethostname())
        self._tallies = TerminationStatistics()
        # A client of its own: each try has its own grace, and deadlines do not wait until a server that is busy with
        # everything else has time.
        once = ClientSettings(timeout=min(patient.timeout, _LONGEST_LOOK), retry=RetrySettings(attempts=1))
        reflectors = Reflectors(self._client, cluster, clock, rng=rng)
        # Whoever admits, writes to the ledger, not only who leads: what keeps replicas apart there is its version.
        self._gate = Admitter(self._client, cluster.nodes, Cache("node-budgets"), clock, rng=rng)
        self._reflectors: tuple[Reflector[Any], ...] = (
            reflectors.of_pods(cluster.pods),
            *reflectors.whole,
            reflectors.of_node_budgets(self._gate.budgets),
        )
        self._deleting = KubeClient(transport, clock, settings=once, rng=rng)
        self._loop_monitor, self._component_status = LoopMonitor(clock), ComponentStatus()
        self._begun = clock.monotonic()
        self._stop = anyio.Event()
        self._fence = fence = Fence(clock)
        self._provider_rights: tuple[Permission, ...] = ()
        if isinstance(provider, UsesCluster):
            provider.use(self._client.fenced(fence))
            self._provider_rights = provider.rights()
        self._karpenter = self._neighbours(rng)
        self._election = self._candidacy(rng)
        self._means = Dependencies(
            client=self._client.fenced(fence),
            deleting=self._deleting.fenced(fence),
            cluster=cluster,
            admitter=self._gate,
            provider=FencedProvider(self._provider, fence),
            recorder=self._recorder,
            clock=clock,
            eviction=settings.eviction,
            termination=settings.termination,
            claim_resource=lambda: reflectors.claims.resource,
            statistics=self._tallies,
            component_status=self._component_status,
            spans=spans,
            rng=rng,
        )
        self._admission = self._webhooks() if settings.admission.is_wanted else None
        with tenure(self._means) as nothing_yet:
            self._tenure = nothing_yet
        clock.subscribe(lambda: self._tenure.clock_jumped())
        self._is_in_office = False
        self._follower: SettingsFollower | None = None
        self._skew: SkewEstimate | None = None
        sources = (self._samples_of_work, self._samples_of_protection, self._samples_of_process)
        exposition = Exposition(clock, sources, (PROCESS_COLLECTOR,))
        self._servers = Servers(
            (
                Endpoint("metrics.listen", settings.metrics.listen, {PATH: exposition.handle}),
                Endpoint("probes.listen", settings.probes.listen, probes(self.health, self.readiness)),
            ),
            clock,
        )

    def heed(self, skew: SkewEstimate | None) -> None:
        """To be called before `run`: what `skew` makes of the server's clock is shown by metrics and probes."""
        self._skew = skew

    def follow(self, read: Callable[[], Settings]) -> None:
        """To be called before `run`: what `read` says from now on counts as well, as far as it needs no restart. It
        raises ConfigError for what cannot be used."""
        self._follower = SettingsFollower(read, self._settings, self._clock, OF_CONTROLLER, self._take_over)

    def _take_over(self, settings: Settings) -> None:
        """From this moment on these settings count. They differ from those before in what may change while we run."""
        self._settings = settings
        self._means = msgspec.structs.replace(self._means, eviction=settings.eviction, termination=settings.termination)
        if self._is_in_office:  # else the next tenure begins with them
            self._tenure.configure(settings.eviction, settings.termination)

    def _candidacy(self, rng: random.Random) -> Election | None:
        """For the Lease that the settings name; None if we lead without one."""
        wanted = self._settings.leader_election
        if not wanted.enabled:
            return None
        settings = ElectionSettings(
            namespace=self._lease_namespace,
            name=wanted.name,
            identity=f"{socket.gethostname()}_{rng.getrandbits(64):016x}",
            lease_duration=wanted.lease_duration_seconds,
            renew_deadline=wanted.renew_deadline_seconds,
            retry_period=wanted.retry_period_seconds,
        )
        return Election(self._transport, self._clock, self._fence, settings, may_lead=self._may_lead, rng=rng)

    def _neighbours(self, rng: random.Random) -> KarpenterWatch:
        """Whether a Karpenter leads, where one is to be looked for."""
        wanted, place = self._settings.leader_election, self._lease_namespace
        client = KubeClient(self._transport, self._clock, settings=INTERACTIVE, rng=rng)
        namespaces = (*self._settings.karpenter.namespaces, place)
        return KarpenterWatch(client, self._clock, namespaces, own=self._lease if wanted.enabled else None)

    def _webhooks(self) -> Admission:
        """The admission server."""
        means = AdmissionDependencies(
            client=self._client,
            leading=self._means.client,
            admitter=self._gate,
            selector=self._means.termination.node_selector,
            clock=self._clock,
        )
        return Admission(self._settings.admission, means)

    @property
    def _lease_namespace(self) -> str:
        return self._settings.leader_election.namespace or own_namespace() or DEFAULT_NAMESPACE

    @property
    def _lease(self) -> tuple[str, str]:
        return self._lease_namespace, self._settings.leader_election.name

    async def check(self) -> str:
        """Make sure of the server, of our rights, and that no Karpenter leads; returns the server's version.

        Raises ApiError, MissingPermissions, or LiveKarpenter.
        """
        client = KubeClient(self._transport, self._clock, settings=INTERACTIVE)
        version = await client.server_version()
        rights = await rights_for(client, None if self._election is None else self._lease)
        rights += admission_permissions(self._settings.admission) + self._provider_rights
        if missing := await missing_permissions(client, rights):
            raise MissingPermissions(missing)
        # The last, because freshness is judged by the server's clock, which its answers have told us by now.
        await self._karpenter.refuse()
        return version

    async def run(self, stop: anyio.Event) -> None:
        """Run until `stop` is set; returns when running work is finished. Raises ComponentFailed or ConfigError."""
        self._stop = stop
        try:
            # The first to begin, so that it answers to the last; and before anything is changed.
            parts = await self._open_doors()
            parts |= {f"watch of {r.statistics().resource}": r.run for r in self._reflectors}
            parts |= self._admission.components if self._admission else {}
            parts |= {"events": self._recorder.run, "leadership": self._lead}
            parts |= {"settings": self._follower.run} if self._follower else {}
            parts["end of all writes"] = self._limit_writes  # the last, and so the first to be told to stop
            await run_components(parts, stop, status=self._component_status)
        finally:
            with anyio.CancelScope(shield=True):
                await self._servers.close()
                if self._admission:
                    await self._admission.close()
                await self._provider.aclose()

    async def _lead(self) -> None:
        """Change the cluster whenever we lead, until cancelled."""
        if self._election is not None:
            await self._election.run(self._hold_office)
        else:
            await self._lead_without_lease()

    async def _lead_without_lease(self) -> None:
        """Change the cluster at all times but beside a Karpenter."""
        while True:
            self._fence.open()
            async with anyio.create_task_group() as group:
                group.start_soon(self._hold_office)
                await self._until_may_lead(False, PERMISSION_SECONDS)
                self._fence.shut()
                with anyio.move_on_after(SETTLING_SECONDS):
                    await self._fence.empty()
                group.cancel_scope.cancel()
            self._fence.close()
            await self._until_may_lead(True, _CLEAR_SECONDS)

    async def _until_may_lead(self, wanted: bool, seconds: float) -> None:
        """Return when that is the answer; it is asked for every so many seconds. No answer is none."""
        while True:
            await self._clock.sleep(seconds)
            with suppress(ApiError):
                if await self._may_lead() is wanted:
                    return

    async def _may_lead(self) -> bool:
        """Whether no Karpenter leads; of one that has begun to while we lead, Events tell. Raises ApiError."""
        is_clear = await self._karpenter.is_clear()
        if not is_clear and self._is_in_office and (rival := self._karpenter.rival):
            message = f"{rival.words}; gracectl stands by, and leaves terminations to it; {rival.remedy}"
            subjects = [Subject(LEASES.api_version, LEASES.kind, *rival.lease, rival.uid)]
            subjects += [Subject(NODES.api_version, NODES.kind, "", each.name, each.uid) for each in self.under_way()]
            for subject in subjects:
                self._recorder.record(subject, EventReason.KARPENTER_LEADS, message, "Warning")
        return is_clear

    async def _hold_office(self) -> None:
        """Change the cluster until cancelled."""
        self._is_in_office = True
        try:
            with tenure(self._means) as self._tenure:
                async with anyio.create_task_group() as group:
                    if self._admission:
                        group.start_soon(self._admission.lead)
                    await self._tenure.run()
                    group.cancel_scope.cancel()
        finally:
            self._is_in_office = False

    async def _limit_writes(self) -> None:
        """From when we are told to stop, or a part has died, no write may keep the process from ending for long."""
        try:
            await anyio.sleep_forever()
        finally:
            self._fence.limit(_LAST_WRITES_SECONDS)

    async def _open_doors(self) -> dict[str, Component]:
        """The parts that answer scrapes and probes, if they have addresses; they listen already. Raises ConfigError."""
        try:
            await self._servers.open()
            if self._admission:
                await self._admission.open()
        except CannotListen as error:
            raise ConfigError(f"{error}; choose another address") from error
        except ValueError as error:
            raise ConfigError(f"{error}; put a PEM file there, or correct the path") from error
        if not self._servers.is_enabled:
            return {}
        return {"metrics and probes": self._servers.run, "loop monitor": self._loop_monitor.run}

    async def wait_live(self) -> None:
        """Return when every cache has taken over its first complete list."""
        await self._cluster.wait_live()
        await self._gate.wait_live()

    def under_way(self) -> tuple[Progress, ...]:
        """Where each termination stands."""
        return self._tenure.terminations.under_way() if self._is_in_office else ()

    def finished(self) -> tuple[Progress, ...]:
        """The last terminations of this tenure that have come to their end."""
        return self._tenure.terminations.finished()

    def claims_under_way(self) -> tuple[Progress, ...]:
        """Where the end of each node claim stands."""
        return self._tenure.claims.under_way() if self._is_in_office else ()

    def claims_finished(self) -> tuple[Progress, ...]:
        """The last node claims of this tenure that have come to their end."""
        return self._tenure.claims.finished()

    def trace_id(self, keys: Mapping[str, object]) -> str | None:
        """The trace that a line of the log with these keys belongs to; None if there is none."""
        return self._tenure.tracer.trace_id(keys)

    def samples(self) -> Iterator[Sample | None]:
        """What the metrics say now; see exposition.Source."""
        return chain(self._samples_of_work(), self._samples_of_protection(), self._samples_of_process())

    def _samples_of_work(self) -> Iterator[Sample]:
        return work_samples(self._work(), self._tallies, self._clock.now())

    def _work(self) -> Work:
        return self._tenure.work() if self._is_in_office else Work()

    def _samples_of_protection(self) -> Iterator[Sample | None]:
        settings = self._means.termination
        found = yield from count_protected_pods(
            self._cluster, settings.node_selector, settings.policy.protection, self._clock.now()
        )
        yield from protection_samples(found, self._tallies)

    def _samples_of_process(self) -> Iterator[Sample]:
        clients = (self._client.statistics(), self._deleting.statistics())
        watches = [reflector.statistics() for reflector in self._reflectors]
        caches = [cache.statistics() for cache in self._caches]
        yield from answer_samples(clients)
        yield from node_budget_samples(self._gate)
        yield from self._admission.samples() if self._admission else admission_samples(empty_statistics(), None)
        yield from self._provider.samples()
        yield from api_samples(clients)
        yield from clock_samples(self._skew.statistics() if self._skew else None)
        yield from watch_samples(watches, caches, self._clock.monotonic(), self._begun)
        listeners = {**self._servers.statistics(), **(self._admission.connections() if self._admission else {})}
        yield from connection_samples(listeners)
        yield from event_samples(self._recorder.statistics())
        yield from process_samples(
            self._loop_monitor.statistics(), NO_SPANS if self._spans is None else self._spans.statistics()
        )
        election = None if self._election is None else self._election.statistics()
        yield from following_samples(self._follower)
        yield from leader_samples(self._is_in_office, election, self._fence.statistics())

    @property
    def _caches(self) -> tuple[Cache[Any], ...]:
        return (*self._cluster.caches, self._gate.budgets)

    def health(self) -> Iterator[Check]:
        """Whether the process lives, or would be better off dead. Nothing of that depends on the API server."""
        now, work, eviction = self._clock.monotonic(), self._work(), self._settings.eviction
        patience = max(_PATIENCE, _PATIENT_REQUESTS * self._settings.client.request_timeout_seconds)
        if eviction.qps:
            patience = max(patience, eviction.max_in_flight / eviction.qps)
        yield check_of_event_loop(self._loop_monitor.statistics(), now)
        yield check_of_components(self._component_status.statistics())
        yield check_of_queues(work.queues, patience)
        yield check_of_timers(work.deleter.wheel, now)

    def readiness(self) -> Iterator[Check]:
        """Whether the process sees the cluster and has not been told to stop; one that stands by is ready as well."""
        is_stopping = self._stop.is_set()
        yield Check("running", not is_stopping, "told to stop" if is_stopping else "not told to stop")
        for cache in (cache.statistics() for cache in self._caches):
            seen = f"{cache.objects} are known" if cache.live else "its first list is awaited"
            yield Check(f"cache of {cache.name}", cache.live, seen)
        if self._admission:
            yield self._admission.readiness()
        yield throttling_check((self._client.statistics(), self._deleting.statistics()), self._clock.monotonic())
        yield from clock_checks(self._skew.statistics() if self._skew else None)
        yield from following_checks(self._follower)
        if rival := self._karpenter.rival:
            # Who is told of it can do nothing better with another process; so it is ready all the same.
            yield Check("karpenter", True, f"{rival.words}, so this process stands by")

    def statistics(self) -> ControllerStatistics:
        """What every part has done so far."""
        return ControllerStatistics(
            **msgspec.structs.asdict(self._tenure.statistics()),
            client=self._client.statistics(),
            election=self._election.statistics() if self._election else None,
            fence=self._fence.statistics(),
            events=self._recorder.statistics(),
            caches=tuple(cache.statistics() for cache in self._caches),
        )
