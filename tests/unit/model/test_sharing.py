"""What pods have in common is kept once, and forgotten with the last reference."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec

from gracectl.model import names
from gracectl.model.decode import ClaimDecoder, NodeDecoder, PodDecoder
from gracectl.model.sharing import Sharing
from gracectl.model.times import parse_time
from gracectl.model.wire import ABSENT


def pod(number: int, workload: str = "web", node: str = "node-1") -> bytes:
    body: dict[str, Any] = {
        "metadata": {
            "name": f"{workload}-{number}", "namespace": f"of-{workload}", "uid": f"uid-{number}",
            "labels": {"app": workload, "tier": "front"}, "creationTimestamp": "2026-11-01T10:00:00Z",
            "ownerReferences": [{"kind": "ReplicaSet", "name": workload, "uid": f"rs-{workload}", "controller": True}],
        },
        "spec": {
            "nodeName": node, "priorityClassName": "business-critical",
            "tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 300}],
        },
        "status": {"phase": "Running"},
    }  # fmt: skip
    return msgspec.json.encode(body)


def test_pods_of_one_workload_share_all_that_is_equal() -> None:
    decode = PodDecoder()
    first, second = decode(pod(1)), decode(pod(2))
    assert first.labels == {"app": "web", "tier": "front"}
    assert first.labels is second.labels
    assert first.owners is second.owners
    assert first.created is second.created
    assert first.tolerations is second.tolerations
    assert first.namespace is second.namespace
    assert first.node_name is second.node_name
    assert first.priority_class is second.priority_class
    assert first.phase is second.phase
    assert (first.name, second.name) == ("web-1", "web-2")


def test_mirror_pods_leave_nothing_in_the_pools() -> None:
    decode = PodDecoder()
    bodies = [msgspec.json.decode(pod(number, "proxy", f"node-{number}")) for number in range(3)]
    for number, body in enumerate(bodies):
        body["metadata"]["annotations"] = {names.MIRROR_POD: f"checksum-{number}"}
        body["metadata"]["ownerReferences"] = [{"kind": "Node", "name": f"node-{number}", "uid": f"of-{number}"}]
    first, *others = [decode(msgspec.json.encode(body)) for body in bodies]
    assert [each.owners[0].uid for each in (first, *others)] == ["of-0", "of-1", "of-2"]
    assert decode.sharing.sizes()[2] == 0
    assert names.MIRROR_POD in first.annotations
    assert all(each.annotations is first.annotations for each in others)


def test_pods_of_different_workloads_do_not() -> None:
    decode = PodDecoder()
    first, second = decode(pod(1)), decode(pod(2, workload="db"))
    assert second.labels == {"app": "db", "tier": "front"}
    assert second.owners[0].uid == "rs-db"
    assert first.tolerations is second.tolerations


def test_each_decoder_has_its_own_pools_unless_it_is_given_one() -> None:
    sharing = Sharing()
    one, other, apart = PodDecoder(sharing), PodDecoder(sharing), PodDecoder()
    first = one(pod(1))
    assert other(pod(2)).labels is first.labels
    assert apart(pod(3)).labels is not first.labels
    assert apart(pod(3)).labels == first.labels


def test_claims_share_the_words_of_their_conditions_and_the_names_of_their_nodes() -> None:
    sharing = Sharing()
    claims, nodes = ClaimDecoder(sharing), NodeDecoder(sharing)
    status = '"status": {"nodeName": "a-node", "conditions": [{"type": "Initialized", "status": "True"}]}'
    one, other = (claims(f'{{"metadata": {{"name": "{name}"}}, {status}}}'.encode()) for name in ("c1", "c2"))
    assert one.conditions[0].type is other.conditions[0].type
    assert one.node_name is nodes(b'{"metadata": {"name": "a-node"}}').name


def test_a_pod_and_its_node_share_the_name_of_the_node() -> None:
    sharing = Sharing()
    node = NodeDecoder(sharing)(b'{"metadata": {"name": "a-node-with-a-long-name"}}')
    assert PodDecoder(sharing)(pod(1, node="a-node-with-a-long-name")).node_name is node.name


def test_a_mirror_pod_and_its_node_share_the_name_of_the_node() -> None:
    sharing = Sharing()
    node = NodeDecoder(sharing)(b'{"metadata": {"name": "a-node-with-a-long-name"}}')
    owners = msgspec.Raw(b'[{"kind":"Node","name":"a-node-with-a-long-name","uid":"u1","controller":true}]')
    [owner] = sharing.owners(owners)
    assert owner.is_node
    assert owner.name is node.name
    assert sharing.sizes()[2] == 0


def test_nodes_in_a_row_share_their_finalizers_and_a_node_the_instant_of_its_conditions() -> None:
    decode, at = NodeDecoder(), "2026-01-01T00:00:00Z"
    status = {"conditions": [{"type": each, "status": "True", "lastTransitionTime": at} for each in ("Ready", "Odd")]}
    finalizers = (["one/finalizer"], ["one/finalizer"], ["one/finalizer", "other/finalizer"], None)
    nodes = [
        decode(msgspec.json.encode({"metadata": {"name": f"n{number}", "finalizers": found}, "status": status}))
        for number, found in enumerate(finalizers)
    ]
    assert [list(node.finalizers) for node in nodes] == [found or [] for found in finalizers]
    assert nodes[0].finalizers is nodes[1].finalizers
    first, second = nodes[0].conditions
    assert first.last_transition is second.last_transition == parse_time(at)


def test_pruning_forgets_what_is_gone_and_keeps_what_is_held() -> None:
    decode = PodDecoder()
    kept = decode(pod(1, workload="stays", node="node-of-stays"))
    decode(pod(2, workload="goes", node="node-of-goes"))
    assert decode.sharing.sizes()[1] == 2
    decode.sharing.prune()
    decode.sharing.prune()  # strings that only a forgotten map held go with the next
    # app, tier, its namespace, its node, its priority class, its phase, the kind of its owner
    assert decode.sharing.sizes() == (7, 1, 1, 1)
    again = decode(pod(3, workload="stays", node="node-of-stays"))
    assert again.labels is kept.labels
    assert again.owners is kept.owners
    assert again.node_name is kept.node_name


def test_pools_do_not_grow_with_churn() -> None:
    decode = PodDecoder()
    kept = [decode(pod(number, workload=f"stays-{number}")) for number in range(10)]
    for number in range(5_000):
        decode(pod(number, workload=f"comes-and-goes-{number}", node=f"node-{number}"))
    assert max(decode.sharing.sizes()) <= 1024
    assert decode(pod(0, workload="stays-0")).labels is kept[0].labels


def test_pools_hold_everything_that_lives_however_much_that_is() -> None:
    decode = PodDecoder()
    living = [decode(pod(number, workload=f"w-{number}")) for number in range(3_000)]
    assert decode.sharing.sizes()[1] == 3_000
    assert all(decode(pod(number, workload=f"w-{number}")).labels is living[number].labels for number in range(3_000))


def test_absent_and_null_are_empty() -> None:
    sharing = Sharing()
    assert sharing.labels(ABSENT) == {}
    assert sharing.owners(msgspec.Raw(b"null")) == ()
    assert sharing.tolerations(msgspec.Raw(b"[]")) == ()
    assert sharing.string(None) == ""


def large(labels: dict[str, str], **spec: Any) -> bytes:
    """A pod with these labels."""
    return msgspec.json.encode({"metadata": {"name": "large", "uid": "u", "labels": labels, **spec}})


MANY = {f"k{number:05}": "" for number in range(90_000)}


def held_by(make: Callable[[], object]) -> int:
    """Bytes that are held by what is made, and were not before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = make()
        held = tracemalloc.get_traced_memory()[0] - before
        assert made
    finally:
        tracemalloc.stop()
    return held


