"""A NodeDrain that a command follows: watched, named in messages, and read by state."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gracectl.cli.output import command
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.connection import Connection
from gracectl.kube.requests import named
from gracectl.kube.resources import NODE_DRAINS
from gracectl.model.meta import condition_of
from gracectl.model.names import COMPLETE, FAILED
from gracectl.model.nodedrain import NodeDrain
from gracectl.policy.nodedrain import records_of

FOLLOWED = msgspec.structs.replace(NODE_DRAINS, cancellable=True)
"""Ctrl-C does not wait for the server's answer."""


class NotServedHere(Exception):
    """The cluster has no definition of NodeDrains."""

    def __init__(self) -> None:
        add = f"{command('crds')} | kubectl apply --server-side -f -"
        super().__init__(f"nodedrains.gracectl.io: not served by the cluster; to add their definition: {add}")


def hints(name: str, separator: str = "; ") -> str:
    """How to follow and to cancel a NodeDrain."""
    follow, cancel = command("drains", "show", name, "-w"), command("drains", "cancel", name)
    return f"to follow: {follow}{separator}to cancel: {cancel}"


def is_finished(drain: NodeDrain) -> bool:
    """Whether it is complete or has failed."""
    return any(each.type in (COMPLETE, FAILED) and each.status == "True" for each in drain.conditions)


def states_of(drain: NodeDrain) -> Iterator[tuple[str, str]]:
    """UID and state of each node in scope; the states are the fields of status.scope."""
    for reference, record in records_of(drain.scope).items():
        yield reference.rpartition("/")[2], record.value


class FollowedDrain:
    """One NodeDrain, watched: `run` it in a task. `latest`: None before it was read, and when it is gone."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = name
        self.cache: Cache[NodeDrain] = Cache(NODE_DRAINS.plural)
        settings = ReflectorSettings(maximum_pause=5.0, selection=named(name))
        self._reflector = Reflector(connection.client, NODE_DRAINS, self.cache, connection.clock, settings=settings)

    @property
    def latest(self) -> NodeDrain | None:
        """As it is now, as far as it is known."""
        return self.cache.get("", self.name)

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted."""
        return self.cache.live and self.latest is None

    @property
    def end_text(self) -> str:
        """Why nothing more begins, after the end."""
        failed = None if self.latest is None else condition_of(self.latest.conditions, FAILED)
        return f"NodeDrain {self.name} was deleted" if failed is None else failed.message

    async def run(self) -> None:
        """Watch it until cancelled. Raises what only a change of configuration can repair (Forbidden)."""
        await self._reflector.run()
