"""Writes and deletions beyond the recordings: exact instants, generations, namespaces, and what may not leak."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.kinds.workloads import Plain
from kubesim.server.resource import Resource
from kubesim.values import parse_time
from kubesim_support.caller import BUDGETS, LEASES, NODES, PODS, STRATEGIC, Caller

pytestmark = pytest.mark.anyio
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
NAMESPACES = "/api/v1/namespaces"


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


async def test_a_caller_cannot_change_what_it_has_stored(caller: Caller) -> None:
    body: dict[str, Any] = {"metadata": {"name": "n1", "labels": {"a": "1"}}, "spec": {"taints": []}}
    await caller.create(NODES, body)
    body["metadata"]["labels"]["a"] = "2"
    patch: dict[str, Any] = {"metadata": {"annotations": {"b": "1"}}}
    await caller.patch(f"{NODES}/n1", patch)
    patch["metadata"]["annotations"]["b"] = "2"
    metadata = (await caller.get(f"{NODES}/n1"))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"a": "1"}, {"b": "1"})


async def test_an_answer_once_given_does_not_change(caller: Caller) -> None:
    first = await caller.create(NODES, {"metadata": {"name": "n1"}})
    await caller.patch(f"{NODES}/n1", {"spec": {"unschedulable": True}})
    await caller.patch(
        f"{NODES}/n1/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC
    )
    assert "unschedulable" not in first["spec"]
    assert "conditions" not in first["status"]


async def test_deletion_counts_from_the_first_delete(caller: Caller) -> None:
    await caller.pod("a")
    instants = []
    for wait, grace in ((0, "30"), (3, "10"), (10, "1"), (0, "20")):
        await anyio.sleep(wait)
        metadata = (await caller.ok("DELETE", f"{PODS}/a", gracePeriodSeconds=grace))["metadata"]
        instants.append((metadata["deletionTimestamp"][-3:], metadata["deletionGracePeriodSeconds"]))
    # The third would have ended 12 s ago: it ends now. (1.24 wrote the instant that has passed.)
    assert instants == [("30Z", 30), ("10Z", 10), ("13Z", 1), ("13Z", 1)]


@pytest.mark.parametrize(("grace", "answer"), [("6", ("06Z", 1)), ("7", ("07Z", 7))])
async def test_a_shorter_grace_that_is_over_by_a_part_of_a_second_is_over(
    caller: Caller, grace: str, answer: tuple[str, int]
) -> None:
    await caller.pod("a")
    await caller.ok("DELETE", f"{PODS}/a", gracePeriodSeconds="30")
    await anyio.sleep(6.5)
    metadata = (await caller.ok("DELETE", f"{PODS}/a", gracePeriodSeconds=grace))["metadata"]
    assert (metadata["deletionTimestamp"][-3:], metadata["deletionGracePeriodSeconds"]) == answer


@pytest.mark.parametrize(
    ("grace", "end", "shorter"),
    [
        (2**63 - 1, "2026-11-24T22:56:05Z", "36Z"),
        (10**10, "1759-03-26T17:08:12Z", "35Z"),  # what is overflown is no whole second
        (2**40, "1795-10-17T00:58:39Z", "35Z"),
        (9 * 10**9, "2312-02-06T14:56:06Z", "36Z"),
    ],
)
async def test_a_grace_of_centuries_is_counted_as_go_does(grace: int, end: str, shorter: str) -> None:
    caller = Caller(ApiServer(LoopClock(epoch=parse_time("2026-11-24T22:56:06Z"))))
    await caller.pod("a", terminationGracePeriodSeconds=grace)
    metadata = (await caller.ok("DELETE", f"{PODS}/a"))["metadata"]
    assert (metadata["deletionTimestamp"], metadata["deletionGracePeriodSeconds"]) == (end, grace)
    metadata = (await caller.ok("DELETE", f"{PODS}/a", gracePeriodSeconds="30"))["metadata"]
    assert (metadata["deletionTimestamp"][-3:], metadata["deletionGracePeriodSeconds"]) == (shorter, 30)


async def test_generation_counts_changes_of_the_spec_and_the_deletion(caller: Caller) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "pause"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = await caller.create(DEPLOYMENTS, {"metadata": {"name": "d", "finalizers": ["a/b"]}, "spec": spec})
    generations = [made["metadata"]["generation"]]
    for path, patch in (
        (DEPLOYMENTS + "/d", {"metadata": {"labels": {"a": "b"}}}),
        (DEPLOYMENTS + "/d", {"spec": {"replicas": 2}}),
        (DEPLOYMENTS + "/d/status", {"status": {"replicas": 2}, "spec": {"replicas": 7}}),
    ):
        generations.append((await caller.patch(path, patch))["metadata"]["generation"])
    generations.append((await caller.ok("DELETE", DEPLOYMENTS + "/d"))["metadata"]["generation"])
    assert generations == [1, 1, 2, 2, 3]


async def test_the_same_seed_makes_the_same_uids_and_names() -> None:
    async def first_of(seed: int) -> tuple[str, str]:
        caller = Caller(ApiServer(LoopClock(), seed=seed))
        pod = {"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        metadata = (await caller.create(PODS, pod))["metadata"]
        return metadata["uid"], metadata["name"]

    assert await first_of(7) == await first_of(7)
    assert await first_of(7) != await first_of(8)


async def test_a_namespace_is_emptied_before_it_goes(caller: Caller) -> None:
    await caller.create(NAMESPACES, {"metadata": {"name": "shop"}})
    leaving = await caller.ok("DELETE", f"{NAMESPACES}/shop")
    assert leaving["status"]["phase"] == "Terminating"
    refused = await caller.call("POST", LEASES.replace("default", "shop"), {"metadata": {"name": "x"}})
    assert refused.status == 403
    assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    await caller.ok("PUT", f"{NAMESPACES}/shop/finalize", {**leaving, "spec": {"finalizers": []}})
    assert (await caller.call("GET", f"{NAMESPACES}/shop")).status == 404


async def test_a_priority_class_gives_a_pod_its_priority(caller: Caller) -> None:
    await caller.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    pod = await caller.pod("a", priorityClassName="high")
    assert pod["spec"]["priority"] == 1000
    assert (await caller.pod("b", priorityClassName="system-node-critical"))["spec"]["priority"] == 2_000_001_000
    spec = {"containers": [{"name": "c", "image": "i"}], "priorityClassName": "none"}
    assert (await caller.call("POST", PODS, {"metadata": {"name": "c"}, "spec": spec})).status == 403


async def test_a_json_patch_moves_copies_and_appends(caller: Caller) -> None:
    await caller.create(NODES, {"metadata": {"name": "n1", "labels": {"a": "1"}}, "spec": {"taints": []}})
    operations = [
        {"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/b"},
        {"op": "copy", "from": "/metadata/labels/b", "path": "/metadata/labels/c"},
        {"op": "add", "path": "/spec/taints", "value": []},
        {"op": "add", "path": "/spec/taints/-", "value": {"key": "k", "effect": "NoSchedule"}},
    ]
    node = await caller.patch(f"{NODES}/n1", operations, "application/json-patch+json")
    assert node["metadata"]["labels"] == {"b": "1", "c": "1"}
    assert node["spec"]["taints"] == [{"key": "k", "effect": "NoSchedule"}]


async def test_kinds_may_be_added_while_the_server_runs(caller: Caller) -> None:
    path = "/apis/example.org/v1/things"
    assert (await caller.call("GET", path)).body == "404 page not found\n"
    caller.server.registry.add(
        Resource(group="example.org", version="v1", plural="things", kind="Thing", namespaced=False, strategy=Plain())
    )
    await caller.create(path, {"metadata": {"name": "t"}, "spec": {"size": 1}})
    assert [item["metadata"]["name"] for item in (await caller.get(path))["items"]] == ["t"]
    assert "example.org" in [group["name"] for group in (await caller.get("/apis"))["groups"]]
    caller.server.registry.remove("example.org", "v1", "things")
    assert (await caller.call("GET", path)).status == 404


async def test_pages_of_many_objects_add_up(caller: Caller) -> None:
    names = [f"l{index:03}" for index in range(95)]
    for name in reversed(names):
        await caller.create(LEASES, {"metadata": {"name": name}})
    seen: list[str] = []
    query = {"limit": "10"}
    while True:
        page = await caller.get("/apis/coordination.k8s.io/v1/leases", **query)
        seen += [item["metadata"]["name"] for item in page["items"]]
        assert page["metadata"].get("remainingItemCount", 0) == 95 - len(seen)
        if "continue" not in page["metadata"]:
            break
        await caller.create(LEASES, {"metadata": {"name": f"later-{len(seen)}"}})
        query = {"limit": "10", "continue": page["metadata"]["continue"]}
    assert seen == names


@pytest.mark.parametrize(("path", "status"), [(LEASES, 422), (BUDGETS, 422), (NODES, 200)])
async def test_some_kinds_are_never_overwritten_without_a_version(caller: Caller, path: str, status: int) -> None:
    made = await caller.create(path, {"metadata": {"name": "one"}})
    metadata = {key: value for key, value in made["metadata"].items() if key != "resourceVersion"}
    answer = await caller.call("PUT", f"{path}/one", {**made, "metadata": metadata})
    assert answer.status == status
    if status == 422:
        assert isinstance(answer.body, dict)
        assert "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update" in answer.body["message"]
