"""A sight of a cluster as it changes: the chosen nodes with their pods, and nothing about the pods of the others."""

from __future__ import annotations

import anyio
import pytest
from kubesim.faults import Latency, Rule
from kubesim_support.accounts import account_token, grant, rule
from support.builders import a_pod
from support.clients import a_client, asked_pods, being_deleted, named, pods_seen, seeing
from support.inprocess import InProcessTransport
from support.stage import NAMESPACE, NOT_READY, SILENT, Stage, a_budget_manifest, a_pod_manifest, staged

from gracectl.controllers.cluster.informers import MANY
from gracectl.inspect.watcher import ClusterWatcher
from gracectl.kube import errors
from gracectl.kube.client import KubeClient
from gracectl.model.node import Node

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NO_POD = a_pod("none")
HELD = {"metadata": {"finalizers": ["example.com/hold"]}}
CHOSEN = {"metadata": {"labels": {"chosen": "yes"}}}
NOT_CHOSEN = {"metadata": {"labels": {"chosen": None}}}


def is_labelled(node: Node) -> bool:
    return node.labels.get("chosen") == "yes"


async def create_pods(stage: Stage, **nodes: str) -> None:
    """Pods by the node that they are bound to, all running."""
    await stage.create(*(a_pod_manifest(name, node) for name, node in nodes.items()))


