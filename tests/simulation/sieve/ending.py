"""How a run ended, in a form in which two runs can be compared, and in what they differ.

Left out is what tells one run from another and nothing else: timestamps, UIDs, resourceVersions, generations,
addresses, and the random part of generated names (the pods of one workload are counted).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import orjson
from support.clients import Deed, follow
from support.stage import Stage

from gracectl.model.names import EventReason

TABLES: Final = (
    "nodes",
    "pods",
    "nodeclaims.karpenter.sh",
    "nodedisruptionbudgets.termination.karpenter.sh",
    "nodedrains.gracectl.io",
    "poddisruptionbudgets.policy",
    "persistentvolumeclaims",
    "volumeattachments.storage.k8s.io",
)
IGNORED: Final = {
    *("uid", "resourceVersion", "generation", "observedGeneration", "managedFields", "creationTimestamp"),
    *("lastTransitionTime", "lastHeartbeatTime", "lastProbeTime", "lastUpdateTime", "startTime", "startedAt", "time"),
    *("finishedAt", "timeAdded", "podIP", "podIPs", "hostIP", "hostIPs", "containerID", "generateName"),
    *("ownerReferences", "volumeName", "pod-template-hash", "controller-revision-hash"),
}
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
UID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

OF_CHANCE: Final = frozenset(
    {
        EventReason.DRAIN_BLOCKED,
        EventReason.NODE_DRAIN_BLOCKED,
        EventReason.STEP_FAILING,
        EventReason.TERMINATION_GRACE_PERIOD_EXPIRED,
    }
)
"""Reasons of Events that are not compared. The first three are about how long nothing has moved, and each process
counts its own time; the last is about pods that are there at the deadline, at which the grace of a pod ends as well."""
INSTANT: Final = 0.1
"""Events of the so many seconds around a kill are not promised: they are written once, by the process that has done
what they tell of, and that is dead."""


class Ending(msgspec.Struct, frozen=True):
    """`events`: (object, reason), and when the first one was written; `killed_at`: the instant of the kill, if there
    was one."""

    objects: Counter[str]
    instances: Counter[str]
    evictions: Counter[str]
    events: dict[tuple[str, str], float]
    broken: list[str]
    killed_at: float | None


class Names:
    """The names of pods without their random parts, and the Events that controllers have written."""

    def __init__(self, stage: Stage) -> None:
        self.events: dict[tuple[str, str], float] = {}
        self._stage = stage
        self._of_pods: dict[str, str] = {}
        self._by_uid: dict[str, str] = {}
        follow(stage, "pods", self._pod_changed)

    def follow_events(self) -> None:
        """Note the Events of controllers from now on."""
        follow(self._stage, "events", self._event_changed)

    def of(self, name: str) -> str:
        """The name of an object, or what is left of it."""
        return self._of_pods.get(name, name)

    def of_uid(self, uid: str) -> str:
        """That of the pod with this uid."""
        return self._by_uid.get(uid, f"unknown pod {uid}")

    def _pod_changed(self, deed: Deed) -> None:
        metadata = deed.object["metadata"]
        prefix = metadata.get("generateName")
        self._by_uid[metadata["uid"]] = metadata["name"]
        if prefix:
            # The hash of a template is the same in each run; the name of a pod is not.
            self._of_pods[metadata["name"]] = self._by_uid[metadata["uid"]] = f"{prefix}*"

    def _event_changed(self, deed: Deed) -> None:
        event = deed.object
        if deed.old is None and deed.request is not None:
            key = self.of(event["involvedObject"]["name"]), event["reason"]
            self.events.setdefault(key, self._stage.clock.monotonic())


def ending_of(stage: Stage, names: Names, broken: list[str], killed_at: float | None) -> Ending:
    """How the run on this stage has ended."""
    agreed = stage.agreed()
    return Ending(
        Counter(_objects(stage, names)),
        Counter(f"the instance of {each.node} is {each.state}" for each in stage.cluster.cloud.instances),
        Counter(names.of_uid(uid) for uid in agreed),
        names.events,
        broken,
        killed_at,
    )


def _objects(stage: Stage, names: Names) -> Iterator[str]:
    for table in TABLES:
        for object_ in stage.server.store.table(table):
            named = {**object_["metadata"], "name": names.of(object_["metadata"]["name"])}
            plain = _plain({**object_, "metadata": named})
            yield f"{table} {orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items() if key not in IGNORED}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return UID.sub("<uid>", TIME.sub("<time>", value)) if isinstance(value, str) else value


def differences(expected: Ending, actual: Ending) -> list[str]:
    """What a disturbed run has otherwise than the undisturbed one, and what rules it has broken."""
    return [
        *actual.broken,
        *_counted(expected.objects, actual.objects, "object"),
        *_counted(expected.instances, actual.instances, "instance"),
        *_counted(expected.evictions, actual.evictions, "eviction"),
        *_events(expected, actual),
    ]


def _counted(expected: Counter[str], actual: Counter[str], what: str) -> Iterator[str]:
    for each, times in (expected - actual).items():
        yield f"missing {what} (times {times}): {each}"
    for each, times in (actual - expected).items():
        yield f"unexpected {what} (times {times}): {each}"


def _events(expected: Ending, actual: Ending) -> Iterator[str]:
    for (name, reason), at in expected.events.items():
        is_lost = actual.killed_at is not None and abs(at - actual.killed_at) <= INSTANT
        if (name, reason) not in actual.events and reason not in OF_CHANCE and not is_lost:
            yield f"missing Event: {reason} on {name}"
    for name, reason in actual.events.keys() - expected.events.keys():
        if reason not in OF_CHANCE:
            yield f"unexpected Event: {reason} on {name}"
