"""Pods that have just lost their budget wait until the change has settled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_budget, a_pod, decide, entry, outcomes

from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.policy.membership import FORMER_LABELS, LostBudget, Memberships
from gracectl.policy.plan import Blocker, Outcome

OTHER = LabelSelector({"app": "other"})


def relabelled(pod: Pod, **labels: str) -> Pod:
    return msgspec.structs.replace(pod, labels=labels)


def lost(memberships: Memberships, pod: Pod, now: float) -> dict[str, LostBudget]:
    """As a tracker asks, where budget shop/web selects `app: web`."""
    former = memberships.former([pod], now)
    before = [(each, "shop/web") for each in former if each.pod.labels.get("app") == "web"]
    return memberships.lost([pod], before, now)


def test_a_pod_that_loses_its_label_waits_from_then_on() -> None:
    memberships, pod = Memberships(60.0), a_pod()
    after = relabelled(pod, app="standby")
    memberships.pod_changed(pod, after, NOW)
    assert lost(memberships, after, NOW + 59.9) == {pod.uid: LostBudget("shop/web", NOW, NOW + 60)}
    assert lost(memberships, after, NOW + 60) == {}


def test_a_second_change_of_its_labels_does_not_hide_the_first() -> None:
    memberships, pod = Memberships(60.0), a_pod()
    first = relabelled(pod, app="standby")
    second = relabelled(pod, app="standby", more="x")
    memberships.pod_changed(pod, first, NOW)
    memberships.pod_changed(first, second, NOW + 5)
    assert lost(memberships, second, NOW + 30) == {pod.uid: LostBudget("shop/web", NOW, NOW + 60)}


def test_a_change_of_anything_else_is_none() -> None:
    memberships, pod = Memberships(60.0), a_pod()
    memberships.pod_changed(None, pod, NOW)
    memberships.pod_changed(pod, msgspec.structs.replace(pod, ready=False), NOW)
    memberships.pod_changed(pod, msgspec.structs.replace(relabelled(pod), uid="another"), NOW)
    assert len(memberships) == 0


@pytest.mark.parametrize(("new", "created", "waits"), [
    (a_budget(selector=OTHER), NOW - 1, True), (a_budget(selector=None), NOW - 1, True),
    (a_budget(selector=OTHER), NOW, False),  # a new pod
    (a_budget(uid="another", selector=OTHER), NOW - 1, False),
    (None, NOW - 1, False),  # on purpose
])  # fmt: skip
def test_a_budget_that_selects_something_else(new: Any, created: float, waits: bool) -> None:
    memberships, pod = Memberships(60.0), a_pod(created=created)
    memberships.budget_changed(a_budget(), new, NOW)
    assert lost(memberships, pod, NOW + 1) == ({pod.uid: LostBudget("shop/web", NOW, NOW + 60)} if waits else {})
    assert lost(memberships, msgspec.structs.replace(pod, namespace="other"), NOW + 1) == {}


def test_what_is_remembered_is_bounded_and_forgotten() -> None:
    memberships, pod = Memberships(60.0), a_pod()
    for number in range(50):
        after = relabelled(pod, app="web", number=str(number))
        memberships.pod_changed(pod, after, NOW)
        memberships.budget_changed(a_budget(), a_budget(selector=OTHER), NOW)
        pod = after
    assert len(memberships.former([pod], NOW)) == FORMER_LABELS
    memberships.budget_changed(a_budget(selector=LabelSelector({str(n): "" for n in range(2000)})), a_budget(), NOW)
    assert len(memberships) == 2
    memberships.forget_old(NOW + 59)
    assert len(memberships) == 2
    memberships.forget_old(NOW + 60)
    assert len(memberships) == 0
    memberships.pod_changed(pod, relabelled(pod), NOW)
    memberships.pod_changed(pod, None, NOW)
    assert len(memberships) == 0


def test_a_plan_waits_and_says_for_what() -> None:
    just = {"uid-web-1": LostBudget("shop/web", NOW - 20, NOW + 40)}
    decision = decide(a_pod(), lost_budgets=just)
    assert outcomes(decision) == {"web-1": Outcome.WAITING}
    planned = entry(decision, "web-1")
    assert (planned.blocker, planned.until, decision.next_change) == (Blocker.SETTLING, NOW + 40, NOW + 40)
    assert planned.reason == "budget shop/web selected it until 1970-01-12T13:46:20Z; eviction waits"
    assert not decision.leaving


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [({"deadline": NOW + 30}, Outcome.DELETE), ({"budgets": {"uid-web-1": (a_budget(),)}}, Outcome.EVICT)],
)
def test_a_deadline_and_another_budget_end_the_wait(fields: dict[str, Any], outcome: Outcome) -> None:
    just = {"uid-web-1": LostBudget("shop/web", NOW - 20, NOW + 40)}
    assert outcomes(decide(a_pod(), lost_budgets=just, **fields)) == {"web-1": outcome}
    assert outcomes(decide(a_pod(phase="Pending", ready=False), lost_budgets=just)) == {"web-1": Outcome.EVICT}
