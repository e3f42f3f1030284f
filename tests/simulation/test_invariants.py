"""Each invariant is seen to be violated: a culprit, which is no controller, does what none may do.

A rule that cannot fail is worth nothing. That the rules let pass what is right is seen in every run of a controller.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from support.disruption import POOL as TEAM
from support.disruption import TERMINABLE, create_node_budget
from support.inprocess import Arrived
from support.stage import NAMESPACE, SILENT, Stage, a_budget_manifest, a_pod_manifest, a_workload, staged, the_settings

from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.transport import Request
from gracectl.kube.transport.operation import operation_of
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.runtime.clock import LoopClock
from simulation.deadlines import RETRIES
from simulation.invariants import Invariants
from simulation.terms import Terms

PERIOD = 100.0
SETTINGS = the_settings(
    nodeGroups=[{"selector": {"matchLabels": {"pool": "timed"}}, "terminationGracePeriod": f"{PERIOD:.0f}s"}],
    health={"enabled": True},
    voluntary={"maximumAtOnce": 1},
)
TIMED = {"pool": "timed"}
CALM = Terms(faults_end=0.0)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
MERGE = "application/merge-patch+json"


class Culprit:
    """Sends what a controller would send, on a line of its own."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.line = stage.transport.line()

    async def send(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> int:
        """Send a request; returns the status."""
        data = None if body is None else msgspec.json.encode(body)
        answer = await self.line.send(Request(method=method, path=path, body=data, content_type=content_type))
        return answer.status

    async def patch(self, path: str, body: Any) -> int:
        """Send a merge patch."""
        return await self.send("PATCH", path, body, MERGE)

    async def evict(self, pod: str, **options: Any) -> int:
        """Evict a pod by uid."""
        path, uid = self._pod(pod)
        body = {"metadata": {"name": pod}, "deleteOptions": {"preconditions": {"uid": uid}, **options}}
        return await self.send("POST", f"{path}/eviction", body)

    async def delete(self, pod: str, grace: int, *, by_uid: bool = True) -> int:
        """Delete a pod."""
        path, uid = self._pod(pod)
        options = {"gracePeriodSeconds": grace, **({"preconditions": {"uid": uid}} if by_uid else {})}
        return await self.send("DELETE", path, options)

    async def terminate(self, node: str) -> None:
        """Terminate the instance of a node."""
        await self.stage.provider.terminate(f"sim:///zone-a/{self.stage.instances[node]}")

    def _pod(self, name: str) -> tuple[str, str]:
        pod = self.stage.server.store.table("pods").get(NAMESPACE, name)
        assert pod is not None, name
        return f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", pod["metadata"]["uid"]


class World(NamedTuple):
    """Stage of a crime."""

    stage: Stage
    culprit: Culprit
    invariants: Invariants

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        await self.stage.clock.sleep(seconds)


Crime = Callable[[World], Awaitable[None]]


# -- pods --------------------------------------------------------------------------------------------------------------


async def delete_without_deadline(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.stage.delete_node("n1")
    await world.culprit.delete("web", 30)


async def delete_for_a_node_that_has_gone(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed"))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD)
    await world.culprit.terminate("timed")
    await world.stage.patch_node("timed", {"metadata": {"finalizers": None}})
    await world.wait(2)
    assert await world.culprit.delete("web", 1) == 200


async def delete_before_its_time(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed", terminationGracePeriodSeconds=10))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD - 20)
    await world.culprit.delete("web", 10)


async def delete_by_a_clock_that_is_further_ahead_than_any(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, clock_error=9.0)
    await delete_before_its_time(world)


async def delete_before_the_time_of_its_wave(world: World) -> None:
    """Without it that would be in time: other settings have ranges by priority."""
    ranges = [{"priority": 0, "shutdownGracePeriodSeconds": 10}, {"priority": 1000, "shutdownGracePeriodSeconds": 30}]
    changed = the_settings(shutdownGracePeriodByPodPriority=ranges)
    world.stage.settings = msgspec.structs.replace(changed, node_groups=SETTINGS.node_groups)
    await world.stage.create(a_pod_manifest("web", "timed", terminationGracePeriodSeconds=10))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD - 60)
    await world.culprit.delete("web", 10)


async def delete_with_too_little_grace(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed", terminationGracePeriodSeconds=10))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD - 8)
    await world.culprit.delete("web", 1)


async def cut_a_grace_that_ends_in_time(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed", terminationGracePeriodSeconds=30, behaviour=DEAF))
    await world.stage.delete_node("timed")
    await world.culprit.evict("web")
    await world.wait(5)
    await world.culprit.delete("web", 2)


async def delete_by_name(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed"))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD)
    await world.culprit.delete("web", 1, by_uid=False)


async def delete_at_once(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed"))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD)
    await world.culprit.delete("web", 0)


async def change_a_pod(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.culprit.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/web", {"metadata": {"labels": {"a": "b"}}})


async def mark(world: World, message: str = "") -> None:
    entry = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByGracectl", "message": message}
    conditions = world.stage.pods_on("timed")[0]["status"]["conditions"]
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/web/status"
    await world.culprit.patch(path, {"status": {"conditions": [*conditions, entry]}})


async def mark_before_its_time(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed", terminationGracePeriodSeconds=10))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD - 22)
    await mark(world)


async def mark_more_than_the_condition(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed", terminationGracePeriodSeconds=10))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD - 11)
    await mark(world)
    assert world.invariants.violations == []
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/web/status"
    await world.culprit.patch(path, {"status": {"message": "no condition"}})


async def evict_protected(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1", annotations={names.DO_NOT_DISRUPT: "1h"}))
    await world.stage.delete_node("n1")
    await world.wait(2)
    await world.culprit.evict("web")


async def evict_what_no_clock_lets_go(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, clock_error=3500.0)
    await evict_protected(world)


async def evict_with_invalid_protection(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1", annotations={names.DO_NOT_DISRUPT: "an hour"}))
    await world.stage.delete_node("n1")
    await world.wait(2)
    await world.culprit.evict("web")


async def evict_beside_do_not_evict(world: World) -> None:
    await world.stage.create(
        a_pod_manifest("web", "n1"), a_pod_manifest("db", "n1", labels={names.DO_NOT_EVICT: "true"})
    )
    await world.stage.delete_node("n1")
    await world.wait(2)
    await world.culprit.evict("web")


async def evict_before_its_wave(world: World) -> None:
    critical = a_pod_manifest("dns", "n1", priorityClassName="system-node-critical")
    await world.stage.create(a_pod_manifest("web", "n1"), critical)
    await world.stage.delete_node("n1")
    await world.wait(2)
    await world.culprit.evict("dns")


async def evict_a_plugin_before_its_volumes(world: World) -> None:
    plugin = a_workload("DaemonSet", "plugin", 0)
    del plugin["spec"]["replicas"]
    await world.stage.create(plugin)
    await attach(world, "n1")
    await world.stage.delete_node("n1")
    await world.wait(5)
    [pod] = world.stage.pods_on("n1")
    await world.culprit.evict(pod["metadata"]["name"])


async def evict_for_nothing(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.culprit.evict("web")


async def evict_with_little_grace(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1", behaviour=DEAF))
    await world.stage.delete_node("n1")
    await world.culprit.evict("web", gracePeriodSeconds=1)


async def evict_twice(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1", behaviour=DEAF))
    await world.stage.delete_node("n1")
    assert await world.culprit.evict("web") == 201
    await world.wait(1)
    assert await world.culprit.evict("web") == 201


async def evict_what_another_has_evicted(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1", behaviour=DEAF))
    await world.stage.delete_node("n1")
    assert await Culprit(world.stage).evict("web") == 201
    await world.wait(2)
    assert await world.culprit.evict("web") == 201


async def evict_against_a_budget(world: World) -> None:
    """The disruption controller would count at once: its answer is forged."""
    stage = world.stage
    await world.wait(1)
    await stage.delete_node("n1")
    pods = sorted(pod["metadata"]["name"] for pod in stage.pods_on("n1"))
    for pod in pods:
        budget = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/web"
        await stage.call(
            "PATCH", f"{budget}/status", {"status": {"disruptionsAllowed": 1, "disruptedPods": None}}, MERGE
        )
        assert await world.culprit.evict(pod) == 201
        await world.wait(0.6)


# -- deadlines ---------------------------------------------------------------------------------------------------------


async def move_a_deadline(world: World) -> None:
    stamp = {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "2000-01-01T00:00:00Z"}}}
    await world.stage.patch_node("n1", stamp)
    await world.stage.delete_node("n1")
    stamp["metadata"]["annotations"][names.TERMINATION_TIMESTAMP] = "2000-01-02T00:00:00Z"
    await world.culprit.patch("/api/v1/nodes/n1", stamp)


async def miss_a_deadline(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "timed", terminationGracePeriodSeconds=10))
    await world.stage.delete_node("timed")
    await world.wait(PERIOD + 10)


async def miss_the_end_of_a_machine(world: World) -> None:
    await world.stage.patch_node("n1", _noticed(world, "spot", 60))
    await world.stage.delete_node("n1")
    await world.wait(70)


def _noticed(world: World, kind: str, seconds: float) -> Any:
    """Patch of a node: a notice that its machine goes after some seconds."""
    notice = f"{kind} {format_time(world.stage.clock.now() + seconds)} agent"
    return {"metadata": {"annotations": {names.INTERRUPTION: notice}}}


async def let_a_grace_outlast_the_deadline(world: World) -> None:
    """Beside one that its kubelet has not ended, though its grace was over in time: nothing can be done about that."""
    for name, seconds in (("web", 60), ("past", 5)):
        await world.stage.create(
            a_pod_manifest(name, "timed", terminationGracePeriodSeconds=seconds, behaviour={"stop-seconds": 120})
        )
    await world.stage.delete_node("timed")
    await world.wait(PERIOD - 20)
    for name in ("web", "past"):
        assert await world.culprit.evict(name) == 201
    await world.wait(30)
    assert not any("past" in each for each in world.invariants.check_end(calm=True))


# -- machines ----------------------------------------------------------------------------------------------------------


async def release_a_running_node(world: World) -> None:
    await world.stage.delete_node("n1")
    await world.culprit.patch("/api/v1/nodes/n1", {"metadata": {"finalizers": None}})


async def release_a_running_claim(world: World) -> None:
    await world.stage.delete_claim("claimed-claim")
    await world.stage.patch_node("claimed", {"metadata": {"finalizers": None}})
    await world.stage.delete_node("claimed")
    await world.culprit.patch(f"{CLAIM}/claimed-claim", {"metadata": {"finalizers": None}})


async def release_a_claim_before_its_node(world: World) -> None:
    await world.stage.delete_claim("claimed-claim")
    await world.wait(2)
    await world.culprit.patch(f"{CLAIM}/claimed-claim", {"metadata": {"finalizers": None}})


async def release_a_living_node(world: World) -> None:
    await world.culprit.patch("/api/v1/nodes/n1", {"metadata": {"finalizers": None}})


async def release_with_a_volume(world: World) -> None:
    await world.culprit.terminate("n1")
    await world.wait(1)
    await attach(world, "n1")
    await world.stage.delete_node("n1")
    await world.culprit.patch("/api/v1/nodes/n1", {"metadata": {"finalizers": None}})


async def terminate_a_living_machine(world: World) -> None:
    await world.wait(2)
    await world.culprit.terminate("n2")


async def terminate_a_strange_machine(world: World) -> None:
    world.stage.cluster.cloud.create("i-strange", "elsewhere")
    world.stage.instances["elsewhere"] = "i-strange"
    await world.culprit.terminate("elsewhere")


async def terminate_with_a_pod(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.stage.delete_node("n1")
    await world.wait(5)
    await world.culprit.terminate("n1")


async def terminate_with_a_volume(world: World) -> None:
    await attach(world, "n1")
    await world.stage.delete_node("n1")
    await world.wait(5)
    await world.culprit.terminate("n1")


async def attach(world: World, node: str) -> None:
    body = {
        "metadata": {"name": "disk"},
        "spec": {"attacher": "csi.example.com", "nodeName": node, "source": {"persistentVolumeName": "pv"}},
    }
    await world.stage.call("POST", "/apis/storage.k8s.io/v1/volumeattachments", body)


async def delete_an_unasked_node(world: World) -> None:
    await world.culprit.send("DELETE", "/api/v1/nodes/n2")


async def delete_an_unasked_claim(world: World) -> None:
    await world.culprit.send("DELETE", f"{CLAIM}/claimed-claim")


async def lose_a_node(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, asked=frozenset({"n1"}))
    await world.stage.delete_node("n2")


# -- voluntary ---------------------------------------------------------------------------------------------------------


async def rotate_too_many(world: World) -> None:
    for node in ("n1", "n2"):
        await world.stage.patch_node(node, TERMINABLE)
        await world.wait(2)
        await world.culprit.send("DELETE", f"/api/v1/nodes/{node}")


async def rotate_too_many_that_go_some_day(world: World) -> None:
    for node in ("n1", "n2"):
        await world.stage.patch_node(node, _noticed(world, "maintenance", 5000))
        await world.wait(2)
        await world.culprit.send("DELETE", f"/api/v1/nodes/{node}")


async def end_too_many_for_their_health(world: World) -> None:
    for node in ("n1", "n2", "timed"):
        sick = {"type": "Ready", "status": "False", "lastTransitionTime": "2000-01-01T00:00:00Z", "reason": "Sick"}
        await world.stage.patch_node(node, {"status": {"conditions": [sick]}}, "/status")
    await world.wait(5)
    await world.culprit.send("DELETE", "/api/v1/nodes/n1")


async def break_a_node_budget(world: World) -> None:
    await create_node_budget(world.stage, minAvailable="100%")
    await world.stage.patch_node("n1", TERMINABLE)
    await world.wait(2)
    await world.culprit.send("DELETE", "/api/v1/nodes/n1")


async def admit_by_a_spent_node_budget(world: World) -> None:
    await create_node_budget(world.stage, minAvailable="100%")
    await world.wait(2)
    entry = {"status": {"disruptionsAllowed": 0, "disruptedNodes": {"n1": "2026-01-01T00:00:00Z"}}}
    budget = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets/pool-a"
    assert await world.culprit.patch(f"{budget}/status", entry) == 200


# -- traffic -----------------------------------------------------------------------------------------------------------


async def write_beside_the_leader(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, elects=True)
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 15}
    leader = Culprit(world.stage)
    assert await leader.send("POST", LEASE, {"metadata": {"name": "gracectl"}, "spec": spec}) == 201
    assert await leader.patch("/api/v1/nodes/n1", LABELLED) == 200
    assert world.invariants.violations == []
    await world.culprit.patch("/api/v1/nodes/n1", LABELLED)


async def write_without_a_lease(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, elects=True)
    await world.culprit.patch("/api/v1/nodes/n1", LABELLED)


async def ask_again_and_again(world: World) -> None:
    await world.stage.create(a_budget_manifest("shut", minAvailable=9), a_pod_manifest("shut", "n1"))
    await world.stage.delete_node("n1")
    for _ in range(40):
        assert await world.culprit.evict("shut") == 429
        await world.wait(5)


async def list_again_and_again(world: World) -> None:
    for _ in range(20):
        await world.culprit.send("GET", CLAIM)
        await world.wait(5)


async def watch_again_and_again(world: World) -> None:
    for _ in range(10):
        request = Request(method="GET", path="/api/v1/pods", query=(("watch", "1"),))
        async with world.culprit.line.stream(request):
            await world.wait(5)


async def write_again_and_again(world: World) -> None:
    for number in range(60):
        condition = {"type": "Drained", "status": "False", "message": str(number)}
        await world.culprit.patch("/api/v1/nodes/n1/status", {"status": {"conditions": [condition]}})
        await world.wait(5)


# -- progress ----------------------------------------------------------------------------------------------------------


async def leave_a_pod(world: World) -> None:
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.stage.delete_node("n1")
    await world.wait(120)


async def leave_a_pod_for_seconds(world: World) -> None:
    world.invariants.terms = msgspec.structs.replace(CALM, prompt_seconds=1.5)
    await world.stage.create(a_pod_manifest("web", "n1"))
    await world.stage.delete_node("n1")
    await world.wait(8)


async def leave_a_pod_beside_a_slow_one(world: World) -> None:
    """The server is at work on the eviction of the other pod: a webhook of its namespace is slow."""
    await world.stage.create(a_pod_manifest("web", "n1"), a_pod_manifest("slow", "n1"))
    await world.stage.delete_node("n1")
    request = Request(method="POST", path=f"/api/v1/namespaces/{NAMESPACE}/pods/slow/eviction")
    world.stage.transport.in_work["key"] = Arrived(0.0, operation_of(request), "slow")
    await world.wait(120)
    assert not any("slow" in each for each in world.invariants.violations if " stall" in each)


async def leave_a_machine(world: World) -> None:
    await world.stage.delete_node("n1")
    await world.wait(120)


async def leave_a_finalizer(world: World) -> None:
    await world.stage.delete_node("n1")
    await world.culprit.terminate("n1")
    await world.wait(120)


async def leave_a_finalizer_after_a_failure(world: World) -> None:
    """The provider has failed, and has not said since that the machine has ended: it is asked again after a pause."""
    await world.stage.delete_node("n1")
    await world.culprit.terminate("n1")
    provider_id = f"sim:///zone-a/{world.stage.instances['n1']}"
    world.stage.provider.failures[provider_id] = world.stage.clock.monotonic()
    await world.wait(RETRIES)
    assert not any(" stall" in each for each in world.invariants.violations)
    await world.wait(120)


async def leave_a_claim(world: World) -> None:
    await world.stage.create_claim("lone", {"providerID": "sim:///zone-a/i-none"})
    await world.stage.patch_claim("lone", {"metadata": {"finalizers": [names.FINALIZER]}})
    await world.stage.delete_claim("lone")
    await world.wait(120)


async def leave_an_interrupted_node(world: World) -> None:
    """A budget for nodes is no excuse."""
    await create_node_budget(world.stage, minAvailable="100%")
    await world.stage.patch_node("n1", _noticed(world, "spot", 120))
    await world.wait(100)


async def hide_what_blocks(world: World) -> None:
    await world.stage.create(a_budget_manifest("shut", minAvailable=9), a_pod_manifest("shut", "n1"))
    await world.stage.delete_node("n1")
    await world.wait(120)


async def hide_a_pending_node(world: World) -> None:
    await world.stage.patch_node("n1", TERMINABLE)
    await world.wait(120)


async def hide_a_node_that_a_deleted_claim_waits_for(world: World) -> None:
    """That its node was pending before, and for how long, is another wait."""
    await world.stage.patch_node("claimed", TERMINABLE)
    await world.wait(60)
    await world.stage.delete_claim("claimed-claim")
    await world.wait(60)
    assert world.invariants.violations == []
    await world.wait(60)


# -- baseline ----------------------------------------------------------------------------------------------------------


async def keep_an_object(world: World) -> None:
    async with world.stage.controller() as controller:
        await world.wait(5)
        candidate = EvictionCandidate("shop", "web", "u", "n1", (), 0.0)
        controller.leak = [candidate]  # type: ignore[attr-defined]  # what a leak looks like
        world.invariants.check_end(calm=True)


async def keep_a_task(world: World) -> None:
    """Of a process that has started when the baseline was known."""
    async with world.stage.controller():
        await world.wait(20)
    await world.stage.delete_node("n1")
    async with world.stage.controller(), anyio.create_task_group() as group:
        await world.stage.until_gone("n1")
        await world.wait(40)
        world.invariants.check_end(calm=True)
        assert world.invariants.violations == []
        for _ in range(5):
            group.start_soon(LoopClock().sleep, 1e6)
        await world.stage.delete_node("n2")
        await world.stage.until_gone("n2")
        await world.wait(40)
        world.invariants.check_end(calm=True)
        group.cancel_scope.cancel()


async def keep_a_request(world: World) -> None:
    arrived = Arrived(0.0, operation_of(Request(method="PATCH", path="/api/v1/nodes/n1")), "line")
    world.stage.transport.in_work["key"] = arrived


CLAIM = "/apis/karpenter.sh/v1/nodeclaims"
SLOW_TO_START = {"stop-seconds": 1, "ready-seconds": 60}
DEAF = {"ignores-sigterm": "true"}
LABELLED = {"metadata": {"labels": {"a": "b"}}}

CRIMES: dict[Crime, str] = {
    delete_without_deadline: "early deletion: pod web was deleted, and nothing says that node 'n1' has a deadline",
    delete_for_a_node_that_has_gone: "early deletion: pod web was deleted, and nothing says that node 'timed' has",
    delete_before_its_time: r"early deletion: pod web was deleted 10\.0* s before its time",
    delete_by_a_clock_that_is_further_ahead_than_any: r"early deletion: pod web was deleted 10\.0* s before its time",
    delete_before_the_time_of_its_wave: r"early deletion: pod web was deleted 20\.0* s before its time",
    delete_with_too_little_grace: r"early deletion: pod web \(own grace 10\) was granted 1 s when 8\.0* s were left",
    cut_a_grace_that_ends_in_time: "early deletion: pod web: its grace was cut though it ended",
    delete_by_name: "early deletion: pod web: DELETE with grace 1 and uid ''",
    delete_at_once: "early deletion: pod web: DELETE with grace 0 and uid",
    change_a_pod: "replacement: pod web was changed by PATCH",
    mark_before_its_time: r"early deletion: pod web was marked 12\.0* s before its deletion is due",
    mark_more_than_the_condition: "early deletion: pod web: its status was changed beyond DisruptionTarget",
    evict_protected: "eviction: pod web was evicted, and it is protected until",
    evict_what_no_clock_lets_go: "eviction: pod web was evicted, and it is protected until",
    evict_with_invalid_protection: "eviction: pod web was evicted, and it is protected until inf",
    evict_beside_do_not_evict: "eviction: pod web was evicted, and db on its node is protected until inf",
    evict_before_its_wave: "eviction: pod dns was evicted before web, which is of an earlier wave",
    evict_a_plugin_before_its_volumes: "eviction: pod plugin-.* of a DaemonSet was evicted with volume pv attached",
    evict_for_nothing: "eviction: pod web was evicted from 'n1', which is not to be drained",
    evict_with_little_grace: r"eviction: pod web \(own grace 30\) was evicted with a grace of 1 s",
    evict_twice: "eviction: pod web was evicted 2 times",
    evict_what_another_has_evicted: "eviction: pod web was evicted 2 times",
    evict_against_a_budget: "budget: the eviction of shop/web-.* left shop/web with 1 healthy pods, 2 are needed",
    move_a_deadline: "deadline moved: Node n1: the deadline was moved",
    miss_a_deadline: r"late: node timed: its instance was asked to terminate 10\.0* s after its deadline",
    miss_the_end_of_a_machine: r"late: node n1: its instance was asked to terminate (9|10)\.\d+ s after its deadline",
    let_a_grace_outlast_the_deadline: r"late: pod web was still granted more than a second 10\.0* s after the deadline",
    release_a_running_node: "finalizer: node n1 was released while its instance is running",
    release_a_running_claim: "finalizer: claim claimed-claim was released while its instance is running",
    release_a_claim_before_its_node: "finalizer: claim claimed-claim was released before its node claimed",
    release_a_living_node: "finalizer: node n1: the finalizer was removed, and it is not being deleted",
    release_with_a_volume: "finalizer: node n1 was released with volume pv attached",
    terminate_a_living_machine: "machine: the machine of node n2, which is not being deleted, was terminated",
    terminate_a_strange_machine: "machine: the machine i-strange was terminated, and nothing that is deleted has it",
    terminate_with_a_pod: "machine: the machine of n1 was terminated before its deadline, with pod web",
    terminate_with_a_volume: "machine: the machine of n1 was terminated with volume pv attached",
    delete_an_unasked_node: "unasked: node n2 was deleted, and nothing asks for that",
    delete_an_unasked_claim: "unasked: claim claimed-claim was deleted, and nothing asks for that",
    lose_a_node: "unasked: node n2 or its machine has ended, and nothing has asked for that",
    rotate_too_many: "pace: n2 was deleted voluntarily beside n1: 1 at once",
    rotate_too_many_that_go_some_day: "pace: n2 was deleted voluntarily beside n1: 1 at once",
    end_too_many_for_their_health: "pace: n1 was deleted for its health while 3 are unhealthy: 1 may",
    break_a_node_budget: "node budget: node n1 was deleted: pool-a keeps 1, 0 are left",
    admit_by_a_spent_node_budget: "node budget: node n1 was admitted by pool-a, which allows none",
    write_beside_the_leader: "writer: .* did patch nodes n1 while a held the Lease",
    write_without_a_lease: "writer: .* did patch nodes n1 while no process held the Lease",
    ask_again_and_again: r"requests: \S+ create pods/eviction shop/shut more than 12 times, and 120 an hour",
    list_again_and_again: r"requests: \S+ list nodeclaims /apis/\S+ more than 6 times, and 120 an hour",
    watch_again_and_again: r"requests: \S+ watch pods /api/v1/pods more than 6 times, and 24 an hour",
    write_again_and_again: r"requests: \S+ patch nodes/status /n1 more than 40 times, and 120 an hour",
    leave_a_pod: "stall: pod web on node n1 may be evicted: nothing holds it",
    leave_a_pod_for_seconds: r"not prompt: pod web may be evicted, and was not for 1\.5 s",
    leave_a_pod_beside_a_slow_one: "stall: pod web on node n1 may be evicted: nothing holds it",
    leave_a_machine: "stall: node n1 waits for its instance: nothing holds it",
    leave_a_finalizer: "stall: node n1 waits for its finalizer: nothing holds it",
    leave_a_finalizer_after_a_failure: "stall: node n1 waits for its finalizer: nothing holds it",
    leave_a_claim: "stall: claim lone waits for its instance or its finalizer: nothing holds it",
    leave_an_interrupted_node: r"unheard: node n1 is interrupted, and was not deleted for 9\d s",
    hide_what_blocks: r"not shown: n1 waits for pods \(shut\) for 9\d s, and nothing says so",
    hide_a_pending_node: "not shown: n1 is pending for 9. s, and nothing says so",
    hide_a_node_that_a_deleted_claim_waits_for: (
        r"not shown: claimed-claim waits for the deletion of its nodes \(claimed\) for 9\d s, and nothing says so"
    ),
    keep_an_object: "baseline: a controller still has 1 objects EvictionCandidate",
    keep_a_task: r"baseline: \d+ tasks of a controller, \d+ before the first termination",
    keep_a_request: "baseline: requests in flight: patch nodes n1",
}
"""What nothing may do, and what the invariants say to it."""


@pytest.mark.parametrize("crime", CRIMES, ids=lambda crime: crime.__name__)
async def test_a_violation_is_reported(crime: Crime) -> None:
    options: dict[str, Any] = {"kubelet": SILENT, "node_grace_seconds": 1e6}
    async with staged("n1", labels=TEAM if crime is break_a_node_budget else {}, settings=SETTINGS, **options) as stage:
        await stage.add_nodes("n2")
        await stage.add_nodes("timed", labels=TIMED)
        await stage.add_nodes("claimed", claim=ClaimSpec())
        if crime is evict_against_a_budget:
            web = a_workload(
                "Deployment", "web", 3, pod={"node": "n1"}, behaviour={"stop-seconds": 1, "ready-seconds": 60}
            )
            await stage.create(a_budget_manifest("web", maxUnavailable=1), web)
        for node in stage.nodes():
            await stage.patch_node(node["metadata"]["name"], HELD)
        await stage.patch_claim("claimed-claim", HELD)
        invariants = Invariants(stage, CALM)
        async with invariants.watching():
            await crime(World(stage, Culprit(stage), invariants))
        violations = "\n".join(invariants.check_end(calm=True))
    assert re.search(CRIMES[crime], violations), violations


HELD = {"metadata": {"finalizers": [names.FINALIZER]}}
