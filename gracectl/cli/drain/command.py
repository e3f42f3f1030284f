"""`gracectl drain`: asks the controller to drain nodes, and watches until it is done."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import click
import msgspec

from gracectl.cli.bulk_request import ABANDONABLE, NAMESAKE, Ask, Errand, Refused
from gracectl.cli.console import paper
from gracectl.cli.drain.progress import Awaited
from gracectl.cli.failures import REFUSED, UNFINISHED, complain, interruptible, run_async, told_to_people
from gracectl.cli.format import elapsed
from gracectl.cli.options import (
    ClusterChoice,
    NodeChoice,
    UnknownNodes,
    cluster_options,
    connected,
    duration,
    node_arguments,
)
from gracectl.cli.output import command, say
from gracectl.cli.plan.command import foresee, see, show
from gracectl.cli.plan.text import Terms
from gracectl.cli.status.follow import Scene, follow
from gracectl.cli.status.view import view_for
from gracectl.config import Settings
from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.node.maintenance import request
from gracectl.inspect.forecast import neglect
from gracectl.inspect.watcher import look
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, Conflict, NotFound
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.reading import read_all
from gracectl.kube.resources import NODES
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_maintenance_requested, maintenance_since
from gracectl.policy.plan import plan
from gracectl.policy.warnings import WarningKind, data_loss


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. `timeout`: seconds; None or 0: as long as it takes."""

    keep: bool
    no_wait: bool
    dry_run: bool
    timeout: float | None


@click.command()
@node_arguments
@click.option("--keep", is_flag=True, help="For maintenance: the node stays, and is kept empty until it is given back.")
@click.option("--no-wait", is_flag=True, help="Ask, and do not watch.")
@click.option("--dry-run", is_flag=True, help="Foretell what would happen, as plan does; nothing is changed.")
@click.option(
    "--timeout",
    callback=duration("waits as long as it takes"),
    metavar="DURATION",
    help="Watch no longer than this: 10m, 90s, or seconds; 0: as long as it takes, the default.",
)
@cluster_options
def drain(cluster: ClusterChoice, nodes: NodeChoice, **wanted: Any) -> None:
    """Have nodes drained, and watch until it is done.

    Deletes each NODE, which the controller holds, drains under budgets and protection, and then lets go, with its
    instance; that cannot be taken back. With --keep the node is not deleted: it is drained, its DaemonSet pods stay,
    and it is kept empty until `uncordon` gives it back.

    All nodes are looked at first: if one of them would not be drained, nothing is asked of any. The controller does
    the work, so this command may be interrupted at any moment (Ctrl-C, --timeout): what was asked for goes on. The page
    docs/drain.md tells how it differs from kubectl drain, and which rights it needs.

    Exit code 0: every node is gone, or drained and kept, or with --no-wait was asked; also if no node matches the
    selector. 3 also if there is no such node, if one would not be drained, if the server refused for one of them, or if
    one that was to be kept was given back or deleted meanwhile. 4: the time of --timeout is over. 130: interrupted.
    """
    told = msgspec.convert(wanted, Wanted)
    if told.no_wait and told.timeout is not None:
        raise click.UsageError("--timeout says how long to watch, --no-wait not to: leave out one of the two")
    if told.dry_run and (told.no_wait or told.timeout is not None):
        raise click.UsageError(
            "with --dry-run nothing is asked for, so there is nothing to wait for: leave out --no-wait and --timeout"
        )
    with told_to_people({UnknownNodes: REFUSED, Undrainable: REFUSED}):
        settings = cluster.settings()
        if told.dry_run:
            _foretell(cluster, nodes, settings, keeps=told.keep)
            return
        job = _Job(cluster, settings, told)
        with interruptible(job.interrupted):
            code = run_async(lambda: job.run(nodes))
    if code:
        sys.exit(code)


def _foretell(cluster: ClusterChoice, nodes: NodeChoice, settings: Settings, *, keeps: bool) -> None:
    by_default = cluster.config is None
    with interruptible():
        seen = run_async(lambda: see(cluster, nodes, settings))
        if not seen.asked:
            say(nodes.nobody, err=True)
            return
        show(foresee(seen, settings, keeps=keeps), Terms(verbose=False, by_default=by_default))
    asked = [node for node in seen.observed.nodes.values() if node.name in seen.asked]
    check(asked, settings, seen.now, keeps=keeps, by_default=by_default)


