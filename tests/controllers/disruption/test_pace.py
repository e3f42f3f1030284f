"""Pace: ten nodes that are due at once go one after the other, each when the pods of the last are Ready elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, LateWatch, Rule
from kubesim.server import api
from simulation.baseline import kept_by
from support.disruption import (
    AT_ONCE,
    NOT_TERMINABLE,
    ON_LOST_NODES,
    TERMINABLE,
    deletions,
    lost_at,
)
from support.stage import Stage, a_pod_manifest, a_workload, reasons, staged, the_settings

from gracectl.controllers.disruption import pace
from gracectl.kube.cache import Cache
from gracectl.model import names
from gracectl.model.decode import decode_node
from gracectl.model.node import Node
from gracectl.policy.voluntary import node_expires_at

TEN = tuple(f"n{n}" for n in range(10))
UNREPLACED: Any = {"voluntary": {"waitForReplacement": False}}


async def label(stage: Stage, *nodes: str) -> float:
    for node in nodes:
        await stage.patch_node(node, TERMINABLE)
    return stage.clock.monotonic()


def ended(stage: Stage) -> dict[str, float]:
    """The nodes for which our DELETE was taken, and when."""
    return {name: at for at, name in deletions(stage)}


def going(stage: Stage) -> int:
    """Nodes that are being deleted."""
    return sum("deletionTimestamp" in node["metadata"] for node in stage.nodes())


def pending_pods(stage: Stage) -> int:
    return sum(pod["status"].get("phase") == "Pending" for pod in stage.server.store.table("pods"))


async def most_until(stage: Stage, count: Callable[[Stage], int], *gone: str) -> int:
    """The largest count that was seen until these nodes were gone."""
    most = 0
    while any(stage.node(name) for name in gone):
        most = max(most, count(stage))
        await stage.clock.sleep(0.25)
    return most


# -- how many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("maximum", "nodes", "most"), [("10%", 10, 1), ("25%", 10, 2), (3, 10, 3), ("100%", 4, 4)])
async def test_no_more_nodes_are_terminated_at_once_than_the_maximum(maximum: int | str, nodes: int, most: int) -> None:
    settings = the_settings(voluntary={"maximumAtOnce": maximum})
    async with staged(*TEN[:nodes], settings=settings) as stage, stage.settled():
        await label(stage, *TEN[:nodes])
        assert await most_until(stage, going, *TEN[: nodes - 1]) == most


async def test_the_next_one_begins_in_the_instant_in_which_the_last_one_is_gone() -> None:
    async with staged(*TEN[:3]) as stage, stage.settled():
        start = await label(stage, *TEN[:3])
        gone = [await stage.until_gone(name) for name in TEN[:3]]
        assert ended(stage) == pytest.approx({"n0": start, "n1": gone[0], "n2": gone[1]}, abs=0.001)


async def test_health_goes_first_then_the_label_then_age_and_of_each_the_oldest() -> None:
    settings = the_settings(health={"maximumUnhealthy": "100%"})
    async with staged("first", settings=settings) as stage:
        await stage.add_nodes("aged", claim=ClaimSpec(expire_after="1000s"))
        for name in ("younger", "youngest", "lost"):
            await stage.clock.sleep(1)
            await stage.add_nodes(name)
        await lost_at(stage, "lost")
        await stage.clock.sleep(1100)
        await label(stage, "youngest", "younger")
        async with stage.settled():
            await stage.until_gone("lost", "aged", "younger", "youngest")
        assert [name for _, name in deletions(stage)] == ["lost", "younger", "youngest", "aged"]


async def test_what_is_deleted_by_hand_takes_a_place_and_waits_for_none() -> None:
    async with staged(*TEN[:6], cloud=CloudSettings(terminate_delay=60.0)) as stage, stage.settled():
        await label(stage, "n0")
        await stage.clock.sleep(1)
        for name in ("n1", "n2"):
            await stage.delete_node(name)
        await label(stage, "n3")
        assert going(stage) == 3
        last = await stage.until_gone("n0", "n1", "n2")
        await stage.until_gone("n3")
        assert ended(stage)["n3"] == pytest.approx(last, abs=0.001)


PROTECTED: Any = {"annotations": {names.DO_NOT_DISRUPT: "true"}}
PATIENCE = 300.0


@pytest.mark.parametrize("head_start", [100.0, 899.0])
async def test_a_protected_pod_keeps_no_slot_from_a_node_that_is_not_ready(head_start: float) -> None:
    """The slot of a drain that is blocked counts for `pendingPatience`, and for Ready nodes for as long as it takes."""
    settings = the_settings(health={"maximumUnhealthy": "100%"})
    objects = [a_pod_manifest("job", "held", **PROTECTED)]
    async with staged("held", "lost", "ready", objects=objects, settings=settings) as stage, stage.settled():
        lost = await lost_at(stage, "lost")
        due = lost + 900.0
        await stage.clock.sleep(lost + 900.0 - head_start - stage.clock.monotonic())
        held = await stage.delete_node("held")
        await label(stage, "ready")
        await stage.until_gone("lost")
        assert ended(stage) == pytest.approx({"lost": max(due, held + PATIENCE)}, abs=0.001)
        await stage.clock.sleep(1000)
        assert list(ended(stage)) == ["lost"]
        assert [pod["metadata"]["name"] for pod in stage.pods_on("held")] == ["job"]


async def test_the_patience_with_a_blocked_drain_counts_from_the_last_pod_that_left() -> None:
    settings = the_settings(health={"maximumUnhealthy": "100%"})
    async with staged("held", "lost", settings=settings) as stage:
        slow = a_pod_manifest("slow", "held", behaviour={"stop-seconds": 250}, terminationGracePeriodSeconds=3600)
        await stage.create(a_pod_manifest("job", "held", **PROTECTED), slow)
        async with stage.settled():
            await lost_at(stage, "lost")
            held = await stage.delete_node("held")
            await label(stage, "lost")
            await stage.clock.sleep(400)
            # A pod that a tenant binds to the node, and that is evicted: that is no progress.
            await stage.create(a_pod_manifest("late", "held"))
            await stage.clock.sleep(1000)
            assert ended(stage) == pytest.approx({"lost": held + 250 + PATIENCE}, abs=0.01)


async def test_a_node_whose_deletion_the_watch_does_not_show_yet_waits_for_no_turn() -> None:
    """Least of all for its own slot: a controller that has just started knows of it from the server only."""
    async with staged("n0", "n1") as stage:
        async with stage.mortal() as controller:
            await stage.settle(controller)
        await label(stage, "n0")
        stage.transport.before.add(Rule(fault=Latency(1.0, 1.0), method="GET", path="/nodes$"))
        stage.transport.before.add(Rule(fault=LateWatch(5.0, 5.0), path="/nodes$"))
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.clock.sleep(0.5)
            await stage.delete_node("n0")
            await stage.clock.sleep(2.0)
            assert len(stage.transport.of("list", "nodes")) > 2
            assert stage.condition("n0", names.TERMINATION_PENDING) is None
            await stage.until_gone("n0")
        assert "DisruptionHeld" not in await reasons(stage, "n0")


async def test_more_at_once_count_from_the_next_second() -> None:
    cloud = CloudSettings(terminate_delay=1000.0)
    async with staged(*TEN, cloud=cloud) as stage:
        stage.reread = lambda: stage.settings
        async with stage.settled():
            await label(stage, *TEN[:6])
            await stage.clock.sleep(60)
            assert going(stage) == 1
            stage.settings = the_settings(voluntary={"maximumAtOnce": 4})
            await stage.clock.sleep(10)
            assert going(stage) == 4


# -- replacements ------------------------------------------------------------------------------------------------------


async def test_the_next_one_begins_when_the_pods_of_the_last_one_are_ready_elsewhere() -> None:
    async with staged(*TEN[:6]) as stage, stage.settled():
        web = a_workload("Deployment", "web", 12, behaviour={"start-seconds": 40, "stop-seconds": 1})
        await stage.create(web)
        assert len(stage.pods_on("n0")) == 2
        await label(stage, "n0", "n1")
        gone = await stage.until_gone("n0")
        ready = await stage.until(lambda: pending_pods(stage) == 0 and _all_ready(stage))
        await stage.until_gone("n1")
        assert ready > gone + 10
        assert ended(stage)["n1"] == pytest.approx(ready, abs=0.01)


def _all_ready(stage: Stage) -> bool:
    pods = [pod for pod in stage.server.store.table("pods") if "deletionTimestamp" not in pod["metadata"]]
    return all(
        any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))
        for pod in pods
    )


async def test_with_all_nodes_labelled_no_more_pods_are_pending_than_one_node_had() -> None:
    """The report: ten nodes labeled, and five seconds later six gone, the rest cordoned, 27 of 51 pods Pending."""
    async with staged(*TEN) as stage, stage.settled():
        await stage.create(a_workload("Deployment", "web", 51, behaviour={"start-seconds": 3, "stop-seconds": 1}))
        fullest = max(len(stage.pods_on(name)) for name in TEN)
        await label(stage, *TEN)
        most = 0
        for _ in range(40):
            await stage.clock.sleep(0.5)
            most = max(most, pending_pods(stage))
        assert 0 < most <= fullest
        assert going(stage) <= 1
        open_nodes = [node for node in stage.nodes() if not node["spec"].get("unschedulable")]
        assert len(open_nodes) >= 5


@pytest.mark.parametrize(("patience", "seconds"), [("5m", 300.0), ("90s", 90.0)])
async def test_patience_with_pods_that_find_no_room_is_limited(patience: str, seconds: float) -> None:
    settings = the_settings(voluntary={"pendingPatience": patience})
    async with staged(*TEN[:3], settings=settings) as stage, stage.settled() as controller:
        await stage.patch_node("n0", {"metadata": {"labels": {"disk": "ssd"}}})
        await stage.create(a_workload("Deployment", "db", 1, pod={"nodeSelector": {"disk": "ssd"}}))
        await label(stage, "n0", "n1")
        gone = await stage.until_gone("n0")
        before = controller.statistics().queues["voluntary"].handed_out
        await stage.clock.sleep(seconds - 1)
        assert controller.statistics().queues["voluntary"].handed_out - before <= 6  # nothing polls
        await stage.until_gone("n1")
        assert ended(stage)["n1"] == pytest.approx(gone + seconds, abs=0.01)


async def test_without_wait_for_replacement_the_next_begins_when_the_node_is_gone() -> None:
    async with staged(*TEN[:4], settings=the_settings(**UNREPLACED)) as stage, stage.settled():
        await stage.create(a_workload("Deployment", "web", 8, behaviour={"start-seconds": 100}))
        await label(stage, "n0", "n1")
        gone = await stage.until_gone("n0")
        await stage.until_gone("n1")
        assert ended(stage)["n1"] == pytest.approx(gone, abs=0.01)


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lives_for", [0.0, 0.02, 1.0, 3.0, 8.0, 14.0])
async def test_a_crash_lets_no_more_go_at_once(lives_for: float) -> None:
    """Neither of nodes nor of pods, whenever it comes."""
    async with staged(*TEN) as stage:
        await stage.create(a_workload("Deployment", "web", 30, behaviour={"start-seconds": 20, "stop-seconds": 2}))
        fullest = max(len(stage.pods_on(name)) for name in TEN)
        async with stage.settled(mortal=True):
            await label(stage, *TEN[:3])
            await stage.clock.sleep(lives_for)
        async with stage.controller():
            most_going = most_pending = 0
            while any(stage.node(name) for name in TEN[:3]):
                most_going = max(most_going, going(stage))
                most_pending = max(most_pending, pending_pods(stage))
                await stage.clock.sleep(0.5)
        assert most_going == 1
        assert most_pending <= fullest + 3  # what moved to a node that went later is its pod by then


async def test_a_workload_that_never_gets_ready_holds_a_new_leader_up_for_half_a_minute() -> None:
    async with staged(*TEN[:4]) as stage:
        await stage.cluster.create(a_workload("Deployment", "broken", 1, behaviour={"never-ready": "true"}))
        await stage.clock.sleep(1)
        empty = next(name for name in TEN if not stage.pods_on(name))
        start = await label(stage, empty)
        async with stage.controller():
            await stage.until_gone(empty)
        assert ended(stage) == pytest.approx({empty: start + 30}, abs=0.1)


async def test_what_the_watch_does_not_show_yet_is_asked_for_before_the_first_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a change of leaders: the one before us has deleted a node, and our watch is late."""
    put = Cache.put
    withheld: list[tuple[Any, Node]] = []

    def late(cache: Any, new: Any) -> None:
        if isinstance(new, Node) and new.name == "n0" and new.deletion_timestamp is not None:
            withheld.append((cache, new))
        else:
            put(cache, new)

    async with staged(*TEN[:4]) as stage, stage.settled():
        monkeypatch.setattr(Cache, "put", late)
        await stage.delete_node("n0")
        await label(stage, "n1")
        await stage.clock.sleep(100)
        assert deletions(stage) == []
        monkeypatch.setattr(Cache, "put", put)
        for cache, node in withheld:
            put(cache, node)
        gone = await stage.until_gone("n0")
        await stage.until_gone("n1")
        assert ended(stage) == pytest.approx({"n1": gone}, abs=0.001)


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_deletion_of_unknown_outcome_keeps_its_slot_for_a_minute(is_done: bool) -> None:
    """It may still be carried out; if it was not, others that wait are not kept by it for longer."""
    async with staged(*TEN[:4]) as stage, stage.settled():
        handle, failed = stage.server.handle, list[float]()

        async def unanswering(request: Any) -> Any:
            if (request.method, request.path) != ("DELETE", "/api/v1/nodes/n0"):
                return await handle(request)
            if is_done:
                await handle(request)
            failed.append(stage.clock.monotonic())
            body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "timeout", "code": 504}
            return api.Response(status=504, body={**body, "reason": "Timeout"})

        stage.server.handle = unanswering  # type: ignore[method-assign]  # in front of the server
        await label(stage, "n0", "n1")
        if is_done:
            gone = await stage.until_gone("n0")
            await stage.until_gone("n1")
            assert ended(stage)["n1"] == pytest.approx(gone, abs=0.001)
        else:
            await stage.until_gone("n1")
            assert 60 <= ended(stage)["n1"] - failed[0] <= 200
            assert stage.node("n0") is not None


