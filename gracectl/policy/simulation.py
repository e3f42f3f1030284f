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

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.policy.budgets import (
    UNCHARGED_PHASES,
    Allowance,
    BudgetKey,
    eviction_verdict,
    evictions_in_flight,
    failure_of,
    has_no_scale,
    is_counted,
    is_evicted,
)
from gracectl.policy.deadlines import grace_of, granted, granted_already
from gracectl.policy.eviction_queues import QueuedPod, Rank, RateLimit, SimulatedQueue
from gracectl.policy.plan import Outcome, Plan, PodPlan, plan
from gracectl.policy.scenario import Beginning, PodRemoval, PodResult, RemovalMethod, Scenario, SimulationResult
from gracectl.policy.volumes import has_volumes

NAMESAKE_TIMEOUT_SECONDS = 120.0
"""Time for which a budget ignores a pod with the name of an evicted one, if it has not seen that one terminate
(DeletionTimeout of kube-controller-manager's disruption controller).
"""

RECREATED_IMMEDIATELY = frozenset({"ReplicaSet", "ReplicationController", "Job"})
"""Controllers that replace a pod as soon as it terminates; others, such as a StatefulSet, replace it when it is
gone."""


def simulate(beginning: Beginning, scenario: Scenario) -> SimulationResult:
    """Drain the nodes from the beginning on, until nothing changes."""
    return _Simulation(beginning, scenario).run()


_Event = tuple[str, BudgetKey | None, str]
"""Event of the simulated cluster: a pod (UID) stops, a budget gains a healthy pod, or a node's volumes are detached."""


