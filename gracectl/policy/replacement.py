"""Whether a pod is replaced before its eviction, or why not, and how far its replacement is.

Only pods whose owners or administrators ask for it. What must be known of their workloads is read on demand, into
`WorkloadFacts`. Invariants: a pod is released only if nothing known speaks against it; a released pod is evicted when
its workload is complete without it, and otherwise returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Final, NamedTuple

import msgspec

from gracectl.model import names
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.foreign import harmless
from gracectl.model.pod import Pod
from gracectl.model.times import parse_time
from gracectl.model.workloads import ResourceQuota, Workload
from gracectl.policy.placement import OtherNode, no_node_fits
from gracectl.policy.release import LABELS, Release, release_of
from gracectl.policy.returning import workload_of
from gracectl.policy.settings import ReplaceFirst

RETRY_FACTOR: Final = 3
"""After a replacement that was not Ready in time, the next one is tried after as many times the patience."""

RECREATE: Final = "Recreate"
LONGEST_TEXT: Final = 300


class NotReplaced(StrEnum):
    """Reason why a pod that asks for it is not replaced, for machines."""

    CONTROLLER = "controller"
    """No ReplicaSet controls it; a pod of a StatefulSet cannot exist twice."""
    UNREADABLE = "unreadable"
    """What must be known cannot be read."""
    STRATEGY = "recreate"
    ROLLOUT = "rollout"
    UNREADY = "unready"
    """Other pods of its workload are not Ready, so its budget would not allow its eviction either."""
    VOLUME = "volume"
    """A volume cannot be shared with the replacement."""
    HOST_PORT = "host-port"
    LABEL = "label"
    """No label of the ReplicaSet's selector can be changed without an effect on others."""
    QUOTA = "quota"
    DEADLINE = "deadline"
    """A replacement is likely to take longer than the time until its deletion."""


class WorkloadFacts(msgspec.Struct, frozen=True, kw_only=True, weakref=True):
    """What was read of a pod's workload. `read_at`: monotonic seconds.

    `missing`: what could not be read, and why; empty if nothing. `is_unknown`: the controller may have read it, since
    the reader is a command. `replica_set`, `above`: None if they do not exist;
    `above` is the Deployment or Rollout. `selected_by`: by label, what selects pods by it (`service shop/web`).
    `unshared`: claims that only one node can use, with the reason. `pods`: of the workload, of any revision. `others`:
    nodes that stay; None: unknown. `pending`: why the scheduler binds the newest pod to no node. `size`: bytes.
    """

    read_at: float
    missing: str = ""
    is_unknown: bool = False
    replica_set: Workload | None = None
    above: Workload | None = None
    selected_by: Mapping[str, str] = {}
    unshared: Mapping[str, str] = {}
    quotas: tuple[ResourceQuota, ...] = ()
    namespace_labels: Mapping[str, str] = {}
    pods: tuple[Pod, ...] = ()
    others: tuple[OtherNode, ...] | None = None
    pending: str = ""
    size: int = 0

    @property
    def is_gone(self) -> bool:
        """Whether no ReplicaSet can adopt a released pod."""
        return self.replica_set is None or self.replica_set.rollout.is_deleted

    @property
    def replicas(self) -> int:
        """Number of pods that the workload should have."""
        found = self.above or self.replica_set
        return 0 if found is None else found.replicas


class ReplacementStep(StrEnum):
    """What happens to a pod for its replacement."""

    WAIT = "wait"
    """Not released yet: something must be read, or another pod of its workload goes first."""
    RELEASE = "release"
    REPLACING = "replacing"
    RETURN = "return"
    REFUSED = "refused"
    """It is not replaced, and leaves as any other pod."""


class ReplacementDecision(NamedTuple):
    """Decision about one pod. `until`: when the clock changes it (Unix seconds)."""

    step: ReplacementStep
    reason: str
    until: float | None = None
    refusal: NotReplaced | None = None


class Circumstances(NamedTuple):
    """Circumstances of one pod. `is_blocked`: its budget never allows its eviction. `ends`: when it is deleted for a
    deadline (Unix seconds); None: never."""

    now: float
    is_blocked: bool
    ends: float | None = None