# -- what is shown -----------------------------------------------------------------------------------------------------


async def test_a_termination_that_waits_for_its_turn_shows_so_once_on_the_node() -> None:
    cloud = CloudSettings(terminate_delay=500.0)
    async with staged(*TEN[:4], cloud=cloud) as stage, stage.settled():
        await label(stage, "n0", "n1")
        await stage.clock.sleep(60)
        condition = stage.condition("n1", names.TERMINATION_PENDING) or {}
        assert (condition["status"], condition["reason"]) == ("True", "Pace")
        assert condition["message"] == (
            "termination due (node n1 has the label karpenter.sh/lifecycle-phase=terminable) but waiting for its turn: "
            "1 of 4 managed nodes at the same time (voluntary.maximumAtOnce: 10%), and the pods of each are Ready "
            "elsewhere before the next one; delete it to terminate it now"
        )
        assert (await reasons(stage, "n1")).count("DisruptionHeld") == 1
        writes = len(stage.status_writes("n1"))
        await stage.clock.sleep(300)
        assert len(stage.status_writes("n1")) == writes
        assert stage.condition("n0", names.TERMINATION_PENDING) is None
        await stage.until_gone("n0")
        await stage.clock.sleep(10)
        assert "deletionTimestamp" in (stage.node("n1") or {})["metadata"]
        assert stage.condition("n1", names.TERMINATION_PENDING) is None


