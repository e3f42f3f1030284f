"""Settings of the controllers. Defaults are pinned by a test."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gracectl.model import names
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.policy.finalizers import FinalizerSetting
from gracectl.policy.owners import DrainOwner, ManagedNodes
from gracectl.policy.settings import PolicySettings

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NOT_CONTROL_PLANE = LabelSelector(
    match_expressions=(Requirement(key=names.CONTROL_PLANE_ROLE, operator="DoesNotExist"),)
)


class InstanceSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Polling of the provider for an instance that terminates, and backoff of failed calls (seconds)."""

    poll_initial_seconds: Seconds = 0.5
    poll_maximum_seconds: Seconds = 10.0
    retry_initial_seconds: Seconds = 1.0
    retry_maximum_seconds: Seconds = 300.0


class AssistSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Other owners of drains whose pods gracectl evicts and deletes, as they would, but by watch (ADR 0077)."""

    karpenter: bool = False
    cluster_autoscaler: bool = False
    cluster_api: bool = msgspec.field(default=False, name="clusterAPI")

    def assists(self, owner: DrainOwner) -> bool:
        """Whether gracectl assists the drains of this owner."""
        switches = {
            DrainOwner.KARPENTER: self.karpenter,
            DrainOwner.CLUSTER_AUTOSCALER: self.cluster_autoscaler,
            DrainOwner.CLUSTER_API: self.cluster_api,
        }
        return switches[owner]


class TerminationSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of node terminations."""

    managed: ManagedNodes = ManagedNodes(NOT_CONTROL_PLANE)
    finalizer: FinalizerSetting = "auto"
    workers: Count = 100
    """Nodes that are reconciled concurrently; terminations in progress are not limited."""
    status_interval_seconds: Seconds = 10.0
    """The condition that names what blocks a drain is written at most this often."""
    instance: InstanceSettings = InstanceSettings()
    assist: AssistSettings = AssistSettings()
    policy: PolicySettings = PolicySettings()
