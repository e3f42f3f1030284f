"""The cordon of a node that is labeled terminable and waits; and what of it comes off."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_node

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.policy.disruption import Hold, HoldReason, PendingTermination
from gracectl.policy.pending import accepts_pods, cordoned, is_pending, may_cordon_another, pending_since, uncordoned
from gracectl.policy.voluntary import Cause, Trigger

LABEL = {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}
RECORD = {names.PENDING_CORDONED: "unschedulable"}
KEPT = {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}
OPEN: Any = {"metadata": {"annotations": RECORD}, "spec": {"unschedulable": True}}
CLOSED: Any = {"metadata": {"annotations": {names.PENDING_CORDONED: None}}, "spec": {"unschedulable": None}}
FORGET: Any = {"metadata": {"annotations": {names.PENDING_CORDONED: None}}}


def waiting(cause: Cause, reason: HoldReason) -> PendingTermination:
    return PendingTermination((Trigger(cause, NOW, "due"),), Hold(reason, "blocked"), NOW)


def unhealthy(reason: HoldReason) -> PendingTermination:
    return waiting(Cause.UNHEALTHY, reason)


LABELLED = waiting(Cause.TERMINABLE, HoldReason.PACE)


@pytest.mark.parametrize(("fields", "change"), [
    ({"labels": LABEL}, OPEN), ({}, None),
    ({"labels": {names.LIFECYCLE_PHASE: "other"}}, None),
    ({"labels": LABEL, "unschedulable": True}, None),  # an operator's cordon gets no record of ours
    ({"labels": LABEL, "annotations": RECORD, "unschedulable": True}, None),
    ({"labels": LABEL, "annotations": RECORD}, None),  # uncordoned by hand: that counts
    ({"labels": LABEL, "annotations": KEPT}, None),
    ({"labels": LABEL, "deletion_timestamp": NOW}, None),
])  # fmt: skip
def test_what_cordons_a_node_that_waits(fields: Any, change: Any) -> None:
    assert cordoned(a_node(**fields), LABELLED) == change


@pytest.mark.parametrize(("fields", "change"), [
    ({"annotations": RECORD, "unschedulable": True}, CLOSED),
    ({"annotations": RECORD}, FORGET),  # uncordoned by hand
    ({"unschedulable": True}, None),  # an operator's
    ({"labels": LABEL, "annotations": RECORD, "unschedulable": True}, None),
    ({"annotations": {**RECORD, **KEPT}, "unschedulable": True}, FORGET),  # maintenance has a record of its own
    ({"labels": LABEL, "annotations": {**RECORD, **KEPT}, "unschedulable": True}, FORGET),
    ({"annotations": RECORD, "unschedulable": True, "deletion_timestamp": NOW}, None),
])  # fmt: skip
def test_what_takes_the_cordon_off(fields: Any, change: Any) -> None:
    assert uncordoned(a_node(**fields), LABELLED) == change
    assert uncordoned(a_node(**fields), None) == change


@pytest.mark.parametrize(("reason", "fields", "change"), [
    (HoldReason.PROVIDER_NONE, {}, OPEN),
    (HoldReason.PROVIDER_NONE, {"annotations": RECORD}, None),  # uncordoned by hand
    (HoldReason.PROVIDER_NONE, {"unschedulable": True}, None),
    (HoldReason.PROVIDER_NONE, {"annotations": KEPT}, None),
    (HoldReason.PROTECTION, {}, None), (HoldReason.CIRCUIT_BREAKER, {}, None),
])  # fmt: skip
def test_an_unhealthy_node_is_cordoned_if_no_provider_replaces_it(reason: HoldReason, fields: Any, change: Any) -> None:
    assert cordoned(a_node(**fields), unhealthy(reason)) == change


@pytest.mark.parametrize("reason", [HoldReason.FROZEN, HoldReason.OUTSIDE_WINDOW])
def test_in_a_freeze_and_outside_of_windows_only_an_interrupted_node_is_cordoned(reason: HoldReason) -> None:
    labeled = waiting(Cause.TERMINABLE, reason)
    assert cordoned(a_node(labels=LABEL), labeled) is None
    assert cordoned(a_node(annotations={names.INTERRUPTION: "spot unknown aws"}), labeled) == OPEN
    # One that was cordoned before stays so.
    assert uncordoned(a_node(labels=LABEL, annotations=RECORD, unschedulable=True), labeled) is None


@pytest.mark.parametrize("reason", [HoldReason.PROVIDER_NONE, HoldReason.CIRCUIT_BREAKER])
def test_its_cordon_stays_until_it_is_healthy(reason: HoldReason) -> None:
    node = a_node(annotations=RECORD, unschedulable=True)
    assert uncordoned(node, unhealthy(reason)) is None
    assert uncordoned(node, None) == CLOSED


def applied(node: Node, change: Any) -> Node:
    annotations = {**node.annotations, **change.get("metadata", {}).get("annotations", {})}
    spec = change.get("spec", {})
    return msgspec.structs.replace(
        node,
        annotations={key: value for key, value in annotations.items() if value is not None},
        unschedulable=bool(spec.get("unschedulable", node.unschedulable)),
    )


STEPS = ("label", "unlabel", "cordon by hand", "uncordon by hand", "ours")


@given(st.lists(st.sampled_from(STEPS), max_size=20), st.booleans())
def test_without_the_label_a_node_is_as_operators_have_left_it(steps: list[str], at_first: bool) -> None:
    node, by_hand = a_node(unschedulable=at_first), at_first
    for step in [*steps, "unlabel", "ours"]:
        is_ours = names.PENDING_CORDONED in node.annotations
        if step == "ours":
            change = uncordoned(node, LABELLED) or cordoned(node, LABELLED)
            node = node if change is None else applied(node, change)
            assert uncordoned(node, LABELLED) is None
            assert cordoned(node, LABELLED) is None  # one write, and nothing is left to be done
        elif step in ("label", "unlabel"):
            node = msgspec.structs.replace(node, labels=LABEL if step == "label" else {})
        else:
            wants = step == "cordon by hand"
            if is_ours and wants:
                continue  # of a node that we have cordoned it cannot be seen
            node, by_hand = msgspec.structs.replace(node, unschedulable=wants), wants
    assert node.unschedulable is by_hand
    assert names.PENDING_CORDONED not in node.annotations


@pytest.mark.parametrize(
    ("open_nodes", "managed", "has_room"), [(10, 10, True), (6, 10, True), (5, 10, False), (2, 2, True), (1, 1, False)]
)
def test_half_of_the_nodes_go_on_taking_pods(open_nodes: int, managed: int, has_room: bool) -> None:
    assert may_cordon_another(open_nodes, managed) is has_room


def test_since_when_it_waits_stands_in_the_condition() -> None:
    waits = Condition(names.TERMINATION_PENDING, "True", "Pace", "", last_transition=NOW - 60)
    over = msgspec.structs.replace(waits, status="False")
    assert pending_since([a_node(conditions=(waits,)), a_node("n2")], NOW) == NOW - 60
    assert pending_since([a_node(conditions=(over,))], NOW) == NOW
    assert not is_pending(a_node(conditions=(waits,), deletion_timestamp=NOW))


def test_a_node_that_is_not_ready_accepts_no_pods_though_it_is_schedulable() -> None:
    ready, unready = ((Condition(names.READY, status),) for status in ("True", "False"))
    assert not accepts_pods(a_node(conditions=unready))
    assert accepts_pods(a_node(conditions=ready))
    assert not accepts_pods(a_node(conditions=ready, unschedulable=True))
