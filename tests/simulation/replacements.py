"""Rules about pods that are replaced before their eviction: what is written to them, and that none is left behind."""

from __future__ import annotations

from typing import Any, Final

from kubesim.server.api import JsonObject
from support.clients import Deed

from gracectl.model import names
from simulation.contract import NEVER, annotations_of, is_deleted, labels_of
from simulation.observer import Observer, PodFacts, Rule

LEFT_SECONDS: Final = 15.0
"""For so long a released pod may be on a node that is not drained, while nothing disturbs the controllers."""
HASH: Final = names.POD_TEMPLATE_HASH


def is_released(pod: JsonObject) -> bool:
    """Whether its ReplicaSet does not select it, as we have changed its label."""
    return names.RELEASED_FROM in annotations_of(pod) or labels_of(pod).get(HASH) == names.RELEASED


class Replacements(Rule):
    """A pod is patched only to release or return it, or to let its ReplicaSet remove it in place of the released one;
    and none stays released on a node that is not drained."""

    name = "replacement"

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._hashes: dict[str, str] = {}  # by uid of a released pod, what its label was
        self._left: dict[str, float] = {}  # by uid of a released pod that no drain needs, since when

    def pod(self, deed: Deed, facts: PodFacts) -> None:
        if not deed.is_by("patch", "pods") or deed.old is None or deed.new is None:
            return
        before, after = deed.old, deed.new
        if _untouched(before) != _untouched(after) or is_deleted(before):
            self.violated(f"pod {facts.name} was changed by PATCH")
        elif is_released(after) and not is_released(before):
            self._judge_release(before, after, facts)
        elif is_released(before) and not is_released(after):
            if labels_of(after)[HASH] != self._hashes.get(facts.uid):
                self.violated(f"pod {facts.name} was returned with label {labels_of(after)[HASH]}")
        elif labels_of(before) != labels_of(after) or not before["metadata"].get("ownerReferences"):
            self.violated(f"pod {facts.name} was changed by PATCH")

    def _judge_release(self, before: JsonObject, after: JsonObject, facts: PodFacts) -> None:
        self._hashes[facts.uid] = labels_of(before)[HASH]
        if annotations_of(before).get(names.REPLACE_FIRST) != "true":
            self.violated(f"pod {facts.name} was released, and does not ask for it")
        if labels_of(after)[HASH] != names.RELEASED or self._hashes[facts.uid] not in _record(after):
            self.violated(f"pod {facts.name} was released without a record of its label")
        if self.seen.named(facts.node) is None:
            self.violated(f"pod {facts.name} was released from node {facts.node!r}, which is not there")
        others = [
            each
            for each in self.seen.pods.values()
            if each.uid != facts.uid
            and each.asked == NEVER
            and each.over == NEVER
            and is_released(each.object)
            and self._hashes.get(each.uid) == self._hashes[facts.uid]
        ]
        if others and self.seen.terms.fair:
            self.violated(f"pod {facts.name} was released while {others[0].name} of its workload was")

    def tick(self) -> None:
        left: dict[str, float] = {}
        for pod in self.seen.pods.values():
            if pod.asked != NEVER or pod.over != NEVER or not is_released(pod.object) or self._is_drained(pod):
                continue
            left[pod.uid] = since = self._left.get(pod.uid, self.seen.now)
            if self.seen.now - max(since, self.seen.calm_since) > LEFT_SECONDS:
                self.violated(f"pod {pod.name} is released, and its node {pod.node!r} is not drained")
                left[pod.uid] = NEVER
        self._left = left

    def end(self, calm: bool) -> None:
        """No pod is released when the run is over, but for nodes that are drained still."""
        if calm:
            self.tick()

    def _is_drained(self, pod: PodFacts) -> bool:
        node = self.seen.named(pod.node)
        return node is None or is_deleted(node.object) or self.seen.is_kept(node)


def _record(pod: JsonObject) -> str:
    return annotations_of(pod).get(names.RELEASED_FROM, "")


def _untouched(pod: JsonObject) -> JsonObject:
    """What of a pod no release and no return may change."""
    ours = {names.RELEASED_FROM, names.REPLACEMENT_FAILED, names.POD_DELETION_COST}
    metadata: dict[str, Any] = {key: pod["metadata"].get(key) for key in ("name", "uid", "ownerReferences")}
    annotations = {key: value for key, value in annotations_of(pod).items() if key not in ours}
    labels = {key: value for key, value in labels_of(pod).items() if key != HASH}
    return {**pod, "metadata": {**metadata, "annotations": annotations, "labels": labels}}
