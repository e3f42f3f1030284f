"""A forecast does not count on replacements of which the objects show that they do not become Ready."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_budget, a_pod, ending, owned_by

from gracectl.model import names
from gracectl.model.meta import Condition, OwnerReference
from gracectl.model.pod import Pod
from gracectl.policy.answers import Answer, Never, Unknown, Window
from gracectl.policy.forecast import Assumptions, forecast
from gracectl.policy.observations import Observations
from gracectl.policy.scenario import DrainingNode

REPLICA = (OwnerReference("ReplicaSet", "web-7d9f", "uid-web-7d9f", controller=True),)
LABELS = {"app": "web", names.POD_TEMPLATE_HASH: "7d9f"}
WEB = ("shop", "web")
NO_NODE = "when a node takes the Pending pods of Deployment shop/web"
NOT_READY = "when pods of Deployment shop/web become Ready"
LACKS_ONE: dict[str, Any] = {"disruptions_allowed": 0, "current_healthy": 2}


def starting(name: str = "web-new", **fields: Any) -> Pod:
    """A pod that is not Ready, on another node."""
    defaults = {"ready": False, "phase": "Pending", "node_name": "n2", "labels": LABELS, "owners": REPLICA}
    return a_pod(name, **{**defaults, **fields})


def draining(*found: Pod, pods: int = 2, began: float = 0.0, **more: Any) -> DrainingNode:
    """A node with two pods of a budget, of which `found` should have become Ready; its drain began at NOW + `began`."""
    budgets = more.pop("budgets", (a_budget(),))
    there = [a_pod(f"web-{number}", labels=LABELS, owners=REPLICA) for number in range(pods)]
    node = ending("n1", *there, budgets=budgets, since=NOW + began, **more)
    return msgspec.structs.replace(node, starting={WEB: found} if found else {})


def drained(node: DrainingNode, observed: Observations | None = None) -> Answer:
    return forecast([node], NOW, Assumptions(observed=observed or Observations())).nodes[0].drained


@pytest.mark.parametrize(("pod", "began", "missing"), [
    pytest.param({"node_name": "", "created": NOW - 2}, 0, NO_NODE, id="no node"),
    pytest.param({"node_name": "", "created": NOW - 86400}, 0, NO_NODE, id="no node for a day"),
    pytest.param({"created": NOW - 31}, -60, NOT_READY, id="late"),
    pytest.param({"created": NOW - 31, "phase": "Running"}, -60, NOT_READY, id="crashing"),
    pytest.param({"created": NOW - 29}, -60, None, id="it has a second left"),
    pytest.param({"created": NOW - 600, "phase": "Running"}, -60, None, id="it replaces no pod of this drain"),
])  # fmt: skip
def test_one_pod_that_should_have_become_ready(pod: dict[str, Any], began: float, missing: str | None) -> None:
    answer = drained(draining(starting(**pod), began=began))
    assert isinstance(answer, Window if missing is None else Unknown), answer
    assert answer.earliest == (NOW + 2 if began == 0 else NOW)
    assert getattr(answer, "missing", None) == (None if missing is None else (missing,))


@pytest.mark.parametrize(("since", "began", "is_known"), [
    pytest.param((NOW - 31,), -60, False, id="late"),
    pytest.param((NOW - 29,), -60, True, id="it has a second left"),
    pytest.param((NOW - 600,), -60, True, id="missing since before the drain"),
    pytest.param((NOW - 600, NOW - 31), -60, False, id="one of two"),
])  # fmt: skip
def test_a_replacement_that_was_observed_to_be_late(since: tuple[float, ...], began: float, is_known: bool) -> None:
    """The budget allows a disruption, so only the replacement of its next pod matters."""
    budget = a_budget(current_healthy=3, expected_pods=4)
    answer = drained(draining(began=began, budgets=(budget,)), Observations(missing_since={WEB: since}))
    assert isinstance(answer, Window if is_known else Unknown), answer
    if isinstance(answer, Unknown):
        assert answer.missing == ("when budget shop/web recovers: 1 of 4 pods is not Ready",)


def test_a_pod_that_still_terminates_here_is_not_replaced_yet() -> None:
    leaving = a_pod(
        "db-0", labels=LABELS, owners=owned_by("StatefulSet"), deletion_timestamp=NOW + 540, grace_seconds=600
    )
    there = [a_pod(f"db-{number}", labels=LABELS, owners=owned_by("StatefulSet")) for number in (1, 2)]
    budget = a_budget(current_healthy=3, expected_pods=4)
    node = ending("n1", leaving, *there, budgets=(budget,), since=NOW - 60)
    assert isinstance(drained(node, Observations(missing_since={WEB: (NOW - 60,)})), Window)


@pytest.mark.parametrize(("budget", "observed", "is_known"), [
    pytest.param({}, {}, False, id="a new workload"),
    pytest.param({"verdict": Condition("DisruptionAllowed", "False", last_transition=NOW - 1)}, {}, True, id="it was"),
    pytest.param({}, {"missing_since": {WEB: (NOW - 1, NOW - 1)}}, True, id="it was seen to be"),
])  # fmt: skip
def test_nothing_shows_that_a_pod_can_be_ready_before_one_is(
    budget: dict[str, Any], observed: dict[str, Any], is_known: bool
) -> None:
    """The budget is counted anew: what it lacks comes in time if its pods have been Ready before."""
    new = {"created": NOW - 5, "verdict": Condition("DisruptionAllowed", "False", last_transition=NOW - 4)}
    spent = a_budget(disruptions_allowed=0, current_healthy=0, desired_healthy=1, expected_pods=2, **{**new, **budget})
    spent = msgspec.structs.replace(spent, created=NOW - 600) if budget else spent
    answer = drained(draining(pods=1, budgets=(spent,)), Observations(**observed))
    assert isinstance(answer, Window if is_known else Unknown), answer


def test_a_replacement_may_take_as_long_as_others_were_observed_to() -> None:
    """Where new machines take a minute, a pod that has waited for one for less is no sign."""
    seen = Observations(recoveries={WEB: (70.0,)})
    assert isinstance(drained(draining(starting(node_name="", created=NOW - 69)), seen), Window)
    assert isinstance(drained(draining(starting(node_name="", created=NOW - 70)), seen), Unknown)


def test_a_drain_that_needs_no_replacement_has_its_range() -> None:
    stuck = starting(node_name="", created=NOW - 60)
    assert drained(draining(stuck, pods=1)) == drained(draining(pods=1))
    assert isinstance(drained(draining(stuck, pods=1)), Window)
    assert isinstance(drained(draining(stuck, pods=1, budgets=(a_budget(**LACKS_ONE),))), Unknown)


def test_a_deadline_ends_what_waits_for_a_replacement() -> None:
    stuck = starting(node_name="", created=NOW - 60)
    assert drained(draining(stuck, deadline=600)) == Window(NOW + 2, NOW + 600)


def test_the_pods_say_what_is_unknown_too() -> None:
    (node,) = forecast([draining(starting(node_name="", created=NOW - 60))], NOW, Assumptions()).nodes
    first, second = sorted(node.pods, key=lambda pod: pod.entry.pod.name)
    assert first.leaves == Window(NOW, NOW)
    assert second.leaves == Unknown((NO_NODE,), NOW)


def test_a_budget_of_another_drain_is_another_matter() -> None:
    other = a_budget("api")
    nodes = [draining(starting(node_name="", created=NOW - 60)), ending("n2", *_pods("api"), budgets=(other,))]
    stuck, free = forecast(nodes, NOW, Assumptions()).nodes
    assert isinstance(stuck.drained, Unknown)
    assert isinstance(free.drained, Window)


def _pods(app: str) -> list[Pod]:
    return [a_pod(f"{app}-{number}", owners=owned_by("ReplicaSet")) for number in range(2)]


@given(
    healthy=st.integers(0, 5),
    required=st.integers(0, 5),
    pods=st.integers(1, 4),
    deadline=st.sampled_from([None, 30.0, 600.0]),
    kind=st.sampled_from(["ReplicaSet", "StatefulSet", "Job", ""]),
    found=st.lists(
        st.builds(starting, node_name=st.sampled_from(["", "n2"]), created=st.sampled_from([NOW - 2, NOW - 40])),
        min_size=1,
        max_size=3,
    ),
)
def test_signs_make_ranges_unknown_and_nothing_else(
    healthy: int, required: int, pods: int, deadline: float | None, kind: str, found: list[Pod]
) -> None:
    """Never from a sign, no other earliest end, and an end by the deadline stays one."""
    budget = a_budget(
        disruptions_allowed=max(healthy - required, 0),
        current_healthy=healthy,
        desired_healthy=required,
        expected_pods=5,
        verdict=Condition("DisruptionAllowed", "True" if healthy > required else "False", last_transition=NOW - 9),
    )
    there = [a_pod(f"web-{number}", owners=owned_by(kind) if kind else ()) for number in range(pods)]
    node = ending("n1", *there, budgets=(budget,), deadline=deadline, since=NOW - 50)
    before = drained(node)
    after = drained(msgspec.structs.replace(node, starting={WEB: tuple(found)}))
    if isinstance(before, Never):
        assert after == before
        return
    assert not isinstance(after, Never)
    assert after.earliest == before.earliest
    if isinstance(before, Window):
        assert isinstance(after, Unknown) or after.latest >= before.latest
    if isinstance(before, Window) and deadline is not None:
        assert isinstance(after, Window)
        assert after.latest <= NOW + deadline
