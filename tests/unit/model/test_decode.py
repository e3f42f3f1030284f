"""Objects as the API server writes them, whole, empty, full of nulls, and broken."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from support.builders import META, NEW_YEAR, NULL_META, encoded

from gracectl.model import names, wire
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.claim import NodeClaim
from gracectl.model.decode import (
    decode_attachment,
    decode_budget,
    decode_claim,
    decode_lease,
    decode_node,
    decode_node_budget,
    decode_pod,
    decode_volume_claim,
)
from gracectl.model.meta import Condition, Lease
from gracectl.model.node import Node, Taint
from gracectl.model.pod import PersistentVolumeClaim, VolumeAttachment
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.model.windows import MOST_WINDOWS, Window


def test_what_concerns_a_node_that_stays_is_read_from_nodes_only() -> None:
    asked = {
        names.KEEP_DRAINED: "2026-01-01T00:00:00Z", names.CORDONED: "", names.UNCORDONED: "x",
        names.SHUTDOWN_CORDONED: "taint",
    }  # fmt: skip
    raw = encoded(metadata=META | {"annotations": {**asked, "team": "a"}})
    assert decode_node(raw).annotations == asked
    assert decode_claim(raw).annotations == {}


def test_the_annotations_read_are_those_of_the_catalogue() -> None:
    def written(struct: type[msgspec.Struct]) -> set[str]:
        return {field.encode_name for field in msgspec.structs.fields(struct)}

    of_pods = {names.DO_NOT_DISRUPT, names.DO_NOT_EVICT, names.MIRROR_POD, *names.OWNER_KEYS}
    of_pods.add(names.AUTOSCALER_DAEMON_POD)
    of_pods |= {names.REPLACE_FIRST, names.RELEASED_FROM, names.REPLACEMENT_FAILED}
    assert written(wire.PodAnnotations) == of_pods
    assert written(wire.NodeAnnotations) == names.NODE_ANNOTATIONS
    assert written(wire.ClaimAnnotations) == names.CLAIM_ANNOTATIONS


def test_a_whole_node() -> None:
    meta = META | {
        "name": "node-1", "deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": 0,
        "finalizers": [names.FINALIZER],
        "annotations": {names.TERMINATION_TIMESTAMP: "2026-01-01T02:00:00Z", "node.alpha.kubernetes.io/ttl": "0"},
    }  # fmt: skip
    spec = {
        "providerID": "sim:///zone-a/i-1", "unschedulable": True, "podCIDR": "10.0.0.0/24",
        "taints": [
            {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"},
            {"key": "dedicated", "value": "db", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        ],
    }  # fmt: skip
    condition = {
        "type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "container runtime is down",
        "lastHeartbeatTime": "2026-01-01T00:05:00Z", "lastTransitionTime": "2026-01-01T00:04:00Z",
    }  # fmt: skip
    status = {
        "conditions": [condition],
        "images": [{"names": ["pause"], "sizeBytes": 1}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": "node-1"}],
    }
    node = decode_node(encoded(metadata=meta, spec=spec, status=status))
    assert node == Node(
        name="node-1", uid="4f9c", resource_version="42", labels={"app": "web"},
        annotations={names.TERMINATION_TIMESTAMP: "2026-01-01T02:00:00Z"}, created=NEW_YEAR,
        deletion_timestamp=NEW_YEAR + 3600, finalizers=(names.FINALIZER,), unschedulable=True,
        taints=(Taint(names.DISRUPTED_TAINT_KEY, "", "NoSchedule"), Taint("dedicated", "db", "NoExecute")),
        provider_id="sim:///zone-a/i-1", addresses=("10.0.0.7", "node-1"),
        conditions=(Condition("Ready", "False", "KubeletNotReady", "container runtime is down", NEW_YEAR + 240),),
    )  # fmt: skip
    assert not node.ready


def test_of_the_addresses_that_a_kubelet_writes_only_a_few_count_that_can_be_one() -> None:
    written: list[object] = [
        "a b",
        "x\0",
        "",
        "y" * 254,
        "\u202e",
        None,
        *(f"10.0.0.{number}" for number in range(100)),
    ]
    addresses = [{"type": "InternalIP", "address": address} for address in written]
    node = decode_node(encoded(metadata=META, status={"addresses": [{}, *addresses]}))
    assert node.addresses == tuple(f"10.0.0.{number}" for number in range(32))


def test_a_whole_claim() -> None:
    meta = META | {"name": "claim-1", "finalizers": [names.FINALIZER], "annotations": {names.TRACEPARENT: "00-1-2-01"}}
    claim = decode_claim(
        encoded(
            apiVersion="karpenter.sh/v1", metadata=meta,
            spec={"terminationGracePeriod": "1h30m", "expireAfter": "Never", "requirements": []},
            status={
                "providerID": "sim:///zone-a/i-1", "nodeName": "node-1",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}],
            },
        ),
    )  # fmt: skip
    assert claim == NodeClaim(
        name="claim-1", uid="4f9c", resource_version="42", labels={"app": "web"},
        annotations={names.TRACEPARENT: "00-1-2-01"}, created=NEW_YEAR, finalizers=(names.FINALIZER,),
        termination_grace_period="1h30m", expire_after="Never", provider_id="sim:///zone-a/i-1", node_name="node-1",
        conditions=(Condition("Ready", "True", "", "", NEW_YEAR + 1),),
    )  # fmt: skip


def test_a_whole_budget() -> None:
    budget = decode_budget(
        encoded(
            metadata=META | {"name": "web", "generation": 3},
            spec={
                "maxUnavailable": "30%", "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {
                    "matchLabels": {"app": "web"},
                    "matchExpressions": [{"key": "tier", "operator": "In", "values": ["front", "back"]}],
                },
            },
            status={
                "observedGeneration": 2, "disruptionsAllowed": 1, "currentHealthy": 4, "desiredHealthy": 3,
                "expectedPods": 5, "disruptedPods": {"web-1": "2026-01-01T00:00:00Z"},
                "conditions": [
                    {"type": "Other", "status": "True"},
                    {
                        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:01Z", "observedGeneration": 2,
                    },
                ],
            },
        ),
    )  # fmt: skip
    assert budget == PodDisruptionBudget(
        namespace="shop", name="web", uid="4f9c", resource_version="42", generation=3, observed_generation=2,
        created=NEW_YEAR,
        selector=LabelSelector({"app": "web"}, (Requirement("tier", "In", ("front", "back")),)),
        min_available=None, max_unavailable="30%", unhealthy_pod_eviction_policy="AlwaysAllow", disruptions_allowed=1,
        current_healthy=4, desired_healthy=3, expected_pods=5, disrupted_pods={"web-1": NEW_YEAR},
        verdict=Condition("DisruptionAllowed", "False", "InsufficientPods", "", NEW_YEAR + 1),
    )  # fmt: skip
    assert budget.key == ("shop", "web")


def test_a_budget_that_is_not_counted_yet_reads_as_zeros() -> None:
    budget = decode_budget(encoded(metadata=META | {"generation": 1}, spec={"minAvailable": 0}))
    assert (budget.generation, budget.observed_generation, budget.disruptions_allowed) == (1, 0, 0)
    assert (budget.min_available, budget.max_unavailable) == (0, None)
    assert budget.disrupted_pods == {}


@pytest.mark.parametrize(("selector", "expected"), [
    (None, None), ({}, LabelSelector()),
    ({"matchLabels": None, "matchExpressions": None}, LabelSelector()),
    # The eviction API passes over a budget with an invalid selector; one of them must not stop the cache.
    ({"matchExpressions": [{"key": "a", "operator": "Near"}]}, None),
    ({"matchLabels": {"not a key": ""}}, None),
])  # fmt: skip
def test_the_selector_of_a_budget(selector: object, expected: LabelSelector | None) -> None:
    assert decode_budget(encoded(metadata=META, spec={"selector": selector})).selector == expected


def test_a_volume_attachment_and_an_inline_one() -> None:
    spec = {"attacher": "csi", "nodeName": "node-1", "source": {"persistentVolumeName": "pv-1"}}
    attachment = decode_attachment(encoded(metadata=META, spec=spec, status={"attached": True}))
    assert attachment == VolumeAttachment("web-1", "4f9c", "42", "node-1", "pv-1", True, driver="csi")
    inline = decode_attachment(encoded(metadata=META, spec={"nodeName": "node-1", "source": {"inlineVolumeSpec": {}}}))
    assert (inline.volume_name, inline.attached) == ("", False)
    source = {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "csi", "volumeHandle": "vol-1"}}}
    inline = decode_attachment(encoded(metadata=META, spec={"nodeName": "node-1", "source": source}))
    assert (inline.volume_name, inline.volume_handle) == ("", "vol-1")


def test_a_volume_claim_bound_and_unbound() -> None:
    bound = decode_volume_claim(encoded(metadata=META, spec={"volumeName": "pv-1"}))
    assert bound == PersistentVolumeClaim("shop", "web-1", "4f9c", "42", "pv-1")
    assert decode_volume_claim(encoded(metadata=META, spec={})).volume_name == ""


def test_a_lease_with_its_microseconds() -> None:
    spec = {
        "holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:02.250000Z", "leaseTransitions": 4,
    }  # fmt: skip
    lease = decode_lease(encoded(metadata=META, spec=spec))
    assert lease == Lease("shop", "web-1", "4f9c", "42", "me", 15, NEW_YEAR, NEW_YEAR + 2.25, 4)
    assert decode_lease(encoded(metadata=META, spec={"holderIdentity": None, "renewTime": None})).holder == ""


DECODERS: list[Callable[[bytes], object]] = [
    decode_pod, decode_node, decode_claim, decode_budget, decode_attachment, decode_volume_claim, decode_lease,
]  # fmt: skip


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
@pytest.mark.parametrize(("body", "where"), [
    (b"[]", "object"), (b"{}", "metadata"), (b'{"metadata": {}}', "name"),
    (b'{"metadata": {"name": "a", "uid": 5}}', r"\$\.metadata\.uid"),
    (b'{"metadata": {"name": "a", "creationTimestamp": "soon"}}', r"\$\.metadata\.creationTimestamp"),
    (b'{"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00"}}', "timezone"),
    (b'{"metadata": {"name": "a"}, "spec": "all"}', r"\$\.spec"),
])  # fmt: skip
def test_an_invalid_object_names_its_field(decode: Callable[[bytes], object], body: bytes, where: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=where):
        decode(body)


def test_windows_of_a_node_budget_are_kept_as_written_and_bounded() -> None:
    written = [{"schedule": "0 22 * * *", "duration": "4h", "timeZone": "Europe/Berlin"}, {"schedule": "x" * 1000}]
    budget = decode_node_budget(encoded(metadata=META, spec={"windows": written}))
    assert budget.windows == (Window("0 22 * * *", "4h", "Europe/Berlin"), Window("x" * 257, ""))
    assert len(decode_node_budget(encoded(metadata=META, spec={"windows": written * 50})).windows) == MOST_WINDOWS + 1
    assert decode_node_budget(encoded(metadata=META, spec={"windows": None})).windows == ()
