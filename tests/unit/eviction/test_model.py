"""A PDB queue against a tiny API server with lagging watches: all pods are evicted, no request is in vain.

The two watches (pods, budgets) are each in order and otherwise free; the answer may overtake both or come last.
"""

from __future__ import annotations

import random
from collections import deque

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import NOW, a_budget, a_pod

from gracectl.eviction.pdb_queue import Evict, EvictionCandidate, Idle, PdbQueue, PodLookup, Wait
from gracectl.eviction.settings import EvictionSettings
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.runtime.backoff import Backoff

KEY = ("shop", "web")
SETTINGS = EvictionSettings()


class Server:
    """Pods of one workload under a budget of maxUnavailable `allowed`; replacements become ready when told to."""

    def __init__(self, count: int, allowed: int) -> None:
        self.pods = {f"web-{n}": a_pod(f"web-{n}") for n in range(count)}
        self.budget = a_budget(disruptions_allowed=allowed, current_healthy=count, expected_pods=count)
        self.budget = msgspec.structs.replace(self.budget, desired_healthy=count - allowed)
        self.version = 1
        self.missing = 0  # replacements that are not ready yet
        self.uncounted = False
        self.pod_events: deque[Pod | str] = deque()
        self.budget_events: deque[PodDisruptionBudget] = deque()

    def evict(self, name: str) -> bool:
        assert name in self.pods, "asked for a pod that has gone"
        assert self.pods[name].deletion_timestamp is None, "asked twice for the same pod"
        if self.budget.disruptions_allowed <= 0:
            return False
        spent = {**self.budget.disrupted_pods, name: NOW}
        self._write_budget(disruptions_allowed=self.budget.disruptions_allowed - 1, disrupted_pods=spent)
        self.pods[name] = msgspec.structs.replace(self.pods[name], deletion_timestamp=NOW + 30)
        self.pod_events.append(self.pods[name])
        self.missing += 1
        self.uncounted = True
        return True

    def recount(self) -> None:
        """The disruption controller looks: it has seen the pods go, and how many replacements are ready."""
        if self.uncounted:
            self.uncounted = False
            healthy = self.budget.expected_pods - self.missing
            allowed = max(0, healthy - self.budget.desired_healthy)
            self._write_budget(disruptions_allowed=allowed, disrupted_pods={}, current_healthy=healthy)

    def replace(self) -> None:
        """A replacement becomes ready."""
        if self.missing:
            self.missing -= 1
            self.uncounted = True

    def remove(self) -> None:
        """A kubelet lets go of a pod that has stopped."""
        for name, pod in list(self.pods.items()):
            if pod.deletion_timestamp is not None:
                del self.pods[name]
                self.pod_events.append(name)
                return

    def _write_budget(self, **fields: object) -> None:
        self.version += 1
        self.budget = msgspec.structs.replace(self.budget, resource_version=str(self.version), **fields)
        self.budget_events.append(self.budget)


