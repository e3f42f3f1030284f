"""Drain of nodes by the command itself, where no controller drains them.

The controller's own code drains (`app/drainer.py`), over the watches that `status -w` shows nodes by. Invariant: as
soon as a controller is seen to manage a node, nothing more is sent for it from here, and it is only watched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import anyio
import msgspec

from gracectl.app.drainer import EVENTS, Drainer, Manner, Setup
from gracectl.cli.settings import EffectiveSettings
from gracectl.cli.status.follow import LEADERSHIP_SECONDS, StatusFollower, StatusFrame, StatusScope
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast
from gracectl.inspect.leadership import UNKNOWN_LEADERSHIP, Leadership, LeaderState, may_drain
from gracectl.inspect.status import NodePhase, NodeStatus
from gracectl.inspect.watcher import Reading
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.kube.rbac import Permission, missing_permissions
from gracectl.model import names
from gracectl.model.meta import Condition, condition_of
from gracectl.model.node import Node
from gracectl.policy.cordon import Mark
from gracectl.policy.explain import listed
from gracectl.policy.maintenance import recorded_marks
from gracectl.policy.warnings import WarningKind
from gracectl.runtime.supervise import ungrouped

DELETE_NODES = Permission("delete", "nodes")
"""Permission that `terminate` needs, too."""

CHANGE_NODES = tuple(Permission(verb, "nodes") for verb in ("get", "patch"))
"""Permissions that `terminate --deadline` needs, too, where a controller leads."""

RESUMED = "draining from here; interrupt and run again to resume"

N = TypeVar("N", NodeDrainForecast, NodeStatus)

OF_CONTROLLERS: Final = (WarningKind.NO_CONTROLLER, WarningKind.NOT_MANAGED, WarningKind.FINALIZER_MISSING)
"""Warnings that do not concern nodes that are drained from here."""


class MissingRights(Exception):
    """Nothing was requested: these permissions are missing."""

    def __init__(self, rights: Collection[Permission]) -> None:
        lines = "\n".join(f"  - {right}" for right in rights)
        super().__init__(f"nothing was changed: missing permissions; grant them (docs/drain.md):\n{lines}")


def drained_here(nodes: Collection[Node], effective: EffectiveSettings, leadership: Leadership) -> frozenset[str]:
    """Names of the nodes that no controller drains, as far as that can be seen."""
    if not may_drain(leadership, is_installed=effective.source.startswith("configmap ")):
        return frozenset(node.name for node in nodes)
    managed = effective.settings.termination.managed
    return frozenset(node.name for node in nodes if not managed.includes(node))


def here_text(here: Collection[str], nodes: Collection[Node], leadership: Leadership) -> str:
    """First line of the command: why the nodes are drained from here, and what an interruption means."""
    if leadership.state is LeaderState.ACTIVE:
        some = "" if len(here) == len(nodes) else f" {listed(sorted(here))}"
        return f"{leadership.holder} leads, and does not manage{some or ' these nodes'}: {RESUMED}"
    if leadership.state is LeaderState.NONE:
        return f"no controller leads: {leadership.reason}: {RESUMED}"
    if leadership.is_absent:
        return f"no controller in this cluster: {RESUMED}"
    return f"cannot see whether a controller runs (missing permission: list leases): {RESUMED}"


def without_controller(forecast: DrainForecast, here: Collection[str]) -> DrainForecast:
    """Remove warnings about controllers from the nodes `here`."""
    nodes = tuple(_without_controller(node) if node.name in here else node for node in forecast.nodes)
    return msgspec.structs.replace(forecast, nodes=nodes)


def _without_controller(node: N) -> N:
    warnings = tuple(each for each in node.warnings if each.kind not in OF_CONTROLLERS)
    return msgspec.structs.replace(node, warnings=warnings)


def deletion_text(nodes: Iterable[Node], here: Collection[str]) -> str:
    """Line of `terminate`: what happens to the Node objects, and to instances."""
    finalizers = sorted({each for node in nodes if node.name in here for each in node.finalizers})
    whose = f", unless the owner of a finalizer does that: {listed(finalizers)}" if finalizers else ""
    return f"when drained, the Node objects are deleted; from here no instance is terminated{whose}"


def reading(names: Collection[str], manner: Manner) -> Reading:
    """What is read to drain these nodes. Deletions do not wait for budgets."""
    return Reading(tuple(names), manner.pod_selector, not manner.disable_eviction)


async def check_rights(client: KubeClient, rights: Collection[Permission]) -> bool:
    """Raise MissingRights, ApiError. Returns whether Events may be created."""
    missing = await missing_permissions(client, (*rights, EVENTS))
    needed = tuple(right for right in missing if right != EVENTS)
    if needed:
        raise MissingRights(needed)
    return EVENTS not in missing


class LocalDrain:
    """Drains nodes among `nodes`, and shows all of them: `run` it once. `say`: prints a line."""

    def __init__(self, connection: Connection, setup: Setup, nodes: Sequence[Node], say: Callable[[str], None]) -> None:
        uids = {node.uid: node.name for node in nodes}
        expected = {name: uid for uid, name in uids.items()}
        self._say = say
        self._connection = connection
        self._before = {node.uid: _hand_of_controller(node) for node in nodes}
        self._leadership = UNKNOWN_LEADERSHIP
        scope = StatusScope(lambda node: node.uid in uids)
        self.follower = StatusFollower(
            connection, setup.settings, scope, expected, only=reading(expected, setup.manner)
        )
        self.drainer = Drainer(connection.transport, connection.clock, self.follower.watcher.cluster, setup)

    async def run(
        self, show: Callable[[StatusFrame], bool], read_settings: Callable[[], Awaitable[EffectiveSettings]]
    ) -> None:
        """Drain and show frames until `show` returns True. `read_settings`: of a controller that leads meanwhile.

        Raises ApiError, ComponentFailed."""
        with ungrouped():
            async with anyio.create_task_group() as group:
                group.start_soon(self.drainer.run)
                group.start_soon(self._look_for_controller, read_settings)
                await self.follower.run(partial(self._show, show))
                group.cancel_scope.cancel()

    async def _look_for_controller(self, read_settings: Callable[[], Awaitable[EffectiveSettings]]) -> None:
        """Leave the nodes to a controller that leads from now on, and selects them."""
        known = ""
        while True:
            await self._connection.clock.sleep(LEADERSHIP_SECONDS)
            if self._leadership.state is not LeaderState.ACTIVE or self._leadership.holder == known:
                continue
            managed = (await read_settings()).settings.termination.managed
            known = self._leadership.holder
            for node in self.follower.watcher.cluster.nodes.values():
                if self.follower.watcher.cluster.manages(managed, node):
                    self._leave(node, f"{known} leads")

    def _show(self, show: Callable[[StatusFrame], bool], frame: StatusFrame) -> bool:
        self._leadership = frame.leadership
        for status in frame.nodes:
            if _hand_of_controller(status.node) != self._before.get(status.uid):
                self._leave(status.node, "a controller has begun with it")
        progress = self.drainer.progress()

        def seen(status: NodeStatus) -> NodeStatus:
            if status.name not in self.drainer.names:
                return status
            status = _without_controller(status)
            found = progress.get(status.uid)
            if found is None or status.state is not NodePhase.MAINTENANCE:
                return status
            return msgspec.structs.replace(status, step=found.step, waits_for=found.waits_for or status.waits_for)

        return show(msgspec.structs.replace(frame, nodes=tuple(map(seen, frame.nodes))))

    def _leave(self, node: Node, why: str) -> None:
        if node.name in self.drainer.names:
            self.drainer.release(node.name)
            self._say(f"{node.name}: {why}: the controller continues; watching")


def _hand_of_controller(node: Node) -> tuple[Condition | None, bool]:
    """What only a controller writes on a node that is drained."""
    return condition_of(node.conditions, names.DRAINED), Mark.LABEL in recorded_marks(node)
