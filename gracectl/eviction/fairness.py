"""Groups that share the concurrency of evictions and deletions: the pods of a workload, in their namespace.

A webhook that hangs matches a namespace, or labels that the pods of a workload have in common. The pods of a node that
have no controller are one workload.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from gracectl.model.pod import Pod


class Workload(NamedTuple):
    """A group of runtime.shares. `owner`: UID of the pods' controller, or the name of their node."""

    namespace: str
    owner: str


def workload_of(namespace: str, node: str, pod: Pod | None) -> Workload:
    """The workload of a pod; None: it is not in the cache."""
    controller = None if pod is None else pod.controller
    return Workload(namespace, node if controller is None else controller.uid)


def namespace_of(group: Hashable) -> Hashable:
    """Parent of a workload."""
    return group[0] if isinstance(group, Workload) else group
