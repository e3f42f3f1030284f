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
from kubesim.controllers.nodeclaims import NODE_CLAIM, ClaimSpec
from kubesim.controllers.paths import DEFINITIONS, NODES, path_of
from kubesim.scenarios.library import scenario_named
from kubesim.scenarios.parser import ScenarioError, read_text
from kubesim.scenarios.plan import plan_of, scaled
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
    told: list[str] = []
    simulation = Simulation(LoopClock(), scenario, tell=lambda at, what: told.append(f"{at:g} {what}"))
    async with anyio.create_task_group() as group:
        state = await group.start(simulation.run)
        assert state.is_complete
        await quiet()
        yield simulation.cluster, told
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
    assert claims["older"]["metadata"]["labels"]["karpenter.sh/nodepool"] == "default"
    assert "finalizers" not in claim["metadata"]


@pytest.mark.parametrize("start", ["grown", "prebuilt"])
async def test_nodes_carry_the_labels_of_their_claims_and_belong_to_them(start: str) -> None:
    async with running(read(CLAIMED, start)) as (cluster, _):
        claims, nodes = await listed(cluster, CLAIM), await listed(cluster, NODES)
        pods = cluster.pods()
    claim, metadata = claims["spot-1-claim"], nodes["spot-1"]["metadata"]
    assert claim["metadata"]["labels"].items() <= metadata["labels"].items()
    assert metadata["labels"]["karpenter.sh/registered"] == metadata["labels"]["karpenter.sh/initialized"] == "true"
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "name": "spot-1-claim",
            "uid": claim["metadata"]["uid"],
            "blockOwnerDeletion": True,
        }
    ]
    plain = nodes["plain"]["metadata"]
    assert "ownerReferences" not in plain
    assert not [label for label in plain["labels"] if label.startswith("karpenter.sh/")]
    assert {pod["spec"]["nodeName"] for pod in pods} == {"spot-2"}


async def test_a_node_goes_with_its_claim_when_neither_has_a_finalizer() -> None:
    async with running(read(CLAIMED)) as (cluster, _):
        await cluster.api.call("DELETE", f"{CLAIM}/older")
        await quiet()
        assert set(await listed(cluster, NODES)) == {"spot-1", "spot-2", "plain"}


async def test_nodes_that_come_later_bring_their_claims() -> None:
    text = "nodes: [{name: a}]\npods: [{name: p}]\ntimeline:\n"
    text += "  - {at: 5, addNodes: [{name: b, claims: {terminationGracePeriod: 1m}}]}\n"
    text += "  - {at: 6, delete: {kind: NodeClaim, name: b-*}}\n"
    async with running(read(text)) as (cluster, told):
        assert await listed(cluster, CLAIM) == {}
        await cluster.pace.sleep(5.5)
        assert (await listed(cluster, CLAIM))["b-claim"]["spec"]["terminationGracePeriod"] == "1m"
        await cluster.pace.sleep(1)
        assert await listed(cluster, CLAIM) == {}
    assert told == ["5 added nodes b", "6 deleted NodeClaim b-claim"]


async def test_the_definition_can_be_left_out() -> None:
    async with running(read("server: {crds: false}\nnodes: [{name: a}]")) as (cluster, _):
        assert await listed(cluster, DEFINITIONS) == {}
    async with running(read("nodes: [{name: a}]")) as (cluster, _):
        definitions = await listed(cluster, DEFINITIONS)
        assert await listed(cluster, CLAIM) == {}
    assert list(definitions) == ["nodeclaims.karpenter.sh"]
    definition = definitions["nodeclaims.karpenter.sh"]
    assert [each["type"] for each in definition["status"]["conditions"]] == ["NamesAccepted", "Established"]
    assert definition["status"]["storedVersions"] == ["v1"]


@pytest.mark.parametrize("start", ["grown", "prebuilt"])
async def test_a_definition_of_ones_own_takes_the_place_of_ours(start: str) -> None:
    mine = {**NODE_CLAIM, "metadata": {**NODE_CLAIM["metadata"], "labels": {"mine": "yes"}}}
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "c"},
        "spec": {"nodeClassRef": {"name": "x"}, "requirements": []},
    }
    scenario = msgspec.structs.replace(read("nodes: [{name: a}]", start), objects=(mine, claim))
    async with running(scenario) as (cluster, _):
        assert (await listed(cluster, DEFINITIONS))["nodeclaims.karpenter.sh"]["metadata"]["labels"] == {"mine": "yes"}
        assert set(await listed(cluster, CLAIM)) == {"c"}


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


def test_a_larger_world_has_more_claims() -> None:
    nodes = plan_of(scaled(read("nodes: [{name: x, claims: {name: 'c-{n}'}}]"), 3)).nodes
    assert [(node.name, node.claim.name_for(node.name)) for node in nodes if node.claim] == [
        ("x-1", "c-1"),
        ("x-2", "c-2"),
        ("x-3", "c-3"),
    ]


async def test_deadlines_has_what_it_says() -> None:
    async with running(scenario_named("deadlines")) as (cluster, _):
        claims = await listed(cluster, CLAIM)
        periods = {name: claim["spec"].get("terminationGracePeriod") for name, claim in claims.items()}
        orders = {pod["spec"]["nodeName"] for pod in cluster.pods() if pod["metadata"]["labels"]["app"] == "orders"}
    assert periods == {
        **{f"patient-{number}-claim": "2m" for number in (1, 2, 3)},
        **{f"seed-{number}-claim": "1m30s" for number in (1, 2, 3)},
        "endless-claim": None,
    }
    assert orders == {"seed-1", "seed-2", "seed-3"}


# -- the same for tests ------------------------------------------------------------------------------------------------


async def bare(**options: Any) -> EmbeddedCluster:
    """A cluster that does not run."""
    return EmbeddedCluster(LoopClock(), ClusterOptions(**options))


async def test_definitions_are_served_from_the_first_request_on() -> None:
    cluster = await bare(definitions=(NODE_CLAIM,))
    assert await listed(cluster, CLAIM) == {}
    await cluster.add_node(NodeSpec(name="n", claim=ClaimSpec(name="c", termination_grace_period="15m")))
    assert (await listed(cluster, CLAIM))["c"]["status"]["nodeName"] == "n"
    made = await cluster.create(
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": "d"},
            "spec": {"nodeClassRef": {"group": "a", "kind": "b", "name": "c"}, "requirements": []},
        }
    )
    assert made["metadata"]["generation"] == 1
    assert cluster.pace.clock.monotonic() == 0


async def test_a_claim_needs_its_definition() -> None:
    cluster = await bare()
    with pytest.raises(Refused, match="404"):
        await cluster.add_node(NodeSpec(name="n", claim=ClaimSpec()))
    status, _ = await cluster.api.call("GET", path_of(NODES, name="n"))
    assert status == 404
