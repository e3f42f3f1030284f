"""Removal of gracectl from a cluster, in an order that leaves no node stuck.

First the leader is stopped by taking its Lease; then the webhooks are removed, which put the finalizer on new nodes;
then finalizers are removed, until a list shows none that was made after the last request of a controller can arrive;
then pods that were released for their replacement return to their ReplicaSets.
It can be interrupted and repeated at any point: each step finds out by itself what is left.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from gracectl.admission.webhooks import Leftover, delete_leftover, leftovers
from gracectl.cli.uninstall.report import (
    NO_LEADER,
    POD,
    RECREATED,
    UNSEEN_DRAINS,
    UNSEEN_PODS,
    WITHOUT_ELECTION,
    CordonedNodeReport,
    LeaseReport,
    OrphanedInstanceReport,
    Removal,
    RemovalOutcome,
    UninstallReport,
    lease_lost,
    still_terminating,
    taken_over,
    uncordon_commands,
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
from gracectl.controllers.termination.finalizer import finalizer_removal_patch
from gracectl.controllers.termination.replacing import released_pods, try_return
from gracectl.inspect.leadership import LeaderState, leadership_of
from gracectl.kube.auth.credentials import own_namespace
from gracectl.kube.cache.reading import is_served, read_all, read_first_served
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, Forbidden, NotFound
from gracectl.kube.leader.leases import LONGEST_HELD_SECONDS
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE
from gracectl.kube.leader.takeover import Takeover
from gracectl.kube.requests import Selection
from gracectl.kube.resources import LEASES, NODE_BUDGETS, NODE_DRAINS
from gracectl.model import names
from gracectl.model.meta import Lease
from gracectl.model.nodedrain import NodeDrain
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.runtime.supervise import ungrouped, while_running

KIN: Final = "gracectl-uninstall_"
HELD_SECONDS: Final = LONGEST_HELD_SECONDS
"""Time for which other contenders wait for the Lease: a hook of the chart runs before the Deployment is deleted."""

POLL_SECONDS: Final = 2.0
"""Between two reads of terminations in progress."""

WEBHOOK_SECONDS: Final = 3.0
"""Servers of a control plane may send requests to a webhook for a moment after its configuration was deleted."""

ATTEMPTS: Final = 3
"""Webhook configurations that were recreated so often are given up."""

Printer = Callable[[str], None]


class UninstallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line. `wait`: seconds for terminations in progress; `namespace` "": see settings."""

    dry_run: bool = False
    wait: float = 0.0
    namespace: str = ""


