"""Following nodes scene by scene, on virtual time: what is seen when, what is never shown, and when it ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from kubesim.controllers.cloud import CloudSettings
from kubesim.faults import DropWatch, Refuse, Rule
from kubesim_support.accounts import account_token, grant, rule
from support.clients import a_client, being_deleted, named
from support.disruption import ON_LOST_NODES, lost_at
from support.inprocess import InProcessTransport
from support.replacing import web
from support.stage import STOPS_AFTER_5, Stage, a_budget_manifest, a_pod_manifest, staged
from support.stories import gracectl_keep, take_off

from gracectl.cli.status.follow import StatusFrame, StatusScope, TerminatedNode, follow
from gracectl.cli.status.messages import pod_reason
from gracectl.inspect.status import NodePhase
from gracectl.kube import errors
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.runtime.supervise import while_running


class Camera:
    """Keeps the scenes; has seen enough when the test says so."""

    def __init__(self, enough: Callable[[StatusFrame], bool] = lambda frame: False) -> None:
        self.scenes: list[StatusFrame] = []
        self._enough = enough

    def __call__(self, frame: StatusFrame) -> bool:
        self.scenes.append(frame)
        return self._enough(frame)

    def steps(self, node: str) -> list[str]:
        """Those that were seen, each once."""
        return list(dict.fromkeys(each.step for frame in self.scenes for each in frame.nodes if each.name == node))


def connection(stage: Stage) -> Connection:
    return Connection(stage.transport, stage.clock, a_client(stage))


def uid(stage: Stage, node: str) -> str:
    node_object = stage.node(node)
    assert node_object is not None
    return str(node_object["metadata"]["uid"])


async def filmed(stage: Stage, camera: Camera, chooses: Callable[[Node], bool] = being_deleted, **more: str) -> None:
    await follow(connection(stage), stage.settings, StatusScope(chooses), camera, expected=more)


async def begin_a_drain_that_is_blocked(stage: Stage) -> None:
    """Of n1, by a budget over its only pod; then the controller stops."""
    await stage.create(a_pod_manifest("a", "n1"), a_budget_manifest("a", maxUnavailable=0))
    async with stage.controller() as controller:
        await stage.settle(controller)
        await stage.delete_node("n1")
        await stage.clock.sleep(1)


async def test_a_node_is_followed_until_it_is_gone() -> None:
    async with staged("n1", cloud=CloudSettings(terminate_delay=3.0)) as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        expected = {"n1": uid(stage, "n1")}
        async with stage.controller() as controller:
            await stage.settle(controller)
            camera = Camera(lambda frame: bool(frame.terminated))
            await stage.delete_node("n1")
            await filmed(stage, camera, named("n1"), **expected)
        (gone,) = camera.scenes[-1].terminated
        assert (gone.name, gone.uid, camera.scenes[-1].nodes) == ("n1", expected["n1"], ())
        assert gone.after_seconds is not None
        assert 8.0 <= gone.after_seconds <= 12.0  # five to stop, three to end, and how often the provider is asked
        assert camera.steps("n1")[-2:] == ["drain", "instance"]
        times = [frame.at for frame in camera.scenes]
        assert all(0.24 < after - before <= 1.26 for before, after in pairwise(times))


async def test_a_namesake_is_another_node() -> None:
    async with staged("n1") as stage:
        camera = Camera()
        before = uid(stage, "n1")
        async with while_running(lambda: filmed(stage, camera, named("n1"), n1=before)):
            await stage.clock.sleep(3)
            await stage.delete_node("n1")
            await stage.add_nodes("n1")
            await stage.clock.sleep(3)
        last = camera.scenes[-1]
        assert last.terminated == (TerminatedNode("n1", before, None),)
        assert [(node.name, node.state) for node in last.nodes] == [("n1", NodePhase.IDLE)]


async def test_a_node_that_was_under_way_is_missed_and_one_that_was_given_back_is_not() -> None:
    async with staged("n1", "n2") as stage, stage.controller() as controller:
        await stage.settle(controller)
        camera = Camera()

        def is_asked_for(node: Node) -> bool:
            return being_deleted(node) or names.KEEP_DRAINED in node.annotations

        async with while_running(lambda: filmed(stage, camera, is_asked_for)):
            await stage.clock.sleep(1)
            await gracectl_keep(stage, "n2")
            await stage.delete_node("n1")
            await stage.clock.sleep(5)
            await take_off(stage, "n2")
            await stage.clock.sleep(5)
        assert [gone.name for gone in camera.scenes[-1].terminated] == ["n1"]
        assert camera.steps("n2")[-1] == "drained"
        assert camera.scenes[-1].nodes == ()


async def test_nothing_is_said_of_a_cluster_before_its_budgets_are_known() -> None:
    """Without them a pod that nothing lets go would seem to be leaving."""
    async with staged("n1") as stage:
        await begin_a_drain_that_is_blocked(stage)
        stage.transport.before.add(Rule(fault=Refuse(500), path="poddisruptionbudgets", count=8))
        camera = Camera(lambda frame: bool(frame.nodes and frame.nodes[0].pods))
        await filmed(stage, camera, named("n1"), n1=uid(stage, "n1"))
        first, last = camera.scenes[0], camera.scenes[-1]
        assert (first.is_complete, first.nodes) == (False, ())
        assert any(
            frame.connection_loss and "poddisruptionbudgets" in frame.connection_loss.error for frame in camera.scenes
        )
        outcomes = {
            pod.entry.outcome.value for frame in camera.scenes for node in frame.nodes for pod in node.pods or ()
        }
        assert (outcomes, last.is_complete, last.connection_loss) == ({"blocked"}, True, None)


async def test_a_lost_connection_is_shown_and_what_was_seen_stands() -> None:
    async with staged("n1") as stage:
        await begin_a_drain_that_is_blocked(stage)
        camera = Camera()
        async with while_running(lambda: filmed(stage, camera)):
            await stage.clock.sleep(3)
            lost = len(camera.scenes)
            # Every watch breaks at its next event, and the server does not answer for some minutes.
            stage.transport.before.add(Rule(fault=DropWatch(0.0)))
            stage.transport.before.add(Rule(fault=Refuse(500)))
            await stage.clock.sleep(400)
            stage.transport.before.clear()
            back = len(camera.scenes)
            await stage.clock.sleep(30)
        assert all(frame.connection_loss is None for frame in camera.scenes[1:lost])
        during = camera.scenes[lost:back]
        assert during[-1].connection_loss is not None
        assert {len(node.pods or ()) for frame in during for node in frame.nodes} == {1}
        assert during[-1].at == during[-100].at  # the clocks of what is shown stand still
        assert during[-1].age - during[-100].age > 90
        assert camera.scenes[-1].connection_loss is None


async def test_a_missing_right_ends_it() -> None:
    async with staged("n1") as stage:
        token = await account_token(stage.server, "reader")
        subject = {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}
        await grant(stage.server, subject, rule("list watch", "nodes"))
        transport = InProcessTransport(stage.server, stage.clock, token=token)
        connection = Connection(transport, stage.clock, KubeClient(transport, stage.clock))
        with pytest.raises(errors.Forbidden, match="add the verb list on "):
            await follow(connection, stage.settings, StatusScope(being_deleted), Camera())


async def test_a_node_that_becomes_due_while_it_is_watched_is_pending_with_what_holds_it() -> None:
    """By the clock alone: no object changes when an unhealthy node is tolerated no longer, and no controller runs."""
    async with staged(*(f"n{n}" for n in range(6))) as stage:
        job = a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}, tolerations=ON_LOST_NODES)
        await stage.create(job)
        began = await lost_at(stage, "n1")
        camera = Camera(lambda frame: bool(frame.nodes) and stage.clock.monotonic() > began + 903)
        scope = StatusScope(lambda node: False, lambda node: node.name == "n1")
        await stage.clock.sleep(began + 895 - stage.clock.monotonic())
        await follow(connection(stage), stage.settings, scope, camera)
        due = began + 900 - stage.clock.monotonic() + stage.clock.now()
        early = [frame.nodes for frame in camera.scenes if frame.at < due]
        late = [frame for frame in camera.scenes if frame.at >= due]
        assert early
        assert set(early) == {()}
        assert late[0].at < due + 1.3
        pending = [node.pending for frame in late for node in frame.nodes]
        assert [each.hold for each in filter(None, pending)][1:] == ["Protected"] * (len(late) - 1)
        assert late[-1].nodes[0].since == pytest.approx(due)


async def test_the_progress_of_a_replacement_is_shown() -> None:
    async with staged("n1") as stage:
        await stage.create(web(ready=20.0), a_budget_manifest("web", minAvailable=1))
        await stage.clock.sleep(30)
        await stage.add_nodes("n2")
        async with stage.controller() as controller:
            await stage.settle(controller)
            camera = Camera(lambda frame: bool(frame.terminated))
            await stage.delete_node("n1")
            await filmed(stage, camera, named("n1"), n1=uid(stage, "n1"))
    pods = [(pod, frame.at) for frame in camera.scenes for node in frame.nodes for pod in node.pods or ()]
    reasons = list(dict.fromkeys(pod_reason(pod, at).partition(", for ")[0] for pod, at in pods))
    assert any(re.fullmatch(r"replace first: its replacement shop/web-\S+ starts on n2", each) for each in reasons)
    unread = [at for pod, at in pods if "not been read" in pod_reason(pod, at)]
    assert max(unread, default=0.0) - pods[0][1] <= 4.0
