"""Whether no other node can take a pod: only what the scheduler refuses in any case rules a node out."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from support.builders import a_node

from gracectl.model.node import Taint
from gracectl.model.pod import Toleration
from gracectl.model.selectors import Requirement
from gracectl.model.workloads import MOST_TERMS, NodeTerm, PodNeeds, decode_workload, quantity
from gracectl.policy.placement import OtherNode, is_pinned, no_node_fits

DEDICATED = (Taint("dedicated", "gpu", "NoSchedule"),)
IN_A = Requirement("zone", "In", ("a",))


def other(allocatable: dict[str, int] | None = None, **fields: Any) -> OtherNode:
    room = None if allocatable is None else {name: Fraction(amount) for name, amount in allocatable.items()}
    return OtherNode(a_node("other", **fields), room)


def affinity(*terms: NodeTerm) -> PodNeeds:
    return PodNeeds(terms=terms)


@pytest.mark.parametrize(("needs", "node", "reason"), [
    (PodNeeds(), other(), ""),
    (PodNeeds(), other(unschedulable=True), "1 is unschedulable"),
    (PodNeeds(), other(taints=DEDICATED), "1 has a taint that it does not tolerate"),
    (PodNeeds(), other(taints=(Taint("x", "", "NoExecute"),)), "1 has a taint that it does not tolerate"),
    (PodNeeds(), other(taints=(Taint("x", "", "PreferNoSchedule"),)), ""),
    (PodNeeds({"pool": "a"}), other(labels={"pool": "a"}), ""),
    (PodNeeds({"pool": "a"}), other(labels={"pool": "b"}), "1 does not match its nodeSelector"),
    (affinity(NodeTerm((IN_A,))), other(labels={"zone": "a"}), ""),
    (affinity(NodeTerm((IN_A,))), other(labels={"zone": "b"}), "1 does not match its node affinity"),
    (affinity(NodeTerm((IN_A,)), NodeTerm(names=(Requirement("metadata.name", "In", ("other",)),))), other(), ""),
    (affinity(NodeTerm()), other(), "1 does not match its node affinity"),
    (affinity(NodeTerm((Requirement("zone", "Near", ("a",)),))), other(), ""),
    (affinity(NodeTerm((Requirement("cores", "Gt", ("8",)),))), other(labels={"cores": "16"}), ""),
    (affinity(NodeTerm((Requirement("cores", "Gt", ("8",)),))), other(), "1 does not match its node affinity"),
    (PodNeeds(requests={"cpu": Fraction(2)}), other({"cpu": 2}), ""),
    (PodNeeds(requests={"cpu": Fraction(2)}), other({"cpu": 1}), "1 is too small for its requests"),
    (PodNeeds(requests={"x/gpu": Fraction(1)}), other({"cpu": 1}), "1 is too small for its requests"),
    (PodNeeds(requests={"x/gpu": Fraction(0)}), other({"cpu": 1}), ""),
    (PodNeeds(requests={"cpu": Fraction(2)}), other(), ""),
    (PodNeeds(requests={"cpu": Fraction(2)}), other({}), ""),
])  # fmt: skip
def test_what_rules_out_a_node(needs: PodNeeds, node: OtherNode, reason: str) -> None:
    assert no_node_fits(needs, (), [node]) == reason


@pytest.mark.parametrize("toleration", [
    Toleration(operator="Exists"),
    Toleration("dedicated", "Equal", "gpu", "NoSchedule"),
    Toleration("other", "Gt", "5"),  # an operator that this version does not know may tolerate anything
])  # fmt: skip
def test_a_taint_that_may_be_tolerated_rules_nothing_out(toleration: Toleration) -> None:
    assert no_node_fits(PodNeeds(), (toleration,), [other(taints=DEDICATED)]) == ""


def test_reasons_are_counted_and_one_node_that_may_fit_is_enough() -> None:
    needs = PodNeeds({"pool": "a"})
    without = [other(labels={"pool": "b"}), other(), other(unschedulable=True)]
    assert no_node_fits(needs, (), without) == "2 do not match its nodeSelector, 1 is unschedulable"
    assert no_node_fits(needs, (), [*without, other(labels={"pool": "a"})]) == ""
    assert no_node_fits(needs, (), []) == "there is no other node"


def test_a_volume_is_pinned_by_the_name_of_the_node_or_of_its_host() -> None:
    node = a_node("n1", labels={"kubernetes.io/hostname": "host-1"})

    def at(key: str, *values: str) -> NodeTerm:
        return NodeTerm((Requirement(key, "In", values),))

    assert is_pinned((at("kubernetes.io/hostname", "host-1"),), node)
    assert is_pinned((at("topology.topolvm.io/node", "n1"),), node)
    assert not is_pinned((at("kubernetes.io/hostname", "host-1", "host-2"),), node)
    assert not is_pinned((at("topology.kubernetes.io/zone", "a"),), node)
    assert not is_pinned((at("kubernetes.io/hostname", "host-1"), at("topology.kubernetes.io/zone", "a")), node)
    assert not is_pinned((), node)


@pytest.mark.parametrize(("text", "amount"), [
    *(("1", Fraction(1)), ("1500m", Fraction(3, 2)), ("2Gi", Fraction(2 * 1024**3)), ("1e3", Fraction(1000))),
    *(("1.5k", Fraction(1500)), ("3E", Fraction(3 * 10**18)), ("12e2Ki", Fraction(1200 * 1024)), ("-1", None)),
    *(("", None), ("1/2", None), ("1_0", None), ("1e1000000000", None), ("many", None), ("1" * 41, None)),
    *(("\u0661", None), ("nan", None)),
])  # fmt: skip
def test_a_quantity_is_read_or_left_out(text: str, amount: Fraction | None) -> None:
    assert quantity(text) == amount


def test_an_affinity_of_too_many_terms_rules_nothing_out() -> None:
    term = b'{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}'
    body = (
        b'{"metadata": {"name": "web"}, "spec": {"template": {"spec": {"affinity": {"nodeAffinity": '
        b'{"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [%s]}}}}}}}'
    )
    assert no_node_fits(decode_workload(body % term).needs, (), [other()]) == "1 does not match its node affinity"
    many = decode_workload(body % b", ".join([term] * (MOST_TERMS + 1)))
    assert no_node_fits(many.needs, (), [other()]) == ""