class _Job:
    """One run of the command, which knows at any moment what it has asked for, and what it waits for."""

    def __init__(self, cluster: ClusterChoice, settings: Settings, wanted: Wanted) -> None:
        self._cluster = cluster
        self._settings = settings
        self._wanted = wanted
        self._errand = Errand()
        self._awaited: Awaited | None = None

    async def run(self, choice: NodeChoice) -> int:
        """The exit code. Raises UnknownNodes, Undrainable, and ApiError as long as nothing was asked for."""
        async with connected(self._cluster) as there:
            nodes = await self._chosen(there, choice)
            if not nodes:
                say(choice.nobody, err=True)
                return 0
            asked_at = there.clock.now()
            await self._ask(there, nodes, asked_at)
            asked = [node for node in nodes if self._is_asked(node)]
            if asked and not self._wanted.no_wait:
                self._awaited = Awaited(asked, asked_at, keeps=self._wanted.keep)
                return await self._watch(there, self._awaited)
        if asked:
            say(f"{command('status', '-w', *(node.name for node in asked))} shows how it goes on")
        return self._code

    def interrupted(self) -> str:
        """For people who want to wait no longer: what was asked for, and goes on."""
        if self._awaited is not None:
            return self._awaited.unwatched()
        if self._wanted.keep:
            return self._errand.interrupted("a drain", f" ({command('uncordon', *self._errand.asked)} takes it back)")
        return self._errand.interrupted("deletion", " (nobody can take it back)")

    @property
    def _code(self) -> int:
        has_failed = self._errand.has_failed or (self._awaited is not None and self._awaited.has_failed)
        return REFUSED if has_failed else 0

    def _is_asked(self, node: Node) -> bool:
        return node.deletion_timestamp is not None or node.name in self._errand.asked

    async def _chosen(self, there: Connection, choice: NodeChoice) -> list[Node]:
        """The nodes in question, after all has been looked at, and what is lost has been told."""
        keeps = self._wanted.keep
        observed = await look(there.client, choice.picks) if keeps else None
        there_are = observed.nodes.values() if observed else await read_all(there.client, NODES, keep=choice.picks)
        names = choice.among(there_are)
        nodes = sorted((node for node in there_are if node.name in names), key=lambda node: node.name)
        now = there.clock.now()  # the answers have set it by now
        check(nodes, self._settings, now, keeps=keeps, by_default=self._cluster.config is None)
        if observed is not None:
            _tell_of_losses(observed, nodes, self._settings, now)
        return nodes

    async def _ask(self, there: Connection, nodes: Sequence[Node], now: float) -> None:
        fresh = []
        for node in nodes:
            if node.deletion_timestamp is not None:
                say(f"{node.name}: {ending_for(node, now)}")
            else:
                fresh.append(node)
        ask: Ask = partial(_ask_to_keep, there) if self._wanted.keep else partial(_ask_to_delete, there.client)
        await self._errand.run(fresh, ask)

    async def _watch(self, there: Connection, awaited: Awaited) -> int:
        view = view_for(paper(), drops_empty=True)

        def watched(scene: Scene) -> bool:
            for line in awaited.look(scene):
                view.say(line)
            view.show(awaited.rest_of(scene))
            return not awaited.left

        seconds = self._wanted.timeout or math.inf
        try:
            with view.showing(), anyio.move_on_after(seconds) as patience:
                await follow(there, self._settings, awaited.has, watched, expected=awaited.expected)
        except ApiError as error:
            complain(f"{error}\n{awaited.unwatched()}")
            return REFUSED
        if patience.cancelled_caught and awaited.left:
            complain(awaited.unfinished(format_duration(round(seconds * NANOSECONDS_PER_SECOND))))
            return UNFINISHED
        return self._code


def _tell_of_losses(observed: ClusterCache, nodes: Sequence[Node], settings: Settings, now: float) -> None:
    """Whose emptyDir goes with its pod, while the node with the disk stays."""
    for node in nodes:
        if is_maintenance_requested(node):
            continue
        view = msgspec.structs.replace(observed.view_of(node, settings.termination.policy), is_maintenance=True)
        if caution := data_loss(plan(view, now)):
            say(f"{node.name}: {caution.message}", err=True)


async def _ask_to_delete(client: KubeClient, node: Node) -> str:
    try:
        await client.delete(ABANDONABLE, node.key, uid=node.uid)
    except NotFound:
        return "is gone already"
    except Conflict as conflict:
        if conflict.uid_mismatch:
            raise Refused("it is gone, and another node has its name by now: that one was not touched") from conflict
        raise
    return "deletion asked for; its pods leave as budgets and protection allow"


async def _ask_to_keep(there: Connection, node: Node) -> str:
    now = there.clock.now()
    if is_maintenance_requested(node):
        return f"is drained for maintenance already, for {elapsed(now - maintenance_since(node, now))}"
    after = await patch_with_retry(there.client, ABANDONABLE, node, lambda found: request(found, now))
    if after is None:
        raise Refused(NAMESAKE)
    if after.deletion_timestamp is not None:
        raise Refused("somebody has deleted it meanwhile, and nobody can take that back")
    return "to be drained and kept so"


class Undrainable(Exception):
    """Nothing was asked for, as some nodes cannot be drained; the message names each of them, and says why."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        listed = "\n".join(f"  - {name}: {reason}" for name, reason in reasons.items())
        super().__init__(f"nothing was changed, as not all of these nodes can be drained:\n{listed}")


def check(nodes: Iterable[Node], settings: Settings, now: float, *, keeps: bool, by_default: bool) -> None:
    """Raise Undrainable unless all of these nodes would be drained, or are already.

    `now`: Unix seconds. `keeps`: they are to stay. `by_default`: the settings are nobody's own.
    """
    reasons = {node.name: _reason(node, settings, now, keeps, by_default) for node in nodes}
    bad = {name: reason for name, reason in reasons.items() if reason}
    if bad:
        raise Undrainable(bad)


def ending_for(node: Node, now: float) -> str:
    """Of a node that somebody has deleted: since when."""
    assert node.deletion_timestamp is not None
    return f"is being deleted already, for {elapsed(max(now - node.deletion_timestamp, 0.0))}"


def _reason(node: Node, settings: Settings, now: float, keeps: bool, by_default: bool) -> str:
    if keeps and node.deletion_timestamp is not None:
        return f"it {ending_for(node, now)}, and nobody can take that back"
    caution = neglect(settings.termination, node, keeps=keeps)
    if caution is None:
        return ""
    if caution.kind is WarningKind.NOT_MANAGED and by_default:
        return f"{caution.message}; give the controller's own settings with --config"
    return caution.message
