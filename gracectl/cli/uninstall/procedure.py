"""The order in which gracectl is taken off a cluster, so that no node stays stuck without it.

First whoever leads is stopped, by his Lease; then nobody is sent to the admission server any more, which puts the
finalizer onto new nodes; then finalizers come off, until a list shows none that was made when nothing of a controller
can arrive any more. Broken off at any point it can be begun again: each step finds out by itself what is left.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import msgspec

from gracectl.admission.removal import Leftover, delete_leftover, leftovers
from gracectl.cli.uninstall.report import (
    MADE_ANEW,
    NOBODY_TO_WAIT_FOR,
    WITHOUT_ELECTION,
    EndingReport,
    KeptReport,
    LeaseReport,
    Outcome,
    Removal,
    Report,
    give_back,
    lease_is_lost,
    still_under_way,
    taken_over,
    unseen,
    waiting_for,
    without_lease,
)
from gracectl.config import ConfigError, Settings
from gracectl.controllers.finalizer.cleanup import (
    FinalizerCleanup,
    Inventory,
    OrphanedInstance,
    orphaned_instances,
    take_inventory,
)
from gracectl.controllers.karpenter import KarpenterWatch
from gracectl.inspect.leadership import Lead, judged
from gracectl.kube.client import KubeClient
from gracectl.kube.credentials import own_namespace
from gracectl.kube.errors import ApiError, Forbidden, NotFound
from gracectl.kube.reading import is_served, read_all
from gracectl.kube.requests import Selection
from gracectl.kube.resources import LEASES, NODE_BUDGETS
from gracectl.kube.settings import DEFAULT_NAMESPACE
from gracectl.kube.takeover import Takeover
from gracectl.model.lease import Lease
from gracectl.model.times import format_time
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import ungrouped

KIN: Final = "gracectl-uninstall_"
HELD_SECONDS: Final = 600
"""Who still contends for the Lease when we are done waits so long: a chart's hook runs before the Deployment goes."""

LOOK_SECONDS: Final = 2.0
"""Between two looks at terminations under way."""

FORGOTTEN_SECONDS: Final = 3.0
"""Servers of a control plane may send requests to a webhook for a moment after its configuration was deleted."""

RETURNS: Final = 3
"""Configurations that are there again so often are made by somebody whom nothing here stops."""

