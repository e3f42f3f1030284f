"""What stories on a stage ask for: deadlines, maintenance, protection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import anyio
import msgspec
import pytest
from kubesim.controllers.client import MERGE
from kubesim.server import watch
from kubesim.server.api import JsonObject

from gracectl.app import controller as app
from gracectl.app.controller import Controller
from gracectl.config import Settings
from gracectl.controllers.settings import TerminationSettings
from gracectl.controllers.termination.maintenance import request_patch, withdrawal_patch
from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.decode import decode_node
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.cordon import Mark
from gracectl.runtime.clock import Clock
from support.stage import NAMESPACE, SILENT, Stage, a_pod_manifest, a_workload, staged, the_settings

# What stories about deadlines have in common: nodes deleted at a whole second, and the instants of their pods.

START = 100.0
"""When stories delete their nodes: a whole second of every clock, as deletionTimestamps are cut to those."""

WORKERS = 20
CROWD = [f"n{number}" for number in range(WORKERS + 4)]
"""More nodes than `few_workers`, and less than they leave free when they hang."""


def few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give controllers WORKERS workers, a fifth of the usual ones: fewer nodes take all of them."""
    termination = Settings.termination

    def with_few(settings: Settings) -> TerminationSettings:
        usual: TerminationSettings = termination.__get__(settings)
        return msgspec.structs.replace(usual, workers=WORKERS)

    monkeypatch.setattr(Settings, "termination", property(with_few))


@asynccontextmanager
async def controlled(stage: Stage, clock: Clock) -> AsyncIterator[Controller]:
    """A controller on another clock than its cluster's."""
    controller = Controller(stage.settings, stage.transport.line(), clock, stage.provider)
    stop = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(controller.run, stop)
        yield controller
        stop.set()


def with_grace_period(period: str, **more: Any) -> Settings:
    """Settings in which all nodes have this TGP."""
    return the_settings(nodeGroups=[{"selector": {}, "terminationGracePeriod": period}], **more)


async def until(stage: Stage, instant: float) -> None:
    """Wait until so many seconds after START."""
    await stage.clock.sleep(START + instant - stage.clock.monotonic())


async def delete_at_start(stage: Stage, *nodes: str) -> None:
    """Delete these nodes at START."""
    await until(stage, 0.0)
    for node in nodes:
        await stage.delete_node(node)


@asynccontextmanager
async def draining(stage: Stage, *nodes: str, mortal: bool = False) -> AsyncIterator[Controller]:
    """A settled controller, and these nodes deleted at START."""
    async with stage.settled(mortal) as controller:
        await delete_at_start(stage, *nodes)
        yield controller


def staying(name: str, grace: int = 30, node: str = "n1") -> JsonObject:
    """A pod that never leaves by itself, and uses every second of its grace."""
    annotations = {names.DO_NOT_DISRUPT: "true"}
    behaviour = {"ignores-sigterm": "true"}
    return a_pod_manifest(name, node, terminationGracePeriodSeconds=grace, annotations=annotations, behaviour=behaviour)


def written_on(thing: JsonObject | None) -> str:
    """The deadline that stands on a node or claim; "" for none."""
    text: str = ((thing or {}).get("metadata", {}).get("annotations") or {}).get(names.TERMINATION_TIMESTAMP, "")
    return text


def stamp(stage: Stage, instant: float) -> str:
    """As it is written: so many seconds after START by the controller's clock."""
    return format_time(stage.clock.now() - stage.clock.monotonic() + START + instant)


def deletions(stage: Stage) -> list[tuple[str, float, int]]:
    """(pod, seconds after START, grace) of every DELETE of ours that the server has agreed to, in their order."""
    deleted = []
    for each in stage.transport.of("delete", "pods"):
        if each.status == 200:
            grace = msgspec.json.decode(each.request.body or b"{}").get("gracePeriodSeconds")
            deleted.append((each.operation.name, round(each.instant - START, 3), grace))
    return deleted


