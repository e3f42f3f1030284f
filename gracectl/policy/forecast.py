"""Forecast of drains: computed beforehand, by the very decisions that will be taken then.

How long a pod takes to terminate, or its replacement to become Ready, is not known. So several scenarios are
simulated: the fastest, the slowest, in which every pod uses all of its grace, and some in between. What they agree on
is certain unless something interferes; for everything else there is a window. Every simulation is one possibility
among infinitely many: pods may terminate, and others be removed, earlier or later than in any of them. So the bounds of
a pod also follow from those of the pods that it waits for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gracectl.policy.answers import SAME_SECONDS, Answer, Never, NeverCause, Sightings, Unknown, Window
from gracectl.policy.budgets import UNCHARGED_PHASES, BudgetKey
from gracectl.policy.deadlines import grace_of
from gracectl.policy.evictability import is_kubelet_alive
from gracectl.policy.eviction_queues import EvictionRate, QueuedPod, queues_of
from gracectl.policy.explain import agreed, listed
from gracectl.policy.observations import NOTHING_OBSERVED, Observations
from gracectl.policy.plan import NodeView, Outcome, Plan, PodPlan
from gracectl.policy.planner import plan, settled_at
from gracectl.policy.scenario import (
    Beginning,
    DrainingNode,
    PodRemoval,
    RemovalMethod,
    Scenario,
    SimulationResult,
)
from gracectl.policy.simulation import simulate
from gracectl.policy.stalled import stalled
from gracectl.policy.staying import may_end_anytime, unforeseeable, why_it_stays
from gracectl.policy.volumes import has_volumes, waits_for_volumes

MIXED_SCENARIOS = 2
"""Scenarios in which some pods are quick and others slow."""


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """Bounds of an instant (Unix seconds) by the scenarios; `latest` None: in some of them it is never reached."""

    earliest: float
    latest: float | None

    @property
    def is_certain(self) -> bool:
        """It is known to the second."""
        return self.latest is not None and self.latest - self.earliest < SAME_SECONDS


class PodForecast(msgspec.Struct, frozen=True, gc=False):
    """Forecast of one pod. `entry`: its plan at the beginning.

    `removal`: when it is evicted or deleted for the first time; None: in no scenario, or that was before. `terminated`:
    when its containers have stopped; None: in no scenario before its node ends. `methods`: how it may be removed; with
    two it is not known which. `removals`: all requests if it takes its time: the first, and perhaps others with less
    grace. `final_entry`: its plan in the end, if a scenario does not remove it.

    `leaves`: when it is evicted or deleted; None: it stays, or was removed before. `gone`: when it blocks its node no
    longer; None: it does not block it.
    """

    entry: PodPlan
    removal: Bounds | None = None
    terminated: Bounds | None = None
    methods: tuple[RemovalMethod, ...] = ()
    removals: tuple[PodRemoval, ...] = ()
    final_entry: PodPlan | None = None
    leaves: Answer | None = None
    gone: Answer | None = None

    @property
    def is_certain(self) -> bool:
        """How and when it is removed is known to the second."""
        return self.removal is None or (self.removal.is_certain and len(self.methods) == 1)

    @property
    def is_waited_for(self) -> bool:
        """Whether the node waits until it is gone, or for the deadline."""
        return self.entry.outcome is not Outcome.IGNORED


class Assumptions(msgspec.Struct, frozen=True):
    """Assumptions of a forecast in addition to the cluster's objects.

    `replacement_seconds`: the longest time from the creation of a replacement until it is Ready, unless others of its
    budget were observed to take longer. `detach_seconds`: from the end of the last pod with volumes of a node until
    they are detached. `observed`: while the cluster is followed. `seen`: structural causes that the reading before has
    shown (policy.confirmation). `deadline_seconds`: the chosen nodes get a deadline after that time.
    """

    replacement_seconds: float = 30.0
    rate: EvictionRate = EvictionRate()
    detach_seconds: float = 60.0
    observed: Observations = NOTHING_OBSERVED
    seen: Sightings = {}
    deadline_seconds: float | None = None


class NodeForecast(msgspec.Struct, frozen=True):
    """Forecast of one node, made at the instant `at`. `drained`: when nothing is left to wait for."""

    draining: DrainingNode
    plan: Plan
    pods: tuple[PodForecast, ...]
    drained: Answer
    at: float

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.draining.view.node.name

    @property
    def held(self) -> tuple[PodForecast, ...]:
        """The pods that block it until a person changes something."""
        if not isinstance(self.drained, Never):
            return ()
        left = [pod for pod in self.pods if isinstance(pod.gone, Never)]
        # An evicted pod may only wait for its kubelet.
        return tuple([pod for pod in left if isinstance(pod.leaves, Never)] or left)


class Forecast(msgspec.Struct, frozen=True):
    """Forecast of nodes that are drained together from the instant `at` on, and the queues of budgets at that
    instant.
    """

    at: float
    nodes: tuple[NodeForecast, ...]
    queues: dict[tuple[BudgetKey, ...], tuple[QueuedPod, ...]]
    assumptions: Assumptions


def forecast(draining: Iterable[DrainingNode], now: float, assumptions: Assumptions) -> Forecast:
    """Simulate the drain of these nodes in several scenarios, and join the results. `now` is the server's time."""
    nodes = tuple(draining)
    plans = [plan(each.view, now) for each in nodes]
    beginning = Beginning(nodes, plans, now, assumptions.rate)
    without = stalled(beginning, assumptions.replacement_seconds, assumptions.observed)
    results = [simulate(beginning, scenario) for scenario in _scenarios(plans, assumptions, without)]
    expected = _expected(beginning, assumptions, without)
    removals = _removals(plans, results)
    found = []
    for each, decision in zip(nodes, plans, strict=True):
        pods = _forecast_pods(decision, results, removals, now)
        bounds = _drained([result.drained.get(each.view.node.name) for result in results], each.view, pods)
        drained, pods = _answered(each.view, bounds, pods, without, expected.get(each.view.node.name))
        if isinstance(drained, Window) and (stuck := _may_be_stuck(each.view, decision, now)):
            drained = Unknown((f"when {listed(stuck)} {agreed(stuck, 'stops', 'stop')}",), drained.earliest)
        found.append(NodeForecast(each, decision, pods, drained, now))
    begun = ((each.since, each.view.node.name, decision) for each, decision in zip(nodes, plans, strict=True))
    return Forecast(now, tuple(found), queues_of(begun), assumptions)


