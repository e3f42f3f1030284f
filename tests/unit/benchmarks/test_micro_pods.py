"""The pods of the micro-benchmarks are read as pods are: otherwise nothing is measured."""

from __future__ import annotations

import orjson

from benchmarks.micro import pods
from gracectl.model.decode import PodDecoder
from gracectl.model.envelope import decode_event
from gracectl.model.pod import Pod


def read(number: int, *, version: int = 1, ready: bool = True) -> Pod:
    return PodDecoder()(orjson.dumps(pods.pod(number, 3000, version=version, ready=ready)))


def test_a_pod_has_all_that_decisions_read() -> None:
    pod = read(41)
    assert (pod.namespace, pod.name, pod.uid) == ("team-1", "web-1-000000018d-00001", pods.uid_of(41))
    assert pod.node_name.endswith(".compute.internal")
    assert pod.labels == pods.labels_of(1)
    assert [(owner.kind, owner.controller) for owner in pod.owners] == [("ReplicaSet", True)]
    assert (pod.phase, pod.grace_seconds, pod.priority, len(pod.tolerations)) == ("Running", 30, 0, 2)
    assert pod.created > 0


def test_news_of_a_pod_differs_in_version_and_readiness() -> None:
    before, after = read(1, version=2), read(1, version=3, ready=False)
    assert (before.uid, before.ready, after.ready) == (after.uid, True, False)
    assert before.resource_version != after.resource_version


def test_pods_have_names_of_their_own_and_nodes_in_common() -> None:
    read_pods = [read(number) for number in range(3000)]
    assert len({pod.key for pod in read_pods}) == len({pod.uid for pod in read_pods}) == 3000
    assert len({pod.node_name for pod in read_pods}) == 3000 / pods.PODS_OF_A_NODE


def test_an_event_is_a_line_as_large_as_those_of_a_real_server() -> None:
    line = pods.event("MODIFIED", pods.pod(7, 3000))
    assert decode_event(line).type == "MODIFIED"
    assert line.endswith(b"}\n")
    assert 4_000 < len(line) < 6_500
    assert b'"managedFields"' in line