def evictions(stage: Stage) -> list[tuple[str, float]]:
    """(pod, seconds after START) of every eviction that the server has agreed to."""
    agreed = [each for each in stage.evictions if each.status == 201]
    return [(each.operation.name, round(each.instant - START, 3)) for each in agreed]


def asked_to_end(stage: Stage) -> list[float]:
    """When the provider was called to terminate an instance, in seconds after START."""
    return [round(instant - START, 3) for instant in stage.provider.instants_of("terminate")]


async def told(stage: Stage, name: str, *reasons: str) -> list[str]:
    """The messages of our Events with these reasons on the object of this name."""
    return [message for object_, reason, message in await stage.events() if object_ == name and reason in reasons]


def names_of(pods: Sequence[JsonObject]) -> list[str]:
    """Sorted, of this namespace only."""
    return sorted(pod["metadata"]["name"] for pod in pods if pod["metadata"]["namespace"] == NAMESPACE)


# What stories of kept nodes have in common: asking for one, giving it back, and what is left on it.

OURS = (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING)
ANNOTATIONS = (names.KEEP_DRAINED, names.CORDONED, names.UNCORDONED, names.TERMINATION_TIMESTAMP)
RECORD = ",".join(mark for mark in Mark if mark is not Mark.TAINT)
"""All that the cordon of maintenance can add."""
RECORD_OF_EARLIER_RELEASES = ",".join(Mark)
"""With the taint, which keeps DaemonSet pods off."""


def seen(stage: Stage, node: str) -> Node:
    """The node as the server has it now."""
    node_object = stage.node(node)
    assert node_object is not None, f"there is no node {node}"
    return decode_node(msgspec.json.encode(node_object))


async def keep(stage: Stage, node: str, value: str | None = None) -> float:
    """Ask to drain a node and to keep it so; returns the instant."""
    text = format_time(stage.clock.now()) if value is None else value
    await stage.patch_node(node, {"metadata": {"annotations": {names.KEEP_DRAINED: text}}})
    return stage.clock.monotonic()


async def take_off(stage: Stage, node: str) -> float:
    """Take the request off, as `kubectl annotate node n gracectl.io/keep-drained-` does; returns the instant."""
    await stage.patch_node(node, {"metadata": {"annotations": {names.KEEP_DRAINED: None}}})
    return stage.clock.monotonic()


async def kubectl_uncordon(stage: Stage, node: str) -> float:
    """What `kubectl uncordon` sends; returns the instant."""
    await stage.patch_node(node, {"spec": {"unschedulable": None}})
    return stage.clock.monotonic()


async def gracectl_uncordon(stage: Stage, node: str) -> float:
    """What `gracectl uncordon` sends; returns the instant."""
    await send(stage, node, withdrawal_patch(seen(stage, node)))
    return stage.clock.monotonic()


async def gracectl_keep(stage: Stage, node: str) -> float:
    """What `gracectl drain` sends; returns the instant."""
    await send(stage, node, request_patch(seen(stage, node), stage.clock.now()))
    return stage.clock.monotonic()


async def send(stage: Stage, node: str, patch: MergePatch | None) -> None:
    """Carry out the patch of a command, if there is anything to be done."""
    if patch is not None:
        await stage.patch_node(node, dict(patch.body))


Way = Callable[[Stage, str], Awaitable[float]]
WAYS_BACK: tuple[Way, ...] = (take_off, kubectl_uncordon, gracectl_uncordon)
"""How people give a node back."""

each_way_back = pytest.mark.parametrize("give_back", WAYS_BACK)


def is_cordoned(stage: Stage, node: str) -> bool:
    """Both at once: no more pods, no more traffic."""
    now = seen(stage, node)
    return now.unschedulable and names.EXCLUDE_FROM_LOAD_BALANCERS in now.labels


def is_tainted(stage: Stage, node: str) -> bool:
    """Whether our taint keeps DaemonSet pods off, too."""
    taints = seen(stage, node).taints
    return any((taint.key, taint.effect) == (names.DISRUPTED_TAINT_KEY, "NoSchedule") for taint in taints)


