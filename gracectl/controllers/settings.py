"""Which nodes gracectl answers for, and how patiently it waits for their instances. Defaults are pinned by a test."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gracectl.kube.settings import Namespace
from gracectl.model import names
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.policy.settings import PolicySettings

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1)]
NOT_CONTROL_PLANE = LabelSelector(
    match_expressions=(Requirement(key=names.CONTROL_PLANE_ROLE, operator="DoesNotExist"),)
)


class InstanceSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Waiting for an instance to end: how often the provider is asked, and how a failed call backs off (seconds)."""

    poll_initial_seconds: Seconds = 0.5
    poll_maximum_seconds: Seconds = 10.0
    retry_initial_seconds: Seconds = 1.0
    retry_maximum_seconds: Seconds = 300.0


class KarpenterSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Where the Lease of a Karpenter may be, beside the namespace of our own: while it is fresh, we do not act."""

    namespaces: tuple[Namespace, ...] = ("kube-system", "karpenter")


class TerminationSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What the controllers of node terminations need to know."""

    node_selector: LabelSelector = NOT_CONTROL_PLANE
    workers: Count = 100
    """Nodes that are looked at in the same moment; terminations under way are not limited."""
    status_interval_seconds: Seconds = 10.0
    """The condition that says what a drain waits for is written at most this often."""
    instance: InstanceSettings = InstanceSettings()
    policy: PolicySettings = PolicySettings()
