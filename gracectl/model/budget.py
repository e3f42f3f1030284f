"""A PodDisruptionBudget as decisions see it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gracectl.model.meta import Condition
from gracectl.model.selectors import LabelSelector


class PodDisruptionBudget(msgspec.Struct, frozen=True, gc=False):
    """One budget (policy/v1). A status that nobody has written yet reads as zeros."""

    namespace: str
    name: str
    uid: str
    resource_version: str = ""
    generation: int = 0
    observed_generation: int = 0
    """Behind `generation` until the disruption controller has seen the latest spec: nothing is allowed then."""
    selector: LabelSelector | None = None
    """None selects nothing, an empty one every pod of the namespace."""
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
    deletion_timestamp: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.namespace, self.name)
