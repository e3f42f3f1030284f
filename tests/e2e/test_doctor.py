"""`gracectl doctor` and the settings that commands read from the cluster, before and beside a controller."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import yaml
from e2e_support.names import LABEL
from e2e_support.story import Story
from kubesim.controllers.client import ask
from kubesim_support.patience import PATIENCE

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


async def doctor(story: Story, *arguments: str) -> dict[str, dict[str, Any]]:
    """What each check has found; its exit code fits."""
    command = [sys.executable, "-m", "gracectl", "doctor", "--kubeconfig", str(story.target.kubeconfig), "-o", "json"]
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process([*command, *arguments], check=False)
    assert not done.stderr, done.stderr
    told = msgspec.json.decode(done.stdout)
    assert done.returncode == (0 if told["healthy"] else 1)
    return {each["check"]: each for each in told["checks"]}


def settings_of(story: Story, **more: Any) -> dict[str, Any]:
    """Those of the story's controller, as far as doctor looks at them."""
    return {
        "nodeSelector": {"matchLabels": {LABEL: story.run, f"{LABEL}-managed": "true"}},
        "leaderElection": {"namespace": story.namespace},
        **more,
    }


def written(story: Story, **settings: Any) -> Path:
    path = story.folder / "doctor.yaml"
    path.write_text(yaml.safe_dump(settings_of(story, **settings)))
    return path


async def test_it_finds_what_is_missing_and_what_a_controller_mends(story: Story) -> None:
    (node,) = await story.nodes("a", managed=False)
    await story.patch("Node", node, {"metadata": {"labels": {f"{LABEL}-managed": "true"}}})
    settings = str(written(story))
    before = await doctor(story, "--config", settings)
    assert before["API server"]["state"] == "ok"
    assert before["credentials"]["state"] == "ok"
    assert before["controller"]["state"] == "failed"
    # Nodes that other stories beside this one hold are worse, and named alone.
    found = before["finalizers"]
    assert found["state"] == "failed" or (found["state"] == "warning" and node in found["objects"])

    await story.controller()
    await story.sight.until("the node is held", lambda: story.is_held(node))
    after = await doctor(story, "--config", settings)
    assert (after["controller"]["state"], "leads" in after["controller"]["message"]) == ("ok", True)
    assert node not in after["finalizers"].get("objects", ())
    assert after["machines"]["state"] == "ok"


async def test_workloads_that_block_a_drain_and_nodes_that_nothing_manages_are_named(story: Story) -> None:
    await story.controller()
    (node,) = await story.nodes("a")
    await story.pod("pinned", on=node, annotations={names.DO_NOT_DISRUPT: "soon"})
    await story.workload("Deployment", "web", 1, replicas=1)
    await story.budget("strict", "web", maxUnavailable=0)
    await story.sight.until(
        "the budget is counted",
        lambda: (story.sees("PodDisruptionBudget", "strict").get("status") or {}).get("desiredHealthy") == 1,
    )
    other = {"nodeSelector": {"matchLabels": {LABEL: "none"}}}
    found = await doctor(story, "--config", str(written(story, **other)))
    assert f"{story.namespace}/pinned" in found["annotations"]["objects"]
    assert f"{story.namespace}/strict" in found["budgets"]["objects"]
    assert node in found["finalizers"]["objects"]
    assert {found[name]["state"] for name in ("annotations", "budgets", "finalizers")} == {"failed"}


async def test_the_settings_of_the_cluster_are_compared_with_a_file(story: Story) -> None:
    maps = f"/api/v1/namespaces/{story.namespace}/configmaps"
    labels = dict(each.split("=") for each in names.SETTINGS_SELECTOR.split(","))
    text = yaml.safe_dump(settings_of(story, eviction={"qps": 7}))
    await ask(story.api, "POST", maps, {"metadata": {"name": "own", "labels": labels}, "data": {"config.yaml": text}})
    try:
        chosen = ("--config-map", f"{story.namespace}/own")
        found = await doctor(story, *chosen)
        assert found["settings"]["message"] == f"valid, from configmap {story.namespace}/own"
        plan = [sys.executable, "-m", "gracectl", "plan", "--kubeconfig", str(story.target.kubeconfig), "-o", "json"]
        (node,) = await story.nodes("a", managed=False)
        done = await anyio.run_process([*plan, node, *chosen])
        told = msgspec.json.decode(done.stdout)
        assert (told["assumptions"]["settings"], told["assumptions"]["evictionQps"]) == (
            f"configmap {story.namespace}/own",
            7.0,
        )
        assert told["note"] == "no controller leads: there is no Lease gracectl; the forecast assumes one"
    finally:
        await ask(story.api, "DELETE", f"{maps}/own")