Tell = Callable[[str], None]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. `wait`: seconds for the terminations under way; `namespace`: "" where the settings
    say which it is."""

    dry_run: bool = False
    wait: float = 0.0
    namespace: str = ""


class Uninstall:
    """See the module; `tell` gets a sentence for each thing that takes time. Runs once."""

    def __init__(self, client: KubeClient, clock: Clock, settings: Settings, wanted: Wanted, tell: Tell) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._wanted = wanted
        self._tell = tell
        self._notes: list[str] = []
        self._removals: list[Removal] = []
        self._definitions: list[str] = []
        self._forgotten_at = clock.monotonic()  # from then on no webhook of ours is asked any more

    async def run(self) -> Report:
        """Do it all. Raises LiveKarpenter or ConfigError, when nothing was changed, and ApiError, when it could not be
        finished."""
        lease = await self._lease()
        seen = await take_inventory(self._client)  # who may not even look changes nothing
        if await is_served(self._client, (NODE_BUDGETS,)):
            self._definitions.append(NODE_BUDGETS.qualified)
        if seen.claims_resource is not None:
            self._definitions.append(seen.claims_resource.qualified)
        # Behind a few answers, which have told us the server's time: whether a Lease is fresh depends on it.
        await self._look_for_karpenter(lease)
        if self._wanted.dry_run:
            return await self._foretold(lease, seen)
        if self._wanted.wait:
            await self._wait(lease)
            await self._look_for_karpenter(lease)
        if lease is None:
            return await self._take_off(None)
        identity = f"{KIN}{socket.gethostname()}_{random.getrandbits(64):016x}"
        election = self._settings.leader_election
        seconds = election.lease_duration_seconds
        takeover = Takeover(self._client, self._clock, lease.key, identity, duration=seconds, kin=KIN)
        if not await takeover.begin():
            return await self._take_off(None)
        with ungrouped():
            async with anyio.create_task_group() as group:
                group.start_soon(takeover.hold, election.retry_period_seconds)
                report = await self._take_off(takeover)
                group.cancel_scope.cancel()
        held = LeaseReport(*lease.key, previous_holder=takeover.previous)
        try:
            until = await takeover.leave(HELD_SECONDS)
        except ApiError as error:
            return msgspec.structs.replace(report, lease=held, notes=(*report.notes, lease_is_lost(str(error))))
        return msgspec.structs.replace(report, lease=msgspec.structs.replace(held, held_until=format_time(until)))

    # -- before anything is changed ------------------------------------------------------------------------------------

    async def _lease(self) -> Lease | None:
        """The Lease by which controllers are kept from acting; None: there is none. Raises ApiError, ConfigError."""
        election = self._settings.leader_election
        if not election.enabled:
            self._notes.append(WITHOUT_ELECTION)
            return None
        found = await self._leases_in(
            self._wanted.namespace or election.namespace or own_namespace() or "", election.name
        )
        held = [lease for lease in found if lease.holder] or found
        if len(held) > 1:
            places = ", ".join(sorted(lease.namespace for lease in held))
            raise ConfigError(
                f"there are Leases {election.name} in several namespaces ({places}), so it is not known which of them "
                "is gracectl's; say where it runs with --namespace"
            )
        if not held:
            self._notes.append(without_lease(election.name))
            return None
        return held[0]

    async def _leases_in(self, namespace: str, name: str) -> Sequence[Lease]:
        if not namespace:
            try:
                return await read_all(self._client, LEASES, Selection(fields=f"metadata.name={name}"))
            except Forbidden:
                namespace = DEFAULT_NAMESPACE
        try:
            return [await self._client.get(LEASES, (namespace, name))]
        except NotFound:
            return []

    def _namespace(self, lease: Lease | None) -> str:
        """Where gracectl runs."""
        return self._wanted.namespace or (lease.namespace if lease else "") or own_namespace() or DEFAULT_NAMESPACE

    async def _look_for_karpenter(self, lease: Lease | None) -> None:
        places = (*self._settings.karpenter.namespaces, self._namespace(lease))
        watch = KarpenterWatch(self._client, self._clock, places, own=None if lease is None else lease.key)
        await watch.refuse()
        if watch.unseen and (note := unseen(watch.unseen)) not in self._notes:
            self._notes.append(note)

    async def _wait(self, lease: Lease | None) -> None:
        """Let whoever leads finish what is under way, for as long as was said."""
        if lease is not None and judged([lease], self._clock.now()).state is not Lead.LEADS:
            self._notes.append(NOBODY_TO_WAIT_FOR)
            return
        end = self._clock.monotonic() + self._wanted.wait
        told = ""
        while under_way := (await take_inventory(self._client)).deleted:
            left = end - self._clock.monotonic()
            if left <= 0:
                self._notes.append(still_under_way(under_way, self._wanted.wait))
                return
            if (sentence := waiting_for(under_way)) != told:
                self._tell(told := sentence)
            await self._clock.sleep(min(LOOK_SECONDS, left))

    # -- all of it -----------------------------------------------------------------------------------------------------

    async def _foretold(self, lease: Lease | None, seen: Inventory) -> Report:
        for leftover in await self._leftovers(lease):
            self._note(leftover, Outcome.WOULD_BE_REMOVED if not leftover.reason else Outcome.FAILED)
        for kind, things in (("Node", seen.nodes), ("NodeClaim", seen.claims)):
            self._removals += [Removal(kind, thing.name, Outcome.WOULD_BE_REMOVED) for thing in things]
        found = None if lease is None else LeaseReport(*lease.key, previous_holder=lease.holder)
        return self._report(found, seen, await orphaned_instances(self._client, seen))

    async def _take_off(self, takeover: Takeover | None) -> Report:
        namespace = self._wanted.namespace or (takeover.namespace if takeover else "")
        await self._take_admission_away(namespace)
        if takeover is not None and takeover.previous:
            seconds = takeover.quiet_at - self._clock.monotonic()
            self._tell(taken_over(takeover.previous, seconds))
        cleanup = FinalizerCleanup(self._client, self._clock)
        for times in range(1, RETURNS + 1):
            seen = await cleanup.run(lambda: max(self._forgotten_at, takeover.quiet_at if takeover else 0.0))
            # Whoever led may have made the configurations anew until a moment ago, as he did the finalizers.
            if not await self._take_admission_away(namespace, gives_up=times == RETURNS):
                break
        self._removals += [Removal(kind, name, Outcome.REMOVED) for kind, name in cleanup.removed]
        self._removals += [Removal(*key, Outcome.FAILED, why) for key, why in cleanup.failed.items()]
        return self._report(None, seen, tuple(cleanup.orphaned.values()))

    async def _take_admission_away(self, namespace: str, *, gives_up: bool = False) -> bool:
        """Whether anything of it was deleted. `gives_up`: what is there is made again and again, and only told."""
        has_deleted = False
        for leftover in await leftovers(self._client, self._settings.admission, self._secrets_namespace(namespace)):
            why = leftover.reason or (MADE_ANEW if gives_up else "")
            if why:
                self._note(msgspec.structs.replace(leftover, reason=why), Outcome.FAILED)
                continue
            try:
                await delete_leftover(self._client, leftover)
            except ApiError as error:
                self._note(msgspec.structs.replace(leftover, why=str(error)), Outcome.FAILED)
            else:
                self._note(leftover, Outcome.REMOVED)
                has_deleted = True
        if has_deleted:
            self._forgotten_at = self._clock.monotonic() + FORGOTTEN_SECONDS
        return has_deleted

    async def _leftovers(self, lease: Lease | None) -> list[Leftover]:
        namespace = self._secrets_namespace(self._wanted.namespace or (lease.namespace if lease else ""))
        return await leftovers(self._client, self._settings.admission, namespace)

    def _secrets_namespace(self, namespace: str) -> str:
        service = self._settings.admission.service
        return (service.namespace if service else "") or namespace or self._settings.admission.namespace

    def _note(self, leftover: Leftover, outcome: Outcome) -> None:
        if not leftover.is_ours:
            outcome = Outcome.LEFT
        known = [each for each in self._removals if (each.kind, each.name) != (leftover.resource.kind, leftover.name)]
        self._removals = [*known, Removal(leftover.resource.kind, leftover.name, outcome, leftover.reason)]

    def _report(self, lease: LeaseReport | None, seen: Inventory, ends: tuple[OrphanedInstance, ...]) -> Report:
        return Report(
            dry_run=self._wanted.dry_run,
            lease=lease,
            removals=tuple(self._removals),
            endings=tuple(
                EndingReport(each.node or None, each.claim or None, each.instance or None, each.pods, each.held_by)
                for each in ends
            ),
            kept=tuple(KeptReport(node.name, give_back(node)) for node in seen.cordoned),
            definitions=tuple(self._definitions),
            notes=tuple(self._notes),
        )
