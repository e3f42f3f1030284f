"""The referee: it must see every violation, invent none, and say so when it could not look."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kubesim.clock import LoopClock
from kubesim.cluster import EmbeddedCluster
from kubesim.controllers.client import Disconnected, Event
from kubesim.controllers.objects import is_ready, node_of
from kubesim.controllers.paths import BUDGETS, NODES, PODS, path_of
from kubesim.server.api import Json, JsonObject
from kubesim.verifier.budgets import BudgetTracker
from kubesim.verifier.departures import PodState
from kubesim.verifier.verifier import Verifier
from kubesim_support.clusters import budget, delete_pod, evict, patch, pod, quiet, running, sim, workload

SLOW = sim(start_seconds=1, ready_seconds=1, stop_seconds=1)


@asynccontextmanager
async def refereed(cluster: EmbeddedCluster) -> AsyncIterator[Verifier]:
    """A referee who has seen everything there is."""
    verifier = Verifier(cluster.api, cluster.pace.clock)
    async with anyio.create_task_group() as group:
        await group.start(verifier.run)
        yield verifier
        group.cancel_scope.cancel()


async def settled(cluster: EmbeddedCluster) -> list[str]:
    """Waits until all pods are Ready; their names."""
    await cluster.until_ready()
    return sorted(each["metadata"]["name"] for each in cluster.pods() if is_ready(each))


class TestBudgets:
    @pytest.mark.anyio
    async def test_deleting_pods_past_their_budget_is_a_violation_with_instant_and_figures(self) -> None:
        async with running("n1", "n2") as cluster:
            await cluster.create(workload("Deployment", "web", 3, annotations=SLOW))
            await cluster.create(budget("web", maxUnavailable=1))
            names = await settled(cluster)
            async with refereed(cluster) as verifier:
                await anyio.sleep(5)
                deleted_at = cluster.pace.clock.now()
                await delete_pod(cluster, names[0])
                await delete_pod(cluster, names[1])
                await anyio.sleep(10)
                (violation,) = verifier.findings().violations
                (record,) = verifier.budgets()
        assert (violation.at, violation.budget, violation.pod) == (deleted_at, "test/web", f"test/{names[1]}")
        assert (violation.healthy, violation.required) == (1, 2)
        assert (record.bound, record.expected, record.required, record.lowest) == ("maxUnavailable: 1", 3, 2, 1)
        assert (record.healthy, record.violations) == (3, 1)

    @pytest.mark.anyio
    async def test_each_further_fall_is_a_violation_of_its_own(self) -> None:
        async with running("n1") as cluster:
            await cluster.create(workload("Deployment", "web", 4, annotations=SLOW))
            await cluster.create(budget("web", minAvailable="100%"))
            names = await settled(cluster)
            async with refereed(cluster) as verifier:
                for name in names[:2]:
                    await delete_pod(cluster, name)
                await anyio.sleep(10)
                assert [v.healthy for v in verifier.findings().violations] == [3, 2]

    @pytest.mark.anyio
    async def test_a_budget_of_later_is_judged_by_the_pods_of_the_beginning(self) -> None:
        async with running("n1") as cluster:
            await cluster.create(workload("Deployment", "web", 3, annotations=SLOW))
            names = await settled(cluster)
            async with refereed(cluster) as verifier:
                await delete_pod(cluster, names[0])
                await quiet()
                await cluster.create(budget("web", maxUnavailable=1))
                await quiet()
                (record,) = verifier.budgets()
                assert (record.expected, record.required, record.healthy) == (3, 2, 2)
                await delete_pod(cluster, names[1])
                await quiet()
                assert [v.healthy for v in verifier.findings().violations] == [1]

    @pytest.mark.anyio
    async def test_a_budget_that_is_not_fulfilled_yet_is_not_violated(self) -> None:
        async with running("n1") as cluster, refereed(cluster) as verifier:
            await cluster.create(workload("Deployment", "web", 2, annotations=SLOW))
            await cluster.create(budget("web", minAvailable=2))
            await anyio.sleep(1)
            assert verifier.budgets()[0].lowest is None
            names = await settled(cluster)
            await quiet()
            assert verifier.budgets()[0].lowest == 2
            assert verifier.findings().violations == ()
            await delete_pod(cluster, names[0])
            await quiet()
            assert len(verifier.findings().violations) == 1

    @pytest.mark.anyio
    async def test_a_changed_bound_is_another_budget_and_the_old_one_keeps_its_record(self) -> None:
        async with running("n1") as cluster:
            await cluster.create(workload("Deployment", "web", 3, annotations=SLOW))
            await cluster.create(budget("web", maxUnavailable=0))
            names = await settled(cluster)
            async with refereed(cluster) as verifier:
                await patch(cluster, path_of(BUDGETS, "test", "web"), {"spec": {"maxUnavailable": 2}})
                await quiet()
                await delete_pod(cluster, names[0])
                await delete_pod(cluster, names[1])
                await quiet()
                assert verifier.findings().violations == ()
                bounds = [(record.bound, record.lowest) for record in verifier.budgets()]
        assert bounds == [("maxUnavailable: 0", 3), ("maxUnavailable: 2", 1)]

    @pytest.mark.parametrize(
        ("bound", "expected", "required"),
        [
            ({"maxUnavailable": 1}, 3, 2),
            ({"maxUnavailable": "30%"}, 7, 4),
            ({"maxUnavailable": "1%"}, 5, 4),
            ({"maxUnavailable": 9}, 5, 0),
            ({"minAvailable": "50%"}, 7, 4),
            ({"minAvailable": 9}, 5, 9),
            ({}, 5, 0),
        ],
    )
    def test_percentages_round_up_for_both_bounds(self, bound: dict[str, Any], expected: int, required: int) -> None:
        manifest = budget("web", **bound)
        manifest["metadata"]["uid"] = "b"
        tracker = BudgetTracker(manifest)
        for number in range(expected):
            tracker.see(f"p{number}", PodState.of(a_pod(f"p{number}")))
        tracker.begin({"w": expected}.__getitem__)
        assert tracker.record().required == required


class TestMoves:
    @pytest.mark.anyio
    async def test_every_pod_that_left_has_its_replacement_and_its_place(self) -> None:
        async with running("n1", "n2") as cluster:
            await cluster.create(workload("Deployment", "web", 4, annotations=SLOW))
            await settled(cluster)
            await patch(cluster, path_of(NODES, name="n1"), {"spec": {"unschedulable": True}})
            leaving = [each["metadata"]["name"] for each in cluster.pods() if node_of(each) == "n1"]
            assert leaving
            async with refereed(cluster) as verifier:
                evicted_at = cluster.pace.clock.now()
                for name in leaving:
                    await evict(cluster, name)
                await quiet()
                arrivals = [departure.replacement for departure in verifier.findings().departures]
                assert [new is not None and new.is_running for new in arrivals] == [False] * len(leaving)
                await anyio.sleep(10)
                departures = verifier.findings().departures
                assert verifier.ready_pods() == (4, 4)
        assert {(departure.pod, departure.node) for departure in departures} == {(f"test/{n}", "n1") for n in leaving}
        for departure in departures:
            new = departure.replacement
            assert departure.is_replaceable
            assert (departure.at, departure.grace) == (evicted_at, 30)
            assert new is not None
            assert (new.node, new.is_running) == ("n2", True)
            assert new.ready_at == pytest.approx(evicted_at + 2, abs=0.01)
        assert len({departure.replacement.uid for departure in departures if departure.replacement}) == len(leaving)

    @pytest.mark.anyio
    async def test_a_replacement_that_has_to_leave_is_followed_to_the_end_of_its_line(self) -> None:
        async with running("n1") as cluster:
            await cluster.create(workload("StatefulSet", "db", 1, annotations=SLOW, serviceName="db"))
            await settled(cluster)
            async with refereed(cluster) as verifier:
                for _ in range(2):
                    await evict(cluster, "db-0")
                    await anyio.sleep(10)
                first, second = verifier.findings().departures
        assert first.uid != second.uid
        assert first.replacement is not None
        assert first.replacement == second.replacement
        assert first.replacement.uid not in (first.uid, second.uid)
        assert (first.replacement.pod, first.replacement.is_running) == ("test/db-0", True)

    @pytest.mark.anyio
    async def test_a_grace_that_is_changed_counts_and_a_repeat_that_changes_nothing_does_not(self) -> None:
        async with running("n1") as cluster:
            for name in ("once", "twice"):
                await cluster.create(pod(name, annotations=sim(stop_seconds=20)))
            await settled(cluster)
            async with refereed(cluster) as verifier:
                for name, graces in (("once", (30, 30)), ("twice", (30, 5))):
                    for grace in graces:
                        await delete_pod(cluster, name, gracePeriodSeconds=grace)
                await anyio.sleep(30)
                findings = verifier.findings()
        assert findings.touched_twice == ("test/twice",)
        assert len(findings.departures) == 2

    @pytest.mark.anyio
    async def test_evictions_of_a_node_are_those_between_its_deletion_and_its_end(self) -> None:
        async with running("n1", "n2") as cluster:
            for name in ("before", "during"):
                await cluster.create(pod(name, "n1"))
            await settled(cluster)
            await patch(cluster, path_of(NODES, name="n1"), {"metadata": {"finalizers": ["example.com/hold"]}})
            async with refereed(cluster) as verifier:
                assert verifier.nodes()[0].finalizers == ("example.com/hold",)
                await delete_pod(cluster, "before")
                await anyio.sleep(1)
                deleted_at = cluster.pace.clock.now()
                await cluster.api.call("DELETE", path_of(NODES, name="n1"))
                await anyio.sleep(1)
                await delete_pod(cluster, "during")
                await anyio.sleep(1)
                await patch(cluster, path_of(NODES, name="n1"), {"metadata": {"finalizers": None}})
                await verifier.until(lambda: verifier.nodes()[0].gone_at is not None)
                findings = verifier.findings()
        assert [departure.pod for departure in findings.evictions("n1")] == ["test/during"]
        assert findings.evictions("n2") == ()
        assert (findings.nodes[0].deleted_at, findings.nodes[0].gone_at) == (deleted_at, deleted_at + 2)


class Script:
    """An API server that shows what a test tells it: pods by list, then what each watch yields."""

    def __init__(self) -> None:
        self.pods: list[JsonObject] = []
        self.watches: list[list[Event | float | Exception]] = []

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "",
    ) -> tuple[int, Json]:
        items = {PODS: self.pods, BUDGETS: [self.budget]}.get(path, [])
        return 200, {"items": list(items), "metadata": {"resourceVersion": f"opaque-{len(self.watches)}"}}

    @property
    def budget(self) -> JsonObject:
        made = budget("web", maxUnavailable=1)
        made["metadata"] |= {"uid": "b", "resourceVersion": "x"}
        return made

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[Event, None]:
        if path != PODS or not self.watches:
            await anyio.sleep_forever()
        for step in self.watches.pop(0):
            match step:
                case float():
                    await anyio.sleep(step)
                case Exception():
                    raise step
                case Event():
                    yield step


def a_pod(name: str, *, ready: bool = True, version: str = "x") -> JsonObject:
    """A pod of workload `w` that the budget `web` selects."""
    made = pod(name, "n1", {"app": "web"})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "w", "uid": "w", "controller": True}
    made["metadata"] |= {"uid": name, "resourceVersion": version, "ownerReferences": [owner]}
    made["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return made


GONE = Event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})
BOOKMARK = Event("BOOKMARK", {"metadata": {"resourceVersion": "opaque-b"}})


@asynccontextmanager
async def reading(script: Script) -> AsyncIterator[Verifier]:
    verifier = Verifier(script, LoopClock())
    async with anyio.create_task_group() as group:
        await group.start(verifier.run)
        yield verifier
        group.cancel_scope.cancel()


class TestSight:
    @pytest.mark.anyio
    async def test_what_happened_while_it_was_blind_is_judged_by_its_outcome_and_the_blindness_is_told(self) -> None:
        script = Script()
        script.pods = [a_pod("a"), a_pod("b"), a_pod("c")]
        script.watches = [[1.0, BOOKMARK, 2.0, Disconnected("cut")], [GONE]]
        async with reading(script) as verifier:
            began = LoopClock().now()
            await anyio.sleep(2)
            # All three are replaced meanwhile: a list tells first of those that are gone, then of the new ones.
            script.pods = [a_pod("d"), a_pod("e"), a_pod("f")]
            await anyio.sleep(5)
            findings = verifier.findings()
        (blindness,) = findings.blind
        assert blindness.since == began + 1
        assert blindness.until == pytest.approx(began + 3.15)
        assert findings.blind_seconds == pytest.approx(2.15)
        assert findings.violations == ()
        assert findings.budgets[0].healthy == 3

    @pytest.mark.anyio
    async def test_what_is_broken_after_a_blindness_is_a_violation(self) -> None:
        script = Script()
        script.pods = [a_pod("a"), a_pod("b"), a_pod("c")]
        script.watches = [[3.0, Disconnected("cut")], [GONE]]
        async with reading(script) as verifier:
            await anyio.sleep(2)
            script.pods = [a_pod("a"), a_pod("b", ready=False, version="y")]
            await anyio.sleep(5)
            (violation,) = verifier.findings().violations
        assert (violation.healthy, violation.required, violation.pod) == (1, 2, "")

    @pytest.mark.anyio
    async def test_a_watch_that_is_resumed_has_missed_nothing(self) -> None:
        script = Script()
        script.pods = [a_pod("a"), a_pod("b"), a_pod("c")]
        unready = Event("MODIFIED", a_pod("a", ready=False, version="y"))
        script.watches = [[1.0, Disconnected("cut")], [1.0], [unready]]
        async with reading(script) as verifier:
            await anyio.sleep(10)
            findings = verifier.findings()
        assert findings.blind == ()
        assert findings.budgets[0].lowest == 2
        assert findings.violations == ()
