"""The composition root: builds every part of the controller from the settings and runs them as one.

No part knows more of the settings than its own, and none outlives the others: when one dies, the process goes down with
its name and reason, and a new one finds everything it needs in the cluster's objects.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import msgspec

from gracectl.cloud.provider import Provider
from gracectl.config import ConfigError, Settings
from gracectl.eviction.deleter import DeleterStatistics, PodDeleter
from gracectl.eviction.evictor import Evictor, EvictorStatistics
from gracectl.kube.access import Right, missing_rights
from gracectl.kube.cache import CacheStatistics
from gracectl.kube.client import IMPATIENT, ClientSettings, ClientStatistics, KubeClient
from gracectl.kube.events import EventRecorder, EventStatistics
from gracectl.kube.reading import is_served
from gracectl.kube.reflector import Reflector
from gracectl.kube.resources import NODE_CLAIM_VERSIONS
from gracectl.kube.retry import RetrySettings
from gracectl.kube.transport import Transport
from gracectl.model.names import KARPENTER_GROUP
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock
from gracectl.runtime.queue import QueueStatistics
from gracectl.runtime.supervise import Part, run_parts
from gracectl.telemetry.exposition import Exposition
from gracectl.telemetry.metrics import Sample
from gracectl.termination.census import census
from gracectl.termination.ending import Progress
from gracectl.termination.guards import GuardTimes
from gracectl.termination.keeper import FinalizerKeeper
from gracectl.termination.misspelt import Misspellings
from gracectl.termination.node import NodeTermination
from gracectl.termination.nodeclaim import NodeClaimTermination
from gracectl.termination.observed import observe_nothing_yet
from gracectl.termination.pods import PodAnnouncer
from gracectl.termination.samples import protection_samples
from gracectl.termination.sources import Reflectors
from gracectl.termination.steps import Tools
from gracectl.termination.voluntary import VoluntaryTermination

logger = logging.getLogger(__name__)

RIGHTS = (
    *(Right(verb, "nodes") for verb in ("get", "list", "watch", "patch", "delete")),
    Right("patch", "nodes", subresource="status"),
    *(Right(verb, "pods") for verb in ("get", "list", "watch", "delete")),
    Right("create", "pods", subresource="eviction"),
    *(Right(verb, "poddisruptionbudgets", "policy") for verb in ("list", "watch")),
    *(Right(verb, "volumeattachments", "storage.k8s.io") for verb in ("list", "watch")),
    Right("get", "persistentvolumeclaims"),
    *(Right(verb, "events") for verb in ("create", "patch")),
)
"""Everything that the controller ever asks of a cluster without node claims."""

CLAIM_RIGHTS = (
    *(Right(verb, "nodeclaims", KARPENTER_GROUP) for verb in ("get", "list", "watch", "patch", "delete")),
    Right("patch", "nodeclaims", KARPENTER_GROUP, "status"),
)
"""What comes to that where the cluster has node claims."""

# Seconds for one DELETE for a deadline; the next try asks for what is left then.
_LONGEST_DELETION = 10.0


class MissingRights(Exception):
    """The credentials do not allow all that the controller does; `rights` says what is missing."""

    def __init__(self, rights: tuple[Right, ...]) -> None:
        super().__init__("the credentials do not allow to " + "; ".join(str(right) for right in rights))
        self.rights = rights


async def rights_for(client: KubeClient) -> tuple[Right, ...]:
    """What the controller needs on this cluster. Raises ApiError."""
    return RIGHTS + CLAIM_RIGHTS if await is_served(client, NODE_CLAIM_VERSIONS) else RIGHTS


class ControllerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of every part."""

    terminations: QueueStatistics
    claim_terminations: QueueStatistics
    voluntary_terminations: QueueStatistics
    evictor: EvictorStatistics
    deleter: DeleterStatistics
    client: ClientStatistics
    events: EventStatistics
    caches: tuple[CacheStatistics, ...]


