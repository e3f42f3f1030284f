"""No object holds more memory than it may, nor do those of a namespace, nor all of them."""

from __future__ import annotations

import ast
import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from support.builders import BYTES, SINGLE, WIRE, enlarged, kinds

import gracectl
from gracectl.controllers.cluster.informers import Sources, new_informers
from gracectl.controllers.cluster.workloads import LABELED_SERVICES, NETWORK_POLICIES
from gracectl.model import names
from gracectl.model.bounds import LIMITS, Limits, MemoryQuota, OverLimit, size_of
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.decode import (
    MOST_CLAIMS,
    BudgetDecoder,
    ClaimDecoder,
    NodeBudgetDecoder,
    NodeDecoder,
    PodDecoder,
    decode_budget,
    decode_node,
    decode_pod,
)
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.parts import EVERY_NODE
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.model.sharing import Sharing
from gracectl.policy.nodebudgets import selects_node

KEPT = kinds()
ROOT = Path(gracectl.__file__).parent
ELSEWHERE: Final = {
    "controllers/cluster/workloads.py": "tests/controllers/termination/test_replacing.py: LIMITS; and below",
    "inspect/surroundings.py": "read by commands, of which each user has a process",
    "cli/completion.py": "as above", "cli/doctor/clocks.py": "as above", "cli/doctor/deployments.py": "as above",
    "kube/rbac.py": "answers about ourselves",
    "telemetry/tracing.py": "of OpenTelemetry: what it says about this process",
}  # fmt: skip
"""Modules that name further kinds, and why these fill no memory."""


def budget(values: int, *, namespace: str = "shop", name: str = "web") -> bytes:
    expression = {"key": "app", "operator": "In", "values": [f"{name}-{n:06}" for n in range(values)]}
    meta = {"name": name, "namespace": namespace, "uid": name, "resourceVersion": "7"}
    return msgspec.json.encode({"metadata": meta, "spec": {"selector": {"matchExpressions": [expression]}}})


# -- every kind --------------------------------------------------------------------------------------------------------


def test_every_kind_has_a_bound_or_is_read_alone() -> None:
    assert set(KEPT) == {*WIRE, *SINGLE}
    sources = new_informers()
    informers = [getattr(sources, field) for field in Sources.__struct_fields__]
    cached = {each.plural for row in informers for each in (row if isinstance(row, tuple) else (row,))}
    assert cached <= set(WIRE)


def test_every_other_kind_that_is_read_is_bounded_where_it_is_read() -> None:
    users = set()
    for file in ROOT.rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source if "Resource" in source else "")
        if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Resource" for node in ast.walk(tree)):
            users.add(str(file.relative_to(ROOT)))
    assert users == {*ELSEWHERE, "kube/resources.py"}


@pytest.mark.parametrize("plural", sorted(WIRE))
def test_an_object_holds_no_more_than_it_may_whatever_field_is_large(plural: str) -> None:
    decode = KEPT[plural].decode
    for path, body in enlarged(plural):
        try:
            kept = decode(body)
        except OverLimit:
            continue
        assert size_of(kept) < LIMITS.per_object, path


FEWER = Limits(free=1_000, per_object=100_000, per_namespace=300_000, in_all=1_000_000)


@pytest.mark.parametrize("decoder", [BudgetDecoder, PodDecoder, NodeDecoder, ClaimDecoder])
def test_all_of_a_kind_hold_no_more_than_they_may_together(decoder: Any) -> None:
    sharing = Sharing()
    sharing.quota = MemoryQuota(FEWER)
    decode = decoder(sharing)
    kept, refused = [], 0
    for number in range(80):
        place, name = f"ns{number // 4}", f"n{number}"
        labels = {f"l{number}-{each:06}": "" for each in range(2_000)}
        body = msgspec.json.encode({"metadata": {"name": name, "namespace": place, "labels": labels}})
        try:
            kept.append(decode(budget(200, namespace=place, name=name) if decoder is BudgetDecoder else body))
        except OverLimit:
            refused += 1
    assert refused > 0
    assert 0 < sharing.quota.charged <= FEWER.in_all
    assert sum(map(size_of, kept)) <= FEWER.in_all + len(kept) * FEWER.free