def facts_key(pod: Pod) -> tuple[str, str] | None:
    """Namespace and name of the ReplicaSet of a pod, also of a released one; None without one."""
    if (release := release_of(pod)) is not None:
        return pod.namespace, release.replica_set
    controller = pod.controller
    if controller is None or controller.kind != names.REPLICA_SET:
        return None
    return pod.namespace, controller.name


def may_be_replaced(pod: Pod, settings: ReplaceFirst) -> bool:
    """Whether a pod asks for its replacement, or the settings do, as far as its object shows; cheap."""
    asked = pod.annotations.get(names.REPLACE_FIRST)
    if asked in ("true", "false"):
        return asked == "true"
    if settings.namespaces is None and settings.pods is None:
        return False
    return pod.controller is not None and (settings.pods is None or settings.pods.matches(pod.labels))


def decide_replacement(
    pod: Pod, facts: WorkloadFacts | None, settings: ReplaceFirst, around: Circumstances
) -> ReplacementDecision | None:
    """Decide about a pod that may leave now; None: it leaves as any other."""
    if (release := release_of(pod)) is not None:
        return _released(pod, release, facts, settings, around.now)
    if not may_be_replaced(pod, settings) or not (pod.ready or around.is_blocked):
        return None
    is_annotated = names.REPLACE_FIRST in pod.annotations
    if facts_key(pod) is None:
        return _refused(NotReplaced.CONTROLLER, _other_controller(pod)) if is_annotated else None
    if facts is None or facts.is_unknown:
        unread = "replace first: its workload has not been read yet"
        reason = unread if facts is None else f"unknown whether it is replaced first: {facts.missing}"
        return ReplacementDecision(ReplacementStep.WAIT, reason)
    if facts.missing:
        return _refused(NotReplaced.UNREADABLE, facts.missing)
    if not is_annotated and settings.namespaces and not settings.namespaces.matches(facts.namespace_labels):
        return None
    if facts.replica_set is None or not (around.is_blocked or settings.always or facts.replicas == 1):
        return None
    shown = next((each for each in facts.pods if each.uid == pod.uid), pod)
    if (release := release_of(shown)) is not None:
        return _released(shown, release, facts, settings, around.now)  # the watch has not shown it yet
    if busy := [each for each in _released_pods(facts) if each.uid != pod.uid]:
        return ReplacementDecision(ReplacementStep.WAIT, f"replace first: {busy[0].full_name} is being replaced")
    if (refused := _refusal(pod, facts.replica_set, facts, settings, around)) is not None:
        return refused
    failed_until = _failed_until(pod, settings, around.now)
    if failed_until > around.now:
        reason = f"replace first: its replacement was not Ready within {_seconds(settings.patience)}; trying again"
        return ReplacementDecision(ReplacementStep.WAIT, reason, failed_until)
    return ReplacementDecision(ReplacementStep.RELEASE, "replace first: waiting for its replacement")


def new_release(pod: Pod, facts: WorkloadFacts, now: float) -> Release | None:
    """What the pod is released from at `now`; None if it has no label for that."""
    replica_set = facts.replica_set
    label = None if replica_set is None else _label(pod, replica_set)
    if replica_set is None or label is None:
        return None
    kind, workload, value = names.REPLICA_SET, replica_set.name, pod.labels[label]
    if facts.above is not None and replica_set.name == f"{facts.above.name}-{value}":
        kind, workload = replica_set.rollout.kind_above, facts.above.name
    return Release(now, kind, workload, label, value)


# -- released pods -----------------------------------------------------------------------------------------------------


