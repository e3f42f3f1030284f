"""Status of nodes over time, frame by frame."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import is_

import anyio
import msgspec

from gracectl.config import Settings
from gracectl.controllers.cluster.workloads import read_workloads
from gracectl.inspect.forecast import draining_nodes, is_draining
from gracectl.inspect.freeze import fill_freeze, freeze_namespace
from gracectl.inspect.leadership import (
    UNKNOWN_LEADERSHIP,
    Leadership,
    LeaderState,
    as_led,
    read_leadership,
    with_leadership,
)
from gracectl.inspect.owner_reports import Reports, read_owner_reports, with_reports
from gracectl.inspect.pending import DueCandidate, DueNode, due_candidates, due_nodes, names_of
from gracectl.inspect.progress import Forecaster, Progress, ProgressTracker
from gracectl.inspect.status import (
    NodeClaimStatus,
    NodePhase,
    NodeStatus,
    NodeStatuses,
    claims_without_node_status,
    with_forecast,
    with_pending,
)
from gracectl.inspect.unbound import read_unbound
from gracectl.inspect.watcher import WHOLE, ClusterWatcher, ConnectionLoss, Reading, read_node_budgets
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.connection import Connection
from gracectl.kube.errors import ApiError
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.node import Node
from gracectl.policy.freeze import Freeze
from gracectl.policy.observations import ObservationLog
from gracectl.policy.scenario import DrainingNode
from gracectl.runtime.supervise import ungrouped, while_running
from gracectl.telemetry.settings import TracingSettings

FRAME_SECONDS = 1.0
"""Between two frames if nothing changes: elapsed times do."""
LEADERSHIP_SECONDS = 5.0
"""Between two reads of the Lease."""
WORKLOAD_SECONDS = 2.0
"""Between two reads of workloads with pods that are replaced first, and of pods without a node: neither is watched."""
FRAME_SHARE = 0.25
"""Share of one processor that frames take, at most: one of hundreds of nodes takes a second."""
COALESCING_SECONDS = 0.25
"""Changes within so short a time share a frame."""
MOST_TERMINATED = 100
"""Terminated nodes that a reader that never ends is shown."""


class TerminatedNode(msgspec.Struct, frozen=True):
    """A node that no longer exists, whether or not another one has its name.

    `after_seconds`: the duration of its termination; None if its beginning was not seen.
    """

    name: str
    uid: str
    after_seconds: float | None


class StatusFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Status of nodes at the instant `at` (Unix seconds, the server's clock).

    While the connection is lost, `at` does not advance, and the frame is `age` seconds old.
    `leadership`: whether a controller runs. `terminated`: nodes that were expected or active, in the order in which
    they were terminated. `longest_protection`: the maximum of the settings in seconds; None: there is none.
    `progress`: of all nodes that are or were in progress; None if there was none. `tracing`: where traces are shown.
    `is_complete` False: the cluster has not been listed yet, and nothing is known of any node.
    """

    at: float
    nodes: tuple[NodeStatus, ...]
    age: float = 0.0
    claims: tuple[NodeClaimStatus, ...] = ()
    terminated: tuple[TerminatedNode, ...] = ()
    connection_loss: ConnectionLoss | None = None
    leadership: Leadership = UNKNOWN_LEADERSHIP
    longest_protection: float | None = None
    progress: Progress | None = None
    tracing: TracingSettings = TracingSettings()
    is_complete: bool = True
    cluster: ClusterAddress = ClusterAddress()
    freeze: Freeze | None = None
    """The freeze in force, if it may be read."""


class StatusScope(msgspec.Struct, frozen=True):
    """What is shown: the nodes that `selects` selects, and those of `selects_due` among the nodes whose termination for
    health, label or age is due (None: they are not looked for). `with_claims`: NodeClaims without a node, too.
    """

    selects: Callable[[Node], bool]
    selects_due: Callable[[Node], bool] | None = None
    with_claims: bool = False


class _Completed(msgspec.Struct, frozen=True):
    """A status with all that is known of its node. `parts`, `led`: what it was made of."""

    parts: tuple[object, ...]
    led: Leadership
    completed: NodeStatus


async def follow(
    connection: Connection,
    settings: Settings,
    scope: StatusScope,
    show: Callable[[StatusFrame], bool],
    *,
    expected: Mapping[str, str] | None = None,
) -> None:
    """Show the status of nodes at each change, and every second, until `show` returns True.

    `expected`: by name the uids of existing nodes that are to be terminated. Broken connections are waited out.
    Raises what only a change of configuration can repair (Forbidden).
    """
    await StatusFollower(connection, settings, scope, expected).run(show)


