"""Rules about nodes, claims and their machines: what ends only when it is asked for, and in which order."""

from __future__ import annotations

from collections.abc import Callable

from kubesim.controllers.cloud import Entry
from kubesim.server.api import JsonObject
from support.clients import Deed
from support.stage import PROVIDING

from gracectl.model import names
from simulation.contract import NEVER, has_finalizer, is_daemon, is_deleted, is_managed, labels_of
from simulation.deadlines import COUNTING, Deadlines
from simulation.observer import NOISE, Observer, PodFacts, Rule, ThingFacts
from simulation.voluntary import causes_of

ATTACHMENTS = "volumeattachments.storage.k8s.io"
CREATED = "creationTimestamp"


class Finalizers(Rule):
    """Our finalizer goes when the provider has confirmed that the instance is gone, and the volumes are detached."""

    name = "finalizer"

    def __init__(self, observer: Observer, deadlines: Deadlines) -> None:
        super().__init__(observer)
        self._deadlines = deadlines

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        if not self._is_taken_off(deed, f"node {facts.name}"):
            return
        if facts.provider_id and not self._is_confirmed(facts) and not self._is_shared(facts):
            state = self.seen.instance_state(facts.instance)
            self.violated(f"node {facts.name} was released while its instance is {state}")
        if facts.name in self.seen.terms.replaced or not has_ready_machine(facts.object):
            return  # a machine that is gone by itself holds nothing
        is_early = self._deadlines.earliest(facts) > self.seen.ahead + NOISE
        if is_early and (left := volumes_on(self.seen, facts.name, self.seen.terms.clock_error)):
            self.violated(f"node {facts.name} was released with volume {left[0]} attached")

    def claim(self, deed: Deed, facts: ThingFacts) -> None:
        if not self._is_taken_off(deed, f"claim {facts.name}") or not facts.provider_id:
            return
        rivals = [each for each in self.seen.claims.values() if each.uid != facts.uid and each.gone == NEVER]
        if any(each.provider_id == facts.provider_id for each in rivals):
            return
        nodes = [each for each in self.seen.living_nodes() if facts.uid in each.claims]
        registered = condition_status(facts.object, names.REGISTERED)
        if registered in ("", names.TRUE) and any(self.seen.now - node.since > COUNTING for node in nodes):
            self.violated(f"claim {facts.name} was released before its node {nodes[0].name}")
        elif not self._is_confirmed(facts) and not self._is_shared(facts):
            state = self.seen.instance_state(facts.instance)
            self.violated(f"claim {facts.name} was released while its instance is {state}")

    def _is_taken_off(self, deed: Deed, what: str) -> bool:
        if deed.request is None or not has_finalizer(deed.old) or has_finalizer(deed.new):
            return False
        if not is_deleted(deed.old):
            self.violated(f"{what}: the finalizer was removed, and it is not being deleted")
            return False
        return True

    def _is_confirmed(self, facts: ThingFacts) -> bool:
        is_said = facts.provider_id in self.seen.stage.provider.said_gone
        return is_said or self.seen.instance_state(facts.instance) == "terminated"

    def _is_shared(self, facts: ThingFacts) -> bool:
        """Whether another node, which is there or was, uses the same instance."""
        others = (each for each in self.seen.nodes.values() if each.uid != facts.uid and each.gone > facts.deleted)
        return any(each.provider_id == facts.provider_id and facts.uid not in each.claims for each in others)


class Instances(Rule):
    """A machine ends when its node or claim was deleted and no pod on it loses its grace; no other one ends at all."""

    name = "machine"

    def __init__(self, observer: Observer, deadlines: Deadlines) -> None:
        super().__init__(observer)
        self._deadlines = deadlines
        cloud = observer.stage.cluster.cloud
        cloud.journal = _Journal(cloud.journal, self._noted)

    def _noted(self, entry: Entry) -> None:
        if entry.what != "shutting-down" or not PROVIDING.get():
            return  # others may end machines as they like
        nodes = [each for each in self.seen.living_nodes() if each.instance == entry.id]
        nodes = [each for each in nodes if each.name not in self.seen.terms.copies]
        claims = [each for each in self.seen.claims.values() if each.instance == entry.id and each.gone == NEVER]
        for node in nodes:
            is_known = self._is_known(node.since)
            is_asked = node.deleted < NEVER or any(claim.deleted < NEVER and not has_node(claim) for claim in claims)
            if is_known and not is_asked:
                self.violated(f"the machine of node {node.name}, which is not being deleted, was terminated")
            elif node.deleted < NEVER and self._deadlines.earliest(node) > self.seen.ahead + NOISE:
                self._judge_rest(node)
        if not nodes and not any(claim.deleted < NEVER for claim in claims):
            self._judge_unknown(entry.id)

    def _judge_unknown(self, instance: str) -> None:
        gone = [each for each in self.seen.nodes.values() if each.instance == instance]
        if not any(each.deleted < NEVER for each in gone):
            self.violated(f"the machine {instance} was terminated, and nothing that is deleted has it")

    def _judge_rest(self, node: ThingFacts) -> None:
        if not has_ready_machine(node.object):
            return  # nothing runs there
        for pod in self.seen.pods_on(node.name):
            is_left = pod.waited < NEVER and not self.seen.is_stuck(pod, self.seen.ahead)
            if is_left and self._is_known(pod.waited) and self.seen.now - pod.bound > COUNTING:
                self.violated(f"the machine of {node.name} was terminated before its deadline, with pod {pod.name}")
        if left := volumes_on(self.seen, node.name, self.seen.terms.clock_error):
            self.violated(f"the machine of {node.name} was terminated with volume {left[0]} attached")

    def _is_known(self, since: float) -> bool:
        first = min(self.seen.lists.values(), default=NEVER)
        return since <= first or self.seen.must_know("", since)