def _released(
    pod: Pod, release: Release, facts: WorkloadFacts | None, settings: ReplaceFirst, now: float
) -> ReplacementDecision | None:
    # Any client may write a later instant than ours: the pod would block its node until then.
    ends = release.at + settings.patience if release.at <= now + settings.patience else now
    if facts is not None and not facts.missing:
        if facts.is_gone and facts.above is None:
            return ReplacementDecision(ReplacementStep.RETURN, "replace first: its ReplicaSet is gone")
        if facts.replicas == 0:
            return ReplacementDecision(ReplacementStep.RETURN, "replace first: its workload is scaled to 0")
        if _ready_without(facts) >= facts.replicas:
            return None
    if pod.annotations.get(names.REPLACE_FIRST) == "false":
        return ReplacementDecision(ReplacementStep.RETURN, "replace first: its annotation ends it")
    if now >= ends:
        reason = f"replace first: its replacement was not Ready within {_seconds(settings.patience)}"
        return ReplacementDecision(ReplacementStep.RETURN, reason, refusal=NotReplaced.UNREADY)
    return ReplacementDecision(ReplacementStep.REPLACING, f"replace first: {_progress(facts)}", ends)


def _progress(facts: WorkloadFacts | None) -> str:
    """What the replacement waits for."""
    if facts is None:
        return "its workload has not been read yet"
    if facts.missing:
        return f"whether its replacement is Ready is unknown: {facts.missing}"
    starting = [pod for pod in _members(facts) if not pod.ready]
    if not starting:
        failure = "" if facts.replica_set is None else facts.replica_set.rollout.failure
        return "its replacement is not created yet" + (f": {harmless(failure, LONGEST_TEXT)}" if failure else "")
    newest = max(starting, key=lambda pod: (pod.created, pod.name))
    if newest.node_name:
        return f"its replacement {newest.full_name} starts on {newest.node_name}"
    pending = f": {harmless(facts.pending, LONGEST_TEXT)}" if facts.pending else ""
    return f"its replacement {newest.full_name} is Pending{pending}"


def _members(facts: WorkloadFacts) -> list[Pod]:
    """Pods of the workload that are not released, and stay."""
    return [pod for pod in facts.pods if pod.deletion_timestamp is None and _is_member(pod, facts)]


def _is_member(pod: Pod, facts: WorkloadFacts) -> bool:
    """Whether a ReplicaSet of the workload controls the pod. Its labels may be those of another workload, too."""
    if (owner := pod.controller) is None or owner.kind != names.REPLICA_SET or release_of(pod) is not None:
        return False
    if facts.replica_set is not None and owner.uid == facts.replica_set.uid:
        return True
    return facts.above is not None and any(
        owner.name == f"{facts.above.name}-{pod.labels[label]}" for label in LABELS if label in pod.labels
    )


def _released_pods(facts: WorkloadFacts) -> list[Pod]:
    """Pods that are released from the workload."""
    known = {each.name for each in (facts.above, facts.replica_set) if each is not None}
    releases = ((pod, release_of(pod)) for pod in facts.pods if pod.deletion_timestamp is None)
    return [pod for pod, release in releases if release is not None and release.workload in known]


def _ready_without(facts: WorkloadFacts) -> int:
    return sum(pod.ready for pod in _members(facts))


# -- refusals ----------------------------------------------------------------------------------------------------------


def _refused(kind: NotReplaced, reason: str) -> ReplacementDecision:
    return ReplacementDecision(ReplacementStep.REFUSED, f"not replaced first: {reason}", refusal=kind)


def _other_controller(pod: Pod) -> str:
    controller = pod.controller
    if controller is None:
        return "no ReplicaSet controls it"
    workload = workload_of(pod, controller)
    if controller.kind == names.STATEFUL_SET:
        return f"{workload} gives each pod an identity, which no second pod can have"
    return f"{workload} is not a ReplicaSet"


