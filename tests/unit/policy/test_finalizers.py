"""Which finalizer holds our nodes: the rule, and what is replaced."""

from __future__ import annotations

import pytest

from gracectl.controllers.termination.finalizer import finalizer_patch, finalizer_removal_patch
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.policy.finalizers import FinalizerRule, FinalizerSetting, finalizer_rule, has_finalizer, needs_finalizer

DESIGNS, OWN = names.FINALIZERS
ALONE, TOGETHER, BACK = FinalizerRule(), FinalizerRule(OWN, DESIGNS), FinalizerRule(DESIGNS, OWN)


@pytest.mark.parametrize(("setting", "has_karpenter", "rule"), [
    ("auto", False, ALONE), ("auto", True, TOGETHER),
    (OWN, False, TOGETHER), (OWN, True, TOGETHER),
    (DESIGNS, False, BACK), (DESIGNS, True, BACK),
])  # fmt: skip
def test_the_setting_wins_over_karpenter(setting: FinalizerSetting, has_karpenter: bool, rule: FinalizerRule) -> None:
    assert finalizer_rule(setting, has_karpenter=has_karpenter) == rule


@pytest.mark.parametrize(("rule", "finalizers", "deleted", "operations"), [
    (ALONE, (), False, [("add", "", [DESIGNS])]),
    (ALONE, ("a/b",), False, [("add", "/-", DESIGNS)]),
    (TOGETHER, ("a/b",), False, [("add", "/-", OWN)]),
    (ALONE, (OWN,), False, []),
    (TOGETHER, (OWN,), False, []),
    (TOGETHER, ("a/b", DESIGNS, "c/d"), False, [("replace", "/1", OWN)]),
    (BACK, (OWN,), False, [("replace", "/0", DESIGNS)]),
    (TOGETHER, (OWN, DESIGNS), False, [("remove", "/1", None)]),
    (TOGETHER, (DESIGNS,), True, []),
    (TOGETHER, (OWN, DESIGNS), True, []),
    (TOGETHER, (), True, []),
])  # fmt: skip
def test_one_write_adds_or_replaces_it_and_none_while_deleted(
    rule: FinalizerRule, finalizers: tuple[str, ...], deleted: bool, operations: list[tuple[str, str, object]]
) -> None:
    for kind in (Node, NodeClaim):
        thing = kind("a", "uid-a", finalizers=finalizers, deletion_timestamp=1.0 if deleted else None)
        patch = finalizer_patch(rule, thing)
        written = [] if patch is None else [(each["op"], each["path"], each.get("value")) for each in patch.operations]
        assert written == [(op, f"/metadata/finalizers{place}", value) for op, place, value in operations]


def test_both_are_removed_from_the_last_place_on() -> None:
    thing = Node("a", "uid-a", finalizers=(DESIGNS, "a/b", OWN))
    patch = finalizer_removal_patch(thing)
    assert patch is not None
    assert [each["path"] for each in patch.operations] == ["/metadata/finalizers/2", "/metadata/finalizers/0"]
    assert finalizer_removal_patch(Node("a", "uid-a", finalizers=("a/b",))) is None
    assert finalizer_removal_patch(Node("a", "uid-a", finalizers=(DESIGNS,)), (OWN,)) is None


def test_either_holds() -> None:
    for finalizer in names.FINALIZERS:
        assert has_finalizer(Node("a", "uid-a", finalizers=("a/b", finalizer)))
    assert needs_finalizer(Node("a", "uid-a", finalizers=("a/b",)))
    assert not needs_finalizer(Node("a", "uid-a", deletion_timestamp=1.0))
