"""What operators see: kubectl, and the message when rights are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e_support.program import running
from e2e_support.story import Story
from kubesim.controllers.client import ask
from kubesim_support.kubectl import Kubectl, needs_kubectl

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


@needs_kubectl
async def test_kubectl_shows_why_a_node_is_not_drained(story: Story) -> None:
    await story.controller()
    (leaving,) = await story.nodes("a")
    (pod,) = await story.workload("Deployment", "web", 1, replicas=1)
    await story.budget("strict", "web", maxUnavailable=0)
    node = story.sees("Node", leaving)
    await story.delete("Node", leaving)
    await story.sight.until(
        "the drain is told of",
        lambda: story.condition(leaving, names.DRAINED) and story.events_about(node, names.EventReason.DRAINING),
    )

    kubectl = Kubectl(story.target.kubeconfig, story.folder)
    heading, row = (await kubectl("get", "node", leaving)).splitlines()
    assert heading.split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert row.split()[:3] == [leaving, "Ready,SchedulingDisabled", "<none>"]

    described = await kubectl("describe", "node", leaving)
    (condition,) = (line for line in described.splitlines() if line.split()[:2] == ["Drained", "False"])
    assert f"{story.namespace}/{pod['metadata']['name']}" in condition
    assert f"{story.namespace}/strict" in condition
    events = described.partition("\nEvents:")[2]
    assert "Cordoned" in events
    assert "Draining" in events
    assert "gracectl" in events


async def test_missing_rights_are_named_by_verb_and_resource(story: Story) -> None:
    kubeconfig = await kubeconfig_without_rights(story)
    async with running(kubeconfig, {}, story.folder) as controller:
        assert await controller.ended() == 3
        text = controller.text()
    assert "Traceback" not in text
    for right in ("list nodes", "patch nodes/status", "create pods/eviction", "list poddisruptionbudgets"):
        assert right in text


async def kubeconfig_without_rights(story: Story) -> Path:
    """A kubeconfig whose token is valid and has no rights; skips the test where there can be no such token."""
    accounts = f"/api/v1/namespaces/{story.namespace}/serviceaccounts"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "no-rights"}}
    await ask(story.api, "POST", accounts, account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    status, answer = await story.api.call("POST", f"{accounts}/no-rights/token", request)
    if status != 201:
        pytest.skip(f"this cluster gives no tokens to service accounts ({status})")
    path = story.folder / "no-rights"
    _write_with_token(path, story.target.config, answer["status"]["token"])
    return path


def _write_with_token(path: Path, config: Any, token: str) -> None:
    for user in config["users"]:
        user["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