async def remove_pod(stage: Stage, name: str) -> None:
    """It is gone at once."""
    await stage.call("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})


# -- which objects are seen --------------------------------------------------------------------------------------------


async def test_the_pods_of_chosen_nodes_are_followed_and_those_of_others_never_asked_for() -> None:
    async with staged("n1", "n2", "n3") as stage:
        await create_pods(stage, a="n1", b="n2", c="n3")
        async with seeing(stage, named("n1", "n3")) as sight:
            assert pods_seen(sight, "n1", "n2", "n3") == {"n1": ["a"], "n2": [], "n3": ["c"]}
            assert [sight.has_pods_of(node) for node in ("n1", "n2", "n3")] == [True, False, True]
            assert len(sight.cluster.nodes) == 3
            await stage.create(a_budget_manifest("d", minAvailable=1), a_pod_manifest("d", "n1"))
            await create_pods(stage, e="n2")
            await remove_pod(stage, "c")
            await stage.clock.sleep(1)
            assert pods_seen(sight, "n1", "n2", "n3") == {"n1": ["a", "d"], "n2": [], "n3": []}
            assert [each.name for each in sight.cluster.budgets.values()] == ["d"]
        of_n1, of_n3 = "spec.nodeName=n1", "spec.nodeName=n3"
        assert sorted(asked_pods(stage)) == [f"list {of_n1}", f"list {of_n3}", f"watch {of_n1}", f"watch {of_n3}"]


async def test_a_pod_that_is_bound_by_a_scheduler_is_seen() -> None:
    async with staged("n1") as stage, seeing(stage, named("n1")) as sight:
        await create_pods(stage, a="")
        await stage.clock.sleep(1)
        assert pods_seen(sight, "n1") == {"n1": ["a"]}


async def test_a_node_is_followed_from_when_it_is_chosen_until_it_no_longer_is() -> None:
    async with staged("n1", "n2") as stage:
        await create_pods(stage, a="n1", b="n2")
        async with seeing(stage, is_labelled) as sight:
            assert (len(sight.cluster.pods), asked_pods(stage)) == (0, [])
            assert sight.cluster.pods.live
            await stage.patch_node("n1", CHOSEN)
            await stage.clock.sleep(1)
            assert pods_seen(sight, "n1", "n2") == {"n1": ["a"], "n2": []}
            await stage.patch_node("n1", NOT_CHOSEN)
            await create_pods(stage, c="n1")
            await stage.clock.sleep(1)
            assert (len(sight.cluster.pods), sight.has_pods_of("n1")) == (0, False)
            await stage.patch_node("n1", CHOSEN)
            await stage.clock.sleep(1)
            assert pods_seen(sight, "n1", "n2") == {"n1": ["a", "c"], "n2": []}
        assert asked_pods(stage) == ["list spec.nodeName=n1", "watch spec.nodeName=n1"] * 2


async def test_a_node_that_is_being_deleted_is_followed_until_it_is_gone() -> None:
    async with staged("n1") as stage:
        await stage.patch_node("n1", HELD)
        await create_pods(stage, a="n1")
        async with seeing(stage, being_deleted) as sight:
            await stage.delete_node("n1")
            await stage.clock.sleep(1)
            assert pods_seen(sight, "n1") == {"n1": ["a"]}
            await stage.patch_node("n1", {"metadata": {"finalizers": None}})
            await stage.clock.sleep(0.001)
            assert stage.pods_on("n1")
            assert (len(sight.cluster.nodes), len(sight.cluster.pods)) == (0, 0)


async def test_a_node_that_comes_back_under_the_same_name_is_another_node() -> None:
    async with staged("n1") as stage:
        await create_pods(stage, a="n1")
        async with seeing(stage, named("n1")) as sight:
            changes: list[str] = []
            sight.cluster.pods.subscribe(lambda old, new: changes.append("+" if old is None else "-"))
            await stage.delete_node("n1")
            await stage.add_nodes("n1")
            await stage.clock.sleep(0.001)
            assert changes == ["-", "+"]
            assert pods_seen(sight, "n1") == {"n1": ["a"]}
            await sight.wait_live()
            assert sight.has_pods_of("n1")
        assert asked_pods(stage) == ["list spec.nodeName=n1", "watch spec.nodeName=n1"] * 2


async def test_a_pod_of_a_stateful_set_moves_from_one_chosen_node_to_another() -> None:
    objects = [a_pod_manifest("web-0", "n1")]
    async with staged("n1", "n2", objects=objects) as stage, seeing(stage, named("n1", "n2")) as sight:
        for node, before in (("n2", "n1"), ("n1", "n2"), ("n2", "n1")):
            await remove_pod(stage, "web-0")
            await create_pods(stage, **{"web-0": node})
            await stage.clock.sleep(1)
            assert pods_seen(sight, node, before) == {node: ["web-0"], before: []}


async def test_where_there_is_nothing_to_see_everything_has_been_seen() -> None:
    async with staged(definitions=()) as stage, seeing(stage, named("n1")) as sight:
        await sight.cluster.wait_live()
        assert stage.clock.monotonic() == 0.0


async def test_waiting_lasts_until_the_pods_of_all_that_is_chosen_by_then_are_there() -> None:
    async with staged("n1", "n2") as stage:
        await create_pods(stage, a="n1", b="n2")
        start = stage.clock.monotonic()
        stage.transport.before.add(Rule(fault=Latency(5.0, 5.0), path="/pods$"))
        async with seeing(stage, is_labelled) as sight:
            assert stage.clock.monotonic() == start
            await stage.patch_node("n1", CHOSEN)
            await stage.clock.sleep(3)
            assert not sight.has_pods_of("n1")
            await stage.patch_node("n2", CHOSEN)
            await stage.clock.sleep(0.001)
            await sight.wait_live()
            assert stage.clock.monotonic() - start == pytest.approx(8.0, abs=0.01)
            assert pods_seen(sight, "n1", "n2") == {"n1": ["a"], "n2": ["b"]}


async def test_a_chosen_node_that_goes_before_its_pods_were_listed_delays_nothing() -> None:
    async with staged("n1") as stage:
        start = stage.clock.monotonic()
        stage.transport.before.add(Rule(fault=Latency(50.0, 50.0), path="/pods$"))
        async with anyio.create_task_group() as group:
            sight = ClusterWatcher(a_client(stage), is_labelled, stage.clock)
            group.start_soon(sight.run)
            await stage.patch_node("n1", CHOSEN)
            await stage.clock.sleep(1)
            group.start_soon(stage.patch_node, "n1", NOT_CHOSEN)
            await sight.wait_live()
            assert stage.clock.monotonic() - start == pytest.approx(1.0, abs=0.01)
            group.cancel_scope.cancel()


# -- node claims -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["list pods", "watch pods", "list nodeclaims"])
async def test_a_missing_right_is_told_at_the_start(missing: str) -> None:
    verb, kind = missing.split()
    async with staged("n1") as stage:
        token = await account_token(stage.server, "reader")
        rights = [
            rule("list watch", "nodes"),
            rule("list watch", "poddisruptionbudgets", "policy"),
            rule("list watch", "volumeattachments", "storage.k8s.io"),
            rule("watch" if missing == "list pods" else "list" if missing == "watch pods" else "list watch", "pods"),
            *([] if kind == "nodeclaims" else [rule("list watch", "nodeclaims", "karpenter.sh")]),
        ]
        await grant(stage.server, {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}, *rights)
        client = KubeClient(InProcessTransport(stage.server, stage.clock, token=token), stage.clock)
        with pytest.raises(errors.Forbidden, match=f"add the verb {verb} on {kind}"):
            await ClusterWatcher(client, named("n1"), stage.clock).run()


# -- news --------------------------------------------------------------------------------------------------------------


async def test_news_of_chosen_nodes_comes_in_its_instant_and_that_of_others_not_at_all() -> None:
    async with staged("n1", "n2", kubelet=SILENT) as stage:
        await create_pods(stage, a="n1", b="n2")
        async with seeing(stage, named("n1")) as sight:
            assert await sight.changed(10)  # since no snapshot was taken yet
            start = stage.clock.monotonic()
            assert not await sight.changed(10)
            assert stage.clock.monotonic() - start == 10.0
            async with anyio.create_task_group() as group:

                async def happen() -> None:
                    await remove_pod(stage, "b")
                    await stage.patch_node("n2", NOT_READY, "/status")
                    await stage.clock.sleep(3)
                    await stage.patch_node("n1", CHOSEN)
                    await stage.clock.sleep(2)
                    await create_pods(stage, c="n1")

                group.start_soon(happen)
                assert await sight.changed(10)
                assert stage.clock.monotonic() - start == pytest.approx(13.0, abs=0.01)
                assert await sight.changed(10)
                assert stage.clock.monotonic() - start == pytest.approx(15.0, abs=0.01)


async def test_what_changed_between_two_looks_is_not_missed() -> None:
    async with staged("n1", kubelet=SILENT) as stage, seeing(stage, named("n1")) as sight:
        await sight.changed(0)
        await stage.cluster.create(a_budget_manifest("a", minAvailable=1))
        await stage.clock.sleep(5)
        before = stage.clock.monotonic()
        assert await sight.changed(10)
        assert stage.clock.monotonic() == before
        assert not await sight.changed(0)


# -- many nodes --------------------------------------------------------------------------------------------------------


async def test_of_many_nodes_all_pods_are_followed_at_once_and_a_node_chosen_later_has_them() -> None:
    nodes = [f"n{number}" for number in range(MANY + 1)]
    async with staged("other", *nodes, kubelet=SILENT) as stage:
        await create_pods(stage, **{f"on-{node}": node for node in ("other", *nodes)})
        for node in nodes:
            await stage.patch_node(node, CHOSEN)
        async with seeing(stage, is_labelled) as sight:
            assert pods_seen(sight, *nodes) == {node: [f"on-{node}"] for node in nodes}
            await sight.changed(0)
            await remove_pod(stage, "on-other")
            assert not await sight.changed(5)
            await create_pods(stage, late="other")
            await stage.patch_node("other", CHOSEN)
            await stage.clock.sleep(0.001)
            assert sight.has_pods_of("other")
            assert pods_seen(sight, "other") == {"other": ["late"]}
            assert asked_pods(stage) == ["list", "watch"]


async def test_when_many_come_to_be_chosen_what_was_seen_stands_until_all_have_been_listed() -> None:
    nodes = [f"n{number}" for number in range(MANY + 1)]
    async with staged(*nodes, kubelet=SILENT) as stage:
        await create_pods(stage, **{f"on-{node}": node for node in nodes})
        for node in nodes[:-1]:
            await stage.patch_node(node, CHOSEN)
        async with seeing(stage, is_labelled) as sight:
            changes: list[str] = []
            sight.cluster.pods.subscribe(lambda old, new: changes.append((new or old or NO_POD).name))
            stage.transport.before.add(Rule(fault=Latency(5.0, 5.0), path="/pods$"))
            await stage.patch_node(nodes[-1], CHOSEN)
            await stage.clock.sleep(1)
            await remove_pod(stage, "on-n0")
            await create_pods(stage, new="n1")
            await stage.clock.sleep(1)
            assert changes == []
            assert [sight.has_pods_of(node) for node in (nodes[0], nodes[-1])] == [True, False]
            await sight.wait_live()
            await stage.clock.sleep(10)
            assert sorted(set(changes)) == ["new", "on-n0", f"on-{nodes[-1]}"]
            assert pods_seen(sight, "n0", "n1", nodes[-1]) == {
                "n0": [],
                "n1": ["new", "on-n1"],
                nodes[-1]: [f"on-{nodes[-1]}"],
            }
            assert asked_pods(stage)[-2:] == ["list", "watch"]
            before = len(asked_pods(stage))
            for node in nodes[1:]:
                await stage.patch_node(node, NOT_CHOSEN)
            await stage.clock.sleep(700)  # longer than any watch lasts
            assert [sight.has_pods_of(node) for node in ("n0", "n1")] == [True, False]
            assert set(asked_pods(stage)[before:]) == {"watch"}