class Controller:
    """The whole controller over one transport, on one clock; `rng` seeds every jitter."""

    def __init__(
        self,
        settings: Settings,
        transport: Transport,
        clock: Clock,
        provider: Provider,
        *,
        rng: random.Random | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._transport = transport
        self._clock = clock
        self._provider = provider
        self._settings = settings
        patient = ClientSettings(timeout=settings.client.request_timeout_seconds)
        self._client = KubeClient(transport, clock, settings=patient, rng=rng)
        self._observed = observed = observe_nothing_yet()
        self._recorder = EventRecorder(self._client, clock)
        eviction = settings.eviction
        patience = partial(Backoff, eviction.backoff_initial_seconds, eviction.backoff_maximum_seconds, rng=rng)
        self._evictor = Evictor(self._client, observed.pods, observed.budgets, clock, eviction, patience)
        announcer = PodAnnouncer(self._recorder)
        self._evictor.listen(announcer)
        # A client of its own: each try has its own grace, and deadlines do not wait until a server that is busy with
        # everything else has time.
        once = ClientSettings(timeout=min(patient.timeout, _LONGEST_DELETION), retry=RetrySettings(attempts=1))
        deleting = KubeClient(transport, clock, settings=once, rng=rng)
        self._deleter = PodDeleter(deleting, observed.pods, clock, eviction, patience)
        self._deleter.listen(announcer)
        reflectors = Reflectors(self._client, observed, clock, rng=rng)
        self._reflectors: tuple[Reflector[Any], ...] = (reflectors.of_pods(observed.pods), *reflectors.whole)
        tools = Tools(
            client=self._client,
            observed=observed,
            evictor=self._evictor,
            provider=provider,
            recorder=self._recorder,
            clock=clock,
            settings=settings.termination,
            deleter=self._deleter,
            claim_resource=lambda: reflectors.claims.resource,
            guard_times=GuardTimes(),
        )
        self._tools = tools
        backoff = partial(Backoff, rng=rng)
        self._terminations = NodeTermination(tools, backoff)
        self._voluntary = VoluntaryTermination(tools, backoff)
        self._claims = NodeClaimTermination(tools, backoff)
        self._keeper = FinalizerKeeper(tools, backoff)
        self._misspellings = Misspellings(tools)
        self._exposition = Exposition((self.samples,))

    async def check(self) -> str:
        """Make sure of the server and of our rights; returns its version. Raises ApiError or MissingRights."""
        client = KubeClient(self._transport, self._clock, settings=IMPATIENT)
        version = await client.server_version()
        if missing := await missing_rights(client, await rights_for(client)):
            raise MissingRights(missing)
        return version

    async def run(self, stop: anyio.Event) -> None:
        """Run until `stop` is set; returns when what was under way is finished. Raises PartDied, or ConfigError."""
        parts: dict[str, Part] = {f"watch of {r.statistics().resource}": r.run for r in self._reflectors}
        parts |= {
            "events": self._recorder.run,
            "evictor": self._evictor.run,
            "deleter": self._deleter.run,
            "finalizer keeper": self._keeper.run,
            "node terminations": self._terminations.run,
            "voluntary terminations": self._voluntary.run,
            "node claim terminations": self._claims.run,
            "misspellings": self._misspellings.run,
        }
        try:
            parts |= await self._metrics()  # before anything is changed
            await run_parts(parts, stop)
        finally:
            with anyio.CancelScope(shield=True):
                await self._exposition.close()
                await self._provider.aclose()

    async def _metrics(self) -> dict[str, Part]:
        """The part that serves metrics, if they have an address; it listens already. Raises ConfigError."""
        address = self._settings.metrics.address()
        if address is None:
            return {}
        try:
            url = await self._exposition.open(*address)
        except (OSError, UnicodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            listen = self._settings.metrics.listen
            raise ConfigError(f"metrics.listen: cannot listen on {listen}: {reason}; choose another address") from error
        logger.info("metrics are served at %s", url)
        return {"metrics": self._exposition.run}

    async def wait_live(self) -> None:
        """Return when every cache has taken over its first complete list."""
        await self._observed.wait_live()

    def under_way(self) -> tuple[Progress, ...]:
        """Where each termination stands."""
        return self._terminations.under_way()

    def finished(self) -> tuple[Progress, ...]:
        """The last terminations that have come to their end."""
        return self._terminations.finished()

    def claims_under_way(self) -> tuple[Progress, ...]:
        """Where the end of each node claim stands."""
        return self._claims.under_way()

    def claims_finished(self) -> tuple[Progress, ...]:
        """The last node claims that have come to their end."""
        return self._claims.finished()

    def samples(self) -> Iterator[Sample]:
        """What the metrics say now."""
        settings = self._tools.settings
        found = census(self._observed, settings.node_selector, settings.policy.protection, self._clock.now())
        yield from protection_samples(found, self._tools.guard_times.statistics())

    def statistics(self) -> ControllerStatistics:
        """What every part has done so far."""
        observed = self._observed
        caches = (observed.nodes, observed.pods, observed.budgets, observed.attachments, observed.claims)
        return ControllerStatistics(
            terminations=self._terminations.statistics(),
            voluntary_terminations=self._voluntary.statistics(),
            claim_terminations=self._claims.statistics(),
            evictor=self._evictor.statistics(),
            deleter=self._deleter.statistics(),
            client=self._client.statistics(),
            events=self._recorder.statistics(),
            caches=tuple(cache.statistics() for cache in caches),
        )
