"""Deletions of nodes are admitted by gracectl: replicas behind one address, over HTTPS; against any cluster whose API
server reaches this machine (GRACECTL_E2E_WEBHOOK_HOST: at which of its addresses, if not 127.0.0.1)."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from e2e_support.balancer import HOST, balanced
from e2e_support.names import LABEL
from e2e_support.program import Program
from e2e_support.story import Story
from kubesim.controllers.client import MERGE, ApiClient
from kubesim.controllers.paths import NODES, path_of
from kubesim.server.api import JsonObject
from kubesim_support.patience import PATIENCE
from support.admission import is_late
from support.servers import free_ports

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
REACHABLE = os.environ.get("GRACECTL_E2E_WEBHOOK_HOST", HOST)
NOT_REACHED = "failed calling webhook"


@asynccontextmanager
async def replicas(story: Story, number: int, **admission: Any) -> AsyncIterator[list[Program]]:
    """So many controllers that serve admission under one address; skips where no API server reaches it."""
    ports = free_ports(number)
    async with balanced(ports, REACHABLE) as port:
        own = {"url": f"https://{REACHABLE}:{port}", "name": story.run, "secret": f"{story.run}-tls"}
        started = []
        try:
            for each in ports:
                settings = {"listen": f"{HOST}:{each}", **own, **admission}
                # Requests of the second story must not wait for the last Lease.
                started.append(await story.controller(admission=settings))
            for program in started:
                # A Service routes to ready pods only; this balancer to all.
                await program.until_said("in use, valid until")
            await story.register(settings)
            await _until_asked(story)
            yield started
        finally:
            with anyio.CancelScope(shield=True):
                await _take_away(story)


async def _until_asked(story: Story) -> None:
    """Wait until the API server calls them."""
    (probe,) = await story.nodes("probe")
    budget = await story.node_budget("probe", maxUnavailable=0)
    said = ""
    with anyio.move_on_after(PATIENCE):
        while True:
            status, answer = await deletion(story.api, probe, dryRun=["All"])
            if status == 429:
                said = ""  # before, one was asked that had no certificate yet
                break
            said = answer.get("message", "")
            await story.clock.sleep(0.2)
    if NOT_REACHED in said:
        pytest.skip(f"the API server does not reach a webhook at {REACHABLE}: {said}")
    assert status == 429, (status, said)
    await story.delete("NodeDisruptionBudget", budget)
    await story.sight.until("the budget is gone", lambda: story.sight.get("NodeDisruptionBudget", budget) is None)
    await until_deleted(story, probe)
    await story.until_gone(probe)


async def until_deleted(story: Story, name: str) -> None:
    """Delete a node, with retries until it is admitted: replicas see changes one after the other."""
    with anyio.fail_after(PATIENCE):
        while (await deletion(story.api, name))[0] != 200:
            await story.clock.sleep(0.1)


async def _take_away(story: Story) -> None:
    for kind in CONFIGURATIONS:
        await story.api.call("DELETE", f"{ADMISSION}/{kind}/{story.run}")
    await story.api.call("DELETE", f"/api/v1/namespaces/kube-system/secrets/{story.run}-tls")


async def deletion(api: ApiClient, node: str, **options: Any) -> tuple[int, JsonObject]:
    """Result of the DELETE of a node."""
    body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
    status, answer = await api.call("DELETE", path_of(NODES, name=node), body)
    return status, answer


async def test_created_nodes_have_the_finalizer_and_refused_deletions_say_why(budget_story: Story) -> None:
    story = budget_story
    async with replicas(story, 1):
        first, second = await story.nodes("a", "b")
        born = next(
            seen.object
            for seen in story.sight.journal
            if seen.kind == "Node" and seen.object["metadata"]["name"] == first
        )
        assert names.FINALIZER in born["metadata"]["finalizers"]
        budget = await story.node_budget("pool", minAvailable="100%")
        status, answer = await deletion(story.api, first)
        assert status == 429
        assert answer["reason"] == "TooManyRequests"
        assert "retryAfterSeconds" not in answer.get("details", {})
        assert (
            f"node disruption budget {budget} allows no termination now (2 of 2 available, 2 required"
            in answer["message"]
        )
        assert "change or delete the budget, which never allows a termination" in answer["message"]
        assert (await deletion(story.api, first, dryRun=["All"]))[0] == 429
        await story.patch("NodeDisruptionBudget", budget, {"spec": {"minAvailable": "50%"}})
        await until_deleted(story, first)
        assert (await deletion(story.api, first))[0] in (200, 404)  # counted once, however often it is asked for
        await story.until_gone(first)
        assert story.sight.get("Node", second) is not None


async def test_fifty_deletions_at_once_through_three_replicas_never_exceed_the_budget(budget_story: Story) -> None:
    story = budget_story
    async with replicas(story, 3):
        fifty = await story.nodes(*(f"n{number}" for number in range(50)))
        await story.node_budget("pool", maxUnavailable=7)
        answers: Counter[int] = Counter()

        async def ask(name: str) -> None:
            status, answer = await deletion(story.api, name)
            if not is_late(status, answer):
                answers[status] += 1

        left = list(fifty)
        with anyio.fail_after(PATIENCE):
            while left:
                async with anyio.create_task_group() as group:
                    for name in left:
                        group.start_soon(ask, name)
                await story.clock.sleep(0.3)
                left = [name for name in left if story.sight.get("Node", name) is not None]
        assert set(answers) <= {200, 404, 429}
        assert answers[429] > 0
        assert story.most_ending() == 7


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
async def test_without_a_replica_only_unavailable_nodes_are_deleted_unless_the_policy_is_ignore(
    budget_story: Story, policy: str
) -> None:
    story = budget_story
    async with replicas(story, 2, failurePolicy=policy) as programs:
        (name,) = await story.nodes("a")
        for program in programs:
            program.send(signal.SIGKILL)
            await program.ended()
        status, answer = await deletion(story.api, name, dryRun=["All"])
        if policy == "Ignore":
            assert status == 200
            return
        assert status == 500
        assert NOT_REACHED in answer["message"]
        # A node that has never reported is unavailable: the API server does not call the webhook.
        dead = f"{story.run}-dead"
        story.adopt(dead)
        manifest = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": dead, "labels": {LABEL: story.run}}}
        manifest["spec"] = {"taints": [{"key": "dead", "effect": "NoSchedule"}]}
        status, _ = await story.api.call("POST", NODES, manifest)
        assert status == 201  # nor does a dead webhook keep nodes from joining
        with anyio.fail_after(PATIENCE):
            while True:
                unready = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Dead"}]}}
                await story.api.call(
                    "PATCH", path_of(NODES, name=dead, subresource="status"), unready, content_type=MERGE
                )
                status, answer = await deletion(story.api, dead)
                if status == 200:
                    return
                await story.clock.sleep(0.1)
