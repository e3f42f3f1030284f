"""Simulation of draining nodes under the assumptions of one scenario.

It decides with `plan` after every change, and with `eviction_verdict` along the queues of budgets; the rest of the
cluster is reduced to the inputs of those decisions. Time is simulated. Invariants: only the controller's rules remove a
pod; time never goes back.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from gracectl.model.pod import Pod
from gracectl.policy.budgets import eviction_verdict
from gracectl.policy.deadlines import granted, granted_already
from gracectl.policy.eviction_queues import Place, RateLimit, SimulatedQueue
from gracectl.policy.plan import Outcome, Plan, PodPlan
from gracectl.policy.planner import plan
from gracectl.policy.scenario import (
    NO_BUDGET,
    Beginning,
    DrainingNode,
    PodFacts,
    PodRemoval,
    RemovalMethod,
    Scenario,
    SimulationResult,
    place_of,
)
from gracectl.policy.simulated_budgets import SimulatedBudgets
from gracectl.policy.volumes import has_volumes


def simulate(beginning: Beginning, scenario: Scenario) -> SimulationResult:
    """Drain the nodes from the beginning on, until nothing changes."""
    return _Simulation(beginning, scenario).run()


_Event = tuple[int | None, str, str]
"""Event of the simulated cluster: a budget (by number) gains a healthy pod, the last awaited pod or the volumes of a
node are gone, or another pod (UID) has stopped; without any of them only time has passed.
"""


class _Simulation:
    def __init__(self, beginning: Beginning, scenario: Scenario) -> None:
        self._now = beginning.at
        self._beginning = beginning
        self._scenario = scenario
        self._nodes = beginning.nodes
        self._facts = beginning.facts
        self._first_plans = {**beginning.plans}  # until the pods of the node change
        self._plans: dict[str, Plan] = {}
        self._awaited: dict[str, frozenset[str]] = {}  # see Plan.awaited; by node
        self._running: dict[str, int] = {}  # number of awaited pods that are not removed, by node
        self._wave_ends: dict[str, float] = {}  # when the last of the others has stopped, by node
        self._plan_changes: list[tuple[float, str]] = []  # heap of the instants at which plans change by themselves
        self._budgets = SimulatedBudgets(beginning, scenario)
        self._queues = [SimulatedQueue() for _ in beginning.lanes]
        self._unblocked: set[int] = set()  # queues in which a pod may be allowed now
        self._removals: dict[str, tuple[PodRemoval, ...]] = {}
        self._evictions: dict[int, tuple[PodRemoval]] = {}  # of this instant, by grace
        self._deletions: dict[str, float] = {}  # deletionTimestamp by pod uid, once deleted
        self._terminates_at: dict[str, float] = {}  # by pod uid, once removed
        self._stopping: set[str] = set()  # pods that stop now, and have not been handled yet
        self._last_end = beginning.at
        self._left: dict[str, list[Pod]] = {}  # pods that were not gone when a node was last planned
        self._drained: dict[str, float] = {}
        self._detaching: dict[str, float] = {}  # until when volumes are being detached, by node
        self._detached: set[str] = set()
        self._events: dict[float, list[_Event]] = {}
        self._instants: list[float] = []  # heap of the instants with events
        self._quick: dict[tuple[str, int], bool] = {}  # by node and wave
        self._stops_within = scenario.observed.termination_seconds if scenario.is_expected else None
        self._rate_limit = RateLimit(beginning.rate, beginning.at)
        self._wake: float | None = None  # when there are tokens again
        self._queued_at: dict[str, float] = {}

    def run(self) -> SimulationResult:
        self._start()
        changed = set(self._nodes)
        while True:
            while changed or self._unblocked:
                for name in sorted(changed):
                    self._plan(name)
                changed = self._delete(changed) or self._evict()
            next_instant = self._next()
            if next_instant is None:
                break
            self._now = next_instant
            self._evictions.clear()
            changed = self._handle_events()
        self._now = max(self._now, self._last_end)
        terminated = {uid: at for uid, at in self._terminates_at.items() if at < math.inf}
        undrained = [name for name in self._nodes if name not in self._drained]
        final_entries = {entry.pod.uid: entry for name in undrained for entry in self._final_entries(name)}
        return SimulationResult(self._removals, terminated, self._drained, self._queued_at, final_entries)

    def _final_entries(self, name: str) -> Iterator[PodPlan]:
        """Pods that are left on a node, with the final verdicts of their budgets."""
        for entry in self._decided(name).left:
            pod = entry.pod
            if pod.deletion_timestamp is None and entry.is_queued:
                verdict = eviction_verdict(pod, self._budgets.over(self._facts[pod.uid]))
                yield msgspec.structs.replace(entry, outcome=Outcome.BLOCKED, reason=verdict.reason)
            else:
                yield entry

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Let terminating pods terminate; what budgets lack at present recovers as the scenario says.

        It begins with what the statuses will be: with evictions counted that are only charged now.
        """
        replaced: dict[int, list[float]] = defaultdict(list)
        for facts in self._beginning.removed:
            ends = facts.pod.deletion_timestamp
            if ends is None:
                self._mark_evicted(facts)
            else:
                self._terminate(facts, ends if ends > self._now else math.inf)  # it may stay indefinitely
            for number in facts.numbers:
                replaced[number].append(self._replacement_ready_at(facts, number, is_evicted=ends is None))
        for at, number in self._budgets.recoveries(replaced):
            self._push(at, budget=number)

    # -- events --------------------------------------------------------------------------------------------------------

    def _push(self, at: float, *, budget: int | None = None, node: str = "", uid: str = "") -> None:
        if at < math.inf:
            at = max(at, self._now)
            if (events := self._events.get(at)) is None:
                events = self._events[at] = []
                heapq.heappush(self._instants, at)
            events.append((budget, node, uid))

    def _next(self) -> float | None:
        """The next instant at which anything can change."""
        while self._plan_changes and not self._is_current(*self._plan_changes[0]):
            heapq.heappop(self._plan_changes)
        plans = self._plan_changes[0][0] if self._plan_changes else None
        instants = (plans, self._instants[0] if self._instants else None, self._wake)
        return min((at for at in instants if at is not None), default=None)

    def _is_current(self, at: float, name: str) -> bool:
        return name not in self._drained and self._plans[name].next_change == at

    def _handle_events(self) -> set[str]:
        """Apply all due events; returns the nodes to plan again."""
        changed = set()
        while self._plan_changes and self._plan_changes[0][0] <= self._now:
            at, name = heapq.heappop(self._plan_changes)
            if self._is_current(at, name):
                changed.add(name)
        if self._wake is not None and self._wake <= self._now:
            self._wake = None
            self._unblocked.add(NO_BUDGET)
        self._stopping.clear()
        while self._instants and self._instants[0] <= self._now:
            for budget, node, uid in self._events.pop(heapq.heappop(self._instants)):
                if budget is not None:
                    self._unblocked |= self._budgets.adjust(budget, 1)
                elif node:
                    if self._detaching.get(node) == self._now:
                        self._detached.add(node)
                    if node in self._detached or (self._wave_ends[node] == self._now and not self._running[node]):
                        changed.add(node)
                elif uid and self._terminates_at[uid] == self._now:
                    name = self._facts[uid].node
                    if uid not in self._awaited[name]:
                        changed.add(name)
        return changed

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _decided(self, name: str) -> Plan:
        view = self._nodes[name].view
        attachments = () if name in self._detached else view.attachments
        left = self._left[name] = [pod for pod in self._left.get(name, view.pods) if not self._is_gone(pod)]
        pods = tuple(map(self._current, left)) if left else ()
        return plan(msgspec.structs.replace(view, pods=pods, attachments=attachments), self._now)

    def _is_gone(self, pod: Pod) -> bool:
        return self._terminates_at.get(pod.uid, math.inf) <= self._now and pod.uid not in self._stopping

    def _current(self, pod: Pod) -> Pod:
        """The pod as it is now."""
        if (removals := self._removals.get(pod.uid)) is None:
            return pod
        last = removals[-1]
        at = self._deletions.get(pod.uid, float(math.floor(last.at) + last.grace))
        return msgspec.structs.replace(pod, deletion_timestamp=at, deletion_grace_seconds=last.grace)

    def _awaited_in(self, decision: Plan, node: DrainingNode) -> frozenset[str]:
        """The pods of which only the last one changes the plan of a node when it is gone. So a node is planned once a
        wave, not once a pod.
        """
        # Without a kubelet pods get stuck; between two pods of a wave volumes are detached, and replacements decided.
        is_uneven = decision.attached or any(entry.asks_for_replacement for entry in decision.pods)
        return frozenset() if is_uneven or not node.view.node.ready else decision.awaited

    def _await(self, name: str, decision: Plan) -> None:
        """Wait for the pods that the plan of a node waits for."""
        ends = self._terminates_at
        awaited = self._awaited[name] = self._awaited_in(decision, self._nodes[name])
        known = [ends[uid] for uid in awaited if uid in ends] if ends else []
        self._running[name] = len(awaited) - len(known)
        self._wave_ends[name] = max(known, default=-math.inf)
        if known and len(known) == len(awaited):
            self._push(self._wave_ends[name], node=name)
        for entry in decision.pods if ends else ():
            uid = entry.pod.uid
            if uid in ends and uid not in awaited:
                self._push(ends[uid], uid=uid)

    def _plan(self, name: str) -> None:
        if name in self._drained:
            return
        first = self._first_plans.pop(name, None)
        decision = first or self._decided(name)
        if decision.detaching and name not in self._detaching:
            self._detach(name, decision)
        before = {entry.pod.uid: entry for entry in self._plans[name].leaving} if name in self._plans else {}
        self._plans[name] = decision
        self._await(name, decision)
        if decision.next_change is not None:
            heapq.heappush(self._plan_changes, (decision.next_change, name))
        is_drained = decision.drained or decision.is_stuck  # when stuck pods end is unknown
        if is_drained:
            self._drained[name] = self._now
        elif first is None:
            for entry in decision.leaving:
                known = before.pop(entry.pod.uid, None)
                if known is None or known.deadline != entry.deadline:
                    self._join(self._facts[entry.pod.uid], place_of(self._nodes[name], entry, self._facts))
        else:
            for place in self._beginning.first_places[name]:
                self._join(self._facts[place[-1]], place)
        for uid in before:
            if uid not in self._removals:
                self._queues[self._facts[uid].lane].remove(uid)

    def _detach(self, name: str, decision: Plan) -> None:
        """Detach the volumes of a node if the last of its pods with volumes is gone."""
        if any(has_volumes(entry.pod) for entry in decision.left):
            return
        takes = self._scenario.detach_seconds
        if takes and not any(has_volumes(pod) for pod in self._nodes[name].view.pods):
            takes = math.inf  # their pods were gone before: they may be left over
        is_quick = bool(self._scenario.mixture) and self._scenario.is_quick(name, "volumes")
        self._detaching[name] = self._now if is_quick else self._now + takes
        self._push(self._detaching[name], node=name)

    def _delete(self, nodes: Iterable[str]) -> set[str]:
        """Delete the pods that are due for the deadline; returns their nodes."""
        changed = set()
        for name in sorted(nodes):
            for entry in self._plans[name].due:
                pod = self._current(self._facts[entry.pod.uid].pod)
                if self._is_gone(pod) or entry.deadline is None:
                    continue
                grace = granted(pod, entry.deadline, self._now)
                if grace is not None and self._delete_pod(pod, grace):
                    changed.add(name)
        return changed

    def _evict(self) -> set[str]:
        """Evict what budgets and rate allow, queue by queue; returns the nodes to plan again."""
        changed: set[str] = set()
        for lane in sorted(self._unblocked):
            queue = self._queues[lane]
            if is_stale := queue.reversed_at not in (None, self._now):
                queue.reversed_at = None  # every pod is tried, and gets a new rank
            blocked = []
            while (place := queue.pop()) is not None:
                uid = place[-1]
                if uid in self._removals:
                    continue
                facts = self._facts[uid]
                if self._is_allowed(facts):
                    self._mark_evicted(facts)
                    self._charge_budgets(facts, is_evicted=True)
                    if uid not in self._awaited[facts.node]:
                        changed.add(facts.node)
                    continue
                blocked.append(place)
                if lane == NO_BUDGET or not (is_stale or queue.may_skip):
                    break  # the others wait for the same tokens, or the same disruption
            for place in blocked:
                self._add(queue, self._facts[place[-1]], place)
        self._unblocked.clear()
        return changed

    def _join(self, facts: PodFacts, place: Place) -> None:
        """Put a pod into its queue, or move it there."""
        queue = self._queues[facts.lane]
        self._queued_at.setdefault(facts.pod.uid, self._now)
        self._unblocked.add(facts.lane)
        self._add(queue, facts, place)
        queue.may_skip = queue.may_skip or facts.is_uncharged or not facts.pod.ready

    def _add(self, queue: SimulatedQueue, facts: PodFacts, place: Place) -> None:
        if self._scenario.last_first:
            is_reversed, deadline, since, number, uid = place
            goes_last = self._queued_at[uid] == self._now
            if goes_last:
                queue.reversed_at = self._now
            if goes_last is not is_reversed:
                place = (goes_last, -deadline, -since, -number, uid)
        queue.add(place)

    def _is_allowed(self, facts: PodFacts) -> bool:
        if facts.lane == NO_BUDGET:
            at = self._rate_limit.take(self._now)
            if at is not None:
                self._wake = at
            return at is None
        return self._budgets.allows(facts)

    def _delete_pod(self, pod: Pod, grace: int) -> bool:
        """Delete a pod, for the first time or with less grace; returns whether that changes anything."""
        facts = self._facts[pod.uid]
        if pod.deletion_timestamp is None:
            ends = math.floor(self._now) + grace
        elif grace < granted_already(pod):
            first = pod.deletion_timestamp - granted_already(pod)
            ends = max(math.floor(first) + grace, math.floor(self._now))
        else:
            return False
        self._removals[pod.uid] = (
            *self._removals.get(pod.uid, ()),
            PodRemoval(self._now, RemovalMethod.DELETED, grace),
        )
        self._deletions[pod.uid] = float(ends)
        self._first_plans.pop(facts.node, None)
        self._terminate(facts, self._now + grace)
        if pod.deletion_timestamp is None:
            self._charge_budgets(facts, is_evicted=False)
        return True

    def _mark_evicted(self, facts: PodFacts) -> None:
        """Let an evicted pod terminate."""
        removal = self._evictions.get(facts.grace)
        if removal is None:
            removal = (PodRemoval(self._now, RemovalMethod.EVICTED, facts.grace),)
            self._evictions[facts.grace] = removal
        self._removals[facts.pod.uid] = removal
        if self._first_plans:
            self._first_plans.pop(facts.node, None)
        self._terminate(facts, self._now + facts.grace)

    def _charge_budgets(self, facts: PodFacts, *, is_evicted: bool) -> None:
        for number in facts.numbers:
            if facts.pod.ready:
                self._unblocked |= self._budgets.adjust(number, -1)
            # Whether the replacement of a pod that is not Ready becomes Ready is not known.
            if facts.pod.ready or self._scenario.pods_recover:
                self._push(self._replacement_ready_at(facts, number, is_evicted=is_evicted), budget=number)

    def _replacement_ready_at(self, facts: PodFacts, number: int, *, is_evicted: bool) -> float:
        ends = self._terminates_at.get(facts.pod.uid, math.inf)
        return self._budgets.replacement_ready_at(facts, number, self._now, ends, is_evicted=is_evicted)

    def _terminate(self, facts: PodFacts, latest: float) -> None:
        """Terminate a removed pod: by `latest`, when its kubelet kills it, if the node has one that works."""
        uid, name = facts.pod.uid, facts.node
        at = latest if facts.has_kubelet else math.inf
        if self._stops_within is not None:
            at = min(at, self._now + self._stops_within)
        if facts.is_uncharged or self._is_quick(name, facts.wave):
            at = self._now
        known = self._terminates_at.get(uid)
        if at == known:
            return
        self._terminates_at[uid] = at
        if at < math.inf:
            self._last_end = max(self._last_end, at)
        if at == self._now:
            if not self._stopping:
                self._push(at)
            self._stopping.add(uid)
        if uid not in self._awaited.get(name, ()):
            self._push(at, uid=uid)
        elif known is None:  # otherwise the node is planned again
            self._running[name] -= 1
            self._wave_ends[name] = max(self._wave_ends[name], at)
            if not self._running[name]:
                self._push(self._wave_ends[name], node=name)

    def _is_quick(self, name: str, wave: int) -> bool:
        if not self._scenario.mixture:
            return not self._scenario.uses_grace
        found = self._quick.get((name, wave))
        if found is None:
            found = self._quick[name, wave] = self._scenario.is_quick(name, wave)
        return found
