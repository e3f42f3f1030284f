"""When never is said: of what one reading proves, or of what two readings agree on, and only until it changes."""

from __future__ import annotations

from typing import Any

from support.builders import NOW, a_budget, a_pod, ending, owned_by

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.meta import Condition
from gracectl.policy.answers import Answer, Never, NeverCause, NeverKind, Sightings, Unknown
from gracectl.policy.confirmation import AGREE_SECONDS, SETTLED_SECONDS, confirmed, current, is_unconfirmed
from gracectl.policy.forecast import Assumptions, Forecast, forecast
from gracectl.policy.observations import ObservationLog, Observations

WEB = ("shop", "web")
CAUSE = NeverCause(NeverKind.BUDGET_ALLOWS_NOTHING, "why", "shop/web", ("shop/web",), is_settled=False)


def spent(**more: Any) -> PodDisruptionBudget:
    return a_budget(disruptions_allowed=0, desired_healthy=3, min_available=3, **more)


def read(budget: PodDisruptionBudget, at: float, seen: Sightings, **more: Any) -> tuple[Forecast, Sightings]:
    pod = a_pod("web", owners=owned_by("ReplicaSet"))
    return confirmed(forecast([ending("n1", pod, budgets=(budget,))], NOW + at, Assumptions(**more)), seen)


def drained(prediction: Forecast) -> Answer:
    (node,) = prediction.nodes
    (pod,) = node.pods
    assert type(pod.gone) is type(node.drained)
    return node.drained


def test_two_readings_must_agree() -> None:
    first, seen = read(spent(), 0, {})
    assert drained(first) == Unknown(
        ("whether this lasts: budget shop/web allows no disruption now (3 of 3 healthy, 3 required)",)
    )
    assert is_unconfirmed(first, seen)
    assert isinstance(drained(read(spent(), AGREE_SECONDS - 1, seen)[0]), Unknown)
    second, seen = read(spent(), AGREE_SECONDS, seen)
    assert isinstance(drained(second), Never)
    assert not is_unconfirmed(second, seen)


def test_a_reading_between_them_that_shows_no_cause_makes_them_begin_again() -> None:
    _, seen = read(spent(), 0, {})
    _, seen = read(a_budget(), 2, seen)
    assert isinstance(drained(read(spent(), AGREE_SECONDS, seen)[0]), Unknown)


def test_a_budget_that_was_seen_to_require_less_must_show_it_for_longer() -> None:
    """Of a StatefulSet, whose pods are counted as they are, it seems so whenever one of them is being replaced."""
    observed = Observations(allowing=frozenset({WEB}))
    _, seen = read(spent(), 0, {}, observed=observed)
    assert isinstance(drained(read(spent(), AGREE_SECONDS, seen, observed=observed)[0]), Unknown)
    assert isinstance(drained(read(spent(), SETTLED_SECONDS, seen, observed=observed)[0]), Never)


def test_a_status_that_has_allowed_nothing_for_long_is_a_reading_of_its_own() -> None:
    for ago, answer in ((SETTLED_SECONDS, Never), (SETTLED_SECONDS - 1, Unknown)):
        verdict = Condition(names.DISRUPTION_ALLOWED, "False", "InsufficientPods", "", NOW - ago)
        assert isinstance(drained(read(spent(verdict=verdict), 0, {})[0]), answer)


def test_what_a_spec_says_needs_one_reading() -> None:
    budget = a_budget(disruptions_allowed=0, desired_healthy=3, max_unavailable=0)
    answer, seen = read(budget, 0, {})
    assert isinstance(drained(answer), Never)
    assert not is_unconfirmed(answer, seen)


def test_more_pods_than_a_budget_counts_may_make_it_allow() -> None:
    """It requires all pods that controllers want, and was seen to allow one: pods without them have its labels, too."""
    log = ObservationLog()
    log.note_budget(a_budget(current_healthy=4, desired_healthy=3, max_unavailable=0), NOW)
    observed = log.observations()
    now_spent = a_budget(disruptions_allowed=0, desired_healthy=3, max_unavailable=0)
    _, seen = read(now_spent, 0, {}, observed=observed)
    assert isinstance(drained(read(now_spent, AGREE_SECONDS, seen, observed=observed)[0]), Unknown)
    assert isinstance(drained(read(now_spent, SETTLED_SECONDS, seen, observed=observed)[0]), Never)


def test_what_a_spec_says_needs_two_readings_if_the_budget_has_allowed_something_before() -> None:
    for created, answer in ((NOW - 1, Never), (NOW - 3600, Unknown)):
        verdict = Condition(names.DISRUPTION_ALLOWED, "False", "InsufficientPods", "", NOW)
        budget = a_budget(disruptions_allowed=0, desired_healthy=3, max_unavailable=0, verdict=verdict, created=created)
        assert isinstance(drained(read(budget, 0, {})[0]), answer)


def test_never_is_not_said_of_what_has_changed_since() -> None:
    answer, _ = read(a_budget(disruptions_allowed=0, desired_healthy=3, max_unavailable=0), 0, {})
    assert current(answer, lambda cause: NOW) is answer
    shown = drained(current(answer, lambda cause: NOW + 1))
    assert isinstance(shown, Unknown)
    assert shown.missing[0].startswith("what follows from a change of this: budget shop/web ")


def test_a_log_knows_when_the_object_of_a_cause_changed() -> None:
    log = ObservationLog()
    log.note_budget(spent(), NOW)
    log.note_budget(spent(resource_version="2", current_healthy=2), NOW + 1)  # that does not matter
    assert log.changed_at(CAUSE) == NOW
    log.note_budget(a_budget(generation=2), NOW + 2)
    assert log.changed_at(CAUSE) == NOW + 2
    web = a_pod("web")
    log.note_pod(None, web, NOW + 3)
    log.note_pod(web, a_pod("web", ready=False), NOW + 3)
    assert log.changed_at(CAUSE) == NOW + 2
    log.note_pod(web, a_pod("web", annotations={names.DO_NOT_DISRUPT: "true"}), NOW + 4)
    assert log.changed_at(CAUSE) == NOW + 4
    log.forget_budget(WEB)
    assert log.changed_at(CAUSE) == float("inf")