def _expected(beginning: Beginning, assumptions: Assumptions, without: Collection[BudgetKey]) -> Mapping[str, float]:
    """Expected end of each drain, by node, if pods and replacements take as long as observed ones; empty without
    any."""
    observed = assumptions.observed
    if observed.termination_seconds is None or not observed.recoveries:
        return {}
    scenario = Scenario(
        uses_grace=True,
        replacement_seconds=assumptions.replacement_seconds,
        pods_recover=False,
        observed=observed,
        detach_seconds=assumptions.detach_seconds,
        is_expected=True,
        stalled=without,
    )
    return simulate(beginning, scenario).drained


def _scenarios(plans: Sequence[Plan], assumptions: Assumptions, without: Collection[BudgetKey]) -> list[Scenario]:
    quick = Scenario(uses_grace=False, replacement_seconds=0.0, pods_recover=True)
    slow = Scenario(
        uses_grace=True,
        replacement_seconds=assumptions.replacement_seconds,
        pods_recover=False,
        observed=assumptions.observed,
        detach_seconds=assumptions.detach_seconds,
        stalled=without,
    )
    is_contested = len(plans) > 1 and any(entry.budgets for decision in plans for entry in decision.pods)
    contested = [msgspec.structs.replace(scenario, last_first=True) for scenario in (quick, slow) if is_contested]
    mixtures = [msgspec.structs.replace(slow, mixture=number + 1) for number in range(MIXED_SCENARIOS)]
    return [quick, slow, *contested, *mixtures]


def _may_be_stuck(view: NodeView, decision: Plan, now: float) -> tuple[str, ...]:
    """Pods with an unknown end: past their grace on a node in maintenance with a live kubelet."""
    if not view.is_maintenance or not is_kubelet_alive(view.node):
        return ()
    late = (p for p in decision.left if p.pod.deletion_timestamp is not None and p.pod.deletion_timestamp <= now)
    return tuple(entry.pod.full_name for entry in (*decision.stuck, *late))


