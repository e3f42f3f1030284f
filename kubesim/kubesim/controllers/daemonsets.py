"""DaemonSets: one pod on every node that accepts the template, bound by the controller itself.

DaemonSet pods tolerate a cordon: an evicted one comes back to a cordoned node. Another taint
(karpenter.sh/disrupted) keeps it away.
"""

from __future__ import annotations

import anyio.lowlevel

from kubesim.controllers.controller import Controller, enqueue_owner
from kubesim.controllers.informers import Informers
from kubesim.controllers.objects import (
    Key,
    controller_uid,
    is_ready,
    is_terminating,
    key_of,
    labels_of,
    node_of,
    owner_reference,
    phase_of,
    untolerated,
)
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import DAEMON_SETS, NODES, PODS, REVISIONS, path_of
from kubesim.controllers.replicasets import create_pod, pod_from, report
from kubesim.controllers.revisions import LABEL, Revisions
from kubesim.server.api import JsonObject
from kubesim.values import scaled_value

TOLERATIONS = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]
"""What the real controller adds to every daemon pod (util.AddOrUpdateDaemonPodTolerations)."""

SMALL, GATHERED = 100, 1e-4
"""All nodes are looked at whenever a node or a daemon pod changes. Beyond so many nodes changes are gathered first, for
so many simulated seconds per node."""

WITHOUT_PAUSE = 1_000
"""Nodes that are looked at before others may run."""


class DaemonSets(Controller[Key]):
    """Keys: DaemonSets."""

    def __init__(self, informers: Informers, pace: Pace) -> None:
        super().__init__(informers, pace, DAEMON_SETS, NODES, PODS, REVISIONS)
        self._sets = informers.of(DAEMON_SETS)
        self._nodes = informers.of(NODES)
        self._pods = informers.of(PODS)
        self._pods.index("controller", lambda pod: (controller_uid(pod),))
        self._revisions = Revisions(self, "DaemonSet")
        self._sets.subscribe(self._set_changed)
        enqueue_owner(self._pods, "DaemonSet", self._gather)
        self._nodes.subscribe(self._node_changed)

    def _set_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if (changed := new if new is not None else old) is None:
            return
        # Its own status changes nothing else.
        if old is None or new is None or _wish_of(old) != _wish_of(new):
            self.queue.add(key_of(changed))

    def _gather(self, key: Key) -> None:
        self.after(key, GATHERED * max(0, len(self._nodes) - SMALL))

    def _node_changed(self, old: JsonObject | None, new: JsonObject | None) -> None:
        if old is None or new is None or _matters(old) != _matters(new):
            for key in self._sets.keys():  # noqa: SIM118 - a View is no dict
                self._gather(key)

    async def reconcile(self, key: Key) -> None:
        """See Controller.reconcile."""
        daemon_set = self._sets.get(*key)
        if daemon_set is None:
            return
        pods = self._pods.by("controller", daemon_set["metadata"]["uid"])
        if is_terminating(daemon_set):
            return
        present = await self._revisions.present(daemon_set, frozenset(labels_of(pod).get(LABEL, "") for pod in pods))
        by_node: dict[str, list[JsonObject]] = {}
        for pod in pods:
            by_node.setdefault(node_of(pod), []).append(pod)
        wanted = misplaced = 0
        old: list[JsonObject] = []
        for number, node in enumerate(self._nodes.values()):
            if number % WITHOUT_PAUSE == WITHOUT_PAUSE - 1:
                await anyio.lowlevel.checkpoint()
            there = by_node.get(node["metadata"]["name"], [])
            should_run, may_stay = placement(daemon_set, node)
            wanted += should_run
            misplaced += bool(there) and not should_run
            if should_run and not there:
                await self._create(daemon_set, node, present)
            for pod in there:
                # One that failed is deleted too, and made again when it is gone.
                if not is_terminating(pod) and (not may_stay or phase_of(pod) == "Failed"):
                    await self._delete(pod)
                elif labels_of(pod).get(LABEL, present) != present:
                    old.append(pod)
        await self._roll(daemon_set, old, wanted)
        await self._report(daemon_set, wanted, misplaced, present)

    async def _roll(self, daemon_set: JsonObject, old: list[JsonObject], wanted: int) -> None:
        """Let pods of an older template go, those first that are of no use, and no more than may be missing."""
        strategy = daemon_set["spec"].get("updateStrategy") or {}
        if not old or strategy.get("type") == "OnDelete":
            return
        bound = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
        pods = self._pods.by("controller", daemon_set["metadata"]["uid"])
        available = sum(1 for pod in pods if is_ready(pod) and not is_terminating(pod))
        spare = max(1, scaled_value(bound, wanted, round_up=True)) - max(0, wanted - available)
        for pod in sorted((pod for pod in old if not is_terminating(pod)), key=is_ready):
            if is_ready(pod):
                spare -= 1
                if spare < 0:
                    break
            await self._delete(pod)

    async def _create(self, daemon_set: JsonObject, node: JsonObject, revision: str) -> None:
        namespace, name = key_of(daemon_set)
        template = daemon_set["spec"]["template"]
        generation = str(daemon_set["metadata"].get("generation", 1))
        metadata = {
            "generateName": f"{name}-",
            "labels": {LABEL: revision, "pod-template-generation": generation},
            "ownerReferences": [owner_reference("apps/v1", "DaemonSet", daemon_set)],
        }
        spec = {"nodeName": node["metadata"]["name"], "tolerations": _tolerations(template)}
        pod = await create_pod(self, namespace, pod_from(template, metadata, spec))
        if pod is not None:
            self._pods.remember(pod)

    async def _delete(self, pod: JsonObject) -> None:
        options = {"preconditions": {"uid": pod["metadata"]["uid"]}}
        await self.ask("DELETE", path_of(PODS, *key_of(pod)), options, allow=(404, 409))

    async def _report(self, daemon_set: JsonObject, wanted: int, misplaced: int, present: str) -> None:
        pods = self._pods.by("controller", daemon_set["metadata"]["uid"])
        ready = sum(1 for pod in pods if is_ready(pod) and not is_terminating(pod))
        status = {
            "observedGeneration": daemon_set["metadata"].get("generation", 1),
            "desiredNumberScheduled": wanted,
            "currentNumberScheduled": min(wanted, len(pods)),
            "updatedNumberScheduled": sum(1 for pod in pods if labels_of(pod).get(LABEL) == present),
            "numberMisscheduled": misplaced,
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": max(0, wanted - ready),
        }
        await report(self, DAEMON_SETS, daemon_set, status)


def placement(daemon_set: JsonObject, node: JsonObject) -> tuple[bool, bool]:
    """(should a pod be made here, may one stay): a taint NoSchedule prevents only the first."""
    template = daemon_set["spec"]["template"]
    labels = labels_of(node)
    selector = template["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False, False
    tolerations = _tolerations(template)
    may_stay = untolerated(node, tolerations, "NoExecute") is None
    return may_stay and untolerated(node, tolerations, "NoSchedule") is None, may_stay


def _tolerations(template: JsonObject) -> list[JsonObject]:
    return [*(template["spec"].get("tolerations") or []), *TOLERATIONS]


def _matters(node: JsonObject) -> tuple[object, ...]:
    return labels_of(node), node["spec"].get("taints")


def _wish_of(daemon_set: JsonObject) -> tuple[object, ...]:
    return daemon_set["spec"], is_terminating(daemon_set)
