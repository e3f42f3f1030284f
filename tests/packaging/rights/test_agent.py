"""The role of the node agents is the least that works."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from kubesim.faults import Refuse, Rule
from support.rights import Account, Installed, Place
from support.rights_stories import MANIFESTS, Story, all_told, each_is_missed, rendered
from support.shutdowns import BY_KEP, a_pod_of, an_agent, deletions
from support.stage import the_settings

from gracectl.model import names

VALUES = (
    "agent.enabled=true",
    "settings.shutdownGracePeriodByPodPriority=[{priority: 0, shutdownGracePeriodSeconds: 60}]",
)


async def a_machine_shuts_down(place: Place) -> None:
    """Pods end, though an answer is lost; the next one is told of it, and so is the node, which takes pods again."""
    stage = place.stage
    await stage.add_nodes("n1", "n2")
    settings = yaml.safe_load(place.installed.one("ConfigMap", "agent")["data"]["config.yaml"])
    if settings["agent"]["impersonateNode"]:
        await place.wire.bind(place.installed.account("DaemonSet"), "n1")
    own = the_settings(**BY_KEP, agent=settings["agent"])
    await a_pod_of(stage, "web", 0, grace=10)
    await a_pod_of(stage, "cache", 1_000, grace=10)
    place.wire.before.add(Rule(fault=Refuse(500), method="DELETE", path="/pods/web", count=3))
    place.wire.before.add(Rule(fault=Refuse(409), method="PATCH", path="/nodes/n1$", count=1))
    async with an_agent(stage, own) as played:
        await played.live()
        began = played.logind.shut_down()
        await stage.until(lambda: not stage.pods_on("n1"))
        await stage.clock.sleep(10)
    assert {name for name, _, _ in deletions(stage, began)} == {"web", "cache"}
    assert (stage.condition("n1", names.SHUTTING_DOWN) or {}).get("status") == "True"
    async with an_agent(stage, own) as played:
        await played.live()
        await stage.until(lambda: not (stage.node("n1") or {})["spec"].get("unschedulable"))
        # Called off, and once more: the same is told twice.
        for _ in range(2):
            played.logind.shut_down()
            await stage.clock.sleep(30)
            played.logind.call_off()
            await stage.until(lambda: not (stage.node("n1") or {})["spec"].get("unschedulable"))
        await stage.clock.sleep(700)


STORIES: Mapping[str, Story] = {"a machine shuts down": a_machine_shuts_down}


@pytest.fixture(params=["the file for kubectl", "the chart", "the chart, agents as their nodes"])
def installed(request: pytest.FixtureRequest) -> Installed:
    """Agents, with or without helm."""
    if request.param == "the chart":
        return rendered(VALUES)
    if request.param == "the chart, agents as their nodes":
        return rendered((*VALUES, "settings.agent.impersonateNode=true"), kubernetes="1.37.2")
    return Installed.of((MANIFESTS / "agent.yaml").read_text())


@pytest.fixture
def account(installed: Installed) -> Account:
    return installed.account("DaemonSet")


async def test_everything_is_done_with_these_rights_and_each_of_them_is_needed(
    installed: Installed, account: Account, tmp_path: Path
) -> None:
    retold = await all_told(installed, account, STORIES, tmp_path)
    assert retold.unused == []
    await each_is_missed(retold, installed, account, STORIES, tmp_path)