# -- the quota --------------------------------------------------------------------------------------------------------


class Thing:
    """Something that is charged."""


SMALL = Limits(free=10, per_object=100, per_namespace=150, in_all=250)


def test_small_things_cost_nothing() -> None:
    quota, things = MemoryQuota(SMALL), [Thing() for _ in range(100)]
    for number, thing in enumerate(things):
        quota.charge(thing, number, "a", 10)
    assert quota.charged == 0


def test_each_limit_refuses_what_exceeds_it_and_nothing_else() -> None:
    quota, things = MemoryQuota(SMALL), [Thing() for _ in range(9)]
    with pytest.raises(OverLimit, match="of an object"):
        quota.charge(things[0], 0, "a", 101)
    quota.charge(things[1], 1, "a", 100)
    with pytest.raises(OverLimit, match="namespace a already"):
        quota.charge(things[2], 2, "a", 51)
    quota.charge(things[3], 3, "a", 50)
    quota.charge(things[4], 4, "b", 90)
    with pytest.raises(OverLimit, match="large objects of the cluster"):
        quota.charge(things[5], 5, "c", 11)
    assert quota.charged == 240


def test_what_is_gone_is_charged_no_longer() -> None:
    quota, thing = MemoryQuota(SMALL), Thing()
    quota.charge(thing, 1, "a", 100)
    del thing
    assert quota.charged == 0
    quota.charge(Thing(), 2, "a", 100)
    other = Thing()
    quota.charge(other, 3, "a", 100)


def test_states_of_one_object_are_charged_once_as_the_largest() -> None:
    quota, first, second = MemoryQuota(SMALL), Thing(), Thing()
    quota.charge(first, 1, "a", 100)
    quota.charge(second, 1, "a", 90)
    quota.charge(second, 1, "a", 90)
    assert quota.charged == 100
    del first
    assert quota.charged == 90


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_a_selector_with_hundreds_of_values_is_kept_as_it_is() -> None:
    read = decode_budget(budget(600))
    assert read.selector is not None
    assert read.selector.matches({"app": "web-000599"})
    assert not read.selector.matches({"app": "web-000600"})


@pytest.mark.parametrize("values", [10_000, 200_000])
def test_a_selector_that_is_too_large_is_refused(values: int) -> None:
    with pytest.raises(OverLimit, match="make it smaller"):
        decode_budget(budget(values))


def test_the_large_selectors_of_a_namespace_are_limited_and_free_when_they_go() -> None:
    decode = BudgetDecoder()
    kept = [decode(budget(5_000, name=f"b{number}")) for number in range(5)]
    with pytest.raises(OverLimit, match="namespace shop"):
        decode(budget(5_000, name="one-more"))
    decode(budget(5_000, name="b0"))  # listed again
    decode(budget(20, name="small"))
    elsewhere = decode(budget(5_000, namespace="other"))
    assert elsewhere.selector is not None
    kept.pop()
    decode(budget(5_000, name="one-more"))


def test_a_node_budget_with_too_large_a_selector_allows_nothing_on_any_node() -> None:
    read: NodeDisruptionBudget = NodeBudgetDecoder()(budget(200_000))
    assert read.selector == EVERY_NODE
    assert "make it smaller" in read.selector_error
    assert selects_node(read, decode_node(b'{"metadata":{"name":"a"}}'))


# -- what stays exact --------------------------------------------------------------------------------------------------


def a_node(**more: Any) -> Node:
    return decode_node(msgspec.json.encode({"metadata": {"name": "a", **more.pop("meta", {})}, **more}))


def test_a_node_with_a_hundred_conditions_keeps_each() -> None:
    entries = [{"type": f"T{n}", "status": "True", "reason": "r", "message": "m" * 500} for n in range(100)]
    node = a_node(status={"conditions": entries}, meta={"annotations": {"other": "x" * 50_000}})
    assert [(each.type, each.message) for each in node.conditions] == [(f"T{n}", "m" * 500) for n in range(100)]
    assert node.annotations == {}