# -- the cordon of those that wait -------------------------------------------------------------------------------------


def is_cordoned(stage: Stage, node: str) -> bool:
    return bool((stage.node(node) or {})["spec"].get("unschedulable"))


def record_on(stage: Stage, node: str) -> str | None:
    annotation: str | None = (stage.node(node) or {})["metadata"].get("annotations", {}).get(names.PENDING_CORDONED)
    return annotation


HOLDING = {
    "protection": {"annotations": {names.DO_NOT_DISRUPT: "true"}},
    "budget": {"labels": {"app": "held"}},
    "pace": {},
}


@pytest.mark.parametrize("what", HOLDING)
async def test_a_labelled_node_that_waits_is_cordoned_until_the_label_goes(what: str) -> None:
    async with staged(*TEN[:6], cloud=CloudSettings(terminate_delay=5000.0)) as stage, stage.settled():
        await stage.create(a_pod_manifest("job", "n1", **HOLDING[what]))
        if what == "budget":
            selector = {"selector": {"matchLabels": {"app": "held"}}, "maxUnavailable": 0}
            budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": selector}
            await stage.cluster.create({**budget, "metadata": {"name": "held", "namespace": "shop"}})
        await label(stage, "n0", "n1")
        await stage.clock.sleep(30)
        assert is_cordoned(stage, "n1")
        assert record_on(stage, "n1") == "unschedulable"
        node = stage.node("n1") or {}
        assert all(taint["key"] != names.DISRUPTED_TAINT_KEY for taint in node["spec"].get("taints", []))
        assert names.EXCLUDE_FROM_LOAD_BALANCERS not in node["metadata"]["labels"]
        await stage.patch_node("n1", NOT_TERMINABLE)
        await stage.clock.sleep(1)
        assert not is_cordoned(stage, "n1")
        assert record_on(stage, "n1") is None
        assert (await reasons(stage, "n1")).count("Uncordoned") == 1


