"""Progress of the nodes that are terminated or drained: how much is done, until when it takes, and what blocks it.

The numbers come from the status of the nodes, frame by frame, the times from a forecast. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import is_not
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from gracectl.inspect.draining import PodStatus
from gracectl.inspect.status import NodeStatus
from gracectl.model.budget import PodDisruptionBudget
from gracectl.policy.answers import Answer, Never, Sightings, Total, last_of, total_of
from gracectl.policy.budgets import is_counted
from gracectl.policy.confirmation import AGREE_SECONDS, confirmed, current
from gracectl.policy.explain import urgency_of
from gracectl.policy.forecast import Assumptions, Forecast, NodeForecast
from gracectl.policy.observations import ObservationLog
from gracectl.policy.paces import forecast_all
from gracectl.policy.plan import Blocker, Outcome
from gracectl.policy.scenario import DrainingNode
from gracectl.runtime.clock import Clock

FORECAST_SECONDS = 1.0
"""Between two forecasts, at least."""
FIRST_SECONDS = 0.1
"""Between two looks whether the first one can be made."""
FORECAST_SHARE = 0.5
"""Share of one processor that forecasts take, at most, while objects change."""
UNCHANGED_SHARE = 0.1
"""Share that they take, at most, while only time passes."""
QUICK_PODS = 50
"""For so few pods a forecast takes no time; for more it is computed in a thread."""
MOST_PODS = 40_000
"""For more pods there is no forecast: it would take many seconds."""


class BlockingCause(msgspec.Struct, frozen=True, kw_only=True):
    """Cause that blocks pods of several nodes; without `example`, the step of nodes without pods.

    `age`: of the pod that has been blocked for longest, in seconds. `at_once`: how many pods the budget lets go at the
    same time, once all of its pods are healthy. `left`: when the last of the pods is gone; None: there is no forecast.
    """

    example: PodStatus | None
    step: str = ""
    waits_for: str = ""
    pods: int = 0
    nodes: int
    age: float = 0.0
    at_once: int | None = None
    left: Answer | None = None

    @property
    def is_never(self) -> bool:
        """Whether no pod leaves until a person changes something."""
        return isinstance(self.left, Never)

    @property
    def remedy(self) -> str:
        """The command that lets the example go, or the owner to ask; empty for a step."""
        return "" if self.example is None else self.example.remedy


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress since the first frame. `began`: when the first of the nodes was requested (Unix seconds).

    `total`: of the nodes with pods. `forecast_at`: when the forecast was made (Unix seconds); None: there is none.
    """

    nodes_done: int
    nodes: int
    pods_done: int
    pods: int
    began: float
    total: Total
    causes: tuple[BlockingCause, ...]
    forecast_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether all nodes are terminated or drained."""
        return self.nodes_done == self.nodes


class ProgressTracker:
    """Work in all frames so far. Nodes that were drained before the first frame do not count.

    `by_runs`: since the last frame in which all was done, for a reader that never ends. What is kept is bounded by the
    nodes that exist or that the caller counts as terminated.
    """

    def __init__(self, *, by_runs: bool = False) -> None:
        self._by_runs = by_runs
        self._is_over = False
        self._terminated: frozenset[str] = frozenset()  # uids of nodes that are counted
        self._clear()

    def _clear(self) -> None:
        self._pods: dict[str, set[str]] = {}  # UIDs of pods by node UID
        self._done: set[str] = set()  # uids of nodes
        self._began: dict[str, float] = {}  # by uid
        self._gone_nodes = self._gone_pods = 0
        self._gone_began: float | None = None  # the earliest one
        self._counted: dict[str, tuple[PodStatus, ...] | None] = {}  # pods that _pods has, by node uid
        self._causes = Causes()

    def update(
        self,
        nodes: Sequence[NodeStatus],
        terminated: Iterable[str],
        budgets: Callable[[str, str], PodDisruptionBudget | None],
        at: float,
    ) -> Progress | None:
        """Take note of a frame; None if nothing was to be done in any. `terminated`: uids of nodes that are gone.

        `budgets`: the budget of a namespace and name.
        """
        gone = frozenset(terminated)
        for uid in gone - self._terminated:
            self._count_terminated(uid)
        self._terminated = gone
        if self._by_runs and self._is_over and any(node.is_in_progress for node in nodes):
            self._clear()
        left = 0
        for node in nodes:
            if node.is_in_progress:
                self._done.discard(node.uid)
                self._began[node.uid] = at if node.since is None else node.since
                left += len(node.pods or ())
                if node.uid not in self._pods or self._counted.get(node.uid) is not node.pods:
                    self._counted[node.uid] = node.pods
                    self._pods.setdefault(node.uid, set()).update(pod.entry.pod.uid for pod in node.pods or ())
            elif node.is_done and node.uid in self._pods:
                self._done.add(node.uid)
            else:  # it was uncordoned
                self._pods.pop(node.uid, None)
                self._counted.pop(node.uid, None)
                self._began.pop(node.uid, None)
        if not self._pods and not self._gone_nodes:
            return None
        in_progress = [node for node in nodes if node.is_in_progress]
        total = self._gone_pods + sum(map(len, self._pods.values()))
        self._is_over = len(self._done) == len(self._pods)
        begun = self._began.values() if self._gone_began is None else (self._gone_began, *self._began.values())
        return Progress(
            nodes_done=self._gone_nodes + len(self._done),
            nodes=self._gone_nodes + len(self._pods),
            pods_done=total - left,
            pods=total,
            began=min(begun, default=at),
            total=total_of((node.name, node.drained) for node in in_progress if node.drained is not None),
            causes=self._causes.at(in_progress, budgets, at),
            forecast_at=min((node.forecast.at for node in in_progress if node.forecast is not None), default=None),
        )

    def _count_terminated(self, uid: str) -> None:
        self._done.discard(uid)
        self._gone_nodes += 1
        self._gone_pods += len(self._pods.pop(uid, ()))
        self._counted.pop(uid, None)
        began = self._began.pop(uid, None)
        if began is not None:
            self._gone_began = began if self._gone_began is None else min(began, self._gone_began)


# -- causes ------------------------------------------------------------------------------------------------------------


class Causes:
    """Causes that block nodes, over several frames: only causes of nodes with changed pods are counted again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[PodStatus, ...] | None, frozenset[object]]] = {}  # likenesses, by node uid
        self._alike: dict[object, dict[str, tuple[PodStatus, ...]]] = {}  # pods by node uid, by their likeness
        self._counts: dict[object, _Count | None] = {}
        self._forecasts: list[NodeForecast] = []
        self._gone: dict[str, Answer | None] = {}  # by the forecasts, by UID of the pod
        self._left: dict[object, Answer | None] = {}  # by the forecasts, by likeness

    def at(
        self, nodes: Sequence[NodeStatus], budgets: Callable[[str, str], PodDisruptionBudget | None], at: float
    ) -> tuple[BlockingCause, ...]:
        """Causes that block these nodes, each once: first causes that never end, then the most urgent and frequent.

        Pods of a later wave and terminating pods are no cause.
        """
        steps: dict[str, list[NodeStatus]] = {}
        forecasts: list[NodeForecast] = []
        for node in nodes:
            if node.forecast is not None:
                forecasts.append(node.forecast)
            if not node.pods and node.step != "drain" and node.pods is not None:
                steps.setdefault(node.step, []).append(node)
            known = self._known.get(node.uid)
            if known is None or known[0] is not node.pods:
                self._note(node.uid, node.pods)
        for uid in self._known.keys() - {node.uid for node in nodes}:
            self._note(uid, None)
            del self._known[uid]
        if len(forecasts) != len(self._forecasts) or any(map(is_not, forecasts, self._forecasts)):
            self._forecasts = forecasts
            self._gone = {pod.entry.pod.uid: pod.gone for forecast in forecasts for pod in forecast.pods}
            self._left.clear()
        found = [
            _cause(count, self._left_of(likeness), budgets, at)
            for likeness, count in self._counts.items()
            if count is not None
        ]
        found.sort(key=lambda cause: (not cause.is_never, _urgency(cause), -cause.pods))
        waiting = sorted(steps.items(), key=lambda step: -len(step[1]))
        return (
            *found,
            *(
                BlockingCause(example=None, step=step or "not managed", waits_for=each[0].waits_for, nodes=len(each))
                for step, each in waiting
            ),
        )

    def _note(self, uid: str, pods: tuple[PodStatus, ...] | None) -> None:
        """Count the causes of this node's pods, past and present ones, again."""
        alike: dict[object, list[PodStatus]] = {}
        for pod in pods or ():
            if (likeness := _likeness(pod)) is not None:
                alike.setdefault(likeness, []).append(pod)
        before = self._known[uid][1] if uid in self._known else frozenset()
        self._known[uid] = pods, frozenset(alike)
        for cause in before - alike.keys():
            del self._alike[cause][uid]
        for cause, each in alike.items():
            self._alike.setdefault(cause, {})[uid] = tuple(each)
        for cause in (*alike, *(before - alike.keys())):
            self._left.pop(cause, None)
            if self._alike[cause]:
                self._counts[cause] = _count(self._alike[cause])
            else:
                del self._alike[cause], self._counts[cause]

    def _left_of(self, likeness: object) -> Answer | None:
        """When the last of these pods is gone; None: there is no forecast of all of them."""
        if likeness not in self._left:
            uids = [pod.entry.pod.uid for each in self._alike[likeness].values() for pod in each]
            is_known = all(uid in self._gone for uid in uids)
            answers = (answer for uid in uids if (answer := self._gone.get(uid)) is not None)
            self._left[likeness] = last_of(answers) if is_known else None
        return self._left[likeness]


