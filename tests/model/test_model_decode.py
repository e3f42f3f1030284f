"""Objects as the API server writes them, whole, empty, full of nulls, and broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gracectl.model import names, wire
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.decode import (
    decode_attachment,
    decode_budget,
    decode_claim,
    decode_lease,
    decode_node,
    decode_pod,
    decode_volume_claim,
)
from gracectl.model.lease import Lease
from gracectl.model.meta import Condition, OwnerReference
from gracectl.model.node import Node, Taint
from gracectl.model.pod import Pod, Toleration
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.model.volume import PersistentVolumeClaim, VolumeAttachment

NEW_YEAR = 1_767_225_600.0

META: dict[str, Any] = {
    "name": "web-1",
    "namespace": "shop",
    "uid": "4f9c",
    "resourceVersion": "42",
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "labels": {"app": "web"},
    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
}
NULL_META: dict[str, Any] = dict.fromkeys(
    (
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
    ),
    None,
) | {"name": "a"}


def encoded(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


# -- pods ---------------------------------------------------------------------------------------------


def test_a_whole_pod() -> None:
    meta = META | {
        "deletionTimestamp": "2026-01-01T01:00:30Z",
        "deletionGracePeriodSeconds": 30,
        "annotations": {
            names.DO_NOT_DISRUPT: "90m",
            names.DO_NOT_EVICT: "true",
            names.MIRROR_POD: "0a1b",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
        },
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "77", "controller": True},
            {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "78"},
        ],
    }
    spec = {
        "nodeName": "node-1",
        "terminationGracePeriodSeconds": 60,
        "priority": 2_000_000_000,
        "priorityClassName": "system-cluster-critical",
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
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
    }
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
        owners=(OwnerReference("ReplicaSet", "web", "77", True), OwnerReference("Node", "node-1", "78", False)),
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
            (
                "nodeName",
                "terminationGracePeriodSeconds",
                "priority",
                "priorityClassName",
                "tolerations",
                "volumes",
            )
        ),
        status=dict.fromkeys(("phase", "startTime", "conditions")),
    )
    bare = Pod(namespace="", name="a", uid="")
    assert decode_pod(nulls) == bare
    assert decode_pod(encoded(metadata=NULL_META, spec=None, status=None)) == bare
    assert decode_pod(encoded(metadata={"name": "a"})) == bare


def test_a_grace_of_zero_is_not_no_grace() -> None:
    meta = META | {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
    pod = decode_pod(encoded(metadata=meta, spec={"terminationGracePeriodSeconds": 0, "priority": 0}))
    assert (pod.deletion_grace_seconds, pod.grace_seconds, pod.priority) == (0, 0, 0)


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "ContainersReady", "status": "True"}], False),
        ([], False),
        (None, False),
    ],
)
def test_a_pod_is_ready_when_its_condition_says_so(conditions: object, ready: bool) -> None:
    assert decode_pod(encoded(metadata=META, status={"conditions": conditions})).ready is ready


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        ([{"name": "tmp", "emptyDir": {}}], True),
        ([{"name": "config", "configMap": {"name": "c"}}, {"name": "ram", "emptyDir": {"medium": "Memory"}}], True),
        ([{"name": "tmp", "emptyDir": None}, {"name": "scratch", "ephemeral": {}}], False),
        ([{"name": "logs", "hostPath": {"path": "/var/log"}}], False),
        ([], False),
        (None, False),
    ],
)
def test_a_pod_has_an_empty_dir_when_one_of_its_volumes_is(volumes: object, expected: bool) -> None:
    assert decode_pod(encoded(metadata=META, spec={"volumes": volumes})).empty_dir is expected


def test_annotations_that_no_decision_reads_are_not_kept() -> None:
    pods = [decode_pod(encoded(metadata=META | {"annotations": {"team": "a", "n": str(n)}})) for n in range(2)]
    assert pods[0].annotations == {}
    assert pods[0].annotations is pods[1].annotations


def test_an_empty_annotation_is_there_all_the_same() -> None:
    assert decode_pod(encoded(metadata=META | {"annotations": {names.DO_NOT_DISRUPT: ""}})).annotations == {
        names.DO_NOT_DISRUPT: ""
    }


def test_what_concerns_a_node_that_stays_is_read_from_nodes_only() -> None:
    asked = {
        names.KEEP_DRAINED: "2026-01-01T00:00:00Z",
        names.CORDONED: "",
        names.UNCORDONED: "x",
        names.SHUTDOWN_CORDONED: "taint",
    }
    raw = encoded(metadata=META | {"annotations": {**asked, "team": "a"}})
    assert decode_node(raw).annotations == asked
    assert decode_claim(raw).annotations == {}


def test_the_annotations_read_are_those_of_the_catalogue() -> None:
    def written(struct: type[msgspec.Struct]) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(struct)}

    assert written(wire.PodAnnotations) == names.POD_ANNOTATIONS
    assert written(wire.NodeAnnotations) == names.NODE_ANNOTATIONS
    assert written(wire.ClaimAnnotations) == names.CLAIM_ANNOTATIONS


# -- the other kinds ----------------------------------------------------------------------------------


def test_a_whole_node() -> None:
    meta = META | {
        "name": "node-1",
        "deletionTimestamp": "2026-01-01T01:00:00Z",
        "deletionGracePeriodSeconds": 0,
        "finalizers": [names.FINALIZER],
        "annotations": {
            names.TERMINATION_TIMESTAMP: "2026-01-01T02:00:00Z",
            "node.alpha.kubernetes.io/ttl": "0",
        },
    }
    spec = {
        "providerID": "sim:///zone-a/i-1",
        "unschedulable": True,
        "podCIDR": "10.0.0.0/24",
        "taints": [
            {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"},
            {"key": "dedicated", "value": "db", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        ],
    }
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "container runtime is down",
        "lastHeartbeatTime": "2026-01-01T00:05:00Z",
        "lastTransitionTime": "2026-01-01T00:04:00Z",
    }
    status = {"conditions": [condition], "images": [{"names": ["pause"], "sizeBytes": 1}]}
    node = decode_node(encoded(metadata=meta, spec=spec, status=status))
    assert node == Node(
        name="node-1",
        uid="4f9c",
        resource_version="42",
        labels={"app": "web"},
        annotations={names.TERMINATION_TIMESTAMP: "2026-01-01T02:00:00Z"},
        created=NEW_YEAR,
        deletion_timestamp=NEW_YEAR + 3600,
        finalizers=(names.FINALIZER,),
        unschedulable=True,
        taints=(Taint(names.DISRUPTED_TAINT_KEY, "", "NoSchedule"), Taint("dedicated", "db", "NoExecute")),
        provider_id="sim:///zone-a/i-1",
        conditions=(Condition("Ready", "False", "KubeletNotReady", "container runtime is down", NEW_YEAR + 240),),
    )
    assert not node.ready


def test_a_whole_claim() -> None:
    meta = META | {"name": "claim-1", "finalizers": [names.FINALIZER], "annotations": {names.TRACEPARENT: "00-1-2-01"}}
    claim = decode_claim(
        encoded(
            apiVersion="karpenter.sh/v1",
            metadata=meta,
            spec={"terminationGracePeriod": "1h30m", "expireAfter": "Never", "requirements": []},
            status={
                "providerID": "sim:///zone-a/i-1",
                "nodeName": "node-1",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}],
            },
        )
    )
    assert claim == NodeClaim(
        name="claim-1",
        uid="4f9c",
        resource_version="42",
        labels={"app": "web"},
        annotations={names.TRACEPARENT: "00-1-2-01"},
        created=NEW_YEAR,
        finalizers=(names.FINALIZER,),
        termination_grace_period="1h30m",
        expire_after="Never",
        provider_id="sim:///zone-a/i-1",
        node_name="node-1",
        conditions=(Condition("Ready", "True", "", "", NEW_YEAR + 1),),
    )


def test_a_whole_budget() -> None:
    budget = decode_budget(
        encoded(
            metadata=META | {"name": "web", "generation": 3},
            spec={
                "maxUnavailable": "30%",
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {
                    "matchLabels": {"app": "web"},
                    "matchExpressions": [{"key": "tier", "operator": "In", "values": ["front", "back"]}],
                },
            },
            status={
                "observedGeneration": 2,
                "disruptionsAllowed": 1,
                "currentHealthy": 4,
                "desiredHealthy": 3,
                "expectedPods": 5,
                "disruptedPods": {"web-1": "2026-01-01T00:00:00Z"},
                "conditions": [
                    {"type": "Other", "status": "True"},
                    {
                        "type": "DisruptionAllowed",
                        "status": "False",
                        "reason": "InsufficientPods",
                        "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:01Z",
                        "observedGeneration": 2,
                    },
                ],
            },
        )
    )
    assert budget == PodDisruptionBudget(
        namespace="shop",
        name="web",
        uid="4f9c",
        resource_version="42",
        generation=3,
        observed_generation=2,
        selector=LabelSelector({"app": "web"}, (Requirement("tier", "In", ("front", "back")),)),
        min_available=None,
        max_unavailable="30%",
        unhealthy_pod_eviction_policy="AlwaysAllow",
        disruptions_allowed=1,
        current_healthy=4,
        desired_healthy=3,
        expected_pods=5,
        disrupted_pods={"web-1": NEW_YEAR},
        verdict=Condition("DisruptionAllowed", "False", "InsufficientPods", "", NEW_YEAR + 1),
    )
    assert budget.key == ("shop", "web")


def test_a_budget_that_nobody_has_counted_yet_reads_as_zeros() -> None:
    budget = decode_budget(encoded(metadata=META | {"generation": 1}, spec={"minAvailable": 0}))
    assert (budget.generation, budget.observed_generation, budget.disruptions_allowed) == (1, 0, 0)
    assert (budget.min_available, budget.max_unavailable) == (0, None)
    assert budget.disrupted_pods == {}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, None),
        ({}, LabelSelector()),
        ({"matchLabels": None, "matchExpressions": None}, LabelSelector()),
        # The eviction API passes over a budget with an invalid selector; one of them must not stop the cache.
        ({"matchExpressions": [{"key": "a", "operator": "Near"}]}, None),
        ({"matchLabels": {"not a key": ""}}, None),
    ],
)
def test_the_selector_of_a_budget(selector: object, expected: LabelSelector | None) -> None:
    assert decode_budget(encoded(metadata=META, spec={"selector": selector})).selector == expected


def test_a_volume_attachment_and_an_inline_one() -> None:
    spec = {"attacher": "csi", "nodeName": "node-1", "source": {"persistentVolumeName": "pv-1"}}
    attachment = decode_attachment(encoded(metadata=META, spec=spec, status={"attached": True}))
    assert attachment == VolumeAttachment("web-1", "4f9c", "42", "node-1", "pv-1", True)
    inline = decode_attachment(encoded(metadata=META, spec={"nodeName": "node-1", "source": {"inlineVolumeSpec": {}}}))
    assert (inline.volume_name, inline.attached) == ("", False)


def test_a_volume_claim_bound_and_unbound() -> None:
    bound = decode_volume_claim(encoded(metadata=META, spec={"volumeName": "pv-1"}))
    assert bound == PersistentVolumeClaim("shop", "web-1", "pv-1", "4f9c", "42")
    assert decode_volume_claim(encoded(metadata=META, spec={})).volume_name == ""


def test_a_lease_with_its_microseconds() -> None:
    spec = {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:02.250000Z",
        "leaseTransitions": 4,
    }
    lease = decode_lease(encoded(metadata=META, spec=spec))
    assert lease == Lease("shop", "web-1", "4f9c", "42", "me", 15, NEW_YEAR, NEW_YEAR + 2.25, 4)
    assert decode_lease(encoded(metadata=META, spec={"holderIdentity": None, "renewTime": None})).holder == ""


# -- every kind ---------------------------------------------------------------------------------------

DECODERS: list[Callable[[bytes], object]] = [
    decode_pod,
    decode_node,
    decode_claim,
    decode_budget,
    decode_attachment,
    decode_volume_claim,
    decode_lease,
]


@pytest.mark.parametrize("decode", DECODERS)
def test_nulls_are_as_good_as_nothing(decode: Callable[[bytes], object]) -> None:
    assert decode(encoded(metadata=NULL_META, spec=None, status=None)) == decode(encoded(metadata={"name": "a"}))


@pytest.mark.parametrize("decode", DECODERS)
def test_a_view_into_a_page_reads_like_its_bytes(decode: Callable[[bytes | msgspec.Raw], object]) -> None:
    body = encoded(metadata=META)
    assert decode(msgspec.Raw(body)) == decode(body)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("body", [b"", b"nonsense", b'{"metadata": ', b"\xff"])
def test_what_is_no_json_is_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(body)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"[]", "object"),
        (b"{}", "metadata"),
        (b'{"metadata": {}}', "name"),
        (b'{"metadata": {"name": "a", "uid": 5}}', r"\$\.metadata\.uid"),
        (b'{"metadata": {"name": "a", "creationTimestamp": "soon"}}', r"\$\.metadata\.creationTimestamp"),
        (b'{"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00"}}', "timezone"),
        (b'{"metadata": {"name": "a"}, "spec": "all"}', r"\$\.spec"),
    ],
)
def test_what_is_no_object_is_refused_with_the_field(
    decode: Callable[[bytes], object], body: bytes, where: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=where):
        decode(body)