async def test_a_cordon_of_an_operator_stays_when_the_label_goes() -> None:
    async with staged(*TEN[:4]) as stage, stage.settled():
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.patch_node("n1", {"spec": {"unschedulable": True}})
        await label(stage, "n1")
        await stage.clock.sleep(10)
        assert record_on(stage, "n1") is None
        await stage.patch_node("n1", NOT_TERMINABLE)
        await stage.clock.sleep(10)
        assert is_cordoned(stage, "n1")


async def test_an_uncordon_by_hand_counts_until_the_label_has_gone() -> None:
    async with staged(*TEN[:4]) as stage, stage.settled():
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await label(stage, "n1")
        await stage.clock.sleep(10)
        await stage.patch_node("n1", {"spec": {"unschedulable": None}})
        await stage.clock.sleep(100)
        assert not is_cordoned(stage, "n1")
        await stage.patch_node("n1", NOT_TERMINABLE)
        await stage.clock.sleep(10)
        await label(stage, "n1")
        await stage.clock.sleep(10)
        assert is_cordoned(stage, "n1")


@pytest.mark.parametrize("lives_for", [0.0, 0.01, 5.0])
async def test_a_label_that_goes_while_nothing_runs_leaves_no_cordon_behind(lives_for: float) -> None:
    async with staged(*TEN[:4]) as stage:
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.settled(mortal=True):
            await label(stage, "n1")
            await stage.clock.sleep(lives_for)
        await stage.patch_node("n1", NOT_TERMINABLE)
        async with stage.settled():
            await stage.clock.sleep(5)
            assert not is_cordoned(stage, "n1")
            assert record_on(stage, "n1") is None
            assert stage.condition("n1", names.TERMINATION_PENDING) is None


