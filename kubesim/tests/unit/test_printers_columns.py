"""What kubectl shows of kinds that no recording has a table of: the cells as a server of 1.33 writes them."""

from __future__ import annotations

import pytest
from kubesim.printers.columns import COLUMNS
from kubesim.server.api import Json, JsonObject
from kubesim.values import parse_time

CREATED = "2026-01-01T00:00:00Z"
NOW = parse_time(CREATED) + 300
NODE_PORT = {"port": 80, "nodePort": 30123}
ADDRESSES = [{"ip": f"1.1.1.{number}"} for number in range(1, 5)]
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds", "uid": "u", "controller": True}


def shown(plural: str, object_: JsonObject) -> list[Json]:
    """All cells but the name and the age, those of `-o wide` too."""
    metadata = {"name": "x", "creationTimestamp": CREATED, **object_.get("metadata", {})}
    named = [(column.name, column.cell({**object_, "metadata": metadata}, NOW)) for column in COLUMNS[plural]]
    assert ("Age", "5m") in named
    return [cell for name, cell in named if name not in ("Name", "Age")]


@pytest.mark.parametrize(
    ("plural", "object_", "cells"),
    [
        ("configmaps", {"data": {"a": "b"}, "binaryData": {"b": "YQ=="}}, [2]),
        ("configmaps", {}, [0]),
        ("secrets", {"type": "Opaque", "data": {"a": "YQ==", "b": "Yg=="}}, ["Opaque", 2]),
        (
            "services",
            {"spec": {"type": "ClusterIP", "clusterIP": "10.0.0.7", "selector": {"b": "x", "a": "z"}}},
            ["ClusterIP", "10.0.0.7", "<none>", "<none>", "a=z,b=x"],
        ),
        (
            "services",
            {"spec": {"type": "ExternalName", "externalName": "example.com"}},
            ["ExternalName", "<none>", "example.com", "<none>", "<none>"],
        ),
        (
            "services",
            {"spec": {"type": "LoadBalancer", "clusterIP": "None", "ports": [NODE_PORT]}},
            ["LoadBalancer", "None", "<pending>", "80:30123/TCP", "<none>"],
        ),
        (
            "services",
            {
                "spec": {"type": "ClusterIP", "clusterIP": "None", "externalIPs": ["1.2.3.4", "1.2.3.5"]},
            },
            ["ClusterIP", "None", "1.2.3.4,1.2.3.5", "<none>", "<none>"],
        ),
        (
            "endpoints",
            {"subsets": [{"addresses": ADDRESSES, "ports": [{"port": 80}]}]},
            ["1.1.1.1:80,1.1.1.2:80,1.1.1.3:80 + 1 more..."],
        ),
        ("endpoints", {}, ["<none>"]),
        (
            "endpointslices",
            {
                "addressType": "IPv4",
                "ports": [{"port": 80}, {"port": 81, "name": "b"}],
                "endpoints": [{"addresses": [each["ip"]]} for each in ADDRESSES],
            },
            ["IPv4", "80,81", "1.1.1.1,1.1.1.2,1.1.1.3 + 1 more..."],
        ),
        ("endpointslices", {"addressType": "IPv4"}, ["IPv4", "<unset>", "<unset>"]),
        (
            "persistentvolumes",
            {
                "spec": {
                    "capacity": {"storage": "5Gi"},
                    "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": "default", "name": "pvc"},
                    "storageClassName": "sc",
                    "volumeMode": "Filesystem",
                },
                "status": {"phase": "Bound"},
            },
            ["5Gi", "RWO,RWX", "Retain", "Bound", "default/pvc", "sc", "<unset>", "", "Filesystem"],
        ),
        (
            "persistentvolumeclaims",
            {
                "spec": {"volumeName": "pv", "storageClassName": "sc", "volumeMode": "Filesystem"},
                "status": {"phase": "Bound", "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"]},
            },
            ["Bound", "pv", "5Gi", "RWO", "sc", "<unset>", "Filesystem"],
        ),
        (
            "persistentvolumeclaims",
            {"metadata": {"deletionTimestamp": CREATED}, "spec": {}, "status": {"phase": "Bound"}},
            ["Terminating", "", "", "", "", "<unset>", "<unset>"],
        ),
        ("storageclasses", {"provisioner": "foo.example"}, ["foo.example", "Delete", "Immediate", False]),
        ("csinodes", {"spec": {"drivers": [{"name": "d"}]}}, [1]),
        ("priorityclasses", {"value": 5, "preemptionPolicy": "Never"}, [5, False, "Never"]),
        ("controllerrevisions", {"metadata": {"ownerReferences": [OWNER]}, "revision": 3}, ["daemonset.apps/ds", 3]),
        ("controllerrevisions", {"revision": 1}, ["<none>", 1]),
    ],
)
def test_the_cells_of_small_kinds(plural: str, object_: JsonObject, cells: list[Json]) -> None:
    assert shown(plural, object_) == cells


@pytest.mark.parametrize(
    ("spec", "status", "cells"),
    [
        ({"completions": 4}, {}, ["Running", "0/4", ""]),
        ({"parallelism": 3}, {"startTime": CREATED, "succeeded": 1}, ["Running", "1/1 of 3", "5m"]),
        ({"parallelism": 1}, {"startTime": CREATED}, ["Running", "0/1", "5m"]),
        (
            {"completions": 1},
            {
                "startTime": CREATED,
                "completionTime": "2026-01-01T00:00:42Z",
                "succeeded": 1,
                "conditions": [
                    {"type": "SuccessCriteriaMet", "status": "True"},
                    {"type": "Complete", "status": "True"},
                ],
            },
            ["Complete", "1/1", "42s"],
        ),
        ({"completions": 1}, {"conditions": [{"type": "Suspended", "status": "True"}]}, ["Suspended", "0/1", ""]),
        ({"completions": 1}, {"conditions": [{"type": "Suspended", "status": "False"}]}, ["Running", "0/1", ""]),
        ({"completions": 1}, {"conditions": [{"type": "Failed", "status": "True"}]}, ["Failed", "0/1", ""]),
    ],
)
def test_how_far_a_job_is(spec: JsonObject, status: JsonObject, cells: list[Json]) -> None:
    assert shown("jobs", {"spec": spec, "status": status})[:3] == cells


def test_selectors_are_told_whole() -> None:
    selector = {
        "matchLabels": {"z": "b"},
        "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["d", "c"]},
            {"key": "q", "operator": "DoesNotExist"},
            {"key": "m", "operator": "Exists"},
            {"key": "o", "operator": "NotIn", "values": ["x"]},
        ],
    }
    pods = {"nodeSelector": {"os": "foo", "arch": "bar"}, "containers": [{"name": "a", "image": "i"}]}
    daemons = {"spec": {"selector": selector, "template": {"spec": pods}}}
    *_, node_selector, names, images, shown_selector = shown("daemonsets", daemons)
    assert (node_selector, names, images) == ("arch=bar,os=foo", "a", "i")
    assert shown_selector == "a in (c,d),m,o notin (x),!q,z=b"
