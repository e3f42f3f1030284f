"""`gracectl freeze` and `gracectl unfreeze`: stop everything voluntary in a cluster, and let it begin again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import click
import msgspec

from gracectl.cli.failures import REFUSED, interruptible, print_error, reporting_errors, run_async
from gracectl.cli.options import ClusterTarget, connected, namespace_option
from gracectl.cli.output import echo
from gracectl.cli.settings import SettingsSource, settings_options
from gracectl.inspect.freeze import freeze_namespace, freeze_object
from gracectl.inspect.leadership import LeaderState, read_leadership
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.rbac import own_username
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import CONFIG_MAPS
from gracectl.model import names
from gracectl.model.durations import parse_seconds
from gracectl.model.times import format_time, parse_time
from gracectl.policy import freeze as policy

FREEZES: Final = msgspec.structs.replace(CONFIG_MAPS, cancellable=True)
_NAMESPACE: Final = "Namespace of the controller; default: the one of its Lease or settings."
_LONGEST_REASON: Final = 1024


class InvalidFreeze(Exception):
    """The freeze cannot be written as requested; the message says why."""


@click.command()
@click.option("--until", metavar="TIME", help="End of the freeze: 2026-12-27T06:00:00Z, or a duration such as 8h.")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people.")
@namespace_option(_NAMESPACE)
@settings_options
def freeze(target: ClusterTarget, until: str | None, reason: str, namespace: str) -> None:
    """Stop everything voluntary from beginning in the whole cluster.

    Terminations for health, label or age do not begin, and neither does the next node of a NodeDrain. What has begun
    continues. A machine that goes anyway does not wait, and deletions that people request are not stopped, but warned
    about. Without --until, the freeze lasts until gracectl unfreeze. A freeze that exists is replaced.

    Writes the ConfigMap gracectl-freeze in the controller's namespace: needs get, create and patch on it.

    Exit code 0: the cluster is frozen; 2: --until or --reason is invalid; 3: the server refused.
    """
    with reporting_errors({InvalidFreeze: 2, NoNamespace: REFUSED}):
        source, end = SettingsSource(target), _end(until)
        if len(reason) > _LONGEST_REASON:
            raise InvalidFreeze(f"--reason: {len(reason)} characters are more than {_LONGEST_REASON}; shorten it")
        with interruptible():
            run_async(lambda: _freeze(target, source, namespace, end, reason))


@click.command()
@namespace_option(_NAMESPACE)
@settings_options
def unfreeze(target: ClusterTarget, namespace: str) -> None:
    """End a freeze: everything voluntary may begin again.

    Deletes the ConfigMap gracectl-freeze in the controller's namespace: needs get and delete on it.

    Exit code 0: the cluster is not frozen, also if it was not; 3: the server refused.
    """
    with reporting_errors():
        source = SettingsSource(target)
        with interruptible():
            run_async(lambda: _unfreeze(target, source, namespace))


class NoNamespace(Exception):
    """The namespace of the controller does not exist; the message has a remedy."""


def _end(text: str | None) -> tuple[float, bool] | None:
    """End of a freeze, in Unix seconds or (True) in seconds from now. Raises InvalidFreeze."""
    if text is None:
        return None
    with suppress(ValueError):
        return parse_time(text), False
    try:
        seconds = parse_seconds(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise InvalidFreeze(f"--until: {text[:60]!r} is no time; write 2026-12-27T06:00:00Z, or a duration such as 8h")
    return seconds, True


async def _freeze(
    target: ClusterTarget, source: SettingsSource, namespace: str, end: tuple[float, bool] | None, reason: str
) -> None:
    async with connected(target, shows_cluster=True) as connection:
        namespace = await _namespace(connection, source, namespace)
        before = await freeze_object(connection.client, namespace)
        now = connection.clock.now()
        until = None if end is None else end[0] + (now if end[1] else 0.0)
        if until is not None and until <= now:
            raise InvalidFreeze(f"--until: {format_time(until)} has passed; it is {format_time(now)} now")
        data = {policy.REASON: reason, policy.UNTIL: "" if until is None else format_time(until)}
        by = await _username(connection)
        wanted = {key: value for key, value in {**data, policy.BY: by}.items() if value}
        if before is None:
            await _create(connection, namespace, wanted)
        elif dict(before.data) != wanted:
            change = {**dict.fromkeys(before.data), **wanted}
            patch = MergePatch({"data": change})
            await connection.client.patch(FREEZES, before.key, patch, uid=before.uid)
        was = "" if before is None else f"; before: {policy.read_freeze(before.data)}"
        until_then = "until gracectl unfreeze" if until is None else "until then; gracectl unfreeze ends it earlier"
        echo(f"{policy.read_freeze(wanted)}{was}; nothing voluntary begins {until_then}")


async def _create(connection: Connection, namespace: str, data: Mapping[str, str]) -> None:
    metadata = {"name": names.FREEZE, "labels": {names.MANAGED_BY: names.EVENT_COMPONENT}}
    try:
        await connection.client.create(FREEZES, namespace, {"metadata": metadata, "data": data})
    except NotFound as error:
        raise NoNamespace(
            f"namespace {namespace}: not found; name the namespace of the controller with --namespace"
        ) from error


async def _unfreeze(target: ClusterTarget, source: SettingsSource, namespace: str) -> None:
    async with connected(target, shows_cluster=True) as connection:
        namespace = await _namespace(connection, source, namespace)
        before = await freeze_object(connection.client, namespace)
        if before is None:
            echo(f"not frozen: there is no ConfigMap {namespace}/{names.FREEZE}")
            return
        with suppress(NotFound):
            await connection.client.delete(FREEZES, before.key, uid=before.uid)
        echo(f"no longer frozen; before: {policy.read_freeze(before.data)}")


async def _namespace(connection: Connection, source: SettingsSource, namespace: str) -> str:
    """Namespace of the freeze. A note says if no controller leads that would heed it."""
    if namespace:
        return namespace
    effective = await source.read(connection.client, is_silent=True)
    settings = effective.settings.leader_election
    leadership = await read_leadership(connection.client, settings, connection.clock)
    if leadership.state is LeaderState.NONE:
        print_error(f"no controller leads: {leadership.reason}")
    return freeze_namespace(settings, leadership, (effective.namespace,))


async def _username(connection: Connection) -> str:
    try:
        return await own_username(connection.client)
    except ApiError:
        return ""