class StatusFollower:
    """Status of nodes frame by frame, from a watch of the cluster: `run` it once.

    `expected`: by name the uids of existing nodes that are to be terminated. `is_endless`: for a reader that never
    ends: of the terminated nodes the last MOST_TERMINATED are kept, progress counts since all was done, and all pods
    are watched, also unscheduled ones. `only`: what is read (see ClusterWatcher).
    """

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        scope: StatusScope,
        expected: Mapping[str, str] | None = None,
        *,
        is_endless: bool = False,
        only: Reading = WHOLE,
    ) -> None:
        self._connection = connection
        self._clock = connection.clock
        self._election = settings.leader_election
        self._leadership = UNKNOWN_LEADERSHIP
        self._reports: Reports = {}
        self._shown: tuple[str, ...] = ()  # names of the nodes of the last frame
        self._known: dict[str, _Completed] = {}  # by uid
        self._configured = self._settings = settings.termination
        self._tracing = settings.tracing
        self._scope = scope
        self._candidates: tuple[DueCandidate, ...] = ()  # of all nodes, searched once a second
        self._searched_at = -math.inf
        self.node_budgets: tuple[NodeDisruptionBudget, ...] = ()
        self.polls = 0  # of leadership and budgets of nodes
        self._expected = {uid: name for name, uid in (expected or {}).items()}
        self._began: dict[str, float] = {}  # by uid
        self._terminated: deque[TerminatedNode] = deque(maxlen=MOST_TERMINATED if is_endless else None)
        self._tracker = ProgressTracker(by_runs=is_endless)
        self._log = ObservationLog()
        self.forecaster = Forecaster(connection.clock, settings.assumptions, self._draining, self._log)
        self.watcher = ClusterWatcher(
            connection.client, self._is_watched, connection.clock, with_all_pods=is_endless, only=only
        )
        if connection.cluster.context is not None:
            self.watcher.compare_clusters()
        self.watcher.cluster.budgets.subscribe(self._budget_changed)
        self.watcher.cluster.pods.subscribe(lambda old, new: self._log.note_pod(old, new, self._clock.now()))
        self.statuses = NodeStatuses(self.watcher.cluster, self._settings, self.watcher.has_pods_of, follows=True)

    async def run(self, show: Callable[[StatusFrame], bool]) -> None:
        """Show frames until `show` returns True; see `follow`."""
        with ungrouped():
            async with while_running(
                self.watcher.run, self._poll_leadership, self._poll_workloads, self.forecaster.run
            ):
                await self._show_frames(show)

    def _budget_changed(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if new is not None:
            self._log.note_budget(new, self._clock.now())
        elif old is not None:
            self._log.forget_budget(old.key)

    def _is_watched(self, node: Node) -> bool:
        # The pods of all draining nodes wait in the same queues.
        return self._scope.selects(node) or is_draining(node, self._settings, self.watcher.cluster)

    def _draining(self) -> tuple[tuple[DrainingNode, ...], float] | None:
        """The input of a forecast; None before the cluster has been listed, and while the connection is lost."""
        if not self._is_complete or self.watcher.connection_loss() is not None:
            return None
        now = self._clock.now()
        return draining_nodes(self.watcher.cluster, self._settings, now, self.watcher.has_pods_of), now

    async def _poll_leadership(self) -> None:
        """Read the Lease again and again; for nodes that are due also what holds them: budgets of nodes, a freeze."""
        while True:
            if self._scope.selects_due is not None:
                with suppress(ApiError):
                    self.node_budgets = await read_node_budgets(self._connection.client)
            self._reports = await read_owner_reports(self._connection.client, self.watcher.cluster, self._shown)
            self._leadership = await read_leadership(self._connection.client, self._election, self._clock)
            if self._scope.selects_due is not None:
                namespace = freeze_namespace(self._election, self._leadership)
                await fill_freeze(self._connection.client, self.watcher.cluster, namespace)
            self._settings = as_led(self._configured, self._leadership)
            self.statuses.configure(self._settings)
            self.polls += 1
            await self._clock.sleep(LEADERSHIP_SECONDS)

    async def _poll_workloads(self) -> None:
        """Read the workloads of pods that may be replaced first on draining nodes, and pods without a node, again and
        again."""
        while True:
            replace_first, plans = self._settings.policy.replace_first, tuple(self.statuses.draining.plans)
            await read_workloads(self._connection.client, self.watcher.cluster, replace_first, plans)
            if plans and not self.watcher.has_all_pods:
                await read_unbound(self._connection.client, self.watcher.cluster)
            else:
                self.watcher.cluster.unbound.clear()
            await self._clock.sleep(WORKLOAD_SECONDS if plans else FRAME_SECONDS)

    async def _show_frames(self, show: Callable[[StatusFrame], bool]) -> None:
        """Until `show` returns True."""
        while not self._is_complete:
            with anyio.move_on_after(FRAME_SECONDS):
                await self.watcher.wait_live()
            if not self._is_complete and show(self._incomplete_frame()):
                return
        while True:
            began = self._clock.monotonic()
            if show(self._frame()):
                return
            cost = self._clock.monotonic() - began
            await self.watcher.changed(FRAME_SECONDS)
            await self._clock.sleep(max(COALESCING_SECONDS, cost / FRAME_SHARE))

    @property
    def _is_complete(self) -> bool:
        """Whether all but pods has been listed: without budgets no pod would seem blocked."""
        cluster = self.watcher.cluster
        return cluster.nodes.live and cluster.budgets.live and cluster.attachments.live and cluster.claims.live

    def _incomplete_frame(self) -> StatusFrame:
        return StatusFrame(
            at=self._clock.now(),
            nodes=(),
            connection_loss=self.watcher.connection_loss(),
            is_complete=False,
            cluster=self._connection.cluster,
        )

    def _frame(self) -> StatusFrame:
        cluster, now, loss = self.watcher.cluster, self._clock.now(), self.watcher.connection_loss()
        at = now if loss is None or loss.latest is None else loss.latest
        due = self._due(at)
        selected = {node.name for node in cluster.nodes.values() if self._scope.selects(node)} | due.keys()
        self._note_terminated({node.uid for node in cluster.nodes.values()}, at)
        found = self._completed(self.statuses.at(selected, at), due, at)
        self._shown = tuple(status.name for status in found)
        for status in found:
            if status.since is not None and status.state is not NodePhase.IDLE:
                self._began[status.uid] = status.since
                self._expected.setdefault(status.uid, status.name)
        gone = [each.uid for each in self._terminated]
        return StatusFrame(
            at=at,
            age=now - at,
            nodes=found,
            leadership=self._leadership,
            claims=claims_without_node_status(cluster, self._settings, at) if self._scope.with_claims else (),
            terminated=tuple(self._terminated),
            connection_loss=loss,
            tracing=self._tracing,
            longest_protection=self._settings.policy.protection.maximum_seconds,
            cluster=self._connection.cluster,
            freeze=cluster.freeze(at),
            progress=self._tracker.update(found, gone, cluster.budgets.get, at),
        )

    def _completed(
        self, found: tuple[NodeStatus, ...], due: Mapping[str, DueNode], at: float
    ) -> tuple[NodeStatus, ...]:
        """Add what is not read from the objects of each node; the same object as before if nothing has changed."""
        forecast = self.forecaster.latest
        forecasts = {each.draining.view.node.uid: each for each in (forecast.nodes if forecast else ())}
        led = self._leadership
        if led.state is not LeaderState.NONE:
            led = msgspec.structs.replace(led, renewed=None)  # no status names it
        known, self._known = self._known, {}
        completed: list[NodeStatus] = []
        for status in found:
            parts = status, forecasts.get(status.uid), self._reports.get(status.name)
            before = known.get(status.uid)
            if before is not None and before.led == led and all(map(is_, before.parts, parts)):
                self._known[status.uid] = before
                completed.append(before.completed)
                continue
            reported = with_reports([status], self._reports)
            (new,) = with_pending(self.watcher.cluster, self._settings, reported, due, at)
            (new,) = with_leadership([with_forecast(new, parts[1])], self._leadership)
            if status.name not in due:
                self._known[status.uid] = _Completed(parts, led, new)
            completed.append(new)
        return tuple(completed)

    def _due(self, at: float) -> Mapping[str, DueNode]:
        """The nodes that are due, whose pods are watched from now on, and that are to be shown."""
        if self._scope.selects_due is None:
            return {}
        cluster, has_pods = self.watcher.cluster, self.watcher.has_pods_of
        if not self._searched_at <= at < self._searched_at + FRAME_SECONDS:
            self._searched_at, self._candidates = at, due_candidates(cluster, self._settings, at)
            self.watcher.select_others(names_of(self._candidates))
        candidates = self._candidates
        found = due_nodes(cluster, self._settings, candidates, at, node_budgets=self.node_budgets, has_pods=has_pods)
        nodes = {name: cluster.node(name) for name in found}
        return {name: found[name] for name, node in nodes.items() if node is not None and self._scope.selects_due(node)}

    def _note_terminated(self, existing: set[str], now: float) -> None:
        for uid in [uid for uid in self._expected if uid not in existing]:
            began = self._began.pop(uid, None)
            after = None if began is None else now - began
            self._terminated.append(TerminatedNode(self._expected.pop(uid), uid, after))