class _Count(msgspec.Struct, frozen=True):
    """Pods with the same cause. `since`: when (Unix seconds) the first of them was blocked."""

    example: PodStatus
    pods: int
    nodes: int
    since: float


def _count(alike: Mapping[str, tuple[PodStatus, ...]]) -> _Count | None:
    """Count pods with the same cause; None if nothing blocks them."""
    pods = [pod for each in alike.values() for pod in each]
    example = next((pod for pod in pods if pod.entry.outcome is not Outcome.EVICT), None)
    return None if example is None else _Count(example, len(pods), len(alike), min(pod.since for pod in pods))


def _cause(
    count: _Count,
    left: Answer | None,
    budgets: Callable[[str, str], PodDisruptionBudget | None],
    at: float,
) -> BlockingCause:
    keys = count.example.entry.budgets
    budget = budgets(*keys[0]) if count.example.entry.outcome is Outcome.BLOCKED and len(keys) == 1 else None
    return BlockingCause(
        example=count.example,
        pods=count.pods,
        nodes=count.nodes,
        age=at - count.since,
        at_once=None if budget is None else _at_once(budget),
        left=left,
    )


def _at_once(budget: PodDisruptionBudget) -> int | None:
    """How many pods it lets go at the same time while all others are healthy; None if it is not counted."""
    return max(budget.expected_pods - budget.desired_healthy, 0) if is_counted(budget) else None