async def test_of_nodes_that_wait_for_their_turn_half_go_on_taking_pods() -> None:
    async with staged(*TEN, cloud=CloudSettings(terminate_delay=500.0)) as stage, stage.settled():
        await label(stage, *TEN)
        await stage.clock.sleep(60)
        assert sum(not is_cordoned(stage, name) for name in TEN) == 5
        # Two that come make room for one more: with twelve nodes six are left.
        await stage.add_nodes("new-1", "new-2")
        await stage.clock.sleep(60)
        assert sum(not is_cordoned(stage, name) for name in TEN) == 4


async def test_an_unhealthy_node_that_waits_is_not_cordoned() -> None:
    settings = the_settings(health={"maximumUnhealthy": "100%"})
    async with staged(*TEN[:4], settings=settings) as stage, stage.settled():
        job = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, tolerations=ON_LOST_NODES)
        await stage.create(job)
        await lost_at(stage, "n1")
        await stage.clock.sleep(1000)
        assert (stage.condition("n1", names.TERMINATION_PENDING) or {})["reason"] == "Protected"
        assert not is_cordoned(stage, "n1")


async def test_maintenance_takes_the_cordon_over() -> None:
    async with staged(*TEN[:4]) as stage, stage.settled():
        await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await label(stage, "n1")
        await stage.clock.sleep(10)
        kept = {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}}
        await stage.patch_node("n1", kept)
        await stage.clock.sleep(10)
        assert is_cordoned(stage, "n1")
        assert record_on(stage, "n1") is None
        await stage.patch_node("n1", NOT_TERMINABLE)
        await stage.clock.sleep(10)
        assert is_cordoned(stage, "n1")
        await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: None}}})
        await stage.clock.sleep(10)
        assert not is_cordoned(stage, "n1")


