"""`gracectl drains`: shows NodeDrains, pauses and cancels them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any

import anyio
import click

from gracectl.cli.confirm import confirm, require_confirmation, yes_option
from gracectl.cli.console import Screen, print_on, stdout_console
from gracectl.cli.drains.followed import FOLLOWED, FollowedDrain, NotServedHere, hints, is_finished
from gracectl.cli.drains.view import drain_report, drains_table, state_of, story, why
from gracectl.cli.failures import REFUSED, interruptible, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, cluster_options, connected
from gracectl.cli.output import WIDE, Output, command, echo, is_structured, output_option
from gracectl.cli.report import Json, instant, structured, to_json
from gracectl.kube.cache.reading import read_first_served
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODE_DRAINS
from gracectl.model.names import COMPLETE
from gracectl.model.nodedrain import NodeDrain
from gracectl.model.times import format_time

FRAME_SECONDS = 1.0


class UnknownDrain(Exception):
    """There is no NodeDrain of that name; the message names a similar one."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        similar = get_close_matches(name, known, n=1, cutoff=0.6)
        meant = f"did you mean {similar[0]}?" if similar else f"`{command('drains')}` lists all NodeDrains"
        super().__init__(f"there is no NodeDrain {name}; {meant}")


def on_cluster(function: Callable[..., None]) -> Callable[..., None]:
    """Options of the cluster, also in front of the subcommand; failures that a person can act upon are reported."""

    @click.pass_context
    @cluster_options
    @wraps(function)
    def reporting(context: click.Context, *arguments: Any, target: ClusterTarget, **options: Any) -> None:
        if target == ClusterTarget() and context.obj is not None:
            target = context.obj
        with reporting_errors({UnknownDrain: REFUSED, NotServedHere: REFUSED}), interruptible():
            function(target=target, **options)

    return reporting


@click.group(invoke_without_command=True)
@output_option("table", "wide", help=WIDE)
@cluster_options
@click.pass_context
def drains(context: click.Context, target: ClusterTarget, output: Output) -> None:
    """Show NodeDrains and their progress, pause and cancel them.

    A NodeDrain drains or terminates several nodes, a few at a time; `rotate`, `drain` and `terminate` create them, and
    so do manifests. Without a subcommand all are shown, the newest first. Needs to list nodedrains of gracectl.io.
    docs/rotation.md explains them.

    \b
    -o json prints one object:
      cluster {context, server}, at,
      drains [{name, uid, action [Drain|Terminate],
        state [new|waiting|in progress|blocked|paused|complete|failed|
          canceling], message, requestedBy, reason, created, maxConcurrent,
        paused, startTime, completionTime, estimatedEnd,
        counts {total, done, pending, inProgress, drained, terminated,
          skipped, failed, canceled},
        nodes [{name, uid, state, since, podsLeft, message,
          blockedBy [{kind, namespace, name, message, until}], traceID}]}]

    Exit code 0: the NodeDrains were printed, whatever their state.
    """
    context.obj = target
    if context.invoked_subcommand is not None:
        return
    with reporting_errors({NotServedHere: REFUSED}), interruptible():
        run_async(lambda: _list(target, output))


async def _list(target: ClusterTarget, output: Output) -> None:
    async with connected(target, shows_cluster=not is_structured(output)) as connection:
        found, at = await _all(connection.client), connection.clock.now()
        if is_structured(output):
            report = {"cluster": _cluster(connection), "at": instant(at), "drains": list(map(drain_report, found))}
            echo(structured(report, output))
        elif found:
            print_on(stdout_console(is_wide=output == "wide"), drains_table(found, at))
        else:
            echo(f"No NodeDrain exists; to create one: {command('rotate', '--help')}")


def _cluster(connection: Connection) -> Json:
    return {"context": connection.cluster.context, "server": connection.cluster.server}


async def _all(client: KubeClient) -> list[NodeDrain]:
    """All of them. Raises NotServedHere, ApiError."""
    found = await read_first_served(client, (NODE_DRAINS,))
    if found is None:
        raise NotServedHere
    return found[1]


async def _one(client: KubeClient, name: str) -> NodeDrain:
    """Raises UnknownDrain, NotServedHere, ApiError."""
    try:
        return await client.get(NODE_DRAINS, ("", name))
    except NotFound as error:
        raise UnknownDrain(name, [each.name for each in await _all(client)]) from error


@drains.command()
@click.argument("name")
@click.option("-w", "--watch", is_flag=True, help="Follow it until it is finished, or Ctrl-C.")
@output_option("table", "wide", help=f"{WIDE[:-1]}, with -w one at each change.")
@on_cluster
def show(target: ClusterTarget, name: str, *, watch: bool, output: Output) -> None:
    """Tell the story of a NodeDrain: who asked, how far it is, what it waits for, and each node.

    Exit code 0: it was printed, or with -w it is complete. 3 also if it does not exist, or with -w if it has failed or
    was canceled.
    """
    if watch:
        if not run_async(lambda: _watch(target, name.removeprefix("nodedrain/"), output)):
            sys.exit(REFUSED)
        return
    run_async(lambda: _show(target, name.removeprefix("nodedrain/"), output))