def remains(stage: Stage, node: str) -> dict[str, Any]:
    """What tells a node apart from one that was never kept: its spec, labels, our annotations and conditions."""
    node_object: JsonObject = stage.node(node) or {"metadata": {}, "spec": {}, "status": {}}
    annotations = node_object["metadata"].get("annotations") or {}
    conditions = [each["type"] for each in node_object["status"].get("conditions", ()) if each["type"] in OURS]
    return {
        "spec": node_object["spec"],
        "labels": node_object["metadata"].get("labels"),
        "finalizers": node_object["metadata"].get("finalizers"),
        "annotations": {key: value for key, value in annotations.items() if key in ANNOTATIONS},
        "conditions": conditions,
    }


def is_at_rest(stage: Stage, node: str) -> bool:
    """Whether the condition says that the node is drained and kept."""
    condition = stage.condition(node, names.DRAINED)
    return condition is not None and (condition["status"], condition["reason"]) == ("True", "Maintenance")


def a_daemon_set(name: str, **more: Any) -> JsonObject:
    """A DaemonSet of `shop`, whose pods run on every node that takes them."""
    whole = a_workload("DaemonSet", name, 0, **more)
    del whole["spec"]["replicas"]
    return whole


def names_on(stage: Stage, node: str) -> list[str]:
    """The names of the pods on a node, sorted."""
    return sorted(pod["metadata"]["name"] for pod in stage.pods_on(node))


def asked(stage: Stage, start: float) -> list[tuple[str, float]]:
    """(pod, seconds after `start`) of every eviction that the server has agreed to since then."""
    agreed = [each for each in stage.evictions if each.status == 201 and each.instant >= start]
    return [(each.operation.name, round(each.instant - start, 3)) for each in agreed]


# Support of tests about protection: days that pass quickly, pods that are created in a known second, Events.

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

FEW = frozenset({"kubelet", "disruption", "scheduler", "jobs", "deployments", "replicasets"})
"""The parts of the world that stories of days need; each has watches that are heard of every minute."""


class Patient(Settings, frozen=True, kw_only=True):
    """Settings without status updates: a drain is looked at when there is a reason only."""

    @property
    def termination(self) -> TerminationSettings:
        return msgspec.structs.replace(super().termination, status_interval_seconds=1e9)


def patiently(**fields: Any) -> Settings:
    """Settings as a file would have them, for stories that take days."""
    return msgspec.convert({"leaderElection": {"enabled": False}, **fields}, Patient)


@asynccontextmanager
async def lasting(*nodes: str, settings: Settings | None = None, **options: Any) -> AsyncIterator[Stage]:
    """A stage for stories that take days: kubelets are heard of when their pods do something, watches last for a day
    without bookmarks, and Events are kept."""
    rare = {"parts": FEW, "kubelet": SILENT, "node_grace_seconds": 1e7, "event_seconds": 1e7}
    quiet = msgspec.structs.replace(app._CHECKED, stall=1e9, watch_minimum=86_400, watch_maximum=90_000)
    with (
        patch.object(app, "_CHECKED", quiet),
        patch.object(watch, "BOOKMARK_SECONDS", 1e9),
    ):
        async with staged(*nodes, settings=settings or patiently(), **{**rare, **options}) as stage:
            yield stage


def protected(name: str, value: str | None, node: str = "n1", **more: Any) -> JsonObject:
    """A pod with this do-not-disrupt; None: without."""
    annotations = {} if value is None else {names.DO_NOT_DISRUPT: value}
    return a_pod_manifest(name, node, annotations={**annotations, **more.pop("annotations", {})}, **more)


async def made_at_start(stage: Stage, *manifests: JsonObject) -> None:
    """Make these in the second in which stories delete their nodes, from which their protection counts."""
    await until(stage, 0.0)
    await stage.create(*manifests)
    assert stage.clock.monotonic() == START


async def edit(stage: Stage, pod: str, value: str | None, key: str = names.DO_NOT_DISRUPT) -> None:
    """What its owner does: another value of the annotation, or none."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"
    await stage.call("PATCH", path, {"metadata": {"annotations": {key: value}}}, MERGE)
