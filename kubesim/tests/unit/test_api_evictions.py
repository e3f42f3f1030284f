"""What an eviction costs its budget, beyond what the recordings show."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Response
from kubesim_support.caller import BUDGETS, PODS, Caller, cause_of

pytestmark = pytest.mark.anyio
ANOTHER = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


async def status_of(caller: Caller) -> dict[str, Any]:
    """The status of the budget `web`."""
    status: dict[str, Any] = (await caller.get(f"{BUDGETS}/web"))["status"]
    return status


async def test_success_spends_the_budget_in_one_write_before_the_pod_goes(caller: Caller) -> None:
    await caller.pod("a")
    await caller.budget(allowed=1)
    budgets, pods = await caller.watch(BUDGETS, resourceVersion="0"), await caller.watch(PODS, resourceVersion="0")
    first = [await budgets.__anext__(), await pods.__anext__()]
    assert [event.type for event in first] == ["ADDED", "ADDED"]
    assert (await caller.evict("a")).status == 201
    spent, pod = await budgets.__anext__(), await pods.__anext__()
    assert spent.object["status"]["disruptionsAllowed"] == 0
    assert spent.object["status"]["disruptedPods"] == {"a": "2026-01-01T00:00:00Z"}
    assert spent.object["status"]["conditions"][0]["reason"] == "InsufficientPods"
    assert int(spent.object["metadata"]["resourceVersion"]) < int(pod.object["metadata"]["resourceVersion"])


async def test_ten_at_once_pass_as_far_as_the_budget_allows(caller: Caller) -> None:
    for index in range(10):
        await caller.pod(f"p{index}")
    await caller.budget(allowed=3, healthy=10, desired=7)
    answers: list[Response] = []

    async def evict(name: str) -> None:
        answers.append(await caller.evict(name))

    async with anyio.create_task_group() as tasks:
        for index in range(10):
            tasks.start_soon(evict, f"p{index}")
    assert sorted(answer.status for answer in answers) == [201] * 3 + [429] * 7
    refused = next(answer for answer in answers if answer.status == 429)
    assert cause_of(refused)["message"] == "The disruption budget web needs 7 healthy pods and has 10 currently"
    assert "retry-after" not in refused.headers


async def test_a_refused_precondition_has_spent_the_budget(caller: Caller) -> None:
    await caller.pod("a")
    await caller.budget(allowed=1)
    assert (await caller.evict("a", {"preconditions": {"uid": ANOTHER}})).status == 409
    status = await status_of(caller)
    assert (status["disruptionsAllowed"], list(status["disruptedPods"])) == (0, ["a"])
    assert "deletionTimestamp" not in (await caller.get(f"{PODS}/a"))["metadata"]


async def test_a_budget_not_yet_counted_says_when_to_come_back(caller: Caller) -> None:
    await caller.pod("a")
    await caller.budget(allowed=1, maxUnavailable=1)
    await caller.patch(f"{BUDGETS}/web", {"spec": {"maxUnavailable": 2}})
    refused = await caller.evict("a")
    assert (refused.status, refused.headers["retry-after"]) == (429, "10")
    assert refused.body["details"]["retryAfterSeconds"] == 10


@pytest.mark.parametrize(
    ("policy", "healthy", "desired", "status"),
    [
        ("", 2, 2, 201),
        ("", 1, 2, 429),
        ("", 0, 0, 429),
        ("IfHealthyBudget", 2, 2, 201),
        ("IfHealthyBudget", 1, 2, 429),
        ("AlwaysAllow", 1, 2, 201),
    ],
)
async def test_unready_pods_go_as_the_policy_says(
    caller: Caller, policy: str, healthy: int, desired: int, status: int
) -> None:
    await caller.pod("a", ready=False)
    spec = {"unhealthyPodEvictionPolicy": policy} if policy else {}
    await caller.budget(allowed=0, healthy=healthy, desired=desired, **spec)
    assert (await caller.evict("a")).status == status
    assert "disruptedPods" not in await status_of(caller)


async def test_a_dry_run_asks_and_costs_nothing(caller: Caller) -> None:
    await caller.pod("a")
    before = await caller.budget(allowed=1)
    assert (await caller.evict("a", dryRun="All")).status == 201
    assert (await caller.evict("a", {"dryRun": ["All"]})).status == 201
    assert await caller.get(f"{BUDGETS}/web") == before
    assert "deletionTimestamp" not in (await caller.get(f"{PODS}/a"))["metadata"]


async def test_a_budget_of_another_namespace_or_selector_does_not_count(caller: Caller) -> None:
    await caller.pod("a")
    for path, selector in (
        ("/apis/policy/v1/namespaces/kube-system/poddisruptionbudgets", {"matchLabels": {"app": "web"}}),
        (BUDGETS, {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}),
        (BUDGETS, None),
    ):
        await caller.create(path, {"metadata": {"generateName": "b-"}, "spec": {"selector": selector}})
    assert (await caller.evict("a")).status == 201


async def test_an_empty_selector_counts_every_pod(caller: Caller) -> None:
    await caller.pod("a")
    await caller.create(BUDGETS, {"metadata": {"name": "all"}, "spec": {"selector": {}}})
    assert (await caller.evict("a")).status == 429
