"""Nodes that are under way, scene by scene, until somebody has seen enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import msgspec

from gracectl.config import Settings
from gracectl.inspect.forecast import is_draining
from gracectl.inspect.leadership import NOTHING_KNOWN, Leadership, read_leadership, with_leadership
from gracectl.inspect.status import (
    Memory,
    NodeClaimStatus,
    NodeStatus,
    claims_by_themselves,
    is_under_way,
    node_statuses,
)
from gracectl.inspect.watcher import ClusterWatcher, ConnectionLoss
from gracectl.kube.connection import Connection
from gracectl.model.node import Node
from gracectl.runtime.supervise import ungrouped

SCENE_SECONDS = 1.0
"""The time that is shown runs, so there is a new scene this often even if nothing has happened."""
LEADERSHIP_SECONDS = 5.0
"""Between two looks at who leads."""
GATHERING_SECONDS = 0.2
"""What happens within so short a time is seen in one scene."""


class Gone(msgspec.Struct, frozen=True):
    """A node that was there and is not any more, whether or not another one has its name. `after_seconds`: how long
    its end has taken; None if nobody saw it begin."""

    name: str
    uid: str
    after_seconds: float | None


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to see at the instant `at` (Unix seconds, the server's clock).

    `leadership`: whether a controller lives. `gone`: nodes that were awaited or under way, in the order in which they
    went. `longest_protection`: the seconds that the settings grant; None: there is no maximum. `is_complete` False: the
    cluster has not been listed yet, and nothing is known of any node.
    """

    at: float
    nodes: tuple[NodeStatus, ...]
    claims: tuple[NodeClaimStatus, ...] = ()
    gone: tuple[Gone, ...] = ()
    interruption: ConnectionLoss | None = None
    leadership: Leadership = NOTHING_KNOWN
    longest_protection: float | None = None
    is_complete: bool = True


async def follow(
    there: Connection,
    settings: Settings,
    chooses: Callable[[Node], bool],
    show: Callable[[Scene], bool],
    *,
    expected: Mapping[str, str] | None = None,
    with_claims: bool = False,
) -> None:
    """Show how the chosen nodes stand whenever that changes, and every second, until `show` answers True.

    `expected`: by name the uids of nodes that are there, and whose end is awaited. `with_claims`: claims without a
    node are shown, too. Broken connections are waited out; raises what only a change of configuration can mend
    (Forbidden).
    """
    watcher = _Watcher(there, settings, chooses, dict(expected or {}), with_claims=with_claims)
    with ungrouped():
        async with anyio.create_task_group() as group:
            group.start_soon(watcher.sight.run)
            group.start_soon(watcher.watch_leadership)
            await watcher.show_all(show)
            group.cancel_scope.cancel()


class _Watcher:
    def __init__(
        self,
        there: Connection,
        settings: Settings,
        chooses: Callable[[Node], bool],
        expected: dict[str, str],
        *,
        with_claims: bool,
    ) -> None:
        self._there = there
        self._clock = there.clock
        self._election = settings.leader_election
        self._leadership = NOTHING_KNOWN
        self._settings = settings.termination
        self._chooses = chooses
        self._with_claims = with_claims
        self._awaited = {uid: name for name, uid in expected.items()}
        self._began: dict[str, float] = {}  # by uid
        self._gone: list[Gone] = []
        self._memory = Memory()
        self.sight = ClusterWatcher(there.client, self._has_to_be_seen, there.clock)

    def _has_to_be_seen(self, node: Node) -> bool:
        # Pods of all that are draining wait in the same lanes.
        return self._chooses(node) or is_draining(node, self._settings)

    async def watch_leadership(self) -> None:
        """Look again and again whether a controller lives."""
        while True:
            self._leadership = await read_leadership(self._there.client, self._election, self._clock)
            await self._clock.sleep(LEADERSHIP_SECONDS)

    async def show_all(self, show: Callable[[Scene], bool]) -> None:
        """Until somebody has seen enough."""
        while not self._has_seen_all_but_pods:
            with anyio.move_on_after(SCENE_SECONDS):
                await self.sight.wait_live()
            if not self._has_seen_all_but_pods and show(self._blank()):
                return
        while not show(self._scene()):
            await self.sight.changed(SCENE_SECONDS)
            await self._clock.sleep(GATHERING_SECONDS)

    @property
    def _has_seen_all_but_pods(self) -> bool:
        """Without budgets nothing would seem to hold anybody; of which nodes the pods are missing is known."""
        seen = self.sight.observed
        return seen.nodes.live and seen.budgets.live and seen.attachments.live and seen.claims.live

    def _blank(self) -> Scene:
        return Scene(at=self._clock.now(), nodes=(), interruption=self.sight.interruption(), is_complete=False)

    def _scene(self) -> Scene:
        observed, now = self.sight.observed, self._clock.now()
        chosen = [node for node in observed.nodes.values() if self._chooses(node)]
        self._note_gone({node.uid for node in observed.nodes.values()}, now)
        found = node_statuses(
            observed,
            self._settings,
            {node.name for node in chosen},
            now,
            memory=self._memory,
            has_pods=self.sight.has_pods_of,
        )
        for standing in found:
            if standing.since is not None and is_under_way(standing.node):
                self._began[standing.uid] = standing.since
                self._awaited.setdefault(standing.uid, standing.name)
        return Scene(
            at=now,
            nodes=with_leadership(found, self._leadership),
            leadership=self._leadership,
            claims=claims_by_themselves(observed, self._settings, now) if self._with_claims else (),
            gone=tuple(self._gone),
            interruption=self.sight.interruption(),
            longest_protection=self._settings.policy.protection.maximum_seconds,
        )

    def _note_gone(self, there: set[str], now: float) -> None:
        for uid in [uid for uid in self._awaited if uid not in there]:
            began = self._began.pop(uid, None)
            self._gone.append(Gone(self._awaited.pop(uid), uid, None if began is None else now - began))