def _drained(instants: Sequence[float | None], view: NodeView, pods: Iterable[PodForecast]) -> Bounds | None:
    """From when the last pod may be gone until when it is, but no later than the deadline."""
    found, settled = _window_of(instants), settled_at(view)
    if found is None or settled is None:
        return found
    terminated = [pod.terminated for pod in pods if pod.terminated is not None and pod.is_waited_for]
    soonest = max([settled, *(window.earliest for window in terminated)])
    latest = found.latest
    if latest is not None:
        latest = max([latest, *(window.latest for window in terminated if window.latest is not None)])
        if view.deadline is not None and not view.is_maintenance:
            latest = min(latest, max(view.deadline, found.earliest))
    return Bounds(min(found.earliest, soonest), latest)


def _answered(
    view: NodeView,
    bounds: Bounds | None,
    pods: Sequence[PodForecast],
    without: Mapping[BudgetKey, str],
    expected: float | None,
) -> tuple[Answer, tuple[PodForecast, ...]]:
    """The answer for a node, and its pods with theirs."""
    answer: Answer = _bounded(bounds) or _endless(view, bounds, pods, without)
    unknown = () if isinstance(answer, Never) else unforeseeable(view)
    if unknown and view.deadline is None:
        answer = Unknown(unknown, None if bounds is None else bounds.earliest)
    elif unknown and isinstance(answer, Window) and view.deadline is not None:
        answer = Window(answer.earliest, max(answer.latest, view.deadline))
    if isinstance(answer, Window) and expected is not None:
        answer = msgspec.structs.replace(answer, expected=min(max(expected, answer.earliest), answer.latest))
    return answer, tuple(_with_answer(pod, answer) for pod in pods)


def _endless(
    view: NodeView, bounds: Bounds | None, pods: Iterable[PodForecast], without: Mapping[BudgetKey, str]
) -> Unknown | Never:
    """Why a node is not drained in some scenario, or in none (`bounds` None). `without`: the stalled budgets."""
    reasons = [
        why_it_stays(
            pod.final_entry,
            view.budgets.get(pod.entry.pod.uid, ()),
            without,
            is_hopeless=bounds is None and _is_hopeless(pod),
        )
        for pod in pods
        if pod.final_entry is not None
    ]
    causes = tuple(reason for reason in reasons if isinstance(reason, NeverCause))
    if causes:
        return Never(causes)
    missing = tuple(dict.fromkeys(reason for reason in reasons if isinstance(reason, str) and reason))
    earliest = None if bounds is None else bounds.earliest
    return Unknown(missing or (f"when the pods of {view.node.name} leave",), earliest)


def _is_hopeless(pod: PodForecast) -> bool:
    """Whether no scenario removes it."""
    return pod.terminated is None and not pod.methods


def _with_answer(pod: PodForecast, node: Answer) -> PodForecast:
    """The pod with its answers: by its own bounds, or else with its node."""
    if not pod.is_waited_for:
        return pod
    gone = _bounded(pod.terminated) or node
    if isinstance(node, Never) and (own := tuple(each for each in node.causes if each.pod == pod.entry.pod.full_name)):
        gone = Never(own)
    if pod.removal is None and pod.entry.pod.deletion_timestamp is not None:
        return msgspec.structs.replace(pod, gone=gone)
    leaves = _bounded(pod.removal) or gone
    earliest = None if pod.removal is None else pod.removal.earliest
    if earliest is not None and isinstance(leaves, Window | Unknown):
        leaves = msgspec.structs.replace(leaves, earliest=earliest)
    return msgspec.structs.replace(pod, leaves=leaves, gone=gone)


def _bounded(bounds: Bounds | None) -> Window | None:
    return None if bounds is None or bounds.latest is None else Window(bounds.earliest, bounds.latest)