class _Simulation:
    def __init__(self, beginning: Beginning, scenario: Scenario) -> None:
        self._now = beginning.at
        self._scenario = scenario
        self._nodes = beginning.nodes
        self._facts = beginning.facts
        self._queues_of = beginning.queues_of
        self._uids_under = beginning.uids_under
        self._pods = {name: {pod.uid: pod for pod in each.view.pods} for name, each in self._nodes.items()}
        self._first_plans = {**beginning.plans}  # until the pods of the node change
        self._plans: dict[str, Plan] = {}
        self._awaited: dict[str, set[str]] = {}  # see _keeps_plan; UIDs of pods by node
        self._plan_changes: list[tuple[float, str]] = []  # heap of the instants at which plans change by themselves
        self._budgets = {**beginning.budgets}
        self._queues: dict[tuple[BudgetKey, ...], SimulatedQueue] = defaultdict(SimulatedQueue)
        self._unblocked: set[tuple[BudgetKey, ...]] = set()  # queues in which a pod may be allowed now
        self._removals: dict[str, list[PodRemoval]] = defaultdict(list)
        self._terminated: dict[str, float] = {}
        self._terminates_at: dict[str, float] = {}  # by pod uid, once removed
        self._replacement_ready: dict[tuple[str, BudgetKey], float] = {}  # by owner and budget
        self._drained: dict[str, float] = {}
        self._detaching: set[str] = set()  # names of nodes with volumes that are being detached
        self._detached: set[str] = set()
        self._events: dict[float, list[_Event]] = {}
        self._instants: list[float] = []  # heap of the instants with events
        self._uncounted: set[BudgetKey] = set()
        self._takes: dict[BudgetKey, float] = {}  # seconds of a replacement
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
            changed = self._handle_events()
        uids = {*self._removals, *self._terminated}
        pods = {uid: PodResult(tuple(self._removals[uid]), self._terminated.get(uid)) for uid in uids}
        undrained = [name for name in self._nodes if name not in self._drained]
        final_entries = {entry.pod.uid: entry for name in undrained for entry in self._final_entries(name)}
        return SimulationResult(pods, self._drained, self._queued_at, final_entries)

    def _final_entries(self, name: str) -> Iterator[PodPlan]:
        """Pods that are left on a node, with the final verdicts of their budgets."""
        for entry in self._decided(name).left:
            pod = entry.pod
            if pod.deletion_timestamp is None and entry.is_queued:
                verdict = eviction_verdict(pod, tuple(self._budgets[key] for key in entry.budgets))
                yield msgspec.structs.replace(entry, outcome=Outcome.BLOCKED, reason=verdict.reason)
            else:
                yield entry

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Let terminating pods terminate; what budgets lack at present recovers as the scenario says.

        It begins with what the statuses will be: with evictions counted that are only charged now.
        """
        replaced: dict[BudgetKey, list[float]] = defaultdict(list)
        with_evictions = {key for key, budget in self._budgets.items() if budget.disrupted_pods}
        for pods in self._pods.values():
            for pod in tuple(pods.values()):
                keys = self._facts[pod.uid].budgets
                if pod.deletion_timestamp is not None:
                    # A pod that outlives its grace may stay indefinitely.
                    self._terminate(pod, pod.deletion_timestamp if pod.deletion_timestamp > self._now else math.inf)
                elif not with_evictions.isdisjoint(keys) and any(is_evicted(pod, self._budgets[key]) for key in keys):
                    self._mark_removed(pod, RemovalMethod.EVICTED, grace_of(pod))
                else:
                    continue
                for key in keys:
                    replaced[key].append(self._replacement_ready_at(pod, key))
        for key, budget in self._budgets.items():
            if self._is_uncounted(budget):
                self._start_uncounted(budget)
                continue
            in_flight = evictions_in_flight(budget)
            healthy = budget.current_healthy - in_flight
            self._budgets[key] = msgspec.structs.replace(
                budget, observed_generation=budget.generation, current_healthy=healthy
            )
            missing = max(budget.expected_pods - healthy, 0)
            late = [*sorted(replaced[key]), *self._recovering(budget, missing, len(replaced[key]), in_flight)]
            for at in [self._now] * missing if self._scenario.pods_recover else late[:missing]:
                self._push(at, budget=key)

    def _is_uncounted(self, budget: PodDisruptionBudget) -> bool:
        """Whether the status says nothing yet; pods that it can never count are another matter."""
        if failure_of(budget) is not None or is_counted(budget):
            return False
        return not any(has_no_scale(pod, budget) for pod in self._pods_under(budget.key))

    def _pods_under(self, key: BudgetKey) -> Iterator[Pod]:
        for uid in self._uids_under[key]:
            pod = self._pods[self._facts[uid].node].get(uid)
            if pod is not None:
                yield pod

    def _start_uncounted(self, budget: PodDisruptionBudget) -> None:
        """Start with a budget that is being counted: it may allow everything, or nothing."""
        self._uncounted.add(budget.key)
        if self._scenario.pods_recover:
            most = len(self._uids_under[budget.key])
            self._budgets[budget.key] = msgspec.structs.replace(
                budget, observed_generation=budget.generation, disruptions_allowed=most, expected_pods=most
            )

    def _recovering(self, budget: PodDisruptionBudget, missing: int, seen: int, in_flight: int) -> list[float]:
        """When the pods are Ready that a budget has been missing for no longer than replacements take.

        `seen`: number of them that terminate on these nodes. `in_flight`: evictions that are charged and not counted.
        """
        takes = self._takes_elsewhere(budget.key)
        longest = takes + self._scenario.longest(budget.key) - self._scenario.takes(budget.key)
        since = self._scenario.observed.missing_since.get(budget.key)
        if since is not None:
            return [at + takes for at in since[: max(len(since) - seen, 0)] if at + longest > self._now]
        found = [self._now + takes] * (in_flight - max(seen - (missing - in_flight), 0))
        verdict = budget.verdict
        if verdict is not None and verdict.status != names.TRUE and verdict.last_transition is not None:
            at = verdict.last_transition
            found = [at + takes] * missing if at + longest > self._now else found
        return found

    def _takes_elsewhere(self, key: BudgetKey) -> float:
        """Seconds from an eviction until the replacement is Ready, of a pod that is not seen here."""
        takes = self._scenario.takes(key)
        if self._scenario.is_expected or self._scenario.is_quick(key):
            return takes
        under = [pod for pod in self._pods_under(key) if self._facts[pod.uid].kind not in RECREATED_IMMEDIATELY]
        return takes + max(map(grace_of, under), default=0)

    def _replacement_ready_at(self, pod: Pod, key: BudgetKey) -> float:
        """When the replacement of a removed pod is Ready; infinity if there will be none.

        ::

            ReplicaSet, Job   removed ─▶ replacement_seconds ─▶ Ready
            StatefulSet       removed ─▶ terminated ─▶ the one replaced before is Ready ─▶ replacement_seconds ─▶ Ready
            none, DaemonSet   never
        """
        facts = self._facts[pod.uid]
        if facts.kind in ("", names.DAEMON_SET):
            return math.inf
        takes = self._takes.get(key)
        if takes is None:
            takes = self._takes[key] = self._scenario.takes(key)
        if facts.kind in RECREATED_IMMEDIATELY or self._scenario.is_expected:
            return self._now + takes  # observed durations count from the eviction
        previous_ready = self._replacement_ready.get((facts.owner, key), -math.inf)
        ready = max(self._terminates_at.get(pod.uid, math.inf), previous_ready) + takes
        if self._is_mistaken_for_successor(pod) and takes:
            ready = max(ready, self._now + NAMESAKE_TIMEOUT_SECONDS)
        self._replacement_ready[facts.owner, key] = ready
        return ready

    def _is_mistaken_for_successor(self, pod: Pod) -> bool:
        """Whether a budget may take the replacement, which has the same name, for the evicted pod: a pod without
        grace is gone before the disruption controller has seen it terminate.
        """
        removals = self._removals[pod.uid]
        return bool(removals) and removals[-1].method is RemovalMethod.EVICTED and grace_of(pod) == 0

    # -- events --------------------------------------------------------------------------------------------------------

    def _push(self, at: float, *, uid: str = "", budget: BudgetKey | None = None, node: str = "") -> None:
        if at < math.inf:
            at = max(at, self._now)
            if (events := self._events.get(at)) is None:
                events = self._events[at] = []
                heapq.heappush(self._instants, at)
            events.append((uid, budget, node))

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
            self._unblocked.add(())
        while self._instants and self._instants[0] <= self._now:
            at = heapq.heappop(self._instants)
            for uid, budget, node in self._events.pop(at):
                if budget is not None:
                    self._adjust_healthy(budget, 1)
                elif node:
                    self._detached.add(node)
                    changed.add(node)
                elif self._terminates_at.get(uid) == at and uid not in self._terminated:
                    name = self._facts[uid].node
                    self._terminated[uid] = self._now
                    del self._pods[name][uid]
                    if not self._keeps_plan(name, uid, is_gone=True):
                        changed.add(name)
        return changed

    def _adjust_healthy(self, key: BudgetKey, change: int) -> None:
        """Change the number of healthy pods of a budget, and what it allows.

        Never more than it expects: the replacement of a pod that was not Ready may be the one that was missing.
        """
        if key in self._uncounted:
            return
        budget = self._budgets[key]
        most = max(budget.expected_pods, budget.current_healthy)
        healthy = min(max(budget.current_healthy + change, 0), most)
        allowed = max(healthy - budget.desired_healthy, 0) if failure_of(budget) is None else 0
        self._budgets[key] = msgspec.structs.replace(budget, current_healthy=healthy, disruptions_allowed=allowed)
        self._unblocked |= self._queues_of[key]

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _decided(self, name: str) -> Plan:
        view = self._nodes[name].view
        attachments = () if name in self._detached else view.attachments
        pods = tuple(self._pods[name].values())
        return plan(msgspec.structs.replace(view, pods=pods, attachments=attachments), self._now)

    def _keeps_plan(self, name: str, uid: str, *, is_gone: bool = False) -> bool:
        """Whether the plan of a node stays as it is but for a pod that has been evicted, or is gone: other pods are
        awaited (see Plan). So a node is planned once a wave, not once a pod.
        """
        awaited = self._awaited[name]
        if uid not in awaited:
            return False
        if is_gone:
            awaited.discard(uid)
        return bool(awaited)

    def _plan(self, name: str) -> None:
        if name in self._drained:
            return
        node = self._nodes[name]
        decision = self._first_plans.pop(name, None) or self._decided(name)
        if decision.detaching and name not in self._detaching:
            self._detach(name, decision)
        before = {entry.pod.uid: entry for entry in self._plans[name].leaving} if name in self._plans else {}
        self._plans[name] = decision
        # Without a kubelet pods get stuck; between two pods of a wave volumes are detached, and replacements decided.
        is_uneven = decision.attached or any(entry.asks_for_replacement for entry in decision.pods)
        self._awaited[name] = set() if is_uneven or not node.view.node.ready else set(decision.awaited)
        if decision.next_change is not None:
            heapq.heappush(self._plan_changes, (decision.next_change, name))
        is_drained = decision.drained or decision.is_stuck  # when stuck pods end is unknown
        if is_drained:
            self._drained[name] = self._now
        for entry in () if is_drained else decision.leaving:
            known = before.pop(entry.pod.uid, None)
            if known is None or known.deadline != entry.deadline:
                queued = QueuedPod(name, node.since, entry)
                self._queued_at.setdefault(entry.pod.uid, self._now)
                self._add(queued)
                self._unblocked.add(entry.budgets)
        for uid, entry in before.items():
            self._queues[entry.budgets].remove(uid)

    def _detach(self, name: str, decision: Plan) -> None:
        """Detach the volumes of a node if the last of its pods with volumes is gone."""
        if any(has_volumes(entry.pod) for entry in decision.left):
            return
        self._detaching.add(name)
        takes = self._scenario.detach_seconds
        if takes and not any(has_volumes(pod) for pod in self._nodes[name].view.pods):
            takes = math.inf  # their pods were gone before: they may be left over
        is_quick = bool(self._scenario.mixture) and self._scenario.is_quick(name, "volumes")
        self._push(self._now if is_quick else self._now + takes, node=name)

    def _delete(self, nodes: Iterable[str]) -> set[str]:
        """Delete the pods that are due for the deadline; returns their nodes."""
        changed = set()
        for name in sorted(nodes):
            for entry in self._plans[name].left:
                pod = self._pods[name].get(entry.pod.uid)
                if entry.outcome is not Outcome.DELETE or pod is None or entry.deadline is None:
                    continue
                grace = granted(pod, entry.deadline, self._now)
                if grace is not None and self._remove(pod, RemovalMethod.DELETED, grace):
                    changed.add(name)
        return changed

    def _evict(self) -> set[str]:
        """Evict what budgets and rate allow, queue by queue; returns the nodes."""
        changed: set[str] = set()
        for keys in sorted(self._unblocked):
            queue = self._queues[keys]
            if is_stale := queue.reversed_at not in (None, self._now):
                queue.reversed_at = None  # every pod is tried, and gets a new rank
            blocked = []
            for queued in queue.in_order():
                pod = self._pods[queued.node].get(queued.entry.pod.uid)
                if pod is None or pod.deletion_timestamp is not None:
                    continue
                if self._is_allowed(keys, pod):
                    self._remove(pod, RemovalMethod.EVICTED, grace_of(pod))
                    if not self._keeps_plan(queued.node, pod.uid):
                        changed.add(queued.node)
                    continue
                blocked.append(queued)
                if not keys or not (is_stale or queue.may_skip):
                    break  # the others wait for the same tokens, or the same disruption
            for queued in blocked:
                self._add(queued)
        self._unblocked.clear()
        return changed

    def _add(self, queued: QueuedPod) -> None:
        """Put a pod into its queue, or move it there."""
        queue, rank, pod = self._queues[queued.entry.budgets], self._rank(queued), queued.entry.pod
        queue.add(queued, rank)
        queue.may_skip = queue.may_skip or not pod.ready or pod.phase in UNCHARGED_PHASES
        if rank[0]:
            queue.reversed_at = self._now

    def _rank(self, queued: QueuedPod) -> Rank:
        uid = queued.entry.pod.uid
        place = (*queued.turn, self._facts[uid].number)
        if self._scenario.last_first and self._queued_at[uid] == self._now:
            return (1, *(-each for each in place))
        return (0, *place)

    def _is_allowed(self, keys: tuple[BudgetKey, ...], pod: Pod) -> bool:
        if not keys:
            at = self._rate_limit.take(self._now)
            if at is not None:
                self._wake = at
            return at is None
        verdict = eviction_verdict(pod, tuple(self._budgets[key] for key in keys))
        return verdict.allowance in (Allowance.UNCHARGED, Allowance.ALLOWED)

    def _remove(self, pod: Pod, method: RemovalMethod, grace: int) -> bool:
        """Remove a pod, for the first time or with less grace; returns whether that changes anything."""
        if pod.deletion_timestamp is None:
            ends = math.floor(self._now) + grace
        elif grace < granted_already(pod):
            first = pod.deletion_timestamp - granted_already(pod)
            ends = max(math.floor(first) + grace, math.floor(self._now))
        else:
            return False
        self._mark_removed(pod, method, grace, ends)
        if pod.deletion_timestamp is None:
            self._charge_budgets(pod)
        return True

    def _mark_removed(self, pod: Pod, method: RemovalMethod, grace: int, ends: int | None = None) -> None:
        """Let a pod terminate. `ends`: when its grace ends, in whole seconds; None: counted from now."""
        at = math.floor(self._now) + grace if ends is None else ends
        self._removals[pod.uid].append(PodRemoval(self._now, method, grace))
        terminating = msgspec.structs.replace(pod, deletion_timestamp=float(at), deletion_grace_seconds=grace)
        name = self._facts[pod.uid].node
        self._pods[name][pod.uid] = terminating
        self._first_plans.pop(name, None)
        self._terminate(terminating, self._now + grace)

    def _charge_budgets(self, pod: Pod) -> None:
        for key in self._facts[pod.uid].budgets:
            if pod.ready:
                self._adjust_healthy(key, -1)
            # Whether the replacement of a pod that is not Ready becomes Ready is not known.
            if pod.ready or self._scenario.pods_recover:
                self._push(self._replacement_ready_at(pod, key), budget=key)

    def _terminate(self, pod: Pod, latest: float) -> None:
        """Terminate a removed pod: by `latest`, when its kubelet kills it, if the node has one that works."""
        facts = self._facts[pod.uid]
        at = latest if self._nodes[facts.node].view.node.ready else math.inf
        if self._stops_within is not None:
            at = min(at, self._now + self._stops_within)
        if pod.phase in UNCHARGED_PHASES or self._is_quick(facts.node, facts.wave):
            at = self._now
        if at != self._terminates_at.get(pod.uid):
            self._terminates_at[pod.uid] = at
            self._push(at, uid=pod.uid)

    def _is_quick(self, name: str, wave: int) -> bool:
        found = self._quick.get((name, wave))
        if found is None:
            found = self._quick[name, wave] = self._scenario.is_quick(name, wave)
        return found