class Play:
    """One run: the lane, its caches, and at most one request in flight."""

    def __init__(self, count: int, allowed: int) -> None:
        self.now = NOW
        self.server = Server(count, allowed)
        self.pods = dict(self.server.pods)
        self.budget = self.server.budget
        backoff = Backoff(0.1, 10.0, rng=random.Random(0))
        self.lane = PdbQueue((KEY,), SETTINGS, backoff, self.now)
        for pod in self.pods.values():
            self.lane.add(EvictionCandidate(pod.namespace, pod.name, pod.uid, pod.node_name, (KEY,), NOW))
        self.lookup = PodLookup(pod=lambda _, name: self.pods.get(name), budget=lambda _: self.budget)
        self.in_flight: tuple[Evict, tuple[str, ...], bool] | None = None
        self.requests = self.refusals = self.explained = 0

    @property
    def is_over(self) -> bool:
        return self.in_flight is None and not self.lane.waiting

    def request(self) -> float:
        """Let the lane decide if nothing is in flight; returns for how long it wants to sleep."""
        if self.in_flight is not None:
            return 0.0
        match self.lane.decide(self.now, self.lookup):
            case Evict() as request:
                is_lagging = bool(self.server.budget_events) or bool(self.server.pod_events)
                is_probe = self.budget.disruptions_allowed <= 0
                self.lane.begin(request.candidate)
                agreed = self.server.evict(request.candidate.name)
                self.requests += 1
                self.refusals += not agreed
                self.explained += not agreed and (is_lagging or is_probe)
                self.in_flight = (request, self.lane.versions(self.lookup), agreed)
                return 0.0
            case Wait(seconds=seconds):
                assert seconds > 0, "the lane spins"
                return seconds
            case Idle():
                return 0.0

    def answer(self) -> None:
        if self.in_flight is None:
            return
        request, versions, agreed = self.in_flight
        self.in_flight = None
        if agreed:
            self.lane.on_evicted(request, self.now)
        else:
            self.lane.on_budget_exhausted(request, versions, self.now, None)
        self.lane.end(request.candidate.uid)

    def show_pod(self) -> None:
        if not self.server.pod_events:
            return
        event = self.server.pod_events.popleft()
        if isinstance(event, str):
            self.lane.pod_changed(self.pods.pop(event).uid, self.lookup)
            return
        self.pods[event.name] = event
        self.lane.remove(event.uid)  # as the evictor does when a pod is on its way
        self.lane.pod_changed(event.uid, self.lookup)

    def show_budget(self) -> None:
        if self.server.budget_events:
            self.budget = self.server.budget_events.popleft()
            self.lane.budget_changed(self.budget)

    def relist(self) -> None:
        """The budget's watch broke: only the newest state is shown."""
        while len(self.server.budget_events) > 1:
            self.server.budget_events.popleft()
        self.show_budget()

    def settle(self) -> None:
        """From now on the world is quick: it runs until all have left, or the lane is stuck."""
        for _ in range(400):
            if self.is_over:
                return
            self.answer()
            self.server.replace()
            self.server.recount()
            while self.server.pod_events:
                self.show_pod()
            while self.server.budget_events:
                self.show_budget()
            self.now += self.request()
        raise AssertionError("the lane is stuck")


STEPS = ("ask", "answer", "show_pod", "show_budget", "relist", "replace", "recount", "remove", "wait")


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 6), allowed=st.integers(1, 3), steps=st.lists(st.sampled_from(STEPS), max_size=60))
def test_every_pod_leaves_and_every_refusal_has_its_reason(count: int, allowed: int, steps: list[str]) -> None:
    play = Play(count, min(allowed, count))
    for step in steps:
        match step:
            case "ask":
                play.request()
            case "answer":
                play.answer()
            case "show_pod":
                play.show_pod()
            case "show_budget":
                play.show_budget()
            case "relist":
                play.relist()
            case "replace":
                play.server.replace()
            case "recount":
                play.server.recount()
            case "remove":
                play.server.remove()
            case _:
                play.now += 0.05
    play.settle()
    assert play.requests == count + play.refusals
    assert play.refusals == play.explained


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 6), order=st.lists(st.permutations(("answer", "pod", "budget")), min_size=6, max_size=6))
def test_one_request_per_pod_in_any_order_of_events(count: int, order: list[tuple[str, str, str]]) -> None:
    """Each round brings the answer and both watches, in any order; then the replacement becomes ready."""
    play = Play(count, 1)
    for round_ in order[:count]:
        play.request()
        for what in round_:
            if what == "answer":
                play.answer()
            elif what == "pod":
                play.show_pod()
            else:
                play.show_budget()
            if play.in_flight is None:
                play.request()
        play.server.recount()
        play.show_budget()
        play.request()
        play.server.replace()
        play.server.recount()
        play.show_budget()
    play.settle()
    assert play.refusals == 0
    assert play.requests == count