async def _show(target: ClusterTarget, name: str, output: Output) -> None:
    async with connected(target, shows_cluster=not is_structured(output)) as connection:
        found, at = await _one(connection.client, name), connection.clock.now()
    if is_structured(output):
        echo(structured(drain_report(found), output))
        return
    print_on(stdout_console(is_wide=output == "wide"), story(found, at))
    if not is_finished(found):
        echo("\n" + hints(name, "\n"))


async def _watch(target: ClusterTarget, name: str, output: Output) -> bool:
    """Whether it is complete in the end."""
    async with connected(target, shows_cluster=not is_structured(output)) as connection:
        followed = FollowedDrain(connection, name)
        followed.cache.put(await _one(connection.client, name))
        screen, seen = Screen(stdout_console(), command("drains", "show", name)), _Seen()
        async with anyio.create_task_group() as group:
            group.start_soon(followed.run)
            with screen.showing():
                while (found := followed.latest) is not None:
                    if is_structured(output):
                        seen.print_json(found)
                    elif screen.is_live:
                        screen.show(story(found, connection.clock.now()))
                    else:
                        seen.print_lines(found, connection.clock.now())
                    if is_finished(found):
                        break
                    await connection.clock.sleep(FRAME_SECONDS)
            group.cancel_scope.cancel()
        if followed.latest is None:
            echo(f"{name}: deleted", err=is_structured(output))
        return any(each.type == COMPLETE and each.status == "True" for each in (found or seen).conditions)


class _Seen:
    """What was printed of a NodeDrain that is followed."""

    conditions = ()

    def __init__(self) -> None:
        self._version = ""
        self._head = ""
        self._states: dict[str, str] = {}

    def print_json(self, drain: NodeDrain) -> None:
        if drain.resource_version != self._version:
            self._version = drain.resource_version
            echo(to_json(drain_report(drain), indent=0))

    def print_lines(self, drain: NodeDrain, at: float) -> None:
        """A line for each change of its state, and of the state of a node."""
        head = f"{drain.name}: {': '.join(filter(None, (state_of(drain), why(drain))))}"
        lines = [head] if head != self._head else []
        self._head = head
        for node in drain.nodes:
            if self._states.get(node.uid) != node.state:
                self._states[node.uid] = node.state
                lines.append(f"{node.name}: {': '.join(filter(None, (node.state.lower(), node.message)))}")
        for line in lines:
            echo(f"{format_time(at)} {line}")


@drains.command()
@click.argument("name")
@on_cluster
def pause(target: ClusterTarget, name: str) -> None:
    """Begin no further node; nodes in progress continue."""
    run_async(lambda: _set_paused(target, name, is_paused=True))


@drains.command()
@click.argument("name")
@on_cluster
def resume(target: ClusterTarget, name: str) -> None:
    """Continue a paused NodeDrain."""
    run_async(lambda: _set_paused(target, name, is_paused=False))


async def _set_paused(target: ClusterTarget, name: str, *, is_paused: bool) -> None:
    async with connected(target, shows_cluster=True) as connection:
        found = await _one(connection.client, name)
        if is_finished(found):
            echo(f"{name}: {state_of(found)}; nothing to {'pause' if is_paused else 'resume'}")
            return
        await connection.client.patch(FOLLOWED, found.key, MergePatch({"spec": {"paused": is_paused}}), uid=found.uid)
    text = f"paused; nodes in progress continue; to resume: {command('drains', 'resume', name)}"
    echo(f"{name}: {text if is_paused else 'resumed'}")


@drains.command()
@click.argument("name")
@yes_option
@on_cluster
def cancel(target: ClusterTarget, name: str, *, yes: bool) -> None:
    """Delete a NodeDrain: nodes that have not begun are left, drained ones are uncordoned.

    Nodes that are already being deleted continue. Asks for confirmation.
    """
    require_confirmation(yes=yes)
    found = run_async(lambda: _read(target, name))
    what = "delete its record" if is_finished(found) else "drained nodes are uncordoned; nodes being deleted continue"
    confirm(f"cancel {name} ({state_of(found)})? {what.capitalize()}.", yes=yes)
    run_async(lambda: _delete(target, found))
    echo(f"{name}: {'deleted' if is_finished(found) else 'canceled; drained nodes are uncordoned'}")


async def _read(target: ClusterTarget, name: str) -> NodeDrain:
    async with connected(target, shows_cluster=True) as connection:
        return await _one(connection.client, name)


async def _delete(target: ClusterTarget, drain: NodeDrain) -> None:
    async with connected(target) as connection:
        await connection.client.delete(FOLLOWED, drain.key, uid=drain.uid)