_BY_REASON: Final = (Blocker.NEIGHBOUR, Blocker.RETURNED, Blocker.REPLACEMENT)


def _likeness(pod: PodStatus) -> tuple[object, ...] | None:
    """Equal for pods with the same cause; None for a pod that is no cause."""
    entry = pod.entry
    if entry.blocker in (Blocker.UNDECODABLE, Blocker.VOLUME):
        return (entry.blocker,)
    if entry.outcome in (Outcome.BLOCKED, Outcome.EVICT):
        return ("budgets", entry.budgets) if entry.budgets else None
    if entry.outcome is Outcome.PROTECTED and entry.protection is not None:
        until = entry.protection.until
        return (entry.protection.is_valid, None if until is None else until // 60)
    if entry.outcome is Outcome.DELETE:
        return (entry.outcome,)
    return (entry.reason,) if entry.blocker in _BY_REASON else None


def _urgency(cause: BlockingCause) -> int:
    assert cause.example is not None
    return urgency_of(cause.example.entry)


# -- forecasts ---------------------------------------------------------------------------------------------------------


class Forecaster:
    """The newest forecast of all draining nodes, repeated at a bounded cost; `run` it once.

    `nodes`: the input of the next one, and the instant that it is of; None: not yet. `log`: what is observed meanwhile.
    """

    def __init__(
        self,
        clock: Clock,
        assumptions: Assumptions,
        nodes: Callable[[], tuple[tuple[DrainingNode, ...], float] | None],
        log: ObservationLog,
    ) -> None:
        self._latest: Forecast | None = None
        self._latest_of: tuple[DrainingNode, ...] | None = None
        self._latest_end = 0.0  # monotonic
        self._cost = 0.0
        self._seen: Sightings = {}
        self._log = log
        self._clock = clock
        self._assumptions = assumptions
        self._nodes = nodes

    @property
    def latest(self) -> Forecast | None:
        """The newest one, if there is any; it says never of nothing that has changed since."""
        return None if self._latest is None else current(self._latest, self._log.changed_at)

    async def run(self) -> None:
        """Make forecasts until cancelled."""
        while True:
            began = self._clock.monotonic()
            found = self._nodes()
            pause = FORECAST_SECONDS if found or self._latest else FIRST_SECONDS
            if found is not None and self._is_due(found[0], began):
                nodes, now = found
                assumptions = msgspec.structs.replace(self._assumptions, observed=self._log.observations())
                compute = partial(_confirmed_forecast, nodes, now, assumptions, self._seen)
                is_quick = _pods(nodes) <= QUICK_PODS
                self._latest, self._seen = compute() if is_quick else await anyio.to_thread.run_sync(compute)
                self._latest_of, self._latest_end = nodes, self._clock.monotonic()
                self._cost = self._latest_end - began
                pause = max(pause, self._cost / FORECAST_SHARE)
            await self._clock.sleep(pause)

    def _is_due(self, nodes: tuple[DrainingNode, ...], now: float) -> bool:
        """Whether objects have changed since the newest forecast, or only its instant is too old. `now`: monotonic."""
        return nodes != self._latest_of or now - self._latest_end >= max(AGREE_SECONDS, self._cost / UNCHANGED_SHARE)


def forecast_of(nodes: Collection[DrainingNode], now: float, assumptions: Assumptions) -> Forecast | None:
    """The forecast of these nodes by one reading; None where there are none, or it would take too long."""
    return _confirmed_forecast(nodes, now, assumptions, {})[0]


def _confirmed_forecast(
    nodes: Collection[DrainingNode], now: float, assumptions: Assumptions, before: Sightings
) -> tuple[Forecast | None, Sightings]:
    return confirmed(forecast_all(nodes, now, assumptions), before) if 0 < _pods(nodes) <= MOST_PODS else (None, {})


def _pods(nodes: Iterable[DrainingNode]) -> int:
    return sum(len(node.view.pods) for node in nodes)
