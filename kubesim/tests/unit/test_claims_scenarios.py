"""Nodes of a scenario with their NodeClaims: as Karpenter leaves them, however the world came about."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from kubesim.clock import LoopClock
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.client import Refused
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.controllers.paths import NODES, path_of
from kubesim.scenarios.parser import ScenarioError, read_text
from kubesim.scenarios.plan import plan_of
from kubesim.scenarios.scenario import Scenario
from kubesim.scenarios.simulation import Simulation
from kubesim.server.api import JsonObject
from kubesim_support.clusters import quiet

pytestmark = pytest.mark.anyio

HEAD = "name: a\ndescription: b.\n"
CLAIMED = """
nodes:
  - name: spot-{n}
    count: 2
    zones: [x, y]
    labels: {disk: ssd}
    taints: [{key: only, value: spot, effect: NoSchedule}]
    claims:
      nodePool: pool-{n}
      capacityType: spot
      terminationGracePeriod: 5m
      expireAfter: 720h
      labels: {copy: "{n}"}
      annotations: {example.com/note: written}
      spec: {resources: {requests: {cpu: 2}}}
  - {name: old, claims: {name: older}}
  - {name: plain}
deployments:
  - name: web
    replicas: 3
    nodeSelector: {karpenter.sh/nodepool: pool-2}
    tolerations: [{key: only, operator: Exists}]
"""
CLAIM = "/apis/karpenter.sh/v1/nodeclaims"


def read(text: str, start: str = "grown") -> Scenario:
    return msgspec.structs.replace(read_text(HEAD + text, "file"), start=start)


@asynccontextmanager
async def running(scenario: Scenario) -> AsyncIterator[tuple[EmbeddedCluster, list[str]]]:
    """A scenario that has settled, and what its timeline tells."""
    lines: list[str] = []
    simulation = Simulation(LoopClock(), scenario, tell=lambda at, what: lines.append(f"{at:g} {what}"))
    async with anyio.create_task_group() as group:
        state = await group.start(simulation.run)
        assert state.is_complete
        await quiet()
        yield simulation.cluster, lines
        group.cancel_scope.cancel()


async def listed(cluster: EmbeddedCluster, path: str) -> dict[str, JsonObject]:
    """Objects by name, as the server has them."""
    status, answer = await cluster.api.call("GET", path)
    assert status == 200, answer
    return {item["metadata"]["name"]: item for item in answer["items"]}


@pytest.mark.parametrize("start", ["grown", "prebuilt"])
async def test_claims_are_as_karpenter_leaves_them(start: str) -> None:
    async with running(read(CLAIMED, start)) as (cluster, _):
        claims, nodes = await listed(cluster, CLAIM), await listed(cluster, NODES)
    assert set(claims) == {"spot-1-claim", "spot-2-claim", "older"}
    claim, node = claims["spot-2-claim"], nodes["spot-2"]
    assert claim["metadata"]["labels"] == {
        "karpenter.sh/nodepool": "pool-2",
        "karpenter.sh/capacity-type": "spot",
        "copy": "2",
        "disk": "ssd",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "sim.large",
        "topology.kubernetes.io/region": "sim",
        "topology.kubernetes.io/zone": "y",
    }
    assert claim["metadata"]["annotations"] == {"example.com/note": "written"}
    assert claim["spec"]["terminationGracePeriod"] == "5m"
    assert claim["spec"]["expireAfter"] == "720h"
    assert claim["spec"]["taints"] == [{"key": "only", "value": "spot", "effect": "NoSchedule"}]
    assert claim["spec"]["resources"] == {"requests": {"cpu": 2}}
    assert {"key": "karpenter.sh/nodepool", "operator": "In", "values": ["pool-2"]} in claim["spec"]["requirements"]
    status = claim["status"]
    assert status["nodeName"] == "spot-2"
    assert status["providerID"] == node["spec"]["providerID"]
    assert status["capacity"] == node["status"]["capacity"]
    assert [(each["type"], each["status"], each["reason"]) for each in status["conditions"]] == [
        (type_, "True", type_) for type_ in ("Launched", "Registered", "Initialized", "Ready")
    ]
    assert {"terminationGracePeriod", "expireAfter"}.isdisjoint(claims["older"]["spec"])
    assert claims["older"]["status"]["nodeName"] == "old"
    assert claim["spec"]["nodeClassRef"]["kind"] == "KWOKNodeClass"
    assert "karpenter.sh/nodepool" not in claims["older"]["metadata"]["labels"]
    assert claims["older"]["spec"]["nodeClassRef"]["kind"] == "Machine"
    assert "finalizers" not in claim["metadata"]


async def test_a_node_goes_with_its_claim_when_neither_has_a_finalizer() -> None:
    async with running(read(CLAIMED)) as (cluster, _):
        await cluster.api.call("DELETE", f"{CLAIM}/older")
        await quiet()
        assert set(await listed(cluster, NODES)) == {"spot-1", "spot-2", "plain"}


OWN = """
objects:
  - {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: nodeclaims.karpenter.sh}}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: [{name: x, claims: {tgp: 5m}}]", "nodes[0].claims.tgp: there is no such field here; known are name, "),
        ("nodes: [{name: x, claims: {terminationGracePeriod: 90}}]", "nodes[0].claims.terminationGracePeriod: expec"),
        (
            "nodes: [{name: x, claims: {terminationGracePeriod: 1d}}]",
            "nodes[0].claims.terminationGracePeriod: '1d' is none; write whole seconds, minutes and hours, such as 15m",
        ),
        (
            "nodes: [{name: x, claims: {terminationGracePeriod: Never}}]",
            "nodes[0].claims.terminationGracePeriod: 'Never' is none",
        ),
        ("nodes: [{name: x, claims: {expireAfter: 30d}}]", "nodes[0].claims.expireAfter: '30d' is none; write whole s"),
        (
            "timeline: [{at: 0, addNodes: [{name: x, claims: {expireAfter: soon}}]}]",
            "timeline[0].addNodes[0].claims.expireAfter: 'soon' is none",
        ),
        (
            "nodes: [{name: x, claims: {capacityType: cheap}}]",
            "nodes[0].claims.capacityType: 'cheap' is none of the words it takes; choose one of on-demand, res",
        ),
        (
            "server: {crds: false}\nnodes: [{name: x, claims: {}}]",
            "nodes[0].claims: there can be no NodeClaims: server.crds is false (--no-crds); let it be true",
        ),
        (f"nodes: [{{name: x, claims: {{}}}}]{OWN}", "nodes[0].claims: there can be no NodeClaims: the scenario's own"),
        (
            "nodes: [{name: x, claims: {name: c}}, {name: y, claims: {name: c}}]",
            "there are two of NodeClaim c; give one of them another name",
        ),
    ],
)
def test_claims_that_cannot_be_are_refused_with_their_place(text: str, expected: str) -> None:
    with pytest.raises(ScenarioError) as error:
        plan_of(read(text))
    assert expected in str(error.value)


async def bare(**options: Any) -> EmbeddedCluster:
    """A cluster that does not run."""
    return EmbeddedCluster(LoopClock(), ClusterOptions(**options))


async def test_a_claim_needs_its_definition() -> None:
    cluster = await bare()
    with pytest.raises(Refused, match="404"):
        await cluster.add_node(NodeSpec(name="n", claim=ClaimSpec()))
    status, _ = await cluster.api.call("GET", path_of(NODES, name="n"))
    assert status == 404