def _forecast_pods(
    decision: Plan, results: Sequence[SimulationResult], removals: Mapping[str, Bounds | None], at: float
) -> tuple[PodForecast, ...]:
    """Forecast the pods of one node, in the plan's order. `removals`: see `_removals`."""
    joined = [_from_simulations(entry, results, removals[entry.pod.uid], at) for entry in decision.pods]
    alone = [_with_grace(each, decision.deadline) for each in joined]
    if any(each.entry.protection and each.entry.protection.holds_node for each in alone):
        return tuple(alone)  # all wait for that pod, and for nothing else
    is_attached = bool(decision.attached)
    if not is_attached and len({each.entry.wave for each in alone}) < 2:
        return tuple(alone)
    is_open = any(may_end_anytime(each.entry) for each in alone)
    behind = (
        _after_earlier_waves(each, [other for other in alone if _is_before(other, each, is_attached)], results, is_open)
        for each in alone
    )
    return tuple(_with_grace(each, decision.deadline) for each in behind)


def _removals(plans: Sequence[Plan], results: Sequence[SimulationResult]) -> dict[str, Bounds | None]:
    """When each pod is removed, by UID. Pods of several nodes that join the queue of the same budgets in the same
    instant may each have the position of any other, as the order in which nodes are reconciled is not known.
    """
    removed, queued = [result.removals for result in results], [result.queued_at for result in results]
    found: dict[str, Bounds | None] = {}
    alike: dict[_Joining, list[PodPlan]] = {}  # hundreds of pods have the same bounds
    nodes: dict[_Joining, set[int]] = defaultdict(set)
    for number, decision in enumerate(plans):
        for entry in decision.pods:
            uid = entry.pod.uid
            found[uid] = _window_of([each[uid][0].at if uid in each else None for each in removed])
            if entry.budgets:
                joining = entry.budgets, tuple([each.get(uid) for each in queued])
                alike.setdefault(joining, []).append(entry)
                nodes[joining].add(number)
    windows = {joining: _hull([found[entry.pod.uid] for entry in entries]) for joining, entries in alike.items()}
    for joining, others in _simultaneous(nodes).items():
        simultaneous = _hull([windows[other] for other in others])
        for entry in alike[joining]:
            own = found[entry.pod.uid]
            if own is not None and simultaneous is not None:
                found[entry.pod.uid] = _capped(simultaneous, own, entry)
    return found


_Joining = tuple[tuple[BudgetKey, ...], tuple[float | None, ...]]
"""Budgets of a pod, and when it joins their queue in each scenario."""


def _simultaneous(nodes: Mapping[_Joining, set[int]]) -> dict[_Joining, set[_Joining]]:
    """Pods that join a queue together with pods of other nodes in a scenario. `nodes`: of the pods, by number."""
    together: dict[tuple[object, int, float], list[_Joining]] = defaultdict(list)
    for joining in nodes:
        for scenario, at in enumerate(joining[1]):
            if at is not None:
                together[joining[0], scenario, at].append(joining)
    found: dict[_Joining, set[_Joining]] = defaultdict(set)
    for group in together.values():
        if len(set().union(*(nodes[joining] for joining in group))) > 1:
            for joining in group:
                found[joining].update(group)
    return found


def _hull(windows: Sequence[Bounds | None]) -> Bounds | None:
    """From the earliest to the latest of all windows."""
    known = [each for each in windows if each is not None]
    if not known:
        return None
    latest = [each.latest for each in known if each.latest is not None]
    return Bounds(min([each.earliest for each in known]), max(latest) if len(latest) == len(windows) else None)


def _window_of(instants: Sequence[float | None]) -> Bounds | None:
    """From the first to the last; a scenario that is fast for one pod may be slow for another under the same budget."""
    known = [at for at in instants if at is not None]
    if not known:
        return None
    return Bounds(min(known), None if len(known) < len(instants) else max(known))


