"""What a forecast answers: a range where a status only lags, unknown where something may end by itself, and never for
what a person must change.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import NOW, a_budget, a_pod, ending, owned_by

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod
from gracectl.policy.answers import Answer, Never, NeverKind, Unknown, Window, last_of
from gracectl.policy.forecast import Assumptions, NodeForecast, forecast
from gracectl.policy.observations import ObservationLog, Observations
from gracectl.policy.settings import PolicySettings, ProtectionSettings

REPLICA = owned_by("ReplicaSet")
SET = owned_by("StatefulSet")
JOB = owned_by("Job")
SPENT: dict[str, Any] = {"disruptions_allowed": 0, "desired_healthy": 3}
WEB = ("shop", "web")


def of_node(*pods: Pod, budgets: Any = (), observed: Observations | None = None, **more: Any) -> NodeForecast:
    assumptions = Assumptions(replacement_seconds=20.0, observed=observed or Observations())
    (node,) = forecast([ending("n1", *pods, budgets=budgets, **more)], NOW, assumptions).nodes
    return node


def a_range(answer: Answer | None) -> tuple[float, float]:
    assert isinstance(answer, Window), answer
    return answer.earliest - NOW, answer.latest - NOW


def missing(node: NodeForecast) -> tuple[str, ...]:
    assert isinstance(node.drained, Unknown), node.drained
    return node.drained.missing


def kinds(node: NodeForecast) -> list[NeverKind]:
    assert isinstance(node.drained, Never), node.drained
    return [cause.kind for cause in node.drained.causes]


def test_an_eviction_that_is_charged_and_not_counted_is_replaced_in_time() -> None:
    """The window in which a drain was called "never": 3 of 3 healthy, 2 required, and yet none allowed."""
    node = of_node(a_pod("web", owners=REPLICA), budgets=(a_budget(disruptions_allowed=0),))
    assert a_range(node.drained) == (2, 50)
    assert a_range(node.pods[0].leaves) == (0, 20)


def test_of_several_disruptions_only_those_in_flight_are_missing() -> None:
    pods = [a_pod(f"web-{n}", owners=REPLICA) for n in range(2)]
    budget = a_budget(disruptions_allowed=1, current_healthy=6, desired_healthy=3, expected_pods=6)
    node = of_node(*pods, budgets=(budget,))
    assert [a_range(pod.leaves) for pod in node.pods] == [(0, 0), (0, 20)]


def test_a_pod_that_the_status_has_as_evicted_is_not_evicted_again() -> None:
    pods = [a_pod(f"web-{n}", owners=SET, created=NOW - 60) for n in range(2)]
    budget = a_budget(disruptions_allowed=0, disrupted_pods={"web-0": NOW - 1})
    node = of_node(*pods, budgets=(budget,))
    # web-0 terminates within 30 s, its successor is Ready 20 s later, and web-1 terminates.
    assert [a_range(pod.gone) for pod in node.pods] == [(0, 30), (0, 80)]


def test_the_successor_of_an_evicted_pod_is_another_pod() -> None:
    pod = a_pod("web-0", owners=SET, created=NOW - 1)
    node = of_node(pod, budgets=(a_budget(disruptions_allowed=0, disrupted_pods={"web-0": NOW - 9}),))
    assert a_range(node.pods[0].leaves) == (0, 50)  # 30 s of grace and 20 s of the eviction in flight, then its turn


@pytest.mark.parametrize("status", [
    {"generation": 2},
    {"generation": 2, "disruptions_allowed": 0, "desired_healthy": 3},
    {"expected_pods": 0, "current_healthy": 0, "desired_healthy": 0, "disruptions_allowed": 0},
], ids=["edited", "edited-and-spent", "zeros"])  # fmt: skip
def test_a_budget_that_is_being_counted_is_unknown(status: dict[str, Any]) -> None:
    node = of_node(a_pod("web", owners=REPLICA), budgets=(a_budget(**status),))
    assert missing(node) == ("what budget shop/web allows: it is being counted",)


def test_of_a_budget_that_is_being_counted_the_deadline_is_known() -> None:
    node = of_node(a_pod("web", owners=REPLICA), budgets=(a_budget(generation=2, disruptions_allowed=0),), deadline=900)
    assert a_range(node.drained) == (2, 900)


@pytest.mark.parametrize(("pod", "budgets"), [
    ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, ()),
    ({"labels": {names.DO_NOT_EVICT: "true"}}, ()),
    ({}, (a_budget(**SPENT),)), ({}, (a_budget("also"), a_budget("web"))),
], ids=["do-not-disrupt", "do-not-evict", "budget", "two-budgets"])  # fmt: skip
def test_a_pod_of_a_job_leaves_when_its_job_ends(pod: dict[str, Any], budgets: Any) -> None:
    owned = of_node(a_pod("report-1", owners=JOB, **pod), budgets=budgets)
    assert missing(owned) == (f"when Job shop/{JOB[0].name} of shop/report-1 ends",)
    bare = of_node(a_pod("report-1", completes=True, **pod), budgets=budgets)
    assert missing(bare) == ("when shop/report-1 completes",)


def test_what_a_budget_recovers_from_is_named() -> None:
    node = of_node(a_pod("web", owners=REPLICA), budgets=(a_budget(disruptions_allowed=0, current_healthy=1),))
    assert missing(node) == ("when budget shop/web recovers: 2 of 3 pods are not Ready",)


def test_a_protection_that_has_not_begun_is_unknown() -> None:
    settings = PolicySettings(protection=ProtectionSettings(reference="start"))
    node = of_node(a_pod("late", annotations={names.DO_NOT_DISRUPT: "4h"}, started=None), settings=settings)
    assert missing(node) == ("when shop/late starts: its protection counts from then",)


UNCOUNTED = Condition(names.DISRUPTION_ALLOWED, "False", names.SYNC_FAILED, "jobs does not implement the scale", NOW)


@pytest.mark.parametrize(("pod", "budgets", "kind", "is_settled"), [
    ({"annotations": {names.DO_NOT_DISRUPT: "true"}}, (), NeverKind.PROTECTION, True),
    ({"annotations": {names.DO_NOT_DISRUPT: "soon"}}, (), NeverKind.PROTECTION, True),
    ({"labels": {names.DO_NOT_EVICT: "true"}}, (), NeverKind.PROTECTION, True),
    ({}, (a_budget("also"), a_budget("web")), NeverKind.TWO_BUDGETS, True),
    ({}, (a_budget(disruptions_allowed=0, verdict=UNCOUNTED),), NeverKind.BUDGET_NOT_COUNTED, False),
    ({}, (a_budget(**SPENT, max_unavailable=0),), NeverKind.BUDGET_ALLOWS_NOTHING, True),
    ({}, (a_budget(**SPENT, min_available="100%"),), NeverKind.BUDGET_ALLOWS_NOTHING, True),
    ({}, (a_budget(**SPENT, min_available=3),), NeverKind.BUDGET_ALLOWS_NOTHING, False),
    ({}, (a_budget(**SPENT, max_unavailable="10%"),), NeverKind.BUDGET_ALLOWS_NOTHING, False),
])  # fmt: skip
def test_structural_causes(pod: dict[str, Any], budgets: Any, kind: NeverKind, is_settled: bool) -> None:
    node = of_node(a_pod("web", owners=REPLICA, **pod), budgets=budgets)
    assert kinds(node) == [kind]
    assert isinstance(node.drained, Never)
    (cause,) = node.drained.causes
    assert (cause.pod, cause.is_settled) == ("shop/web", is_settled)
    assert node.pods[0].gone == node.drained


def test_bare_pods_that_use_up_their_budget() -> None:
    pods = [a_pod(f"web-{n}", owners=()) for n in range(3)]
    node = of_node(*pods, budgets=(a_budget(min_available=2),))
    assert kinds(node) == [NeverKind.NOT_REPLACED] * 2


def test_a_total_is_never_one_of_the_rest() -> None:
    ranges = Window(NOW, NOW + 9, NOW + 5), Window(NOW + 1, NOW + 4, NOW + 3)
    unknown, never = Unknown(("when it ends",), NOW + 7), Never(())
    assert last_of(ranges) == Window(NOW + 1, NOW + 9, NOW + 5)
    assert last_of([*ranges, unknown, never]) == Unknown(("when it ends",), NOW + 7)
    assert last_of([*ranges, never]) == last_of(ranges)
    assert last_of([never, never]) == never
    assert last_of([]) is None


def test_what_was_seen_to_become_missing_comes_back_in_time_whatever_is_allowed() -> None:
    pods = [a_pod(f"web-{n}", owners=REPLICA) for n in range(3)]
    budget = a_budget(disruptions_allowed=1, current_healthy=4, desired_healthy=3, expected_pods=5)
    assert missing(of_node(*pods[:2], budgets=(a_budget(disruptions_allowed=0, current_healthy=2),)))
    seen = Observations(missing_since={WEB: (NOW - 15,)})
    assert a_range(of_node(*pods, budgets=(budget,), observed=seen).pods[1].leaves) == (0, 5)
    lost = Observations(missing_since={WEB: (NOW - 60,)})
    assert a_range(of_node(*pods, budgets=(budget,), observed=lost).pods[1].leaves) == (0, 20)


def test_replacements_that_took_longer_are_expected_to_take_as_long_again() -> None:
    pods = [a_pod(f"web-{n}", owners=REPLICA) for n in range(2)]
    seen = Observations(recoveries={WEB: (40.0, 50.0, 90.0)}, termination_seconds=3.0)
    node = of_node(*pods, budgets=(a_budget(),), observed=seen)
    assert node.drained == Window(NOW + 2, NOW + 120, NOW + 53)


def test_without_observations_nothing_is_expected() -> None:
    drained = of_node(a_pod("web", owners=REPLICA), budgets=(a_budget(),)).drained
    assert isinstance(drained, Window)
    assert drained.expected is None


def test_a_log_measures_from_the_eviction_until_the_replacement_counts() -> None:
    log = ObservationLog()
    statuses: tuple[tuple[int, dict[str, Any]], ...] = (
        (0, {}),
        (1, {"disruptions_allowed": 0}),  # charged
        (2, {"disruptions_allowed": 0, "current_healthy": 2}),  # counted
        (13, {}),
        (14, {"disruptions_allowed": 0}),
    )
    for seconds, status in statuses:
        log.note_budget(a_budget(**status), NOW + seconds)
    observations = log.observations()
    assert observations.recoveries == {WEB: (12.0,)}
    assert observations.missing_since == {WEB: (NOW + 14,)}
    assert observations.allowing == {WEB}
    log.note_budget(a_budget(expected_pods=2, current_healthy=2, desired_healthy=2, disruptions_allowed=0), NOW + 15)
    assert log.observations().missing_since == {}
    log.note_budget(a_budget(uid="another"), NOW + 16)
    assert log.observations().recoveries == {}
    log.forget_budget(WEB)
    assert log.observations() == Observations()


def test_a_log_measures_terminations() -> None:
    log = ObservationLog()
    log.note_gone(a_pod("lost"), NOW)
    for seconds in (4, 6, 20):
        log.note_gone(a_pod("web", deletion_timestamp=NOW + 30, deletion_grace_seconds=30), NOW + seconds)
    assert log.observations().termination_seconds == 6.0


@pytest.mark.parametrize(("fields", "leaves", "ends"), [
    pytest.param({"annotations": {names.REPLACE_FIRST: "true"}, "owners": REPLICA}, 0, 0, id="it is replaced first"),
    pytest.param({"annotations": {names.DO_NOT_DISRUPT: "true"}, "owners": JOB}, 570, 0, id="its Job ends"),
    pytest.param({"annotations": {names.DO_NOT_DISRUPT: "true"}}, 570, 570, id="nothing ends its protection"),
])  # fmt: skip
def test_what_may_end_at_any_time_ends_a_drain_before_its_deadline(
    fields: dict[str, Any], leaves: float, ends: float
) -> None:
    """Pods of later waves leave then, too."""
    held, later = a_pod("held", **fields), a_pod("dns", priority=2_000_000_000)
    node = of_node(held, later, deadline=600, since=NOW - 60)
    assert a_range(node.drained) == (ends, 600)
    found = {pod.entry.pod.name: pod for pod in node.pods}
    assert a_range(found["held"].leaves)[0] == leaves
    assert a_range(found["dns"].leaves)[0] == ends
