"""NodeDrain of a command: what it requests, and how the command follows it.

The name is chosen here, so that it is known whatever happens to the response. The object outlives the command.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence

import msgspec

from gracectl.cli.output import command
from gracectl.cli.report import Json
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.connection import Connection
from gracectl.kube.requests import named
from gracectl.kube.resources import NODE_DRAINS
from gracectl.model.budget import scaled_value
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.meta import condition_of
from gracectl.model.names import COMPLETE, FAILED
from gracectl.model.nodedrain import Action, NodeDrain, OnUndrainable, Order

LONGEST_REASON = 1024
KEPT_SECONDS = 7 * 86_400
"""A finished NodeDrain of a command is deleted after this time."""

FOLLOWED = msgspec.structs.replace(NODE_DRAINS, cancellable=True)
"""Ctrl-C does not wait for the server's answer."""


class NotServedHere(Exception):
    """The cluster has no definition of NodeDrains."""

    def __init__(self) -> None:
        add = f"{command('crds')} | kubectl apply --server-side -f -"
        super().__init__(f"nodedrains.gracectl.io: not served by the cluster; to add their definition: {add}")


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """What a command requests by a NodeDrain. `verb`: drain, terminate or rotate. `at_once`: nodes, or `10%`; None:
    all. `timeout`: seconds for each node. `windows`: as in the spec."""

    verb: str
    reason: str
    at_once: int | str | None = None
    on_undrainable: OnUndrainable = OnUndrainable.WAIT
    order: Order = Order.BY_FORECAST
    timeout: float | None = None
    windows: Sequence[Json] = ()

    def new_name(self) -> str:
        """A new name."""
        return f"{self.verb}-{secrets.token_hex(3)}"

    def manifest(self, name: str, nodes: Sequence[str]) -> Json:
        """The object for these nodes, without apiVersion and kind."""
        spec: Json = {
            "nodeNames": list(nodes),
            "action": Action.DRAIN if self.verb == "drain" else Action.TERMINATE,
            "maxConcurrent": "100%" if self.at_once is None else self.at_once,
            "waitForReplacement": self.at_once is not None,
            "order": self.order,
            "onUndrainable": self.on_undrainable,
            "reason": self.reason[:LONGEST_REASON],
            "ttlSecondsAfterFinished": KEPT_SECONDS,
        }
        if self.timeout is not None:
            spec["timeout"] = format_duration(round(self.timeout) * NANOSECONDS_PER_SECOND)
        if self.windows:
            spec["windows"] = list(self.windows)
        return {"metadata": {"name": name}, "spec": spec}


def concurrency(at_once: int | str | None, nodes: int) -> int | None:
    """Nodes at the same time: a percentage is rounded down, at least 1; None: all."""
    return max(1, scaled_value(at_once, nodes, round_up=False)) if isinstance(at_once, str) else at_once


def hints(name: str, separator: str = "; ") -> str:
    """How to follow and to cancel a NodeDrain."""
    follow, cancel = command("drains", "show", name, "-w"), command("drains", "cancel", name)
    return f"to follow: {follow}{separator}to cancel: {cancel}"


def is_finished(drain: NodeDrain) -> bool:
    """Whether it is complete or has failed."""
    return any(each.type in (COMPLETE, FAILED) and each.status == "True" for each in drain.conditions)


def states_of(drain: NodeDrain) -> Iterator[tuple[str, str]]:
    """UID and state of each node in scope; the states are the fields of status.scope."""
    for state in ("pending", "in_progress", "drained", "terminated", "skipped", "failed", "canceled"):
        for reference in getattr(drain.scope, state):
            yield reference.rpartition("/")[2], state


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