def _from_simulations(
    entry: PodPlan, results: Sequence[SimulationResult], removal: Bounds | None, at: float
) -> PodForecast:
    """Forecast from the simulations, which began at the instant `at`."""
    uid = entry.pod.uid
    removals = [result.removals[uid] for result in results if uid in result.removals]
    terminated = _window_of([result.terminated.get(uid) for result in results])
    methods = [each[0].method for each in removals]
    if methods and may_end_anytime(entry):
        terminated = None if terminated is None else Bounds(at, terminated.latest)
        if entry.outcome is not Outcome.PROTECTED and removal is not None:  # otherwise it completes
            removal, methods = Bounds(at, removal.latest), [RemovalMethod.EVICTED, *methods]
    return PodForecast(
        entry=entry,
        removal=removal,
        terminated=terminated,
        methods=tuple(dict.fromkeys(methods)),
        removals=max(removals, key=lambda each: each[0].at, default=()),
        final_entry=next((result.final_entries[uid] for result in results if uid in result.final_entries), None),
    )


def _after_earlier_waves(
    pod: PodForecast, before: Sequence[PodForecast], results: Sequence[SimulationResult], is_open: bool
) -> PodForecast:
    """Widen the removal of a pod to the bounds of the pods `before` it: of earlier waves, or with attached volumes.

    ::

        earlier waves are gone     freed.earliest ├───────────────┬───────────┤ freed.latest
        in the latest simulation                                  │ simulated
        this pod, simulated                                       └─▶ removal.latest
        this pod, bounds     freed.earliest (or the end of      removal.latest + (freed.latest - simulated)
                             its protection, if that is later)
    """
    is_freed = is_open and any(may_end_anytime(each.entry) for each in before)
    if pod.removal is None or not before or not (is_freed or RemovalMethod.EVICTED in pod.methods):
        return pod
    freed = _last_of([each.terminated for each in before])
    earliest = min(pod.removal.earliest, max(freed.earliest, _protected_until(pod)))
    latest = None
    if pod.removal.latest is not None and freed.latest is not None:
        simulated = max(_last_terminated(before, result) for result in results)
        latest = pod.removal.latest + max(freed.latest - simulated, 0.0)
    methods = tuple(dict.fromkeys((RemovalMethod.EVICTED, *pod.methods))) if is_freed else pod.methods
    return msgspec.structs.replace(
        pod, removal=_capped(Bounds(earliest, latest), pod.removal, pod.entry), methods=methods
    )


def _is_before(other: PodForecast, pod: PodForecast, is_attached: bool) -> bool:
    """Whether a pod leaves after another one. `is_attached`: volumes of drained pods are attached to their node."""
    waits = is_attached and waits_for_volumes(pod.entry.pod) and has_volumes(other.entry.pod)
    return other.is_waited_for and (waits or other.entry.wave < pod.entry.wave)


def _last_of(windows: Sequence[Bounds | None]) -> Bounds:
    """Bounds of the last of several windows; an unknown window may be immediately, or never."""
    latest = [math.inf if each is None or each.latest is None else each.latest for each in windows]
    earliest = max((each.earliest for each in windows if each is not None), default=-math.inf)
    return Bounds(earliest, None if math.inf in latest else max(latest))


def _last_terminated(pods: Sequence[PodForecast], result: SimulationResult) -> float:
    return max((result.terminated.get(pod.entry.pod.uid, -math.inf) for pod in pods), default=-math.inf)


def _protected_until(pod: PodForecast) -> float:
    protection = pod.entry.protection
    if protection is None:
        return -math.inf
    return math.inf if protection.until is None else protection.until


def _capped(window: Bounds, own: Bounds, entry: PodPlan) -> Bounds:
    """A window derived from other pods, but not beyond the pod's own deletion for the deadline."""
    if entry.delete_at is None or own.latest is None:
        return window
    last = max(entry.delete_at, own.latest)
    return Bounds(window.earliest, last if window.latest is None else min(window.latest, last))


def _with_grace(pod: PodForecast, deadline: float | None) -> PodForecast:
    """Widen the termination: immediately or after the whole grace, at any removal time; at most the node's deadline."""
    removal, terminated = pod.removal, pod.terminated
    if removal is None or terminated is None or pod.entry.pod.phase in UNCHARGED_PHASES:
        return pod
    latest = None
    if removal.latest is not None and terminated.latest is not None:
        latest = max(terminated.latest, removal.latest + grace_of(pod.entry.pod))
        latest = latest if deadline is None else min(latest, max(deadline, terminated.latest))
    return msgspec.structs.replace(pod, terminated=Bounds(min(terminated.earliest, removal.earliest), latest))
