"""Voluntary terminations: their triggers, from which instant on, and which pods block them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_budget, a_node, a_pod, owned_by

from gracectl.model import names
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod, Toleration, UnknownPod
from gracectl.model.selectors import LabelSelector
from gracectl.policy.settings import HealthSettings, NodeGroup, PolicySettings, ProtectionSettings
from gracectl.policy.voluntary import (
    Cause,
    elapses_at,
    expires_at,
    explain_blockers,
    explain_elapsed,
    is_idle,
    node_expires_at,
    parse_expire_after,
    parse_jitter,
    triggers_of,
    voluntary_blockers,
)

SETTINGS = PolicySettings()
TERMINABLE = {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}


def a_claim(**fields: Any) -> NodeClaim:
    return NodeClaim(name="c1", uid="uid-c1", **{"created": NOW, **fields})


def well() -> Condition:
    return Condition("Ready", "True", last_transition=NOW)


def lost(since: float = NOW) -> Condition:
    return Condition("Ready", "Unknown", last_transition=since)


# -- triggers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "is_nothing"), [
    ({}, True),
    ({"labels": {"pool": "a"}}, True),
    ({"labels": TERMINABLE}, False),
    ({"conditions": (lost(),)}, False),
    ({"conditions": ()}, False),
    ({"conditions": (well(), Condition(names.TERMINATION_PENDING, "True"))}, False),
    ({"annotations": {names.INTERRUPTION: "spot unknown aws"}}, False),
    ({"annotations": {names.FORCED_DEADLINE: "2026-01-01T00:00:00Z"}}, False),
    ({"labels": {"pool": "old"}}, False),
])  # fmt: skip
def test_an_idle_node_has_neither_a_trigger_nor_a_mark(fields: dict[str, Any], is_nothing: bool) -> None:
    old = NodeGroup(LabelSelector({"pool": "old"}), expire_seconds=3600.0)
    node, settings = a_node(**{"conditions": (well(),), **fields}), PolicySettings(node_groups=(old,))
    assert is_idle(node, settings) is is_nothing
    assert not (is_nothing and triggers_of((node,), None, settings))


@pytest.mark.parametrize(("written", "at"), [
    (None, None), ("Never", None), ("720h", NOW + 720 * 3600), ("1h30m", NOW + 5400), ("90s", NOW + 90),
    ("1.5s", NOW + 1.5), ("0s", NOW), ("0", NOW),
])  # fmt: skip
def test_when_a_claim_expires(written: str | None, at: float | None) -> None:
    assert expires_at(a_claim(expire_after=written)) == at
    triggers = triggers_of((), a_claim(expire_after=written), SETTINGS)
    assert [(trigger.cause, trigger.at) for trigger in triggers] == ([] if at is None else [(Cause.EXPIRED, at)])


@pytest.mark.parametrize(("fields", "causes"), [
    ({}, [Cause.UNHEALTHY]),
    ({"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}, []),
    ({"annotations": {names.KEEP_DRAINED: "please"}}, []),
    # Given back, and we have not taken note of it yet.
    ({"annotations": {names.KEEP_DRAINED: "", names.CORDONED: "unschedulable"}}, []),
    ({"annotations": {names.CORDONED: "taint,label,unschedulable"}}, []),
    ({"annotations": {names.CORDONED: ""}}, []),
    # Who asks for the end of a node is obeyed.
    ({"annotations": {names.KEEP_DRAINED: ""}, "labels": TERMINABLE}, [Cause.TERMINABLE]),
])  # fmt: skip
def test_a_node_that_is_kept_is_not_ended_for_its_health(fields: dict[str, Any], causes: list[Cause]) -> None:
    node = a_node(conditions=(lost(NOW - 10_000),), **fields)
    assert [trigger.cause for trigger in triggers_of((node,), None, SETTINGS)] == causes
    expired = a_claim(expire_after="1h", created=NOW - 7200)
    assert [trigger.cause for trigger in triggers_of((node,), expired, SETTINGS)] == [*causes, Cause.EXPIRED]


@pytest.mark.parametrize("written", ["", "never", "30d", "h", "-1h", "99999999999h"])
def test_an_expiry_that_cannot_be_read_never_comes(written: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|is negative"):
        expires_at(a_claim(expire_after=written))
    assert triggers_of((), a_claim(expire_after=written), SETTINGS) == ()


@pytest.mark.parametrize(("labels", "is_terminable"), [
    ({}, False), (TERMINABLE, True), ({names.LIFECYCLE_PHASE: "active"}, False), ({names.LIFECYCLE_PHASE: ""}, False),
])  # fmt: skip
def test_the_label_asks_for_the_end_at_once(labels: dict[str, str], is_terminable: bool) -> None:
    triggers = triggers_of([a_node(labels=labels, conditions=(well(),))], None, SETTINGS)
    assert [(t.cause, t.at) for t in triggers] == ([(Cause.TERMINABLE, -math.inf)] if is_terminable else [])


def test_all_triggers_are_told_health_first() -> None:
    node = a_node(labels=TERMINABLE, conditions=(lost(NOW - 1000),))
    other = a_node("n2", conditions=(lost(NOW - 10),))
    claim = a_claim(expire_after="1h")
    triggers = triggers_of([node, other], claim, SETTINGS)
    assert [(trigger.cause, trigger.at) for trigger in triggers] == [
        (Cause.UNHEALTHY, NOW - 100), (Cause.UNHEALTHY, NOW + 890), (Cause.TERMINABLE, -math.inf),
        (Cause.EXPIRED, NOW + 3600),
    ]  # fmt: skip
    assert triggers[0].message == (
        "node n1 is unhealthy: its condition Ready has been Unknown since 1970-01-12T13:30:00Z, and 900 s of that "
        "are tolerated"
    )
    assert triggers[3].message == "node claim c1, created 1970-01-12T13:46:40Z, has reached its expireAfter of 1h"


def test_what_is_switched_off_or_undated_ends_nothing() -> None:
    off = PolicySettings(health=HealthSettings(enabled=False))
    assert triggers_of([a_node(conditions=(lost(0),))], None, off) == ()
    assert triggers_of([a_node(conditions=(Condition("Ready", "False"),))], None, SETTINGS) == ()


# -- pods that keep their node -----------------------------------------------------------------------------------------

STAYS = (Toleration(key=names.DISRUPTED_TAINT_KEY, operator="Exists"),)


def spent(**fields: Any) -> PodDisruptionBudget:
    return a_budget(disruptions_allowed=0, current_healthy=2, desired_healthy=3, **fields)


@pytest.mark.parametrize(("pod", "budgets", "until"), [
    (a_pod(annotations={names.DO_NOT_DISRUPT: "true"}), [], None),
    (a_pod(annotations={names.DO_NOT_DISRUPT: "nonsense"}), [], None),
    (a_pod(annotations={names.DO_NOT_DISRUPT: "2h"}), [], NOW + 3600),
    (a_pod(annotations={names.DO_NOT_DISRUPT: "2h"}), [spent()], NOW + 3600),
    (a_pod(labels={names.DO_NOT_EVICT: "true"}), [], None),
    (a_pod(), [spent()], None), (a_pod(), [a_budget(generation=2)], None),
    (a_pod(), [a_budget(), a_budget("also")], None),
    (a_pod(ready=False), [spent()], None),
])  # fmt: skip
def test_a_pod_that_keeps_its_node(pod: Pod, budgets: list[PodDisruptionBudget], until: float | None) -> None:
    holds = voluntary_blockers([pod], {pod.uid: tuple(budgets)}, NOW, SETTINGS)
    assert [(hold.pod, hold.until) for hold in holds] == [(pod, until)]
    assert elapses_at(holds) == until


@pytest.mark.parametrize(("pod", "budgets"), [
    (a_pod(), []), (a_pod(), [a_budget()]),
    (a_pod(annotations={names.DO_NOT_DISRUPT: "1h"}), []),  # over: it was made an hour ago
    (a_pod(annotations={names.DO_NOT_DISRUPT: "true"}, deletion_timestamp=NOW + 5), []),
    (a_pod(deletion_timestamp=NOW + 5), [spent()]),
    (a_pod(annotations={names.DO_NOT_DISRUPT: "true"}, phase="Succeeded"), []),
    (a_pod(annotations={names.DO_NOT_DISRUPT: "true"}, tolerations=STAYS), []),
    (a_pod(annotations={names.DO_NOT_DISRUPT: "true"}, owners=owned_by("Node")), []),
    (a_pod(phase="Pending", ready=False), [spent()]),
    (a_pod(ready=False), [spent(unhealthy_pod_eviction_policy="AlwaysAllow")]),
    (a_pod(ready=False), [a_budget(disruptions_allowed=0)]),
])  # fmt: skip
def test_a_pod_that_does_not(pod: Pod, budgets: list[PodDisruptionBudget]) -> None:
    assert voluntary_blockers([pod], {pod.uid: tuple(budgets)}, NOW, SETTINGS) == ()


def test_a_pod_that_cannot_be_decoded_keeps_its_node() -> None:
    unknown = UnknownPod("shop", "unknown", "u", error="no `int`")
    assert explain_blockers(voluntary_blockers([unknown], {}, NOW, SETTINGS)).startswith(
        "pod shop/unknown blocks it: cannot decide: unknown pod, its object cannot be decoded (no `int`); to "
        "terminate the node, delete it, or "
    )


def test_two_pods_of_a_budget_that_allows_one_do_not_block_each_other() -> None:
    pods = [a_pod("web-1"), a_pod("web-2")]
    assert voluntary_blockers(pods, {pod.uid: (a_budget(),) for pod in pods}, NOW, SETTINGS) == ()


def test_the_node_is_free_when_the_last_protection_ends_unless_something_else_holds_it() -> None:
    pods = [a_pod(f"job-{h}", annotations={names.DO_NOT_DISRUPT: f"{h}h"}) for h in (2, 5, 3)]
    assert elapses_at(voluntary_blockers(pods, {}, NOW, SETTINGS)) == NOW + 4 * 3600
    assert elapses_at(voluntary_blockers([*pods, a_pod()], {"uid-web-1": (spent(),)}, NOW, SETTINGS)) == NOW + 4 * 3600
    assert elapses_at(()) is None


def test_the_longest_protection_that_an_administrator_grants_counts_here_too() -> None:
    capped = PolicySettings(protection=ProtectionSettings(maximum_seconds=7200.0))
    holds = voluntary_blockers([a_pod(annotations={names.DO_NOT_DISRUPT: "true"})], {}, NOW, capped)
    assert elapses_at(holds) == NOW + 3600


def test_people_are_told_which_pod_what_holds_it_and_what_would_change_that() -> None:
    pods = [a_pod(f"job-{h}", annotations={names.DO_NOT_DISRUPT: f"{h}h"}) for h in (2, 5, 3)]
    assert explain_blockers(voluntary_blockers(pods, {}, NOW, SETTINGS)) == (
        'pod shop/job-2 is protected by do-not-disrupt "2h" until 1970-01-12T14:46:40Z (and 2 more pods); to '
        "terminate the node, delete it, or give it a terminationGracePeriod (in nodeGroups, if its claim has none), "
        "or end its protection: kubectl annotate pod -n shop job-2 karpenter.sh/do-not-disrupt-"
    )
    message = explain_blockers(voluntary_blockers([a_pod()], {"uid-web-1": (spent(),)}, NOW, SETTINGS))
    assert message.startswith(
        "pod shop/web-1 cannot be evicted: budget shop/web allows no disruption now (2 of 3 healthy"
    )


def test_protections_that_have_ended_are_named_by_the_last_one() -> None:
    pods = [a_pod(f"job-{h}", annotations={names.DO_NOT_DISRUPT: f"{h}h"}) for h in (2, 5)]
    blockers = voluntary_blockers(pods, {}, NOW, SETTINGS)
    text = 'pod shop/job-5 was protected by do-not-disrupt "5h" until 1970-01-12T17:46:40Z'
    assert explain_elapsed(blockers) == f"{text}; 1 more had ended before"
    assert explain_elapsed(blockers[1:]) == text


# -- the age of nodes without a claim ----------------------------------------------------------------------------------


def aging(jitter: float = 0.1, seconds: float | None = 1000.0) -> PolicySettings:
    group = NodeGroup(LabelSelector(match_labels={"pool": "a"}), expire_seconds=seconds, expire_jitter=jitter)
    return PolicySettings(node_groups=(group,))


def test_a_node_expires_with_its_group() -> None:
    node = a_node(created=NOW, labels={"pool": "a"}, conditions=(well(),))
    assert node_expires_at(node, aging(jitter=0.0)) == NOW + 1000
    assert node_expires_at(node, aging(seconds=None)) is None
    assert node_expires_at(a_node(created=NOW, labels={"pool": "b"}), aging()) is None
    [trigger] = triggers_of([node], None, aging(jitter=0.0))
    assert (trigger.cause, trigger.at) == (Cause.EXPIRED, NOW + 1000)
    assert trigger.message == (
        "node n1, created 1970-01-12T13:46:40Z, has reached the age of its node group (expireAfter, less its jitter)"
    )


def test_the_age_of_a_node_with_a_claim_is_the_claims_business() -> None:
    node = a_node(created=NOW, labels={"pool": "a"}, conditions=(well(),))
    assert triggers_of([node], NodeClaim(name="c", uid="c", created=NOW), aging()) == ()


@given(st.uuids(), st.floats(0, 1))
def test_it_never_expires_later_nor_earlier_than_the_jitter_allows(uid: UUID, jitter: float) -> None:
    node = msgspec.structs.replace(a_node(created=NOW, labels={"pool": "a"}), uid=str(uid))
    at = node_expires_at(node, aging(jitter))
    assert at is not None
    assert NOW + 1000 * (1 - jitter) - 1e-3 <= at <= NOW + 1000
    assert at == node_expires_at(node, aging(jitter))


def test_nodes_of_one_age_expire_apart_and_always_alike() -> None:
    nodes = [a_node(f"n{number}", created=NOW, labels={"pool": "a"}) for number in range(1000)]
    ages = sorted(at - NOW for node in nodes if (at := node_expires_at(node, aging())) is not None)
    assert max(later - earlier for earlier, later in pairwise(ages)) < 2.0  # of 100 s, by 1000 nodes
    assert [ages[0], ages[-1]] == pytest.approx([900, 1000], abs=2)
    at = node_expires_at(nodes[0], aging())
    assert at == pytest.approx(NOW + 990.45, abs=0.01)  # by its uid alone: another process comes to the same


@pytest.mark.parametrize(
    ("text", "seconds"), [("720h", 2592000.0), ("1h30m", 5400.0), ("0.5s", 0.5), (names.NEVER, None)]
)
def test_an_age_is_a_duration_or_never(text: str, seconds: float | None) -> None:
    assert parse_expire_after(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1h", "30d", "never", "720"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration|is not positive"):
        parse_expire_after(text)


@pytest.mark.parametrize(
    ("value", "share"), [("10%", 0.1), ("0%", 0.0), ("100%", 1.0), ("2.5%", 0.025), (0.25, 0.25), (0, 0.0), (1, 1.0)]
)
def test_a_jitter_is_a_percentage_or_a_fraction(value: str | float, share: float) -> None:
    assert parse_jitter(value) == share


@pytest.mark.parametrize("value", ["", "10", "-1%", "101%", "ten", -0.1, 1.5, 10, float("nan")])
def test_what_is_no_jitter_is_refused(value: str | float) -> None:
    with pytest.raises(ValueError, match="not a percentage"):
        parse_jitter(value)