class Uninstall:
    """See the module; `tell` gets a line for each thing that takes time. Runs once."""

    def __init__(
        self, connection: Connection, settings: Settings, options: UninstallOptions, progress: Printer
    ) -> None:
        self._client = connection.client
        self._clock = connection.clock
        self._cluster = connection.cluster
        self._settings = settings
        self._options = options
        self._progress = progress
        self._notes: list[str] = []
        self._removals: list[Removal] = []
        self._definitions: list[str] = []
        self._webhooks_quiet_at = self._clock.monotonic()  # from then on no webhook is called

    async def run(self) -> UninstallReport:
        """Remove everything. Raises ConfigError before anything is changed, and ApiError."""
        lease = await self._lease()
        inventory = await take_inventory(self._client)  # raises Forbidden before anything is changed
        if await is_served(self._client, (NODE_BUDGETS,)):
            self._definitions.append(NODE_BUDGETS.qualified)
        if await is_served(self._client, (NODE_DRAINS,)):
            self._definitions.append(NODE_DRAINS.qualified)
        if inventory.claims_resource is not None:
            self._definitions.append(inventory.claims_resource.qualified)
        if self._options.dry_run:
            return await self._dry_run(lease, inventory)
        if self._options.wait:
            await self._wait(lease)
        if lease is None:
            return await self._remove(None)
        identity = f"{KIN}{socket.gethostname()}_{random.getrandbits(64):016x}"
        election = self._settings.leader_election
        seconds = election.lease_duration_seconds
        takeover = Takeover(self._client, self._clock, lease.key, identity, duration=seconds, kin=KIN)
        if not await takeover.begin():
            return await self._remove(None)
        with ungrouped():
            async with while_running(partial(takeover.hold, election.retry_period_seconds)):
                report = await self._remove(takeover)
        held = LeaseReport(*lease.key, previous_holder=takeover.previous)
        try:
            until = await takeover.leave(HELD_SECONDS)
        except ApiError as error:
            return msgspec.structs.replace(report, lease=held, notes=(*report.notes, lease_lost(str(error))))
        return msgspec.structs.replace(report, lease=msgspec.structs.replace(held, held_until=format_time(until)))

    # -- before anything is changed ------------------------------------------------------------------------------------

    async def _lease(self) -> Lease | None:
        """The Lease of the controllers; None: there is none. Raises ApiError, ConfigError."""
        election = self._settings.leader_election
        if not election.enabled:
            self._notes.append(WITHOUT_ELECTION)
            return None
        found = await self._leases_in(
            self._options.namespace or election.namespace or own_namespace() or "", election.name
        )
        held = [lease for lease in found if lease.holder] or found
        if len(held) > 1:
            places = ", ".join(sorted(lease.namespace for lease in held))
            raise ConfigError(
                f"Leases {election.name} in several namespaces ({places}): which is gracectl's is unknown; give its "
                "namespace with --namespace"
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

    async def _wait(self, lease: Lease | None) -> None:
        """Let the leader finish terminations in progress, within the time given."""
        if lease is not None and leadership_of([lease], self._clock.now()).state is not LeaderState.ACTIVE:
            self._notes.append(NO_LEADER)
            return
        end = self._clock.monotonic() + self._options.wait
        last = ""
        while terminating := (await take_inventory(self._client)).deleted:
            left = end - self._clock.monotonic()
            if left <= 0:
                self._notes.append(still_terminating(terminating, self._options.wait))
                return
            if (line := waiting_for(terminating)) != last:
                self._progress(last := line)
            await self._clock.sleep(min(POLL_SECONDS, left))

    # -- all of it -----------------------------------------------------------------------------------------------------

    async def _dry_run(self, lease: Lease | None, inventory: Inventory) -> UninstallReport:
        for leftover in await self._leftovers(lease):
            self._note(leftover, RemovalOutcome.WOULD_BE_REMOVED if not leftover.reason else RemovalOutcome.FAILED)
        for kind, things in (("Node", inventory.nodes), ("NodeClaim", inventory.claims)):
            self._removals += [Removal(kind, thing.name, RemovalOutcome.WOULD_BE_REMOVED) for thing in things]
        drains = await self._campaigns()
        self._removals += [Removal(NODE_DRAINS.kind, each.name, RemovalOutcome.WOULD_BE_REMOVED) for each in drains]
        released = await self._released()
        self._removals += [Removal(POD, pod.full_name, RemovalOutcome.WOULD_BE_REMOVED) for pod in released]
        found = None if lease is None else LeaseReport(*lease.key, previous_holder=lease.holder)
        return self._report(found, inventory, await orphaned_instances(self._client, inventory))

    async def _remove(self, takeover: Takeover | None) -> UninstallReport:
        namespace = self._options.namespace or (takeover.namespace if takeover else "")
        await self._remove_admission(namespace)
        if takeover is not None and takeover.previous:
            seconds = takeover.quiet_at - self._clock.monotonic()
            self._progress(taken_over(takeover.previous, seconds))
        cleanup = FinalizerCleanup(self._client, self._clock)
        for times in range(1, ATTEMPTS + 1):
            inventory = await cleanup.run(lambda: max(self._webhooks_quiet_at, takeover.quiet_at if takeover else 0.0))
            # The last leader may have recreated the configurations until a moment ago, like the finalizers.
            if not await self._remove_admission(namespace, gives_up=times == ATTEMPTS):
                break
        self._removals += [Removal(kind, name, RemovalOutcome.REMOVED) for kind, name in cleanup.removed]
        self._removals += [Removal(*key, RemovalOutcome.FAILED, why) for key, why in cleanup.failed.items()]
        for drain in await self._campaigns():
            self._removals.append(await self._release(drain))
        for pod in await self._released():  # now that no controller releases others
            why = await try_return(self._client, pod)
            outcome = RemovalOutcome.FAILED if why else RemovalOutcome.REMOVED
            self._removals.append(Removal(POD, pod.full_name, outcome, why))
        return self._report(None, inventory, tuple(cleanup.orphaned.values()))

    async def _campaigns(self) -> list[NodeDrain]:
        """NodeDrains with our finalizer."""
        try:
            found = await read_first_served(self._client, (NODE_DRAINS,))
        except Forbidden:
            self._notes.append(UNSEEN_DRAINS)
            return []
        return [each for each in (found[1] if found else ()) if names.NODE_DRAIN in each.finalizers]

    async def _release(self, drain: NodeDrain) -> Removal:
        """Remove our finalizer from a NodeDrain; its nodes are reported as cordoned."""
        patch = finalizer_removal_patch(drain, (names.NODE_DRAIN,))
        assert patch is not None
        try:
            await self._client.patch(NODE_DRAINS, drain.key, patch, resource_version=drain.resource_version)
        except NotFound:
            pass
        except ApiError as error:
            return Removal(NODE_DRAINS.kind, drain.name, RemovalOutcome.FAILED, str(error))
        return Removal(NODE_DRAINS.kind, drain.name, RemovalOutcome.REMOVED)

    async def _released(self) -> list[Pod]:
        try:
            return await released_pods(self._client)
        except Forbidden:
            self._notes.append(UNSEEN_PODS)
            return []

    async def _remove_admission(self, namespace: str, *, gives_up: bool = False) -> bool:
        """Whether anything was deleted. `gives_up`: the remaining objects are recreated repeatedly, and only
        reported."""
        has_deleted = False
        for leftover in await leftovers(self._client, self._settings.admission, self._secrets_namespace(namespace)):
            why = leftover.reason or (RECREATED if gives_up else "")
            if why:
                self._note(msgspec.structs.replace(leftover, reason=why), RemovalOutcome.FAILED)
                continue
            try:
                await delete_leftover(self._client, leftover)
            except ApiError as error:
                self._note(msgspec.structs.replace(leftover, reason=str(error)), RemovalOutcome.FAILED)
            else:
                self._note(leftover, RemovalOutcome.REMOVED)
                has_deleted = True
        if has_deleted:
            self._webhooks_quiet_at = self._clock.monotonic() + WEBHOOK_SECONDS
        return has_deleted

    async def _leftovers(self, lease: Lease | None) -> list[Leftover]:
        namespace = self._secrets_namespace(self._options.namespace or (lease.namespace if lease else ""))
        return await leftovers(self._client, self._settings.admission, namespace)

    def _secrets_namespace(self, namespace: str) -> str:
        service = self._settings.admission.service
        return (service.namespace if service else "") or namespace or self._settings.admission.namespace

    def _note(self, leftover: Leftover, outcome: RemovalOutcome) -> None:
        if not leftover.is_ours:
            outcome = RemovalOutcome.SKIPPED
        known = [each for each in self._removals if (each.kind, each.name) != (leftover.resource.kind, leftover.name)]
        self._removals = [*known, Removal(leftover.resource.kind, leftover.name, outcome, leftover.reason)]

    def _report(
        self, lease: LeaseReport | None, inventory: Inventory, orphans: tuple[OrphanedInstance, ...]
    ) -> UninstallReport:
        return UninstallReport(
            cluster=self._cluster,
            dry_run=self._options.dry_run,
            lease=lease,
            removals=tuple(self._removals),
            orphaned_instances=tuple(
                OrphanedInstanceReport(
                    each.node or None, each.claim or None, each.instance or None, each.pods, each.held_by
                )
                for each in orphans
            ),
            cordoned_nodes=tuple(CordonedNodeReport(node.name, uncordon_commands(node)) for node in inventory.cordoned),
            definitions=tuple(self._definitions),
            notes=tuple(self._notes),
        )