def test_a_pod_with_90_000_labels_takes_no_more_than_twice_what_the_server_stores() -> None:
    decode, body = PodDecoder(), large(MANY)
    assert held_by(lambda: decode(body)) < 2 * len(body)


def test_a_pod_whose_many_labels_change_all_the_time_fills_no_pool() -> None:
    long = {f"{'k' * 300}{number:05}": "v" * 63 for number in range(3_500)}
    decode, bodies = PodDecoder(), [large({"app": f"a-{number}", **long}) for number in range(24)]

    def churn() -> object:
        for body in bodies:
            last = decode(body)
        return last

    assert held_by(churn) < sum(map(len, bodies)) / 2


def test_long_texts_are_not_shared() -> None:
    sharing = Sharing()
    assert sharing.string("x" * 100_000) == "x" * 100_000
    assert sharing.sizes()[0] == 0


def test_many_labels_are_one_map_for_pods_and_nodes_that_have_the_same() -> None:
    pods = PodDecoder()
    first, second = pods(large(MANY)), pods(large(MANY, resourceVersion="2"))
    assert first.labels is second.labels
    assert NodeDecoder(pods.sharing)(large(MANY)).labels is first.labels
    assert first.labels == MANY


def test_of_too_many_owners_and_tolerations_those_stay_that_decide() -> None:
    owners = [{"kind": "Thing", "name": f"n-{n}", "uid": "u" * 2000} for n in range(100)]
    manager = {"kind": "DaemonSet", "name": "d" * 9000, "uid": "d", "controller": True}
    foreign = {"apiVersion": "robots.example.com/v1", "kind": "Node", "name": "f", "uid": "f"}
    node = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n"}
    ours = {"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}
    others = [{"key": f"key-{n}", "operator": "Exists", "effect": "NoSchedule"} for n in range(200)]
    body: dict[str, Any] = {
        "metadata": {"name": "p", "ownerReferences": [*owners, foreign, manager, node]},
        "spec": {"tolerations": [*others, ours, ours]},
    }
    pod = PodDecoder()(msgspec.json.encode(body))
    assert [(owner.kind, owner.controller) for owner in pod.owners] == [("DaemonSet", True), ("Node", False)]
    assert pod.owners[1].is_node
    assert max(len(owner.name) for owner in pod.owners) < 1000
    assert [toleration.key for toleration in pod.tolerations] == [names.DISRUPTED_TAINT_KEY]
    body["spec"]["tolerations"] = others
    assert PodDecoder()(msgspec.json.encode(body)).tolerations == ()
