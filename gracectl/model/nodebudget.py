"""A NodeDisruptionBudget as decisions see it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gracectl.model.meta import Condition
from gracectl.model.selectors import LabelSelector


class NodeDisruptionBudget(msgspec.Struct, frozen=True, gc=False):
    """One budget (termination.karpenter.sh/v1alpha2). A status that nobody has written yet reads as zeros."""

    name: str
    uid: str
    resource_version: str = ""
    generation: int = 0
    observed_generation: int = 0
    """Behind `generation` until our controller has counted by the latest spec: nothing is allowed then."""
    selector: LabelSelector | None = None
    """None selects no node, and so does one without any requirement."""
    selector_error: str = ""
    """Why the selector cannot be read; it selects no node then."""
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    expected_nodes: int = 0
    current_available: int = 0
    desired_available: int = 0
    disruptions_allowed: int = 0
    disrupted_nodes: Mapping[str, float] = {}
    """Node name to the instant at which its end was admitted, until that end is seen (policy.nodebudgets)."""
    verdict: Condition | None = None
    """The condition DisruptionAllowed: since when the budget has allowed something or nothing, and why."""
    deletion_timestamp: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """("", name)."""
        return ("", self.name)
