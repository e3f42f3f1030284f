"""The role of the page is the least that works: with it everything is shown, and each right in it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec
import pytest
from support.rights import Installed, Place, grants_of
from support.rights_stories import Story, all_told, each_is_missed, rendered
from support.stage import NAMESPACE, a_budget_manifest, a_pod_manifest

from gracectl.cli.status.follow import StatusFollower, StatusFrame
from gracectl.cli.ui.board import Board
from gracectl.cli.ui.server import SHOWN
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.model import names

READING = ("get", "list", "watch")


async def everything_is_shown(place: Place) -> None:
    """A node that ends with a pod, its budget, its claim, its NodeDrain and its Event, and a pod that stays with its
    volume."""
    stage = place.stage
    await stage.add_nodes("n1")
    data = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    metadata = {"name": "data", "namespace": NAMESPACE}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": data}
    await stage.cluster.create(claim)
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    stays = {"volumes": volumes, "tolerations": [{"operator": "Exists"}]}
    await stage.create(a_pod_manifest("agent", "n1", **stays))
    await stage.create(a_budget_manifest("web", maxUnavailable=0), a_pod_manifest("web-0", "n1", labels={"app": "web"}))
    await stage.create_claim("n1")
    await stage.patch_node("n1", {"metadata": {"finalizers": [names.FINALIZER]}})
    await stage.delete_node("n1")
    about = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    event = {"metadata": {"name": "n1.1", "namespace": "default"}, "involvedObject": about, "reason": "Draining"}
    await stage.call("POST", "/api/v1/namespaces/default/events", event | {"reportingComponent": "gracectl"})
    metadata, spec = {"name": "rotate"}, {"nodeName": "n1", "action": "Drain", "paused": True}
    drain = {"apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain", "metadata": metadata, "spec": spec}
    await stage.call("POST", "/apis/gracectl.io/v1alpha1/nodedrains", drain)
    connection = Connection(place.wire, stage.clock, KubeClient(place.wire, stage.clock))
    (role,) = (each for each in place.installed.of_kind("Role") if each["metadata"]["name"] == "gracectl-ui")
    election = msgspec.structs.replace(stage.settings.leader_election, namespace=role["metadata"]["namespace"])
    settings = msgspec.structs.replace(stage.settings, leader_election=election)
    follower = StatusFollower(connection, settings, SHOWN, is_endless=True)
    board = Board(follower, settings, "defaults", stage.clock)

    def is_all_there(frame: StatusFrame) -> bool:
        board.update(frame)
        state = board.state
        shown = [pod["name"] for node in state["status"]["nodes"] for pod in node["pods"] or ()]
        return (
            shown == ["web-0"]
            and bool(state["events"])
            and [drain["name"] for drain in state["nodeDrains"]] == ["rotate"]
            and follower.polls > 0
            and bool(follower.watcher.cluster.volumes)
        )

    async with anyio.create_task_group() as group:
        group.start_soon(board.events.follow, connection.client, stage.clock)
        group.start_soon(board.drains.follow, connection.client, stage.clock)
        await follower.run(is_all_there)
        group.cancel_scope.cancel()


STORIES: Mapping[str, Story] = {"everything is shown": everything_is_shown}


@pytest.fixture
def installed() -> Installed:
    return rendered(("ui.enabled=true", "crds.nodeClaims=true"))


async def test_everything_is_shown_with_these_rights_and_each_of_them_is_needed(
    installed: Installed, tmp_path: Path
) -> None:
    account = installed.account("Deployment", "ui")
    retold = await all_told(installed, account, STORIES, tmp_path)
    assert retold.unused == []
    await each_is_missed(retold, installed, account, STORIES, tmp_path)


def test_nothing_can_be_changed_with_them(installed: Installed) -> None:
    grants = grants_of(installed.objects, installed.account("Deployment", "ui"))
    assert {grant.verb for grant in grants} <= set(READING)
    assert "secrets" not in {grant.resource for grant in grants}
    assert {grant.name for grant in grants if grant.resource == "configmaps"} == {names.FREEZE}
