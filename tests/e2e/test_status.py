"""`gracectl status` against any cluster: it shows what the controller does, and warns when none runs."""

from __future__ import annotations

import signal
import sys
from typing import Any

import anyio
import msgspec
import pytest
from e2e_support.story import Story

from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


async def status(story: Story, node: str) -> dict[str, Any]:
    """The JSON of a node."""
    command = [sys.executable, "-m", "gracectl", "status", "--kubeconfig", str(story.target.kubeconfig)]
    done = await anyio.run_process([*command, "-o", "json", node])
    (found,) = msgspec.json.decode(done.stdout)["nodes"]
    return dict(found)


async def test_status_shows_blockers_reasons_and_times_without_a_controller(story: Story) -> None:
    controller = await story.controller()
    (leaving,) = await story.nodes("a")
    (web,) = await story.workload("Deployment", "web", 1, replicas=1)
    await story.budget("strict", "web", maxUnavailable=0)
    await story.counted("strict")
    await story.pod("guarded", on=leaving, annotations={names.DO_NOT_DISRUPT: "1h"})
    await story.pod("last", on=leaving, spec={"priorityClassName": "system-cluster-critical"})
    assert (await status(story, leaving))["state"] == "idle"

    await story.delete("Node", leaving)
    await story.sight.until("the condition Drained is written", lambda: story.condition(leaving, names.DRAINED))
    controller.send(signal.SIGKILL)
    await controller.ended()
    told = await status(story, leaving)
    assert (told["state"], told["step"], told["podsLeft"], told["deadline"]) == ("terminating", "drain", 3, None)
    states = {pod["name"]: pod["state"] for pod in told["pods"]}
    assert states == {web["metadata"]["name"]: "blocked", "guarded": "protected", "last": "waiting"}
    blocked, protected = told["pods"][:2]
    assert blocked["budgets"] == [f"{story.namespace}/strict"]
    assert (protected["protection"]["value"], protected["until"] is not None) == ("1h", True)
    assert all(0 <= pod["sinceSeconds"] < 60 for pod in told["pods"])
    # The budget never allows a disruption: that is said, and what helps.
    assert (told["never"], told["drained"]["answer"]) == (True, "never")
    remedy = f"run more pods, or widen it: kubectl patch pdb -n {story.namespace} strict "
    assert blocked["remedy"].startswith(remedy)
    assert protected["remedy"].endswith(f"kubectl annotate pod -n {story.namespace} guarded {names.DO_NOT_DISRUPT}-")
    (never,) = [warning for warning in told["warnings"] if warning["kind"] == "NeverDrains"]
    assert never["remedy"].startswith(blocked["remedy"])
    # The condition on the node, which the controller has written, names the same pod first.
    said = story.condition(leaving, names.DRAINED)["message"]
    assert f"{story.namespace}/{blocked['name']} ({blocked['reason']})" in said


async def test_status_warns_of_a_node_whose_drain_does_not_begin(story: Story) -> None:
    controller = await story.controller()
    (leaving,) = await story.nodes("a")
    controller.send(signal.SIGKILL)
    await controller.ended()
    await story.delete("Node", leaving)
    told = await status(story, leaving)
    assert told["step"] == "cordon"
    assert told["warnings"] == [] or told["sinceSeconds"] >= 15
    await story.clock.sleep(max(0.0, 16.0 - told["sinceSeconds"]))
    told = await status(story, leaving)
    assert [warning["kind"] for warning in told["warnings"]] == ["NoController"]
    await story.controller()
    await story.until_gone(leaving)
