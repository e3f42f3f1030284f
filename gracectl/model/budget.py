"""Budgets as decisions see them: PodDisruptionBudget, NodeDisruptionBudget, and their int-or-percent bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gracectl.model.meta import ClusterObject, Condition, NamespacedObject
from gracectl.model.selectors import LabelSelector
from gracectl.model.windows import Window


class PodDisruptionBudget(NamespacedObject, frozen=True, gc=False):
    """One budget (policy/v1). A status that was never written reads as zeros."""

    generation: int = 0
    observed_generation: int = 0
    """Behind `generation` until the disruption controller has seen the latest spec: nothing is allowed then."""
    selector: LabelSelector | None = None
    """Selector of the pods; None: selects nothing; empty: selects every pod of the namespace."""
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str = ""
    """"" means IfHealthyBudget."""
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: Mapping[str, float] = {}
    """Pod name to the instant of its eviction, until the controller has seen the pod go (120 s at most)."""
    verdict: Condition | None = None
    """The condition DisruptionAllowed: since when the budget has allowed something or nothing, and why."""
    created: float = 0.0
    """Instant of metadata.creationTimestamp."""
    deletion_timestamp: float | None = None


class UnknownBudget(PodDisruptionBudget, frozen=True, gc=False):
    """A budget that is set aside: its object cannot be decoded, or would hold too much memory.

    Its selector is unknown, so it counts as one that selects every pod of its namespace, and lets none go.
    """

    error: str = ""


class NodeDisruptionBudget(ClusterObject, frozen=True, gc=False):
    """One budget (termination.karpenter.sh/v1alpha2). A status that was never written reads as zeros."""

    generation: int = 0
    observed_generation: int = 0
    """Behind `generation` until our controller has counted by the latest spec: nothing is allowed then."""
    selector: LabelSelector | None = None
    """Selector of the nodes; None, or a selector without requirements: selects no node."""
    selector_error: str = ""
    """Why the selector cannot be read. `selector` is None if it is invalid; too large a one selects every node."""
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    windows: tuple[Window, ...] = ()
    """When gracectl's own terminations may begin; empty: always. Deletions by others are not affected."""
    expected_nodes: int = 0
    current_available: int = 0
    desired_available: int = 0
    disruptions_allowed: int = 0
    disrupted_nodes: Mapping[str, float] = {}
    """Node name to the instant at which its end was admitted, until that end is seen (policy.nodebudgets)."""
    verdict: Condition | None = None
    """The condition DisruptionAllowed: since when the budget has allowed something or nothing, and why."""
    deletion_timestamp: float | None = None


_PERCENT: Final = re.compile(r"([+-]?[0-9]{1,300})%")


def scaled_value(value: int | str, total: int, *, round_up: bool) -> int:
    """`value` itself if it is an integer, else that percentage of `total`, rounded up or down.

    Percentages may exceed 100 and integers may exceed `total`, as Kubernetes has it. ValueError for anything
    else, a number in quotes included.
    """
    if isinstance(value, int):
        return value
    found = _PERCENT.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is not an integer or a percentage such as 25%")
    share = int(found[1]) * total
    return -(-share // 100) if round_up else share // 100