class Unasked(Rule):
    """A controller deletes a node or claim only with its partner, or for interruption, health, label or age."""

    name = "unasked"

    def node(self, deed: Deed, facts: ThingFacts) -> None:
        if not is_begun(deed) or any(self.seen.claims[uid].deleted < NEVER for uid in facts.claims):
            return
        claims = [self.seen.claims[uid].object for uid in facts.claims]
        if not causes_of(self.seen, [facts.object], claims):
            self.violated(f"node {facts.name} was deleted, and nothing asks for that")

    def claim(self, deed: Deed, facts: ThingFacts) -> None:
        if not is_begun(deed):
            return
        nodes = [each for each in self.seen.nodes.values() if facts.uid in each.claims]
        if any(node.deleted < NEVER for node in nodes):
            return
        if not causes_of(self.seen, [node.object for node in nodes], [facts.object]):
            self.violated(f"claim {facts.name} was deleted, and nothing asks for that")

    def end(self, calm: bool) -> None:
        """Nodes that the plan asks nothing of are there, and so are their machines."""
        terms = self.seen.terms
        touched = terms.asked | terms.replaced
        for facts in self.seen.nodes.values():
            if (
                not terms.asked
                or facts.name in touched
                or not is_managed(self.seen.settings[0], labels_of(facts.object))
            ):
                continue
            if facts.deleted < NEVER or self.seen.instance_state(facts.instance) != "running":
                self.violated(f"node {facts.name} or its machine has ended, and nothing has asked for that")


class _Journal(list[Entry]):
    """The journal of a cloud, which tells of each entry."""

    def __init__(self, entries: list[Entry], listener: object) -> None:
        super().__init__(entries)
        self._listener = listener

    def append(self, entry: Entry) -> None:
        super().append(entry)
        assert callable(self._listener)
        self._listener(entry)


def is_begun(deed: Deed) -> bool:
    """Whether a controller has begun the deletion of the object by this change."""
    by_us = deed.is_by("delete", "nodes") or deed.is_by("delete", "nodeclaims")
    return by_us and deed.old is not None and not is_deleted(deed.old)


def volumes_on(
    seen: Observer, node: str, error: float = 0.0, is_known: Callable[[float], bool] = lambda since: True
) -> list[str]:
    """Volumes that are attached to a node, unless a pod that stays there may have them, or one that was stuck, by a
    clock with this error. `is_known`: only those that are so since an instant that counts."""
    if any(pod.waited == NEVER and _has_claims(pod.object) for pod in seen.pods_on(node)):
        return []
    owners = (pod for pod in seen.pods.values() if pod.node == node and _has_claims(pod.object))
    if any(pod.is_stuck(min(pod.over, seen.now) + error) for pod in owners):
        return []
    volumes = [each for each in attachments_on(seen, node) if is_known(seen.instant(each["metadata"][CREATED]) + 1.0)]
    return [each["spec"]["source"]["persistentVolumeName"] for each in volumes]


def attachments_on(seen: Observer, node: str) -> list[JsonObject]:
    """The attachments to a node, whatever uses them."""
    table = seen.stage.server.store.table(ATTACHMENTS)
    return [each for each in table if each["spec"]["nodeName"] == node]


def waits_for_volumes(seen: Observer, pod: PodFacts) -> bool:
    """Whether a pod may have to wait until no volume is attached to its node."""
    return is_daemon(pod.object) and not _has_claims(pod.object) and bool(attachments_on(seen, pod.node))


def condition_status(thing: JsonObject, type_: str) -> str:
    """The status of a condition; empty without one."""
    conditions = thing.get("status", {}).get("conditions") or ()
    return next((str(each["status"]) for each in conditions if each["type"] == type_), "")


def has_node(claim: ThingFacts) -> bool:
    """Whether the claim's instance may have become a node."""
    return condition_status(claim.object, names.REGISTERED) in ("", names.TRUE)


def has_ready_machine(node: JsonObject) -> bool:
    """Whether the node was Ready when last seen."""
    return condition_status(node, names.READY) == names.TRUE


def _has_claims(pod: JsonObject) -> bool:
    return any("persistentVolumeClaim" in each for each in pod["spec"].get("volumes") or ())
