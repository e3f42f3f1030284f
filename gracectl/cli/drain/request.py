"""Request of drains or terminations from the controller, and the wait until they are done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import anyio
import msgspec

from gracectl.app.drainer import Setup
from gracectl.cli.bulk_request import CANCELLABLE_NODES, REPLACED, BulkRequest, Refused
from gracectl.cli.console import stdout_console
from gracectl.cli.drain.campaign import Campaign, concurrency
from gracectl.cli.drain.here import LocalDrain
from gracectl.cli.drain.preview import endless
from gracectl.cli.drain.progress import DrainProgress
from gracectl.cli.drain.reading import DrainOptions, ReadNodes, check, deletion_age
from gracectl.cli.drain.server_side import DRY, dry, evict_dry
from gracectl.cli.drain.turns import Turns, quickest_first
from gracectl.cli.drains.followed import FOLLOWED, FollowedDrain, hints
from gracectl.cli.failures import REFUSED, UNFINISHED, print_error
from gracectl.cli.format import elapsed
from gracectl.cli.options import ClusterTarget, connected
from gracectl.cli.output import command, echo
from gracectl.cli.settings import SettingsSource
from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.cli.status.view import StatusView
from gracectl.controllers.termination.deadline import deadline_patch
from gracectl.controllers.termination.maintenance import request_patch
from gracectl.inspect.forecast import DrainForecast
from gracectl.kube.cache.reading import read_all
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, Conflict, Forbidden, NotFound
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.resources import NODES
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.deadlines import written_deadline
from gracectl.policy.explain import listed
from gracectl.policy.maintenance import drain_deadline, is_maintenance_requested, maintenance_since
from gracectl.policy.plan import Outcome
from gracectl.runtime.supervise import ungrouped

LEAVING = (Outcome.EVICT, Outcome.BLOCKED, Outcome.WAITING)
"""Pods that are evicted now or later: not protected, and not terminating."""

NEW_LINE = "\n"
TURN_SECONDS = 1.0
"""Between two looks at whose turn it is: as often as frames."""


class DrainRequest:
    """One run of the command. It knows at any moment what it has requested, and what it waits for."""

    def __init__(self, target: ClusterTarget, options: DrainOptions) -> None:
        self._target = target
        self._options = options
        self._bulk = BulkRequest()
        self._progress: DrainProgress | None = None
        self._turns = Turns((), None)
        self._deleted: set[str] = set()  # UIDs of nodes with a requested deletion, after a drain from here
        self._here: frozenset[str] = frozenset()  # names of nodes that are drained by this process
        self._followed: FollowedDrain | None = None

    async def run(self, found: ReadNodes, source: SettingsSource, forecast: DrainForecast | None) -> int:
        """Request it for these nodes, as they are now. The exit code.

        Raises Undrainable, and ApiError as long as nothing was requested.
        """
        self._here = found.here
        async with connected(self._target) as connection:
            nodes = await self._checked(connection, found)
            if found.campaign is not None and (followed := await self._created(connection, found.campaign, nodes)):
                return await self._follow(connection, followed, nodes, found, source)
            at_once = concurrency(self._options.at_once, len(nodes))
            if at_once is not None:
                nodes = quickest_first(nodes, forecast)
            skipped = {each.name for each in endless(forecast)} if self._options.skip_stuck and forecast else set()
            self._turns = Turns([node for node in nodes if node.name not in skipped], at_once)
            requested_at = connection.clock.now()
            cluster = None if found.inputs is None else found.inputs.cluster
            first = self._turns.next({node.uid for node in nodes}, cluster)
            await self._request(connection, first, requested_at)
            requested = [node for node in first if self._is_requested(node)]
            if (requested or self._turns.waiting) and not self._options.no_wait:
                self._progress = self._progress_of([*requested, *self._turns.waiting], requested_at)
                self._progress.here = found.here
                self._progress.unrequested = {node.uid for node in self._turns.waiting}
                self._progress.skips_stuck = self._options.skip_stuck
                self._progress.skipped = [node.name for node in nodes if node.name in skipped]
                return await self._watch(connection, self._progress, found, source)
        if requested:
            echo(f"to watch: {command('status', '-w', *(node.name for node in requested))}")
        return self._code

    async def _created(self, connection: Connection, campaign: Campaign, nodes: Sequence[Node]) -> FollowedDrain | None:
        """Create the NodeDrain; None: not permitted, and each node can be requested instead."""
        self._followed = FollowedDrain(connection, campaign.new_name())
        manifest = campaign.manifest(self._followed.name, [node.name for node in nodes])
        try:
            self._followed.cache.put(await connection.client.create(FOLLOWED, "", manifest))
        except Forbidden as refusal:
            if self._options.rotation is not None:
                raise
            self._followed = None
            print_error(f"no NodeDrain is created: {refusal}; requesting each node")
            return None
        echo(f"nodedrain/{self._followed.name} created\n{hints(self._followed.name, NEW_LINE)}")
        return self._followed

    async def _follow(
        self,
        connection: Connection,
        followed: FollowedDrain,
        nodes: Sequence[Node],
        found: ReadNodes,
        source: SettingsSource,
    ) -> int:
        if self._options.no_wait:
            return 0
        self._progress = self._progress_of(nodes, connection.clock.now())
        self._progress.campaign = followed
        self._progress.waits_for_campaign = self._options.rotation is not None
        return await self._watch(connection, self._progress, found, source)

    def _progress_of(self, nodes: Sequence[Node], requested_at: float) -> DrainProgress:
        return DrainProgress(
            nodes,
            requested_at,
            for_maintenance=self._options.for_maintenance,
            ignore_stuck=self._options.ignore_stuck,
            waits_for_stuck=bool(self._options.timeout),
        )

    async def dry_run(self, found: ReadNodes, forecast: DrainForecast | None) -> bool:
        """Send the requests as dry runs. Returns whether the server would refuse none, but for budgets."""
        self._here = found.here
        pods = [
            pod.entry.pod
            for node in (() if forecast is None else forecast.nodes)
            for pod in node.forecast.pods
            if node.name in found.here and pod.is_waited_for and pod.entry.outcome in LEAVING
        ]
        async with connected(self._target) as connection:
            sends = dry(connection)
            await self._request(sends, found.nodes, connection.clock.now(), DRY)
            return await evict_dry(sends, pods, self._options.manner) and not self._bulk.has_failed

    def interrupted(self) -> str:
        """Message for an interruption: what was requested and continues."""
        if self._progress is not None:
            return self._progress.unwatched()
        if self._followed is not None:
            return f"interrupted; outcome unknown: NodeDrain {self._followed.name}; {hints(self._followed.name)}"
        if self._options.for_maintenance:
            return self._bulk.interrupted("drain", f" (to undo: {command('uncordon', *self._bulk.requested)})")
        return self._bulk.interrupted("deletion", " (cannot be undone)")

    @property
    def _code(self) -> int:
        if self._progress is not None and self._progress.skipped:
            skipped = self._progress.skipped
            print_error(f"skipped: never drained: {listed(skipped)}; to see why: {command('plan', *skipped)}")
            return REFUSED
        if self._bulk.has_failed or (self._progress is not None and self._progress.has_failed):
            return REFUSED
        return UNFINISHED if self._progress is not None and self._progress.has_stuck else 0

    def _is_requested(self, node: Node) -> bool:
        return node.deletion_timestamp is not None or node.name in self._bulk.requested

    async def _checked(self, connection: Connection, found: ReadNodes) -> list[Node]:
        """Read the nodes again, since the confirmation took time. Nodes that are gone are returned unchanged."""
        uids = {node.uid for node in found.nodes}
        if found.here:
            read = []
            for each in found.nodes:
                with suppress(NotFound):
                    read.append(await connection.client.get(NODES, each.key))
        else:
            read = await read_all(connection.client, NODES, keep=lambda each: each.uid in uids)
        now = {node.uid: node for node in read if node.uid in uids}
        check(
            msgspec.structs.replace(found, nodes=tuple(now.values()), now=connection.clock.now()),
            for_maintenance=self._options.for_maintenance,
            strictness=self._options.strictness,
        )
        return [now.get(node.uid, node) for node in found.nodes]

    async def _request(self, connection: Connection, nodes: Sequence[Node], now: float, remark: str = "") -> None:
        new = []
        for node in nodes:
            if node.deletion_timestamp is not None and self._options.deadline is None:
                echo(f"{node.name}: {deletion_age(node, now)}")
            else:
                new.append(node)

        async def send(node: Node) -> str:
            stays = self._options.for_maintenance or node.name in self._here
            request = _request_maintenance if stays else _request_deletion
            return await request(connection, node, self._options.deadline) + remark

        await self._bulk.run(new, send)

    async def _watch(
        self, connection: Connection, progress: DrainProgress, found: ReadNodes, source: SettingsSource
    ) -> int:
        view, settings = StatusView(stdout_console(), drops_empty=True), found.settings
        local: LocalDrain | None = None

        def show_frame(frame: StatusFrame) -> bool:
            if local is not None:
                progress.here = local.drainer.names
            for line in progress.update(frame):
                view.echo(line)
            view.show(progress.rest_of(frame))
            return progress.is_over

        if found.here:
            nodes = [node for node in found.nodes if progress.has(node)]
            local = LocalDrain(
                connection,
                Setup(found.here, settings, found.writes_events, self._options.manner),
                nodes,
                view.echo,
            )
            run = partial(local.run, show_frame, partial(source.read, connection.client, is_silent=True))
            follower = local.follower
        else:
            follower = StatusFollower(connection, settings, StatusScope(progress.has), progress.expected)
            run = partial(follower.run, show_frame)
        seconds = self._options.timeout or math.inf
        try:
            with view.showing(), anyio.move_on_after(seconds) as timeout, ungrouped():
                async with anyio.create_task_group() as group:
                    if progress.campaign is None:
                        group.start_soon(self._take_turns, connection, progress, follower)
                    else:
                        group.start_soon(progress.campaign.run)
                    await run()
                    group.cancel_scope.cancel()
        except ApiError as error:
            print_error(f"{error}\n{progress.unwatched()}")
            return REFUSED
        if timeout.cancelled_caught and not progress.is_over:
            print_error(progress.unfinished(format_duration(round(seconds * NANOSECONDS_PER_SECOND))))
            return UNFINISHED
        return self._code

    async def _take_turns(self, connection: Connection, progress: DrainProgress, follower: StatusFollower) -> None:
        """Begin nodes whose turn comes, and delete the Node objects that `terminate` has drained from here."""
        await follower.watcher.wait_live()
        while True:
            for node in self._turns.next(progress.left_uids, follower.watcher.cluster):
                await self._request(connection, [node], connection.clock.now())
                progress.unrequested.discard(node.uid)
                if not self._is_requested(node):
                    progress.give_up(node.uid)
            for node in [each for uid, each in progress.to_delete.items() if uid not in self._deleted]:
                self._deleted.add(node.uid)
                await self._bulk.run([node], partial(_request_deletion, connection))
            await connection.clock.sleep(TURN_SECONDS)


async def _request_deletion(connection: Connection, node: Node, seconds: float | None = None) -> str:
    """Delete the node; `seconds`: with a deadline after that time. A deadline that was written first would remain if
    the server refused the deletion, and force a later one."""
    now = connection.clock.now()
    text = "deletion requested" if node.deletion_timestamp is None else deletion_age(node, now)
    try:
        if node.deletion_timestamp is None:
            await connection.client.delete(CANCELLABLE_NODES, node.key, uid=node.uid)
    except NotFound:
        return "already deleted"
    except Conflict as conflict:
        if conflict.uid_mismatch:
            raise Refused(REPLACED) from conflict
        raise
    if seconds is None:
        return text
    needed = partial(deadline_patch, deadline=now + seconds)
    try:
        after = await patch_with_retry(connection.client, CANCELLABLE_NODES, node, needed)
    except ApiError as error:
        raise Refused(f"{text}, but its deadline is not written: {error}; to retry, run the command again") from error
    at = None if after is None else written_deadline(after)
    return text if at is None else f"{text}; deadline {format_time(at)}"


async def _request_maintenance(connection: Connection, node: Node, seconds: float | None) -> str:
    now = connection.clock.now()
    needed = partial(request_patch, now=now, seconds=seconds)
    after = await patch_with_retry(connection.client, CANCELLABLE_NODES, node, needed)
    if after is None:
        raise Refused(REPLACED)
    if after.deletion_timestamp is not None:
        raise Refused("deleted meanwhile; a deletion cannot be undone")
    is_old = is_maintenance_requested(node)
    text = f"drain already requested {elapsed(now - maintenance_since(node, now))} ago" if is_old else "drain requested"
    deadline = drain_deadline(after)
    return text if deadline is None else f"{text}; deadline {format_time(deadline.at)}"
