"""gracectl next to Karpenter: each has its own nodes, and ours get a finalizer that no Karpenter knows."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.nodeclaims import KARPENTER_NODE_CLASS, ClaimSpec
from kubesim.faults import Latency, Refuse, Rule
from support.karpenter import NODE_POOLS_DEFINITION, karpenter_is_installed, karpenter_runs
from support.stage import Stage, a_pod_manifest, finalizers_of, staged, the_settings

from gracectl.controllers.karpenter import POLL_SECONDS
from gracectl.model import names

SLOW = Latency(1.0, 1.0)
FOREIGN = {"metadata": {"labels": {names.NODE_POOL: "general"}}}


def held(stage: Stage) -> dict[str, list[str]]:
    """The finalizers of each node and claim."""
    return {each["metadata"]["name"]: finalizers_of(each) for each in (*stage.nodes(), *stage.claims())}


def writes_to(stage: Stage, *things: str) -> list[str]:
    """What gracectl has written to these nodes and claims."""
    asked = (each for each in stage.transport.executed if each.request.method != "GET")
    return [
        f"{each.operation.verb} {each.operation.resource} {each.operation.name}"
        for each in asked
        if each.operation.plural in ("nodes", "nodeclaims") and each.operation.name in things
    ]


def moves(stage: Stage, since: float) -> dict[str, float]:
    """When each node and claim was patched, in seconds after `since`."""
    return {
        each.operation.name: round(each.instant - since, 3)
        for each in stage.transport.executed
        if each.operation.verb == "patch" and each.operation.plural in ("nodes", "nodeclaims") and each.instant >= since
    }


async def test_each_terminates_its_own_nodes_and_gracectl_writes_nothing_to_those_of_karpenter() -> None:
    claims: dict[str, Any] = {"termination_grace_period": "10m"}
    async with staged("n1") as stage, karpenter_runs(stage, "k1", "k2", **claims), stage.controller() as controller:
        await controller.wait_live()
        await stage.until(lambda: held(stage)["n1"] == [names.OWN_FINALIZER])
        await stage.create(a_pod_manifest("a", "n1"), a_pod_manifest("b", "k1"), a_pod_manifest("c", "k2"))
        for change in (
            {"labels": {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}},
            {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}},
        ):
            await stage.patch_node("k2", {"metadata": change})
        await stage.clock.sleep(60)
        for node in ("n1", "k1"):
            await stage.delete_node(node)
        await stage.until_gone("n1", "k1")
        await stage.clock.sleep(60)
        assert stage.node("k2") is not None
        assert not (stage.node("k2") or {})["spec"].get("unschedulable")
        assert writes_to(stage, "k1", "k2", "k1-claim", "k2-claim") == []
        assert [each.operation.name for each in stage.transport.of("create", "pods/eviction")] == ["a"]
        assert {(name, reason) for name, reason, _ in await stage.events() if name[0] == "k"} == {
            ("k2", "MaintenanceIgnored")
        }
        (message,) = [message for name, _, message in await stage.events() if name == "k2"]
        assert "Karpenter drains it (label karpenter.sh/nodepool=default); run gracectl drain k2" in message


@pytest.mark.parametrize("is_installed", [False, True])
async def test_claims_of_karpenters_classes_are_ours_where_no_karpenter_is_installed(is_installed: bool) -> None:
    async with staged() as stage:
        if is_installed:
            await karpenter_is_installed(stage)
        async with stage.settled():
            await stage.add_nodes("n1", claim=ClaimSpec(spec={"nodeClassRef": dict(KARPENTER_NODE_CLASS)}))
            await stage.clock.sleep(5)
            ours = [] if is_installed else [names.FINALIZER]
            assert held(stage) == {"n1": ours, "n1-claim": ours}


async def test_an_unhealthy_node_of_karpenter_is_neither_cordoned_nor_counted() -> None:
    settings = the_settings(health={"enabled": True, "maximumUnhealthy": 1})
    async with staged("n1", "n2", settings=settings) as stage, karpenter_runs(stage, "k1"), stage.settled():
        for node in ("k1", "n1"):
            stage.cluster.kubelet.partition(node)
        await stage.until_gone("n1")
        await stage.clock.sleep(60)
        assert writes_to(stage, "k1", "k1-claim") == []


async def test_either_goes_and_the_other_works() -> None:
    async with staged("n1", "n2") as stage:
        async with karpenter_runs(stage, "k1"):
            async with stage.settled():
                pass
            await stage.delete_node("k1")  # gracectl has gone
            await stage.until_claims_gone("k1-claim")
        await stage.call("DELETE", NODE_POOLS_DEFINITION)  # and now Karpenter
        async with stage.settled():
            await stage.add_nodes("n3")
            await stage.until(lambda: held(stage) == {  # both names hold; nothing is moved back
                "n1": [names.OWN_FINALIZER], "n2": [names.OWN_FINALIZER], "n3": [names.FINALIZER],
            })  # fmt: skip
            for node in ("n1", "n3"):
                await stage.delete_node(node)
            await stage.until_gone("n1", "n3")


async def test_a_karpenter_that_appears_later_is_noticed_and_our_nodes_are_moved_one_by_one() -> None:
    cluster = staged("n1", "n2", "n3", claim=ClaimSpec(), looks_for_karpenter=True)
    async with cluster as stage, stage.controller() as controller:
        begun = stage.clock.monotonic()
        await stage.settle(controller)
        await stage.create(a_pod_manifest("a", "n3", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.delete_node("n3")
        await stage.clock.sleep(2)
        assert set(map(tuple, held(stage).values())) == {(names.FINALIZER,)}
        await karpenter_is_installed(stage)
        stage.transport.before.add(Rule(fault=SLOW, method="PATCH", path="/nodes/|/nodeclaims/"))
        await stage.clock.sleep(begun + POLL_SECONDS - 0.001 - stage.clock.monotonic())
        assert moves(stage, begun + 10) == {}
        await stage.clock.sleep(10)
        assert moves(stage, begun + 10) == {
            "n1": POLL_SECONDS - 10 + 1, "n2": POLL_SECONDS - 10 + 2,
            "n1-claim": POLL_SECONDS - 10 + 3, "n2-claim": POLL_SECONDS - 10 + 4,
        }  # fmt: skip
        ours, theirs = [names.OWN_FINALIZER], [names.FINALIZER]
        assert held(stage) == {
            "n1": ours, "n2": ours, "n1-claim": ours, "n2-claim": ours,
            "n3": theirs, "n3-claim": theirs,  # being deleted
        }  # fmt: skip
        (reason,) = [check.reason for check in controller.process.readiness() if check.name == "karpenter"]
        assert reason == "installed: its nodes are left to it; ours have gracectl.io/termination"
        await stage.add_nodes("n4")
        await stage.until(lambda: held(stage)["n4"] == ours)
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/a")
        await stage.delete_node("n1")
        await stage.until_gone("n1", "n3")
        await stage.until_claims_gone("n1-claim", "n3-claim")


@pytest.mark.parametrize("seconds", [0.5, 1.5, 2.5])
async def test_a_process_that_is_killed_amid_the_move_leaves_every_node_held_and_the_next_completes_it(
    seconds: float,
) -> None:
    async with staged("n1", "n2", "n3") as stage:
        async with stage.settled():
            pass
        await karpenter_is_installed(stage)
        stage.transport.before.add(Rule(fault=SLOW, method="PATCH", path="/nodes/"))
        async with stage.mortal() as controller:
            await controller.wait_live()
            await stage.clock.sleep(seconds)
        await stage.clock.sleep(5)
        assert all(len(each) == 1 for each in held(stage).values())
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.until(lambda: set(map(tuple, held(stage).values())) == {(names.OWN_FINALIZER,)})


async def test_a_node_that_is_deleted_amid_the_move_keeps_its_finalizer() -> None:
    async with staged("n1") as stage:
        async with stage.settled():
            pass
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await karpenter_is_installed(stage)
        stage.transport.before.add(Rule(fault=SLOW, method="PATCH", path="/nodes/n1$"))
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(0.5)  # the patch is on its way
            await stage.delete_node("n1")
            await stage.clock.sleep(30)
            assert held(stage) == {"n1": [names.FINALIZER]}
            await stage.call("DELETE", "/api/v1/namespaces/shop/pods/a")
            await stage.until_gone("n1")


async def test_a_server_that_does_not_say_changes_nothing() -> None:
    async with staged("n1", looks_for_karpenter=True) as stage, stage.settled():
        blind = Rule(fault=Refuse(500), path="/apis/karpenter.sh/v1$")
        stage.transport.before.add(blind)
        await karpenter_is_installed(stage)
        await stage.clock.sleep(3 * POLL_SECONDS)
        assert held(stage) == {"n1": [names.FINALIZER]}
        stage.transport.before.remove(blind)
        await stage.clock.sleep(POLL_SECONDS)
        assert held(stage) == {"n1": [names.OWN_FINALIZER]}


async def test_karpenter_counts_as_installed_while_a_server_has_forgotten_it() -> None:
    async with staged("n1", looks_for_karpenter=True) as stage:
        await karpenter_is_installed(stage)
        async with stage.settled():
            await stage.call("DELETE", NODE_POOLS_DEFINITION)
            await stage.clock.sleep(3 * POLL_SECONDS)
            await stage.add_nodes("n2")
            await stage.until(lambda: held(stage)["n2"] == [names.OWN_FINALIZER])


@pytest.mark.parametrize("is_installed", [False, True])
@pytest.mark.parametrize("finalizer", names.FINALIZERS)
async def test_a_setting_wins_and_moves_what_has_the_other(finalizer: str, is_installed: bool) -> None:
    (other,) = set(names.FINALIZERS) - {finalizer}
    async with staged("n1", "n2", settings=the_settings(finalizer=finalizer)) as stage:
        await stage.patch_node("n1", {"metadata": {"finalizers": ["other.io/a", other, "other.io/b"]}})
        await stage.patch_node("n2", {"metadata": {"finalizers": [other, finalizer]}})
        if is_installed:
            await karpenter_is_installed(stage)
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.add_nodes("n3")
            await stage.clock.sleep(5)
            assert held(stage) == {"n1": ["other.io/a", finalizer, "other.io/b"], "n2": [finalizer], "n3": [finalizer]}


@pytest.mark.parametrize("change", [
    FOREIGN,
    {"metadata": {"labels": {"karpenter.k8s.aws/ec2nodeclass": "default"}}},
    {"spec": {"taints": [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]}},
])  # fmt: skip
async def test_a_node_that_becomes_karpenters_loses_our_finalizer_and_keeps_karpenters(change: dict[str, Any]) -> None:
    async with staged("n1") as stage:
        await karpenter_is_installed(stage)
        async with stage.settled():
            await stage.patch_node("n1", {"metadata": {"finalizers": [*names.FINALIZERS]}})
            await stage.clock.sleep(5)
            await stage.patch_node("n1", change)
            await stage.clock.sleep(5)
            written = writes_to(stage, "n1")
            assert held(stage)["n1"] in ([], [names.FINALIZER])
            await stage.patch_node("n1", {"metadata": {"finalizers": [names.FINALIZER]}})
            await stage.delete_node("n1")
            await stage.clock.sleep(60)
            assert held(stage) == {"n1": [names.FINALIZER]}
            assert writes_to(stage, "n1") == written


async def test_a_claim_of_karpenter_shows_late_who_owns_its_node() -> None:
    async with staged("n1") as stage:
        await karpenter_is_installed(stage)
        async with stage.settled():
            assert held(stage) == {"n1": [names.OWN_FINALIZER]}
            reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
            await stage.create_claim("c1", {"nodeName": "n1"}, nodeClassRef=reference)
            await stage.clock.sleep(5)
            assert held(stage) == {"n1": [], "c1": []}