async def test_slots_of_terminations_that_are_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although nothing waits for one, and nothing reads metrics. The baseline of the simulation's invariants found it
    (storm of seed 0)."""
    monkeypatch.setattr(pace, "FEW_SLOTS", 3)
    async with staged(*TEN) as stage, stage.settled() as controller:
        for node in TEN:
            await stage.delete_node(node)
            await stage.until_gone(node)
        assert kept_by(controller, ["DisruptionSlot"])["DisruptionSlot"] <= 4


# -- the age of nodes without a claim ----------------------------------------------------------------------------------


async def test_a_node_without_a_claim_expires_with_its_group_whatever_has_restarted() -> None:
    group = {"selector": {"matchLabels": {"pool": "a"}}, "expireAfter": "10m", "expireJitter": "20%"}
    settings = the_settings(nodeGroups=[group], **AT_ONCE)
    async with staged(*TEN[:3], labels={"pool": "a"}, settings=settings) as stage:
        await stage.add_nodes("other", labels={"pool": "b"})
        await stage.add_nodes("claimed", labels={"pool": "a"}, claim=ClaimSpec())
        due = {}
        for manifest in stage.nodes()[:3]:
            node = decode_node(json.dumps(manifest).encode())
            at = node_expires_at(node, settings.termination.policy)
            assert at is not None
            due[node.name] = at - stage.clock.now() + stage.clock.monotonic()
        async with stage.settled(mortal=True):
            await stage.clock.sleep(400)
        async with stage.controller():
            await stage.until_gone(*TEN[:3])
            await stage.clock.sleep(120)
            messages = [
                words for name, reason, words in await stage.events() if (name, reason) == ("n0", "NodeExpired")
            ]
        assert due.keys() == set(TEN[:3])
        assert ended(stage) == pytest.approx(due, abs=0.01)
        assert len(messages) == 1
        assert "has reached the age of its node group" in messages[0]
