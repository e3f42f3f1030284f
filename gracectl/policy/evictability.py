"""Pods that a drain waits for, and pods that it ignores: a verdict with its reason, never a bare yes or no."""

from __future__ import annotations

import math

import msgspec

from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import DISRUPTED_TAINT, Node, tolerates
from gracectl.model.pod import Pod, UnknownPod
from gracectl.policy.deadlines import ends_at
from gracectl.policy.waves import is_daemon

STUCK_AFTER_SECONDS = 60.0
"""A pod that still exists this long after its grace has ended is stuck. No wave waits for it."""

FINISHED = frozenset({names.SUCCEEDED, names.FAILED})


class Ignored(msgspec.Struct, frozen=True):
    """Why a pod does not block its node. `stays`: it keeps running there, so its volumes stay attached.

    `is_stuck`: it was deleted, and does not stop.
    """

    reason: str
    stays: bool
    is_stuck: bool = False


def ignored(
    pod: Pod, now: float, deadline: float | None = None, earliest: float | None = None, *, is_maintenance: bool = False
) -> Ignored | None:
    """Why the drain ignores this pod, or None when it is waited for.

    Deadlines as in `stuck_at`. `is_maintenance`: the node stays, and with it its DaemonSet pods.
    """
    if is_static(pod):
        return Ignored("static pod: it belongs to its node", stays=True)
    if pod.phase in FINISHED:
        return Ignored(f"finished: its phase is {pod.phase}", stays=False)
    if is_maintenance and is_daemon(pod):
        return Ignored("DaemonSet pod: it stays, as its node does", stays=True)
    if tolerates(pod.tolerations, DISRUPTED_TAINT):
        until = "as its node does" if is_maintenance else "until the node ends"
        return Ignored(f"tolerates the taint {names.DISRUPTED_TAINT_KEY}: it stays {until}", stays=True)
    stuck = stuck_at(pod, deadline, earliest)
    if stuck is not None and stuck <= now:
        return Ignored("stuck: still there a minute after its grace has ended", stays=True, is_stuck=True)
    return None


def may_stay(pod: Pod) -> bool:
    """Whether the pod stays until its node ends, now or later: also as a DaemonSet pod in maintenance, or stuck."""
    verdict = ignored(pod, math.inf, is_maintenance=True)
    return verdict is not None and verdict.stays


def ignored_without_kubelet(pod: Pod) -> Ignored | None:
    """Reason why the drain ignores this pod on a node without a kubelet."""
    if pod.deletion_timestamp is None:
        return None
    return Ignored("its kubelet is gone: the node is not Ready, and another of its pods is stuck", stays=True)


def is_silent(node: Node) -> bool:
    """Whether the kubelet of a node has stopped reporting.

    With Ready "False" a kubelet still reports, and stops pods.
    """
    condition = condition_of(node.conditions, names.READY)
    return condition is not None and condition.status == names.UNKNOWN


def is_kubelet_alive(node: Node) -> bool:
    """Whether the kubelet of a node reports: pods that it has not stopped may still run.

    Its Lease says no more: when that is stale, the node lifecycle controller sets Ready to "Unknown", in less than the
    minute after which a pod is stuck.
    """
    return condition_of(node.conditions, names.READY) is not None and not is_silent(node)


def undecodable_reason(pod: UnknownPod) -> str:
    """Why nothing is decided about a pod that cannot be decoded."""
    return f"cannot decide: unknown pod, its object cannot be decoded ({pod.error})"


def is_static(pod: Pod) -> bool:
    """Static pods are run by the kubelet from files; what the API shows is a mirror owned by the node."""
    return names.MIRROR_POD in pod.annotations or any(owner.is_node for owner in pod.owners)


def stuck_at(pod: Pod, deadline: float | None = None, earliest: float | None = None) -> float | None:
    """The instant from which a terminating pod is ignored, None for a running one.

    `deadline` is the termination's, `earliest` the one for which the pod may have been deleted (see `ends_at`).
    """
    ends = ends_at(pod, deadline, earliest)
    return None if ends is None else ends + STUCK_AFTER_SECONDS
