"""What becomes of each pod of a drain, and of each wave: found out from one plan to the next, told as spans.

A pod's span begins when its turn comes (its wave's, or its deadline's) and ends when it holds the node no longer; a
wave's, when the first of its pods begins, and the last is gone. Pods are children of their wave, waves of the drain.
Invariant: what has children has an id that follows from its place in the trace, so whoever drains the node after us
finds the same parents, and may write those that we had no time for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from gracectl.eviction.deleter import Deletion
from gracectl.eviction.pod_outcomes import PodOutcome
from gracectl.kube.errors import ApiError, BudgetExhausted
from gracectl.model.pod import Pod
from gracectl.model.times import format_time
from gracectl.policy.deadlines import asked_at, grace_of
from gracectl.policy.evictability import FINISHED
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.policy.waves import Wave
from gracectl.telemetry.spans import Moment, Span, Trace, Value, known

ON_ITS_WAY: Final = frozenset({Outcome.DELETE, Outcome.TERMINATING})
"""Of these pods the turn has come, whichever wave it is whose turn it is."""

IN_LANE: Final = frozenset({Outcome.EVICT, Outcome.BLOCKED})
"""Of these pods the time counts as spent behind their budget."""

LEFT: Final = "gracectl.pod.left"
"""How it has left."""

WORDS: Final = {
    PodOutcome.EVICTED: "evicted",
    PodOutcome.DELETED: "deleted for the deadline",
    PodOutcome.ABANDONED: "left behind",
}
"""What was done to a pod; of one that has left by itself the rest of its tale says more."""

MOMENTS: Final = 20
"""Of a pod; beyond that they are only counted."""


class PodSpan:
    """One pod that holds the node, from the first plan that says so to the first that does not."""

    def __init__(self, entry: PodPlan, now: float, *, is_first: bool) -> None:
        self.entry = entry
        self.begun: float | None = None
        self._since = now
        self._spent: dict[Outcome, float] = {}
        self._others = ""  # what somebody else has done to it
        self._attempts = 0
        self._refusals: dict[str, int] = {}
        self._moments: list[Moment] = []
        self._granted: int | None = None
        self._requested = grace_of(entry.pod)
        self._protection = entry.protection
        if is_first and entry.pod.deletion_timestamp is not None:
            self._others = "was terminating already"  # by whom, nobody knows who has not seen it

    @property
    def pod(self) -> Pod:
        """As the last plan showed it."""
        return self.entry.pod

    def turn(self, entry: PodPlan, now: float) -> None:
        """A newer plan says something else of it."""
        before = self.entry
        if entry.outcome is not before.outcome:
            self._spend(now)
        if entry.pod.deletion_timestamp is not None and before.pod.deletion_timestamp is None:
            self._others = "terminated by somebody else"  # unless it was us
        self._protection = entry.protection or self._protection
        self.entry = entry

    def evicted(self, at: float) -> None:
        """The server has agreed to its eviction; it has its whole grace."""
        self._attempts += 1
        self._granted = self._requested
        self._note(Moment("evicted", at))

    def refused(self, refusal: ApiError, at: float) -> None:
        """The server did not agree this time."""
        self._attempts += 1
        kind = type(refusal).__name__
        self._refusals[kind] = self._refusals.get(kind, 0) + 1
        if not isinstance(refusal, BudgetExhausted):  # an ordinary thing, which the lane's wait tells
            self._note(Moment("refused", at, {"gracectl.refusal": kind, "message": str(refusal)}))

    def deleted(self, deletion: Deletion, at: float) -> None:
        """The server has agreed to its deletion for the deadline."""
        self._granted, self._requested = deletion.granted, deletion.requested
        late = {"gracectl.late_seconds": round(deletion.late, 3)}
        self._note(Moment("deleted for the deadline", at, {"gracectl.grace.granted_seconds": deletion.granted, **late}))

    def span(self, trace: Trace, parent: int, end: float, manner: PodOutcome, gone: str) -> Span:
        """It is over. `gone`: how, if nobody has told it to leave."""
        self._spend(end)
        pod = self.pod
        left = self._others or gone if manner is PodOutcome.LEFT else WORDS[manner]
        return Span(
            trace=trace,
            name=f"pod {left}",
            parent=parent,
            start=min(end if self.begun is None else self.begun, end),
            end=end,
            attributes={
                "k8s.namespace.name": pod.namespace,
                "k8s.pod.name": pod.name,
                "k8s.pod.uid": pod.uid,
                LEFT: left,
                **self._figures(),
            },
            moments=tuple(self._moments),
        )

    def _figures(self) -> dict[str, Value]:
        protection, lanes = self._protection, [f"{namespace}/{name}" for namespace, name in self.entry.budgets]
        in_lane = sum(self._spent.get(outcome, 0.0) for outcome in IN_LANE)
        until = protection.until if protection else None
        return known(
            gracectl__lane=lanes or None,
            gracectl__lane__wait_seconds=round(in_lane, 3) if lanes else None,
            gracectl__eviction__attempts=self._attempts,
            gracectl__eviction__refusals=[f"{kind}: {count}" for kind, count in self._refusals.items()] or None,
            gracectl__blocked__seconds=self._seconds(Outcome.BLOCKED),
            gracectl__protected__by=protection.kind if protection else None,
            gracectl__protected__until=format_time(until) if until is not None else None,
            gracectl__protected__seconds=self._seconds(Outcome.PROTECTED),
            gracectl__terminating__seconds=self._seconds(Outcome.TERMINATING),
            gracectl__grace__requested_seconds=self._requested,
            gracectl__grace__granted_seconds=self._granted,
        )

    def _seconds(self, outcome: Outcome) -> float | None:
        spent = self._spent.get(outcome)
        return None if spent is None else round(spent, 3)

    def _spend(self, now: float) -> None:
        outcome = self.entry.outcome
        self._spent[outcome] = self._spent.get(outcome, 0.0) + max(now - self._since, 0.0)
        self._since = now

    def _note(self, moment: Moment) -> None:
        if len(self._moments) < MOMENTS:
            self._moments.append(moment)


class _WaveSpan:
    """One wave, from when its first pod begins until its last one is gone."""

    def __init__(self, wave: Wave, begun: float) -> None:
        self.wave = wave
        self.begun = begun
        self.pods = 0


class DrainSpans:
    """Of one drain. `emit` takes the spans; `drain` is the id of their common ancestor.

    `is_resumed`: somebody before us may have told some of the waves.

    A wave is told once. Pods that come when theirs is over are its children all the same.
    """

    def __init__(self, trace: Trace, drain: int, emit: Callable[[Span], None], *, is_resumed: bool) -> None:
        self._trace = trace
        self._is_resumed = is_resumed
        self._drain = drain
        self._emit = emit
        self._pods: dict[str, PodSpan] = {}
        self._waves: dict[int, _WaveSpan] = {}
        self._told: set[int] = set()  # waves that are over
        self._is_first = True
        self.left: Counter[str] = Counter()
        """How many pods have left, by how."""

    def planned(
        self, decision: Plan, now: float, departed: Mapping[str, PodOutcome], since: float | None = None
    ) -> None:
        """The node's newest plan; by uid, how pods have left that it leaves out. `since`: of the first plan, when
        somebody before us has begun the drain."""
        left = decision.left
        current = min((entry.wave for entry in left), default=-1)
        pods = self._pods
        for entry in left:
            tale, at = pods.get(entry.pod.uid), now
            if tale is None:
                if since is not None and entry.wave == 0:  # who was there when the first one began waits since then
                    at = min(max(since, entry.pod.created), now)
                tale = pods[entry.pod.uid] = PodSpan(entry, at, is_first=self._is_first)
            else:
                tale.turn(entry, now)
            if tale.begun is None and (entry.wave == current or entry.outcome in ON_ITS_WAY):
                self._begin(tale, decision, at)
        if departed:
            self._end_all(departed, decision, now)
        self._is_first = False

    def pod(self, uid: str) -> PodSpan | None:
        """That of the pod, if it holds the node."""
        return self._pods.get(uid)

    def missed(self, decision: Plan, start: float) -> None:
        """Waves that were over, or empty, before we looked first: whoever drained the node then may have had no time to
        tell them, and then their pods have no parent. How long they took nobody knows."""
        current = min((entry.wave for entry in decision.left), default=len(decision.order.waves))
        for index in range(current):
            self._tell(index, _WaveSpan(decision.order.waves[index], start), start)

    def close(self, decision: Plan | None, now: float) -> None:
        """Nobody is waited for any more."""
        if decision is not None:
            self._end_all(dict.fromkeys(self._pods, PodOutcome.ABANDONED), decision, now)

    def _begin(self, tale: PodSpan, decision: Plan, now: float) -> None:
        """Its turn has come; it may have been told to leave before we have looked first."""
        told = asked_at(tale.pod) if tale.pod.deletion_timestamp is not None else now
        tale.begun = min(told, now)
        index = tale.entry.wave
        if index not in self._told:
            wave = self._waves.setdefault(index, _WaveSpan(decision.order.waves[index], tale.begun))
            wave.begun = min(wave.begun, tale.begun)
            wave.pods += 1

    def _end_all(self, departed: Mapping[str, PodOutcome], decision: Plan, now: float) -> None:
        passed_over = {entry.pod.uid: entry for entry in decision.pods if entry.pod.uid in departed}
        for uid in [uid for uid in self._pods if uid in departed]:
            tale = self._pods.pop(uid)
            if tale.begun is None:
                self._begin(tale, decision, now)  # its wave must be told, or it would have no parent
            span = tale.span(self._trace, self._id(tale.entry.wave), now, departed[uid], _gone(passed_over.get(uid)))
            self.left[str(span.attributes[LEFT])] += 1
            self._emit(span)
        busy = {tale.entry.wave for tale in self._pods.values() if tale.begun is not None}
        for index in [index for index in self._waves if index not in busy]:
            self._tell(index, self._waves.pop(index), now)

    def _tell(self, index: int, wave: _WaveSpan, now: float) -> None:
        self._told.add(index)
        span = Span(
            trace=self._trace,
            id=self._id(index),
            parent=self._drain,
            name=f"wave {wave.wave.name}",
            start=min(wave.begun, now),
            end=now,
            attributes=known(
                gracectl__wave=index,
                gracectl__wave__pods=wave.pods,
                gracectl__resumed=self._is_resumed or None,
            ),
        )
        self._emit(span)

    def _id(self, wave: int) -> int:
        return self._trace.span("wave", str(wave))


def _gone(entry: PodPlan | None) -> str:
    """How a pod has left that nobody has told to; `entry`: what the plan says of it, None if it is not there."""
    if entry is None:
        return "gone"
    return "finished" if entry.pod.phase in FINISHED else "passed over"