def test_of_ten_thousand_conditions_those_that_decisions_read_are_kept() -> None:
    entries = [{"type": f"T{n}", "status": "True"} for n in range(10_000)]
    own = {"type": names.DRAINED, "status": "False", "message": "m" * 20_000}
    node = a_node(status={"conditions": [*entries, own, {"type": names.READY, "status": "True"}]})
    assert node.ready
    drained = condition_of(node.conditions, names.DRAINED)
    assert drained is not None
    assert drained.message == "m" * 20_000


def test_taints_and_finalizers_keep_their_places() -> None:
    taints = [{"key": f"t{n}", "effect": "NoSchedule"} for n in range(9_000)]
    ours = {"key": names.DISRUPTED_TAINT_KEY, "effect": names.NO_SCHEDULE}
    finalizers = [f"x/{n}" for n in range(9_000)]
    node = a_node(spec={"taints": [*taints, ours]}, meta={"finalizers": [*finalizers, names.FINALIZER, "y/z"]})
    assert (len(node.taints), node.taints[9_000].key) == (9_001, names.DISRUPTED_TAINT_KEY)
    assert node.finalizers.index(names.FINALIZER) == 9_000
    assert len(node.finalizers) == 9_002


def test_of_15_000_claims_of_a_pod_the_first_are_kept() -> None:
    volumes = [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": f"c{n}"}} for n in range(15_000)]
    read = decode_pod(msgspec.json.encode({"metadata": {"name": "a"}, "spec": {"volumes": volumes}}))
    assert read.claims == tuple(f"c{n}" for n in range(MOST_CLAIMS))


def test_labels_that_pods_share_are_charged_once() -> None:
    decode = PodDecoder()
    labels = {f"l{n:06}": "" for n in range(60_000)}

    def pod(number: int) -> bytes:
        return msgspec.json.encode({"metadata": {"name": f"p{number}", "namespace": "shop", "labels": labels}})

    pods = [decode(pod(number)) for number in range(30)]
    assert 0 < decode.sharing.quota.charged < LIMITS.per_object
    pods.clear()
    assert decode.sharing.quota.charged == 0


@pytest.mark.parametrize(("make", "least"), [
    (lambda: LabelSelector({f"l{n:06}": f"v{n:06}" for n in range(5_000)}), 5_000 * 150),
    (lambda: LabelSelector({}, (Requirement("a", "In", tuple(f"{n:09}" for n in range(5_000))),)), 5_000 * 60),
])  # fmt: skip
def test_a_size_is_no_smaller_than_what_is_held(make: Callable[[], LabelSelector], least: int) -> None:
    gc.collect()
    tracemalloc.start()
    try:
        selector = make()
        selector.matches({"a": "b"})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(held, least) <= size_of(selector)


@pytest.mark.parametrize("kind", [LABELED_SERVICES, NETWORK_POLICIES])
def test_of_what_selects_pods_only_the_labels_that_could_be_changed_are_kept(kind: Any) -> None:
    labels = {f"l{number:06}": "" for number in range(50_000)} | {names.POD_TEMPLATE_HASH: "x"}
    spec = {"selector": labels, "podSelector": {"matchLabels": labels}}
    found = kind.decode(msgspec.json.encode({"metadata": {"name": "a", "namespace": "shop"}, "spec": spec}))
    assert names.POD_TEMPLATE_HASH in (found.selector if kind is LABELED_SERVICES else found.keys)
    assert size_of(found) < 1_000


def test_large_bodies_are_refused_before_they_are_decoded() -> None:
    body = budget(BYTES // 14)
    tracemalloc.start()
    try:
        with pytest.raises(OverLimit):
            decode_budget(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * BYTES


def test_stand_ins_of_budgets_select_the_whole_namespace() -> None:
    read: PodDisruptionBudget = KEPT["poddisruptionbudgets"].read(budget(200_000))
    assert read.key == ("shop", "web")
    assert read.selector is not None
    assert read.selector.matches({"any": "label"})
