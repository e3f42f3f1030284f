"""A PDB queue chooses what a walk over all of its pods in order would choose, whatever has happened to them."""

from __future__ import annotations

import random

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.builders import NOW, a_budget, a_pod

from gracectl.eviction.pdb_queue import Evict, EvictionCandidate, Idle, PdbQueue, PodLookup, Wait, _UnobservedEviction
from gracectl.eviction.settings import EvictionSettings
from gracectl.policy.budgets import Allowance, eviction_verdict
from gracectl.runtime.backoff import Backoff

KEY = ("shop", "web")
NAMES = [f"web-{number}" for number in range(6)]

names = st.sampled_from(NAMES)
delays = st.sampled_from((0.0, 0.05, 1.0, 3.0))
steps = st.one_of(
    st.tuples(st.just("add"), names, st.sampled_from((None, NOW + 60, NOW + 90)), st.sampled_from((NOW, NOW - 9))),
    st.tuples(st.sampled_from(("remove", "stop", "vanish", "recreate")), names),
    st.tuples(st.just("show"), names, st.booleans(), st.sampled_from(("Running", "Pending"))),
    st.tuples(st.just("budget"), st.integers(0, 2), st.sampled_from((0, 5, 6))),
    st.tuples(st.just("wait"), delays),
    st.tuples(st.sampled_from(("evict", "stop and evict", "exhaust", "postpone", "move to back", "pause")), delays),
)


class Play:
    """A queue, the caches over which it decides, and the plain answer to the same question."""

    def __init__(self) -> None:
        self.now = NOW
        self.pods = {name: a_pod(name) for name in NAMES}
        self.budget = a_budget(current_healthy=5, desired_healthy=5)
        self.lookup = PodLookup(pod=lambda _, name: self.pods.get(name), budget=lambda _: self.budget)
        self.queue = PdbQueue((KEY,), EvictionSettings(), Backoff(0.1, 10.0, rng=random.Random(0)), NOW)

    def decide(self) -> Evict | Wait | Idle:
        """What the queue does now; asserts that a walk over all pods says the same."""
        unobserved = {uid for uid, granted in self.queue._unobserved.items() if not self.is_shown(granted)}
        decision = self.queue.decide(self.now, self.lookup)
        assert self.queue._unobserved.keys() == unobserved
        if self.now >= self.queue._paused_until:
            assert decision == self.walk()
        return decision

    def is_shown(self, granted: _UnobservedEviction) -> bool:
        """Whether the watch has shown the cost of an eviction, or that it had none."""
        is_going = self.lookup.find(granted.candidate) is None
        is_newer = granted.is_going and granted.versions != (self.budget.resource_version,)
        return is_going and (is_newer or self.now >= granted.overdue)

    def walk(self) -> Evict | Wait | Idle:
        """The first pod, by failures and rank, that may be evicted."""
        queue, now, wake = self.queue, self.now, float("inf")
        overdue = min((each.overdue for each in queue._unobserved.values() if each.overdue > now), default=now + 60.0)
        in_order = sorted(queue.waiting.values(), key=lambda each: (queue._failures.get(each.uid, 0), each.order))
        queued = [(each, pod) for each in in_order if (pod := self.lookup.find(each))]
        for candidate, pod in queued:
            allowance = eviction_verdict(pod, (self.budget,), taken=len(queue._unobserved)).allowance
            is_exhausted = queue._exhausted_at == (self.budget.resource_version,)
            match allowance:
                case Allowance.UNCHARGED:
                    due = now
                case Allowance.ALLOWED:
                    due = max(now, queue._exhausted_until) if is_exhausted else now
                case _:
                    due = min(queue._probe_at, overdue)
            due = max(due, queue._not_before.get(candidate.uid, now))
            if due <= now:
                return Evict(candidate, allowance is Allowance.UNCHARGED)
            wake = min(wake, due)
        if queued:
            return Wait(wake - now)
        return Wait(overdue - now) if queue._unobserved else Idle()

    def show(self, name: str, **fields: object) -> None:
        before = self.pods.get(name) or a_pod(name)
        self.pods[name] = after = msgspec.structs.replace(before, **fields)
        for uid in {before.uid, after.uid}:
            self.queue.pod_changed(uid, self.lookup)

    def add(self, name: str, deadline: float | None, since: float) -> None:
        pod = self.pods.get(name) or a_pod(name)
        self.queue.add(EvictionCandidate(pod.namespace, name, pod.uid, pod.node_name, (KEY,), since, deadline))

    def change(self, what: str, name: str) -> None:
        uid = (self.pods.get(name) or a_pod(name)).uid
        match what:
            case "remove":
                self.queue.remove(uid)
            case "stop":
                self.show(name, deletion_timestamp=self.now + 30)
            case "recreate":
                self.show(name, uid=f"{uid}-again", deletion_timestamp=None)
            case _:
                self.pods.pop(name, None)
                self.queue.pod_changed(uid, self.lookup)

    def answer(self, what: str, seconds: float) -> None:
        request = self.decide()
        if not isinstance(request, Evict):
            return
        versions = self.queue.versions(self.lookup)
        if what == "stop and evict":  # the watch is faster than the answer
            self.change("stop", request.candidate.name)
        match what:
            case "evict" | "stop and evict":
                self.queue.on_evicted(request, self.now)
            case "exhaust":
                self.queue.on_budget_exhausted(request, versions, self.now, seconds or None)
            case "postpone":
                self.queue.postpone(request, self.now, seconds)
            case "move to back":
                self.queue.move_to_back(request)
            case _:
                self.queue.pause(self.now, seconds)


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, max_size=40))
@example([("evict", 0.0), ("vanish", "web-0"), ("show", "web-0", True, "Running"), ("budget", 0, 0)])
def test_the_choice_is_that_of_a_walk_over_all_pods(taken: list[tuple[object, ...]]) -> None:
    play, version = Play(), 1
    for name in NAMES[:3]:
        play.add(name, None, NOW)
    for step in taken:
        match step:
            case ("add", str(name), deadline, float(since)):
                assert deadline is None or isinstance(deadline, float)
                play.add(name, deadline, since)
            case ("show", str(name), bool(ready), str(phase)):
                play.show(name, ready=ready, phase=phase)
            case ("budget", int(allowed), int(healthy)):
                version += 1
                disrupted = {NAMES[version % len(NAMES)]: NOW} if healthy else {}
                play.budget = a_budget(
                    disruptions_allowed=allowed, current_healthy=healthy, desired_healthy=5, disrupted_pods=disrupted,
                    resource_version=str(version),
                )  # fmt: skip
            case ("wait", float(seconds)):
                play.now += seconds
            case (str(what), str(name)):
                play.change(what, name)
            case (str(what), float(seconds)):
                play.answer(what, seconds)
        play.decide()
