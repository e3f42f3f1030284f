"""Independent verifier of a drain: it watches pods, budgets and nodes, and trusts no other component.

It computes the requirement of each budget from the spec and the pods at the start, then counts healthy pods at every
event of one pod stream, in order. It runs against any API server: versions are opaque, budgets may appear and change
later, and a watch may break (the verifier then reports how long it was blind).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import aclosing

import anyio
import msgspec
from anyio.abc import TaskStatus

from kubesim.clock import Clock
from kubesim.controllers.client import ApiClient, Event, follow
from kubesim.controllers.paths import BUDGETS, NODES, PODS
from kubesim.server.api import JsonObject
from kubesim.verifier.budgets import BudgetRecord, BudgetTracker, Violation
from kubesim.verifier.coverage import Blindness, ObservedApi
from kubesim.verifier.departures import Departure, Moves, PodState

__all__ = ["BudgetRecord", "Departure", "Findings", "NodeRecord", "Verifier", "Violation"]


class NodeRecord(msgspec.Struct, frozen=True):
    """A node as it was last seen; `deleted_at` and `gone_at` (epoch) are when that was seen to begin and to be over."""

    name: str
    uid: str
    provider_id: str
    finalizers: tuple[str, ...]
    deleted_at: float | None = None
    gone_at: float | None = None


class Findings(msgspec.Struct, frozen=True):
    """Findings of the verifier. `touched_twice`: pods with a grace period that changed after their deletion began."""

    violations: tuple[Violation, ...]
    budgets: tuple[BudgetRecord, ...]
    departures: tuple[Departure, ...]
    touched_twice: tuple[str, ...]
    blind: tuple[Blindness, ...]
    nodes: tuple[NodeRecord, ...]

    @property
    def blind_seconds(self) -> float:
        """For how long, all in all, it cannot vouch."""
        return sum(blindness.seconds for blindness in self.blind)

    def evictions(self, node: str) -> tuple[Departure, ...]:
        """The pods that left a node while it was being deleted, and before it was gone."""
        records = [record for record in self.nodes if record.name == node and record.deleted_at is not None]
        return tuple(
            departure
            for departure in self.departures
            if departure.node == node and any(_was_going(record, departure.at) for record in records)
        )


class Verifier:
    """Watches through `api`; `run` it, then ask. Findings may be asked for at any time."""

    def __init__(self, api: ApiClient, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._sight = ObservedApi(api, clock)
        self._pods: dict[str, PodState] = {}
        self._nodes: dict[str, NodeRecord] = {}
        self._trackers: dict[str, BudgetTracker] = {}
        self._retired: list[BudgetTracker] = []
        self._moves = Moves()
        self._violations: list[Violation] = []
        self._sizes: Counter[str] | None = None
        self._changed = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch until cancelled; started when all has been seen once, and what was seen has become the baseline."""
        async with anyio.create_task_group() as group:
            await group.start(self._follow, self._api, BUDGETS, self._budget_event)
            await group.start(self._follow, self._api, NODES, self._node_event)
            await group.start(self._follow, self._sight, PODS, self._pod_event)
            self.begin()
            task_status.started()

    def begin(self) -> None:
        """Take the pods that there are now as the baseline. `run` does it once; again after a scaling, for instance."""
        self._sizes = Counter(pod.workload for pod in self._pods.values() if pod.is_alive and pod.workload)
        for tracker in self._trackers.values():
            tracker.begin(self._size_of)

    def findings(self) -> Findings:
        """What it has seen since the baseline."""
        return Findings(
            violations=tuple(self._violations),
            budgets=self.budgets(),
            departures=self._moves.departures(),
            touched_twice=tuple(self._moves.touched_twice),
            blind=tuple(self._sight.blind),
            nodes=self.nodes(),
        )

    def budgets(self) -> tuple[BudgetRecord, ...]:
        """How every budget has fared, those that are gone or had another spec before among them; by name."""
        records = [tracker.record() for tracker in (*self._retired, *self._trackers.values())]
        return tuple(sorted(records, key=lambda record: record.name))

    def nodes(self) -> tuple[NodeRecord, ...]:
        """Every node that there is or was, by name."""
        return tuple(sorted(self._nodes.values(), key=lambda node: (node.name, node.gone_at or float("inf"))))

    def ready_pods(self) -> tuple[int, int]:
        """How many pods are healthy, of how many that are to live (not finished, not terminating, on no dead node)."""
        living = {node.name for node in self._nodes.values() if node.gone_at is None}
        alive = [pod for pod in self._pods.values() if pod.is_alive and (not pod.node or pod.node in living)]
        return sum(pod.is_healthy for pod in alive), len(alive)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition (about what this referee knows) holds; asked again at each event."""
        while not condition():
            await self._changed.wait()

    async def _follow(
        self,
        api: ApiClient,
        path: str,
        take: Callable[[Event], None],
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        has_started = False
        async with aclosing(follow(api, path, {}, self._clock)) as events:
            async for event in events:
                take(event)
                if event.type == "SYNCED" and not has_started:
                    has_started = True
                    task_status.started()
                self._changed.set()
                self._changed = anyio.Event()

    def _pod_event(self, event: Event) -> None:
        now = self._clock.now()
        if event.type == "SYNCED":
            self._sight.synced()
            # In which order things happened is unknown: only what they have come to is judged.
            self._judge(list(self._trackers.values()), now, "")
            return
        uid = event.object["metadata"]["uid"]
        before = self._pods.pop(uid, None)
        after = None if event.type == "DELETED" else PodState.of(event.object)
        if after is not None:
            self._pods[uid] = after
        self._moves.see(now, before, after)
        pod = after or before
        if pod is None:
            return
        touched = [t for t in self._trackers.values() if t.namespace == pod.namespace and t.see(uid, after)]
        if not self._sight.is_listing:
            self._judge(touched, now, pod.called)

    def _judge(self, trackers: list[BudgetTracker], now: float, pod: str) -> None:
        if self._sizes is None:
            return
        for tracker in trackers:
            violation = tracker.judge(now, pod)
            if violation is not None:
                self._violations.append(violation)

    def _size_of(self, workload: str) -> int:
        """Pods that a workload should have: the pods of the baseline; of a younger workload, the current pods."""
        if self._sizes is not None and workload in self._sizes:
            return self._sizes[workload]
        return sum(pod.workload == workload and pod.is_alive for pod in self._pods.values())

    def _budget_event(self, event: Event) -> None:
        if event.type == "SYNCED":
            return
        uid, before = event.object["metadata"]["uid"], self._trackers.get(event.object["metadata"]["uid"])
        if event.type == "DELETED":
            if before is not None:
                self._retired.append(self._trackers.pop(uid))
            return
        if before is not None and before.spec == event.object["spec"]:
            return
        if before is not None:
            self._retired.append(before)
        self._trackers[uid] = self._counted(event.object)

    def _counted(self, budget: JsonObject) -> BudgetTracker:
        tracker = BudgetTracker(budget)
        for uid, pod in self._pods.items():
            if pod.namespace == tracker.namespace:
                tracker.see(uid, pod)
        if self._sizes is not None:
            tracker.begin(self._size_of)
        return tracker

    def _node_event(self, event: Event) -> None:
        if event.type == "SYNCED":
            return
        metadata, now = event.object["metadata"], self._clock.now()
        before = self._nodes.get(metadata["uid"])
        is_going = "deletionTimestamp" in metadata or event.type == "DELETED"
        deleted_at = before.deleted_at if before is not None else None
        self._nodes[metadata["uid"]] = NodeRecord(
            name=metadata["name"],
            uid=metadata["uid"],
            provider_id=event.object["spec"].get("providerID", ""),
            finalizers=tuple(metadata.get("finalizers") or ()),
            deleted_at=deleted_at if deleted_at is not None else (now if is_going else None),
            gone_at=now if event.type == "DELETED" else None,
        )


def _was_going(node: NodeRecord, at: float) -> bool:
    return node.deleted_at is not None and node.deleted_at <= at and (node.gone_at is None or at <= node.gone_at)
