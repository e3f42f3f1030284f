"""`gracectl controller --dry-run`: it says what it would do, and no object changes."""

from __future__ import annotations

import signal

import aiohttp
import pytest
from e2e_support.story import Story
from kubesim.controllers.objects import is_terminating
from kubesim.server.api import JsonObject
from support.servers import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


def content(node: JsonObject) -> JsonObject:
    """All of a node that gracectl would write to; a real cluster's own controllers go on with the rest."""
    kept = ("labels", "annotations", "finalizers", "deletionTimestamp")
    conditions = sorted(each["type"] for each in node["status"]["conditions"])
    return {**{key: node["metadata"].get(key) for key in kept}, "spec": node["spec"], "conditions": conditions}


async def test_a_dry_run_names_each_eviction_and_changes_nothing(story: Story) -> None:
    real = await story.controller()
    (leaving,) = await story.nodes("a")
    pods = await story.workload("Deployment", "web", 3, replicas=3)
    await story.budget("web", "web", maxUnavailable=1)
    real.send(signal.SIGTERM)
    assert await real.ended() == 0
    await story.delete("Node", leaving)
    await story.sight.until("the node is held", lambda: is_terminating(story.sees("Node", leaving)))
    node, versions = content(story.sees("Node", leaving)), sorted(each["metadata"]["resourceVersion"] for each in pods)

    port = free_port()
    observer = await story.controller(
        "--dry-run", probes={"listen": f"127.0.0.1:{port}"}, metrics={"listen": f"127.0.0.1:{port}"}
    )
    await observer.until_said(f"would change node {leaving}: metadata.finalizers")
    names = {each["metadata"]["name"] for each in pods}
    said = [each["message"] for each in observer.said("would evict")]
    assert sorted(said) == sorted(f"dry run: would evict pod {story.namespace}/{name}" for name in names)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/readyz") as ready:
            assert (ready.status, "ok dry run: observes only" in await ready.text()) == (200, True)
        async with session.get(f"http://127.0.0.1:{port}/metrics") as metrics:
            assert "gracectl_dry_run 1.0" in await metrics.text()
    observer.send(signal.SIGTERM)
    assert await observer.ended() == 0

    assert content(story.sees("Node", leaving)) == node
    assert sorted(each["metadata"]["resourceVersion"] for each in story.pods_on(leaving)) == versions
    lease = await story.api.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{story.namespace}/leases/gracectl")
    assert not lease[1]["spec"]["holderIdentity"]
