"""A machine shuts down: the agent as a process of its own, over a real message bus, with the real logind where it runs.

Which of the pods are on a machine that shuts down the cluster only knows as it always does; the machine here is this
one, whose logind calls a systemd that does nothing at poweroff.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
import yaml
from aiohttp import web
from e2e_support.accounts import Access, access_with, account_with, token_of
from e2e_support.program import Program
from e2e_support.story import Story
from e2e_support.wire import Wire
from kubesim.controllers.paths import PODS
from kubesim.server.api import JsonObject
from support.logind import Machine, StandInLogind, a_machine
from support.message_bus import RealLogind
from support.servers import answering

from benchmarks.ground.hollow import connected
from gracectl.agent.agent import rights
from gracectl.model import names

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

CRITICAL = {"priorityClassName": "system-cluster-critical"}
SLOW: dict[str, Any] = {"behaviour": {"stop-seconds": "3"}}
LONG_GRACE = {"terminationGracePeriodSeconds": 600}
STUBBORN: dict[str, Any] = {"behaviour": {"stop-seconds": "500"}}


def ranges(ordinary: int, critical: int) -> dict[str, Any]:
    """Seconds for the pods of each of two ranges."""
    return {
        "shutdownGracePeriodByPodPriority": [
            {"priority": 0, "shutdownGracePeriodSeconds": ordinary},
            {"priority": 2_000_000_000, "shutdownGracePeriodSeconds": critical},
        ]
    }


@pytest.fixture(params=[StandInLogind, RealLogind], ids=["stand-in", "real"])
async def machine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Machine]:
    """The machine that shuts down."""
    place = tmp_path / "machine"
    place.mkdir()
    async with a_machine(place, request.param) as machine:
        yield machine


any_logind = pytest.mark.parametrize("machine", [StandInLogind], ids=["stand-in"], indirect=True)
"""For stories about the API server: the kind of logind does not matter."""


def on_the_bus(machine: Machine) -> dict[str, Any]:
    """Settings of an agent on this machine."""
    return {"busAddress": machine.bus.address, "logindDropInDirectory": str(machine.drop_ins)}


async def the_agent(
    story: Story, machine: Machine, node: str, seconds: int, through: Wire | None = None, **settings: Any
) -> Program:
    """An agent that holds a lock for so many seconds."""
    program = await story.agent(node, through, agent=on_the_bus(machine), **settings)
    await program.until_said(f"a shutdown waits up to {seconds} s")
    await machine.until_locks(1)
    return program


def is_cordoned(story: Story, node: str) -> bool:
    return bool(story.sees("Node", node)["spec"].get("unschedulable"))


def is_given_back(story: Story, node: str) -> bool:
    """Nothing of the shutdown is left on it."""
    now = story.sees("Node", node)
    return (
        not now["spec"].get("unschedulable")
        and all(taint["key"] != names.DISRUPTED_TAINT_KEY for taint in now["spec"].get("taints") or ())
        and names.EXCLUDE_FROM_LOAD_BALANCERS not in (now["metadata"].get("labels") or {})
        and names.SHUTDOWN_CORDONED not in (now["metadata"].get("annotations") or {})
        and not story.condition(node, names.SHUTTING_DOWN)
    )


@any_logind
async def test_a_notice_of_the_metadata_service_is_on_the_node(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)

    async def answer(request: web.Request) -> web.Response:
        text = "TRUE" if request.path == "/computeMetadata/v1/instance/preempted" else "NONE"
        return web.Response(text=text, headers={"Metadata-Flavor": "Google"})

    async with answering(answer) as port:
        url = f"http://127.0.0.1:{port}"
        hearing = {"interruptionSource": "gce", "metadataUrl": url, **on_the_bus(machine)}
        program = await story.agent(node, agent=hearing, **ranges(30, 30))
        await program.until_said("spot notice from gce: the machine goes at ")
        await story.sight.until(
            "the node shows it",
            lambda: names.INTERRUPTION in (story.sees("Node", node)["metadata"].get("annotations") or {}),
        )
        found = story.sees("Node", node)["metadata"]["annotations"][names.INTERRUPTION]
        assert found.startswith("spot ")
        assert found.endswith(" gce preempted")


async def test_pods_are_deleted_by_priority_before_the_shutdown_continues(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    plain = await story.pod("plain", on=node, **SLOW)
    critical = await story.pod("critical", on=node, spec=CRITICAL)
    await the_agent(story, machine, node, 60, **ranges(30, 30))
    assert (machine.drop_ins / "zz-gracectl.conf").read_text().endswith("[Login]\nInhibitDelayMaxSec=60\n")

    await machine.power_off()
    await story.sight.until("critical is asked", lambda: story.sight.asked(critical))
    assert machine.systemd.started == []
    await machine.gone_on()

    over, asked = story.sight.over(plain), story.sight.asked(critical)
    assert over is not None
    assert asked is not None
    assert over.version <= asked.version
    await story.sight.until("both are gone", lambda: not story.pods_on(node))
    seen_nodes = (seen for seen in story.sight.journal if seen.kind == "Node")
    cordoned = next(seen for seen in seen_nodes if seen.object["spec"].get("unschedulable"))
    told = story.sight.asked(plain)
    assert told is not None
    assert cordoned.version < told.version
    messages = story.events_about(story.sees("Node", node), "NodeShutdown")
    assert any(message.startswith("2 pods gone after ") for message in messages)


async def test_the_node_is_uncordoned_after_the_boot(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    agent = await the_agent(story, machine, node, 60, **ranges(30, 30))
    await machine.power_off()
    await machine.gone_on()
    await story.sight.until("the node is cordoned", lambda: is_cordoned(story, node))
    agent.send(signal.SIGKILL)  # as the machine goes down
    await agent.ended()
    await machine.stop_logind()
    await machine.start_logind()
    await the_agent(story, machine, node, 60, **ranges(30, 30))
    await story.sight.until("the node is given back", lambda: is_given_back(story, node))


async def test_a_cancelled_shutdown_uncordons_the_node(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    await the_agent(story, machine, node, 60, **ranges(30, 30))
    for times in (1, 2):
        await machine.power_off()
        await machine.gone_on(times)
        await story.sight.until("the node is cordoned", lambda: is_cordoned(story, node))
        machine.systemd.cancel_job()
        await machine.until_locks(1)
        await story.sight.until("the node is given back", lambda: is_given_back(story, node))
    assert story.events_about(story.sees("Node", node), "NodeShutdownCancelled")


async def test_a_delay_that_cannot_be_raised_is_reported_and_shared(story: Story, machine: Machine) -> None:
    short = machine.write("zzz-foreign.conf", "4")
    machine.logind.reload()
    (node,) = await story.nodes("a", managed=False)
    stubborn = await story.pod("stubborn", on=node, spec=LONG_GRACE, **STUBBORN)
    await the_agent(story, machine, node, 4, **ranges(300, 300))

    def complaints() -> list[str]:
        return story.events_about(story.sees("Node", node), "ShutdownDelayTooShort")

    await story.sight.until("it is told", complaints)
    assert "4 s" in complaints()[0]
    assert "600 s" in complaints()[0]
    assert short.name in complaints()[0]
    await machine.power_off()
    await machine.gone_on()
    asked = story.sight.asked(stubborn)
    assert asked is not None
    # Half of the four seconds; the server's seconds are whole: one if the next has begun before the DELETE.
    assert 1 <= asked.object["metadata"]["deletionGracePeriodSeconds"] <= 2


async def test_the_shutdown_continues_in_time_without_an_api_server(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    wire = await story.wire()
    pod = await story.pod("plain", on=node)
    await the_agent(story, machine, node, 6, wire, **ranges(3, 3))
    wire.is_dead = True
    before = story.clock.monotonic()
    await machine.power_off()
    await machine.gone_on()
    assert 4 < story.clock.monotonic() - before < story.at_most(12)
    assert story.sight.asked(pod) is None


async def test_replacements_by_a_daemon_set_do_not_delay_the_shutdown(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    everything = ({"operator": "Exists"},)
    (daemon,) = await story.workload("DaemonSet", "network", 1, tolerations=everything)
    wire = await story.wire()
    await the_agent(story, machine, node, 120, wire, **ranges(60, 60))
    await machine.power_off()
    await machine.gone_on()
    assert story.sight.asked(daemon) is not None
    assert Counter(wire.deletions) == {daemon["metadata"]["name"]: 1}


async def test_no_pod_is_deleted_twice_when_a_controller_drains_the_node_as_well(
    story: Story, machine: Machine
) -> None:
    await story.controller()
    (node,) = await story.nodes("a")
    pods: list[JsonObject] = [await story.pod(f"plain-{n}", on=node, **SLOW) for n in range(3)]
    wire = await story.wire()
    await the_agent(story, machine, node, 60, wire, **ranges(30, 30))
    await story.delete("Node", node)
    await story.sight.until("all are asked", lambda: all(story.sight.asked(pod) for pod in pods))
    await machine.power_off()
    await machine.gone_on()
    assert wire.deletions == []
    await story.until_gone(node)


async def test_sigterm_releases_the_lock(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    agent = await the_agent(story, machine, node, 60, **ranges(30, 30))
    agent.send(signal.SIGTERM)
    assert await agent.ended() == 0
    await machine.until_locks(0)


async def test_sigterm_in_a_shutdown_finishes_the_shutdown_first(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    plain = await story.pod("plain", on=node, **SLOW)
    critical = await story.pod("critical", on=node, spec=CRITICAL)
    agent = await the_agent(story, machine, node, 60, **ranges(30, 30))
    await machine.power_off()
    await story.sight.until("plain is asked", lambda: story.sight.asked(plain))
    agent.send(signal.SIGTERM)
    await machine.gone_on()
    assert await agent.ended() == 0
    assert story.sight.asked(critical) is not None


@any_logind
async def test_a_simulated_shutdown_shows_the_forecast_and_changes_nothing(story: Story, machine: Machine) -> None:
    (node,) = await story.nodes("a", managed=False)
    pod = await story.pod("plain", on=node, spec={"terminationGracePeriodSeconds": 100})
    config = story.folder / "rehearsal.yaml"
    config.write_text(yaml.safe_dump({"agent": {"busAddress": machine.bus.address}, **ranges(60, 30)}))
    command = [sys.executable, "-m", "gracectl", "agent", "--simulate-shutdown", "-o", "json"]
    command += ["--config", str(config), "--kubeconfig", str(story.target.kubeconfig)]
    ended = await anyio.run_process(command, env={**os.environ, "NODE_NAME": node})
    told = orjson.loads(ended.stdout)
    assert told["node"] == node
    assert told["logind"]["delaySeconds"] == 5
    first, second = told["ranges"]
    (rehearsed,) = first["pods"]
    assert (rehearsed["name"], rehearsed["graceSeconds"], rehearsed["grantedSeconds"]) == ("plain", 100, 60)
    assert second["pods"] == []
    assert await machine.locks() == []
    assert not list(machine.drop_ins.iterdir())
    assert story.sight.asked(pod) is None
    assert not is_cordoned(story, node)


def marks_of(node: JsonObject) -> str:
    """What the agent says that it has added to a node."""
    found: str = (node["metadata"].get("annotations") or {}).get(names.SHUTDOWN_CORDONED, "")
    return found


@any_logind
async def test_the_credentials_of_a_kubelet_are_enough(story: Story, machine: Machine) -> None:
    here, elsewhere = await story.nodes("a", "b", managed=False)
    pod, other = await story.pod("here", on=here, **SLOW), await story.pod("elsewhere", on=elsewhere)
    wire = await story.kubelet_wire(here)
    agent = await the_agent(story, machine, here, 60, wire, **ranges(30, 30))
    await machine.power_off()
    await machine.gone_on()

    assert story.sight.asked(pod) is not None
    assert story.sight.asked(other) is None
    await story.sight.until("the node is cordoned", lambda: is_cordoned(story, here))
    assert marks_of(story.sees("Node", here)) == "label,unschedulable"  # a kubelet may change no taint
    assert story.condition(here, names.SHUTTING_DOWN)["reason"] == "PodsGone"
    assert not agent.said("missing permissions")
    agent.send(signal.SIGKILL)
    await agent.ended()
    await machine.stop_logind()
    await machine.start_logind()
    await the_agent(story, machine, here, 60, wire, **ranges(30, 30))
    await story.sight.until("the node is given back", lambda: is_given_back(story, here))


@any_logind
async def test_another_kubelets_credentials_are_refused_and_named(story: Story, machine: Machine) -> None:
    here, elsewhere = await story.nodes("a", "b", managed=False)
    agent = await the_agent(story, machine, here, 60, await story.kubelet_wire(elsewhere), **ranges(30, 30))
    await agent.until_said(f"credentials: of system:node:{elsewhere}: cannot read node {here}; use the kubeconfig of")


NOT_HERE = "this cluster has no constrained impersonation (Kubernetes 1.36)"


@any_logind
async def test_an_account_that_impersonates_its_node_reads_no_other_nodes_pods(story: Story, machine: Machine) -> None:
    here, elsewhere = await story.nodes("a", "b", managed=False)
    async with account_with(story, rights(impersonates=True)) as account:
        await story.pod("agent", on=here, spec={"serviceAccountName": account})
        pod, other = await story.pod("here", on=here, **SLOW), await story.pod("elsewhere", on=elsewhere)
        stolen = access_with(story, await token_of(story, account, "agent"), "agent")
        # A thief of the token reads nothing as the account, and as the node no more than its kubelet.
        for node, of_node in (("", ""), ("", here), (here, ""), (here, elsewhere), (elsewhere, elsewhere)):
            assert await listing(stolen, node, of_node) == 403
        if await listing(stolen, here, here) == 403:
            pytest.skip(NOT_HERE)
        settings = {"agent": {**on_the_bus(machine), "impersonateNode": True}}
        agent = await story.agent(here, stolen, **settings, **ranges(30, 30))
        await agent.until_said("a shutdown waits up to 60 s")
        await machine.until_locks(1)
        await machine.power_off()
        await machine.gone_on()

        assert story.sight.asked(pod) is not None
        assert story.sight.asked(other) is None
        await story.sight.until("the node is cordoned", lambda: is_cordoned(story, here))
        assert marks_of(story.sees("Node", here)) == "taint,label,unschedulable"
        assert not agent.said("missing permissions")
        assert not agent.said("impersonation: cannot read")


@any_logind
async def test_a_token_of_no_node_is_reported(story: Story, machine: Machine) -> None:
    (here,) = await story.nodes("a", managed=False)
    async with account_with(story, rights(impersonates=True)) as account:
        unbound = access_with(story, await token_of(story, account), "unbound")
        agent = await story.agent(here, unbound, agent={**on_the_bus(machine), "impersonateNode": True}, **ranges(3, 3))
        refusal = f"get nodes {here}: forbidden"
        await agent.until_said(f"impersonation: cannot read node {here} as system:node:{here}: {refusal}")


async def listing(access: Access, as_node: str, of_node: str) -> int:
    """The status of a list of pods: of one node, or of all (""); as a node, or as the account itself ("")."""
    headers = {"Impersonate-User": f"system:node:{as_node}"} if as_node else {}
    async with connected(access.kubeconfig, headers) as client:
        query = {"fieldSelector": f"spec.nodeName={of_node}"} if of_node else {}
        status, _ = await client.call("GET", PODS, query=query)
    return status
