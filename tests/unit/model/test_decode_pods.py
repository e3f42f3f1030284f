"""Pods as the API server writes them, whole, empty, and full of nulls."""

from __future__ import annotations

import pytest
from support.builders import META, NEW_YEAR, NULL_META, encoded

from gracectl.model import names
from gracectl.model.decode import decode_pod
from gracectl.model.meta import OwnerReference
from gracectl.model.pod import LONGEST_DURATION, LONGEST_GRACE, Pod, Toleration
from gracectl.model.times import parse_time


def test_a_whole_pod() -> None:
    meta = META | {
        "deletionTimestamp": "2026-01-01T01:00:30Z", "deletionGracePeriodSeconds": 30,
        "annotations": {
            names.DO_NOT_DISRUPT: "90m", names.DO_NOT_EVICT: "true", names.MIRROR_POD: "0a1b",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "77", "controller": True},
            {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "78"},
        ],
    }  # fmt: skip
    spec = {
        "nodeName": "node-1", "terminationGracePeriodSeconds": 60, "priority": 2_000_000_000,
        "priorityClassName": "system-cluster-critical",
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": 3,
            },
            {"operator": "Exists"},
        ],
        "containers": [{"name": "c", "image": "pause"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-1"}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "other", "ephemeral": None, "persistentVolumeClaim": None},
        ],
    }  # fmt: skip
    status = {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:05Z",
        "conditions": [
            {"type": "Initialized", "status": "True", "lastProbeTime": None},
            {"type": "Ready", "status": "True", "lastProbeTime": None},
        ],
    }
    assert decode_pod(encoded(kind="Pod", apiVersion="v1", metadata=meta, spec=spec, status=status)) == Pod(
        namespace="shop",
        name="web-1",
        uid="4f9c",
        resource_version="42",
        node_name="node-1",
        labels={"app": "web"},
        annotations={names.DO_NOT_DISRUPT: "90m", names.DO_NOT_EVICT: "true", names.MIRROR_POD: "0a1b"},
        owners=(OwnerReference("ReplicaSet", "web", "77", True, "apps"), OwnerReference("Node", "node-1", "78", False)),
        created=NEW_YEAR,
        started=NEW_YEAR + 5,
        deletion_timestamp=NEW_YEAR + 3630,
        deletion_grace_seconds=30,
        grace_seconds=60,
        priority=2_000_000_000,
        priority_class="system-cluster-critical",
        tolerations=(
            Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),
            Toleration("", "Exists", "", ""),
        ),
        phase="Running",
        ready=True,
        claims=("data-web-1", "web-1-scratch"),
        empty_dir=True,
    )


def test_a_pod_of_nulls_and_a_pod_of_nearly_nothing_read_alike() -> None:
    nulls = encoded(
        metadata=NULL_META,
        spec=dict.fromkeys(
            ("nodeName", "terminationGracePeriodSeconds", "priority", "priorityClassName", "tolerations", "volumes")
        ),
        status=dict.fromkeys(("phase", "startTime", "conditions")),
    )
    bare = Pod(namespace="", name="a", uid="")
    assert decode_pod(nulls) == bare
    assert decode_pod(encoded(metadata=NULL_META, spec=None, status=None)) == bare
    assert decode_pod(encoded(metadata={"name": "a"})) == bare


@pytest.mark.parametrize(("part", "is_kept"), [
    ({}, False),
    ({"labels": {names.DO_NOT_EVICT: "true"}}, True),
    ({"annotations": {names.DO_NOT_DISRUPT: ""}}, True),
])  # fmt: skip
def test_the_start_is_kept_where_a_protection_may_count_from_it(part: dict[str, object], is_kept: bool) -> None:
    pod = decode_pod(encoded(metadata=META | part, status={"startTime": "2026-01-01T00:00:05Z"}))
    assert pod.started == (NEW_YEAR + 5 if is_kept else None)


