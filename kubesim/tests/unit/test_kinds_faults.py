"""The mistakes that people make in manifests, refused in the words of a real server (1.33)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.caller import PODS, Caller

pytestmark = pytest.mark.anyio
CASES: dict[str, Any] = json.loads((Path(__file__).parent / "answers" / "mistakes.json").read_text())
"""What a manifest says, and what a real server answers, by test."""

APPS = "/apis/apps/v1/namespaces/default"
SERVICES = "/api/v1/namespaces/default/services"
CONTAINER = {"name": "c", "image": "pause"}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


async def refused(caller: Caller, path: str, body: Any) -> str:
    """What a POST that must be refused is told, without its prefix."""
    answer = await caller.call("POST", path, body)
    assert answer.status == 422, answer.body
    message: str = answer.body["message"].partition(" is invalid: ")[2]
    return message


@pytest.mark.parametrize(("spec", "message"), CASES["pods"])
async def test_pods(caller: Caller, spec: dict[str, Any], message: str) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [CONTAINER], **spec}}
    assert await refused(caller, PODS, body) == message


async def test_owners_must_be_named_whole(caller: Caller) -> None:
    owner = {"kind": "ReplicaSet", "name": "web"}
    body = {"metadata": {"name": "p", "ownerReferences": [owner]}, "spec": {"containers": [CONTAINER]}}
    assert await refused(caller, PODS, body) == (
        '[metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty, '
        'metadata.ownerReferences.uid: Invalid value: "": uid must not be empty]'
    )


async def test_a_negative_grace_period_becomes_one_second(caller: Caller) -> None:
    spec = {"containers": [CONTAINER], "terminationGracePeriodSeconds": -5}
    assert (await caller.create(PODS, {"metadata": {"name": "p"}, "spec": spec}))["spec"][
        "terminationGracePeriodSeconds"
    ] == 1


@pytest.mark.parametrize(("plural", "change", "message"), CASES["workloads"])
async def test_workloads(caller: Caller, plural: str, change: dict[str, Any], message: str) -> None:
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE, "serviceName": "s", **change}
    assert await refused(caller, f"{APPS}/{plural}", {"metadata": {"name": "w"}, "spec": spec}) == message


async def test_what_a_workload_selects_stays(caller: Caller) -> None:
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}
    await caller.create(f"{APPS}/deployments", {"metadata": {"name": "d"}, "spec": spec})
    await caller.create(f"{APPS}/statefulsets", {"metadata": {"name": "s"}, "spec": {**spec, "serviceName": "s"}})
    patch = {"spec": {"selector": {"matchLabels": {"a": "c"}}, "template": {"metadata": {"labels": {"a": "c"}}}}}
    headers = {"content-type": "application/merge-patch+json"}
    answer = await caller.call("PATCH", f"{APPS}/deployments/d", patch, headers=headers)
    assert answer.status == 422
    assert answer.body["message"].endswith(
        'spec.selector: Invalid value: v1.LabelSelector{MatchLabels:map[string]string{"a":"c"}, '
        "MatchExpressions:[]v1.LabelSelectorRequirement(nil)}: field is immutable"
    )
    answer = await caller.call("PATCH", f"{APPS}/statefulsets/s", {"spec": {"serviceName": "t"}}, headers=headers)
    assert answer.body["message"].startswith('StatefulSet.apps "s" is invalid: spec: Forbidden: updates to statefulset')


async def test_services_get_what_they_do_not_say(caller: Caller) -> None:
    spec = {"selector": {"a": "b"}, "ports": [{"port": 80}]}
    made = (await caller.create(SERVICES, {"metadata": {"name": "s"}, "spec": spec}))["spec"]
    assert made == {
        "ports": [{"protocol": "TCP", "port": 80, "targetPort": 80}],
        "selector": {"a": "b"},
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10"],
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
    }
    opened = {"type": "LoadBalancer", "ports": [{"port": 443, "targetPort": "https"}]}
    made = (await caller.create(SERVICES, {"metadata": {"name": "open"}, "spec": opened}))["spec"]
    assert made["ports"] == [{"protocol": "TCP", "port": 443, "targetPort": "https", "nodePort": 30000}]
    assert (made["clusterIP"], made["externalTrafficPolicy"]) == ("10.96.0.11", "Cluster")
    headless = (await caller.create(SERVICES, {"metadata": {"name": "h"}, "spec": {"clusterIP": "None"}}))["spec"]
    assert headless["clusterIPs"] == ["None"]


@pytest.mark.parametrize(("spec", "message"), CASES["services"])
async def test_services(caller: Caller, spec: dict[str, Any], message: str) -> None:
    assert await refused(caller, SERVICES, {"metadata": {"name": "s"}, "spec": spec}) == message


async def test_priorities_have_a_ceiling_and_stay(caller: Caller) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    assert (await caller.create(path, {"metadata": {"name": "hi"}, "value": 5}))["preemptionPolicy"] == (
        "PreemptLowerPriority"
    )
    assert await refused(caller, path, {"metadata": {"name": "higher"}, "value": 2_000_000_000}) == (
        "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
    )
    headers = {"content-type": "application/merge-patch+json"}
    answer = await caller.call("PATCH", f"{path}/hi", {"value": 6}, headers=headers)
    assert answer.body["message"].endswith("value: Forbidden: may not be changed in an update.")