def _refusal(
    pod: Pod, replica_set: Workload, facts: WorkloadFacts, settings: ReplaceFirst, around: Circumstances
) -> ReplacementDecision | None:
    """The first reason not to release the pod."""
    kind = replica_set.rollout.kind_above
    workload = f"{kind or names.REPLICA_SET} {replica_set.namespace}/{replica_set.workload}"
    label = _label(pod, replica_set)
    if label is None:
        return _refused(NotReplaced.LABEL, f"the selector of ReplicaSet {replica_set.full_name} has no label to change")
    if label in facts.selected_by:
        return _refused(NotReplaced.LABEL, f"{facts.selected_by[label]} selects pods by label {label}")
    if kind and facts.above is None:
        return _refused(NotReplaced.CONTROLLER, f"its ReplicaSet belongs to {workload}, which is unknown")
    if facts.above is not None and facts.above.rollout.strategy == RECREATE:
        return _refused(NotReplaced.STRATEGY, f"{workload} has strategy Recreate")
    if _is_rolling_out(facts, replica_set):
        return _refused(NotReplaced.ROLLOUT, f"a rollout of {workload} is in progress")
    lacking = facts.replicas - sum(each.ready for each in _members(facts) if each.uid != pod.uid) - 1
    if lacking > 0:
        return _refused(NotReplaced.UNREADY, f"{lacking} other of the {facts.replicas} pods of {workload} not Ready")
    if facts.unshared:
        claim, why = next(iter(facts.unshared.items()))
        return _refused(NotReplaced.VOLUME, f"volume claim {claim} {why}")
    if replica_set.uses_host and (reason := _host_clash(pod, replica_set, facts)):
        return _refused(NotReplaced.HOST_PORT, reason)
    if reason := _without_room(replica_set, facts.quotas):
        return _refused(NotReplaced.QUOTA, reason)
    if around.ends is not None and around.now + settings.expected > around.ends:
        left = _seconds(max(around.ends - around.now, 0.0))
        return _refused(
            NotReplaced.DEADLINE, f"it is deleted in {left}, and a replacement takes {_seconds(settings.expected)}"
        )
    return None


def _label(pod: Pod, replica_set: Workload) -> str | None:
    """The label to change: one of ours, or of a hash, by which the ReplicaSet selects the pod."""
    selector = replica_set.selector or {}
    return next((each for each in LABELS if each in selector and selector[each] == pod.labels.get(each)), None)


def _is_rolling_out(facts: WorkloadFacts, replica_set: Workload) -> bool:
    """Whether there are two revisions, or soon will be. Counts of pods also change when a pod is released."""
    if (above := facts.above) is None:
        return False
    rollout = above.rollout
    is_settled = rollout.is_observed and rollout.updated > 0 and not rollout.is_deleted
    others = (each for each in _members(facts) if each.controller and each.controller.uid != replica_set.uid)
    return not is_settled or replica_set.replicas != above.replicas or any(others)


def _host_clash(pod: Pod, replica_set: Workload, facts: WorkloadFacts) -> str:
    """Why no node has the ports of the host free for another pod; empty if one may."""
    if facts.others is None:
        return "it uses the network or ports of its host, and other nodes are not known"
    fitting = [each.node.name for each in facts.others if not no_node_fits(replica_set.needs, pod.tolerations, [each])]
    taken = {each.node_name for each in facts.pods}
    if fitting and taken.issuperset(fitting):
        return "each node that fits has another pod of it, which uses the network or ports of the host"
    return ""


def _without_room(replica_set: Workload, quotas: tuple[ResourceQuota, ...]) -> str:
    needed: dict[str, Fraction] = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for resource, amount in replica_set.needs.requests.items():
        needed[resource] = needed[f"requests.{resource}"] = amount
    needed |= {f"limits.{resource}": amount for resource, amount in replica_set.limits.items()}
    for quota in quotas:
        for resource, hard in quota.hard.items():
            amount = needed.get(resource, Fraction(0))
            if amount and quota.used.get(resource, Fraction(0)) + amount > hard:
                return f"quota {quota.full_name} has no room for its {harmless(resource)}"
    return ""


def _failed_until(pod: Pod, settings: ReplaceFirst, now: float) -> float:
    """When to try again after a replacement that was not Ready in time (Unix seconds); 0.0 without one."""
    try:
        at = parse_time(pod.annotations.get(names.REPLACEMENT_FAILED, ""))
    except ValueError:
        return 0.0
    return at + RETRY_FACTOR * settings.patience if at <= now else 0.0


def _seconds(seconds: float) -> str:
    return format_duration(round(seconds) * NANOSECONDS_PER_SECOND)
