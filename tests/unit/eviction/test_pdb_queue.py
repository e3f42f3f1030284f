"""One PDB queue, given the server's responses and the watch: which pod it evicts, and when, to the instant."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_budget, a_pod

from gracectl.eviction.pdb_queue import UNOBSERVED_SECONDS, Evict, EvictionCandidate, Idle, PdbQueue, PodLookup, Wait
from gracectl.eviction.settings import EvictionSettings
from gracectl.model.budget import PodDisruptionBudget, UnknownBudget
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.runtime.backoff import Backoff

WEB = ("shop", "web")
API = ("shop", "api")
SETTINGS = EvictionSettings()


class World:
    """What the caches show, a lane over it, and a clock that the test turns."""

    def __init__(self, *pods: Pod, budgets: tuple[PodDisruptionBudget, ...] = (), jitter: float = 0.0) -> None:
        self.now = NOW
        self.pods = {pod.key: pod for pod in pods}
        self.budgets = {budget.key: budget for budget in budgets}
        self.lookup = PodLookup(pod=lambda ns, name: self.pods.get((ns, name)), budget=self.budgets.get)
        backoff = Backoff(
            SETTINGS.backoff_initial_seconds, SETTINGS.backoff_maximum_seconds, jitter=jitter, rng=random.Random(1)
        )
        self.lane = PdbQueue(tuple(self.budgets), SETTINGS, backoff, self.now)
        for pod in pods:
            self.lane.add(a_candidate(pod, tuple(self.budgets)))

    def decide(self) -> Evict | Wait | Idle:
        return self.lane.decide(self.now, self.lookup)

    def asked(self) -> Evict:
        """The pod that the queue evicts now."""
        decision = self.decide()
        assert isinstance(decision, Evict), decision
        return decision

    def begun(self) -> Evict:
        """The same, and its request is on its way."""
        request = self.asked()
        self.lane.begin(request.candidate)
        return request

    def sleeps(self) -> float:
        """For how long the lane sleeps now."""
        decision = self.decide()
        assert isinstance(decision, Wait), decision
        return decision.seconds

    def on_evicted(self) -> Evict:
        """The server agrees to whatever is asked now."""
        request = self.begun()
        self.lane.on_evicted(request, self.now)
        self.lane.end(request.candidate.uid)
        return request

    def on_budget_exhausted(self, retry_after: float | None = None) -> Evict:
        request = self.asked()
        self.lane.on_budget_exhausted(request, self.lane.versions(self.lookup), self.now, retry_after)
        return request

    def show_pod(self, name: str, **fields: Any) -> None:
        """The watch of pods brings a change."""
        before = self.pods["shop", name]
        self.pods["shop", name] = after = msgspec.structs.replace(before, **fields)
        for uid in {before.uid, after.uid}:
            self.lane.pod_changed(uid, self.lookup)

    def show_gone(self, name: str) -> None:
        self.lane.pod_changed(self.pods.pop(("shop", name)).uid, self.lookup)

    def show_terminating(self, name: str) -> None:
        self.show_pod(name, deletion_timestamp=self.now + 30)

    def show_budget(self, key: tuple[str, str] = WEB, **fields: Any) -> None:
        """The watch of budgets brings a newer state."""
        old = self.budgets[key]
        version = str(int(old.resource_version) + 1)
        self.budgets[key] = shown = msgspec.structs.replace(old, resource_version=version, **fields)
        self.lane.budget_changed(shown)

    def show_spent(self, name: str) -> None:
        """What the eviction API itself writes."""
        self.show_budget(disruptions_allowed=0, disrupted_pods={name: self.now})


def a_candidate(pod: Pod, budgets: tuple[tuple[str, str], ...] = (WEB,), **fields: Any) -> EvictionCandidate:
    values: dict[str, Any] = {
        "namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "node": pod.node_name, "budgets": budgets,
        "terminating_since": NOW,
    }  # fmt: skip
    return EvictionCandidate(**{**values, **fields})


def three(**budget: Any) -> World:
    """web-1, web-2, web-3 under a budget that allows one disruption."""
    return World(*(a_pod(f"web-{n}") for n in (1, 2, 3)), budgets=(a_budget(**budget),))


def test_one_disruption_is_asked_for_once() -> None:
    world = three()
    assert world.on_evicted().candidate.name == "web-1"
    # The watch has shown nothing yet: the one disruption counts as taken.
    assert isinstance(world.decide(), Wait)
    world.show_spent("web-1")
    assert isinstance(world.decide(), Wait)
    world.show_terminating("web-1")
    world.show_budget(disrupted_pods={}, current_healthy=2)
    assert isinstance(world.decide(), Wait)
    world.show_budget(disruptions_allowed=1, current_healthy=3)
    assert world.asked().candidate.name == "web-2"


def test_a_pod_that_was_withdrawn_and_is_gone_before_the_answer_holds_its_lane_no_longer_than_others() -> None:
    world = three()
    request = world.asked()
    world.lane.remove("uid-web-1")
    del world.pods["shop", "web-1"]  # the lane is not told of pods that do not wait in it
    world.lane.on_evicted(request, world.now)
    assert isinstance(world.decide(), Wait)
    world.show_budget(disruptions_allowed=1)
    assert world.asked().candidate.name == "web-2"


@pytest.mark.parametrize(("first", "seconds"), [("pod", 0.0), ("budget", UNOBSERVED_SECONDS)])
def test_a_budget_that_frees_before_anything_else_was_shown_is_used(first: str, seconds: float) -> None:
    """The reconnected watches show the end of the story only: spent and free again, the pod gone. A budget that was
    shown before the pod went may be older than the eviction."""
    world = three()
    world.on_evicted()
    if first == "pod":
        world.show_gone("web-1")
    world.show_budget(disruptions_allowed=1)
    if first == "budget":
        world.show_gone("web-1")
        assert world.sleeps() == seconds
        world.now += seconds
    assert world.asked().candidate.name == "web-2"


@pytest.mark.parametrize("order", [("answer", "pod"), ("pod", "answer")])
def test_a_version_of_the_budget_that_is_older_than_an_eviction_does_not_show_its_cost(order: tuple[str, str]) -> None:
    """Two in a row: when the second is answered, the watch of budgets has come as far as the first."""
    world = World(*(a_pod(f"web-{n}") for n in (1, 2, 3, 4)), budgets=(a_budget(disruptions_allowed=2),))
    world.on_evicted()
    second = world.begun()
    world.show_budget(disruptions_allowed=1, disrupted_pods={"web-1": NOW})
    world.show_terminating("web-1")
    for what in order:
        if what == "answer":
            world.lane.on_evicted(second, world.now)
        else:
            world.show_terminating("web-2")
    assert isinstance(world.decide(), Wait)
    world.show_budget(disruptions_allowed=0, disrupted_pods={"web-1": NOW, "web-2": NOW})
    world.show_budget(disruptions_allowed=0, disrupted_pods={}, current_healthy=1)
    assert isinstance(world.decide(), Wait)
    world.show_budget(disruptions_allowed=1, current_healthy=2)
    assert world.asked().candidate.name == "web-3"


def test_a_cost_that_was_shown_and_struck_off_before_the_answer_is_not_counted_again() -> None:
    world = three()
    request = world.begun()
    world.show_spent("web-1")
    world.show_terminating("web-1")
    world.show_budget(disruptions_allowed=0, disrupted_pods={}, current_healthy=2)
    world.show_budget(disruptions_allowed=1, current_healthy=3)
    world.lane.on_evicted(request, world.now)
    assert world.asked().candidate.name == "web-2"


def test_an_eviction_that_cost_nothing_holds_the_lane_for_two_seconds_only() -> None:
    """The pod had become unready at the server: no budget event will ever come."""
    world = three()
    world.on_evicted()
    world.show_terminating("web-1")
    assert world.sleeps() == pytest.approx(UNOBSERVED_SECONDS)
    world.now += UNOBSERVED_SECONDS
    assert world.asked().candidate.name == "web-2"


def test_it_does_so_too_when_other_pods_change_in_that_instant() -> None:
    world = three()
    world.on_evicted()
    world.show_terminating("web-1")
    assert world.sleeps() == pytest.approx(UNOBSERVED_SECONDS)
    world.now += UNOBSERVED_SECONDS
    world.lane.pod_changed("uid-web-2", world.lookup)
    world.lane.pod_changed("uid-web-3", world.lookup)
    assert world.asked().candidate.name == "web-2"


def test_a_lane_forgets_the_last_cost_when_it_is_shown_or_overdue() -> None:
    world = World(a_pod("web-1"), budgets=(a_budget(),))
    world.on_evicted()
    assert not world.lane.is_idle
    world.show_terminating("web-1")
    assert world.sleeps() == pytest.approx(UNOBSERVED_SECONDS)
    world.now += UNOBSERVED_SECONDS
    assert world.decide() == Idle()
    assert world.lane.is_idle


def test_an_overdue_cost_of_a_pod_that_still_lives_in_the_cache_is_kept() -> None:
    """Both watches are late: the lane waits for them, and does not spin."""
    world = three()
    world.on_evicted()
    world.now += UNOBSERVED_SECONDS + 1
    assert world.sleeps() == pytest.approx(SETTINGS.probe_seconds - UNOBSERVED_SECONDS - 1)


def test_refusals_back_off_for_the_whole_lane_from_100_ms_to_10_s() -> None:
    world = three()
    waits, asked = [], []
    for _ in range(9):
        asked.append(world.on_budget_exhausted().candidate.name)
        waits.append(round(world.sleeps(), 6))
        world.now += waits[-1]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert set(asked) == {"web-1"}  # not one backoff per pod


def test_an_agreement_ends_the_backoff() -> None:
    world = three(disruptions_allowed=3)
    for _ in range(6):
        world.on_budget_exhausted()
        world.now += world.sleeps()
    world.on_evicted()
    world.on_budget_exhausted()
    assert world.sleeps() == pytest.approx(0.1)


def test_a_budget_that_is_not_observed_is_not_even_asked() -> None:
    world = three(observed_generation=0)
    assert world.sleeps() == pytest.approx(SETTINGS.probe_seconds)


@pytest.mark.parametrize(("pod", "budget", "is_uncharged"), [
    ({"phase": "Pending", "ready": False}, {}, True),
    ({"phase": "Pending", "ready": False}, {"observed_generation": 0}, True),
    ({"phase": "Failed", "ready": False}, {}, True),
    ({"ready": False}, {"current_healthy": 2, "desired_healthy": 2}, True),
    ({"ready": False}, {"current_healthy": 1, "desired_healthy": 2}, False),
    ({"ready": False}, {"current_healthy": 0, "desired_healthy": 0}, False),
    ({"ready": False}, {"current_healthy": 0, "unhealthy_pod_eviction_policy": "AlwaysAllow"}, True),
    ({"ready": False},
     {"current_healthy": 1, "desired_healthy": 2, "unhealthy_pod_eviction_policy": "IfHealthyBudget"}, False),
    ({}, {"unhealthy_pod_eviction_policy": "AlwaysAllow"}, False),
])  # fmt: skip
def test_a_free_pod_does_not_wait_for_the_queue(
    pod: dict[str, Any], budget: dict[str, Any], is_uncharged: bool
) -> None:
    world = World(a_pod("web-1"), a_pod("web-2", **pod), budgets=(a_budget(**{**budget, "disruptions_allowed": 0}),))
    decision = world.decide()
    if is_uncharged:
        assert decision == Evict(a_candidate(world.pods["shop", "web-2"]), is_uncharged=True)
    else:
        assert decision == Wait(SETTINGS.probe_seconds)


def test_free_pods_take_nothing_from_the_budget() -> None:
    world = World(a_pod("web-1", phase="Pending", ready=False), a_pod("web-2"), a_pod("web-3"), budgets=(a_budget(),))
    assert world.on_evicted().is_uncharged
    assert world.on_evicted().candidate.name == "web-2"
    assert isinstance(world.decide(), Wait)


def test_a_free_pod_that_is_refused_waits_alone() -> None:
    """It has become Ready at the server: the others are no concern of it."""
    world = World(a_pod("web-1", phase="Pending", ready=False), a_pod("web-2"), budgets=(a_budget(),))
    assert world.on_budget_exhausted().candidate.name == "web-1"
    assert world.on_evicted().candidate.name == "web-2"
    assert world.sleeps() == pytest.approx(0.1)
    world.now += 0.1
    assert world.asked().candidate.name == "web-1"


def test_a_free_pod_that_is_refused_hears_news_of_the_budget() -> None:
    """It was just edited, and the server names 10 s for what takes it milliseconds."""
    world = World(a_pod("web-1", phase="Pending", ready=False), budgets=(a_budget(),))
    assert world.on_budget_exhausted(retry_after=10.0).candidate.name == "web-1"
    assert world.sleeps() == pytest.approx(10.0)
    world.now += 0.05
    world.show_budget()
    assert world.asked().candidate.name == "web-1"


def test_news_of_the_budget_does_not_hurry_a_pod_that_a_webhook_has_refused() -> None:
    world = World(a_pod("web-1", phase="Pending", ready=False), budgets=(a_budget(),))
    world.on_budget_exhausted(retry_after=10.0)
    world.now += 10.0
    world.lane.postpone(world.asked(), world.now, 30.0)
    world.show_budget()
    assert world.sleeps() == pytest.approx(30.0)


def test_a_lane_that_is_refused_for_two_budgets_never_spins() -> None:
    """Its patience and the time to probe end a moment apart: no decision may ask to be repeated at once."""
    world = World(a_pod("web-1"), budgets=(a_budget(), a_budget("api")))
    world.decide()
    for _ in range(4):
        world.now += 0.01
        world.asked()
        world.lane.on_multiple_budgets(world.lane.versions(world.lookup), world.now)
        slept = world.sleeps()
        assert slept == pytest.approx(SETTINGS.misconfigured_retry_seconds)
        world.now += slept


@pytest.mark.parametrize(("seconds", "expected"), [(7.0, 7.0), (None, 0.1)])
def test_a_closed_queue_evicts_no_pod_not_even_free_ones(seconds: float | None, expected: float) -> None:
    world = World(a_pod("web-1", phase="Pending", ready=False), a_pod("web-2"), budgets=(a_budget(),))
    world.lane.pause(world.now, seconds)
    assert world.sleeps() == pytest.approx(expected)
    world.show_budget(disruptions_allowed=2)
    assert world.sleeps() == pytest.approx(expected)
    world.now += expected
    assert world.asked().candidate.name == "web-1"


def test_a_spent_budget_is_probed_after_a_minute_without_news() -> None:
    world = three(disruptions_allowed=0)
    assert world.sleeps() == pytest.approx(60.0)
    world.now += 40.0
    world.show_budget(current_healthy=2)  # news: the watch is alive
    assert world.sleeps() == pytest.approx(60.0)
    world.now += 60.0
    assert world.on_budget_exhausted().candidate.name == "web-1"
    assert world.sleeps() == pytest.approx(60.0)


def test_earliest_deadline_first_then_the_oldest_termination() -> None:
    pods = [a_pod(f"web-{n}") for n in range(1, 6)]
    world = World(*pods, budgets=(a_budget(disruptions_allowed=5),))
    details: tuple[dict[str, Any], ...] = (
        {"terminating_since": NOW - 5}, {"terminating_since": NOW - 9},
        {"terminating_since": NOW, "deadline": NOW + 60}, {"terminating_since": NOW - 99, "deadline": NOW + 90},
        {"terminating_since": NOW - 9},
    )  # fmt: skip
    for pod, fields in zip(pods, details, strict=True):
        world.lane.add(a_candidate(pod, **fields))
    assert [world.on_evicted().candidate.name for _ in pods] == ["web-3", "web-4", "web-2", "web-5", "web-1"]


def test_a_budget_that_is_deleted_blocks_no_pod() -> None:
    world = three(disruptions_allowed=0)
    assert isinstance(world.decide(), Wait)
    world.budgets.clear()
    assert world.asked().is_uncharged


def test_under_a_budget_that_is_set_aside_no_pod_is_evicted_and_no_eviction_is_tried() -> None:
    unknown = UnknownBudget("shop", "web", "uid-web", "1", selector=LabelSelector(), error="too large")
    world = World(*(a_pod(f"web-{n}") for n in (1, 2)), budgets=(unknown,))
    for _ in range(3):
        decision = world.decide()
        assert decision == Wait(float("inf"))
        world.now += 1_000.0
    world.show_pod("web-1", phase="Pending")
    assert world.asked().is_uncharged