def test_a_grace_of_zero_is_not_no_grace() -> None:
    meta = META | {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
    pod = decode_pod(encoded(metadata=meta, spec={"terminationGracePeriodSeconds": 0, "priority": 0}))
    assert (pod.deletion_grace_seconds, pod.grace_seconds, pod.priority) == (0, 0, 0)


@pytest.mark.parametrize(
    ("seconds", "read"), [(2**63 - 1, LONGEST_GRACE), (-(2**63), -LONGEST_GRACE), (LONGEST_GRACE, LONGEST_GRACE)]
)
def test_a_grace_of_ages_is_one_of_68_years(seconds: int, read: int) -> None:
    meta = META | {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": seconds}
    pod = decode_pod(encoded(metadata=meta, spec={"terminationGracePeriodSeconds": seconds}))
    assert (pod.deletion_grace_seconds, pod.grace_seconds) == (read, read)


@pytest.mark.parametrize(("seconds", "written", "read"), [
    (2**63 - 1, "2026-11-24T22:56:05Z", LONGEST_GRACE),
    (10**10, "1759-03-26T17:08:13Z", LONGEST_GRACE),
    (2**40, "1795-10-17T00:58:40Z", LONGEST_GRACE),
    (9 * 10**9, "2312-02-06T14:56:06Z", LONGEST_GRACE),
    (LONGEST_GRACE, "2094-12-13T02:10:13Z", LONGEST_GRACE),
])  # fmt: skip
def test_an_overflown_grace_ends_no_earlier(seconds: int, written: str, read: int) -> None:
    """What a server of 1.37 wrote at 22:56:06, in the order of the graces."""
    meta = META | {"deletionTimestamp": written, "deletionGracePeriodSeconds": seconds}
    ends = decode_pod(encoded(metadata=meta)).deletion_timestamp
    assert ends == pytest.approx(parse_time("2026-11-24T22:56:06Z") + read, abs=1)


@pytest.mark.parametrize(("conditions", "ready"), [
    ([{"type": "Ready", "status": "True"}], True),
    ([{"type": "Ready", "status": "False"}], False),
    ([{"type": "Ready", "status": "Unknown"}], False),
    ([{"type": "ContainersReady", "status": "True"}], False),
    ([], False), (None, False),
])  # fmt: skip
def test_a_pod_is_ready_when_its_condition_says_so(conditions: object, ready: bool) -> None:
    assert decode_pod(encoded(metadata=META, status={"conditions": conditions})).ready is ready


@pytest.mark.parametrize(("volumes", "expected"), [
    ([{"name": "tmp", "emptyDir": {}}], True),
    ([{"name": "config", "configMap": {"name": "c"}}, {"name": "ram", "emptyDir": {"medium": "Memory"}}], True),
    ([{"name": "tmp", "emptyDir": None}, {"name": "scratch", "ephemeral": {}}], False),
    ([{"name": "logs", "hostPath": {"path": "/var/log"}}], False),
    ([], False), (None, False),
])  # fmt: skip
def test_a_pod_has_an_empty_dir_when_one_of_its_volumes_is(volumes: object, expected: bool) -> None:
    assert decode_pod(encoded(metadata=META, spec={"volumes": volumes})).empty_dir is expected


def test_of_a_long_annotation_no_more_is_kept_than_shows_that_it_is_too_long() -> None:
    pod = decode_pod(encoded(metadata=META | {"annotations": {names.DO_NOT_DISRUPT: "1ns" * 87_000}}))
    assert pod.annotations[names.DO_NOT_DISRUPT] == ("1ns" * 87_000)[: LONGEST_DURATION + 1]


def test_annotations_that_no_decision_reads_are_not_kept() -> None:
    pods = [decode_pod(encoded(metadata=META | {"annotations": {"example.com/a": "a", "n": str(n)}})) for n in range(2)]
    assert pods[0].annotations == {}
    assert pods[0].annotations is pods[1].annotations


def test_an_empty_annotation_is_there_all_the_same() -> None:
    assert decode_pod(encoded(metadata=META | {"annotations": {names.DO_NOT_DISRUPT: ""}})).annotations == {
        names.DO_NOT_DISRUPT: ""
    }
