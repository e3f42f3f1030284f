"""Why a node is not drained yet, in one line for people."""

from __future__ import annotations

from support.builders import NOW, a_budget, a_pod, decide

from gracectl.policy.explain import explain, left_behind, summarize


def test_an_explanation_names_the_first_three_and_a_count_blocked_ones_first() -> None:
    blocked, others = a_pod("blocked"), [a_pod(f"pod-{n}", deletion_timestamp=NOW + 30) for n in range(4)]
    decision = decide(*others, blocked, budgets={blocked.uid: (a_budget(disruptions_allowed=0, current_healthy=2),)})
    assert explain(decision).startswith(
        "5 pods left: shop/blocked (budget shop/web allows no disruption now (2 of 3 healthy, 2 required)), shop/pod-0 "
    )
    assert explain(decision).endswith(", and 2 more")
    assert explain(decide()) == "all pods are gone"


def test_a_brief_line_begins_with_the_reason_of_the_most_urgent_pod() -> None:
    blocked, other = a_pod("blocked"), a_pod("other", deletion_timestamp=NOW + 30)
    budget = a_budget(disruptions_allowed=0, current_healthy=2)
    decision = decide(other, blocked, budgets={blocked.uid: (budget,)})
    reason = "budget shop/web allows no disruption now (2 of 3 healthy, 2 required)"
    assert summarize(decision) == f"{reason} – shop/blocked and 1 more"
    assert summarize(decide(other)) == "terminating until 1970-01-12T13:47:10Z – shop/other"
    assert summarize(decide()) == ""


def test_what_was_left_behind_at_the_deadline_is_named() -> None:
    pods = [a_pod(f"web-{n}") for n in range(4)]
    ending = a_pod("ending", deletion_timestamp=NOW + 30)
    assert left_behind(decide(*pods, ending, deadline=NOW)) == (
        "the deadline 1970-01-12T13:46:40Z has passed with 5 pods left: "
        "shop/ending (terminating), shop/web-0 (running), shop/web-1 (running), and 2 more"
    )
    assert left_behind(decide(deadline=NOW)) == ""
    assert left_behind(decide(*pods)) == ""
