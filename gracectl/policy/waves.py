"""The order in which a node's pods leave (DESIGN 3.4): the default waves.

What others depend on goes last: ordinary pods, then the DaemonSets that serve them, then the critical pods, then the
critical DaemonSets (network, storage, logs).
"""

from __future__ import annotations

from collections.abc import Iterable

from gracectl.model import names
from gracectl.model.pod import Pod

WAVE_NAMES = ("non-critical", "non-critical DaemonSet", "critical", "critical DaemonSet")


def wave_of(pod: Pod) -> int:
    """Index into WAVE_NAMES; lower waves leave first."""
    return (2 if is_critical(pod) else 0) + (1 if is_daemon(pod) else 0)


def current_wave(pods: Iterable[Pod]) -> int | None:
    """The wave whose turn it is: the lowest one that still has a pod; None when none is left."""
    return min((wave_of(pod) for pod in pods), default=None)


def is_critical(pod: Pod) -> bool:
    """By class, and by priority for servers that show only the number."""
    return pod.priority_class in names.CRITICAL_PRIORITY_CLASSES or (pod.priority or 0) >= names.CRITICAL_PRIORITY


def is_daemon(pod: Pod) -> bool:
    """Whether a DaemonSet controls the pod."""
    return any(owner.controller and owner.kind == names.DAEMON_SET for owner in pod.owners)
