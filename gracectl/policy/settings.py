"""Settings that decisions read. Defaults are pinned by a test; the composition root joins them with the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, Self

import msgspec

from gracectl.model import names
from gracectl.model.durations import parse_seconds
from gracectl.model.selectors import LabelSelector
from gracectl.model.windows import Window
from gracectl.policy.waves import DEFAULT_ORDER, DrainOrder, by_priority

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class ProtectionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """From when a protection counts, and the longest that an administrator grants (None: as long as requested)."""

    reference: Literal["creation", "start"] = msgspec.field(default="creation", name="from")
    maximum_seconds: Seconds | None = None


class DrainSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Minimum duration of a drain, so that a pod bound in the instant of the cordon is still seen."""

    minimum_seconds: Seconds = 2.0


class PriorityPeriod(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Pods of this priority and above, up to the next entry, share this time before a deadline."""

    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    shutdown_grace_period_seconds: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class ShutdownPeriods(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The order of a shutdown in the two forms, and under the names, of the kubelet's configuration.

    Source: KEP-2712. None: not given. The durations are Go's (`5m`); a total of 0, like an empty list, means that
    there is no such order.
    """

    shutdown_grace_period: str | None = None
    shutdown_grace_period_critical_pods: str | None = None
    shutdown_grace_period_by_pod_priority: tuple[PriorityPeriod, ...] | None = None

    def order(self) -> DrainOrder | None:
        """The waves that they describe; None if nothing was given. ValueError, with the field, if they do not fit."""
        total, critical = self._totals()
        ranges = self.shutdown_grace_period_by_pod_priority
        if ranges and (total or critical):
            raise ValueError(
                "shutdownGracePeriodByPodPriority: conflicts with shutdownGracePeriod, which sets the same in another "
                "form; keep one of the two"
            )
        if ranges:
            return _ordered([(each.priority, each.shutdown_grace_period_seconds) for each in ranges])
        if total:
            return _ordered(migrated(total, critical))
        is_given = ranges is not None or self.shutdown_grace_period is not None
        return DEFAULT_ORDER if is_given else None

    def without_priorities(self) -> Self:
        """Copy without ranges by priority: the older form remains, if it was given."""
        ranges = self.shutdown_grace_period_by_pod_priority
        return msgspec.structs.replace(self, shutdown_grace_period_by_pod_priority=() if ranges else ranges)

    def _totals(self) -> tuple[float, float]:
        total = _seconds_of("shutdownGracePeriod", self.shutdown_grace_period)
        critical = _seconds_of("shutdownGracePeriodCriticalPods", self.shutdown_grace_period_critical_pods)
        if critical > total:
            raise ValueError(
                f"shutdownGracePeriodCriticalPods: {self.shutdown_grace_period_critical_pods} is more than "
                f"shutdownGracePeriod ({self.shutdown_grace_period or 'not given'}), of which it is a part"
            )
        return total, critical


def migrated(total: float, critical: float) -> list[tuple[int, float]]:
    """The two totals (seconds) as ranges: (least priority, period). Source: KEP-2712 (oracle shutdown-migration)."""
    return [(0, float(int(total - critical))), (names.CRITICAL_PRIORITY, float(int(critical)))]


def _ordered(ranges: Sequence[tuple[int, float]]) -> DrainOrder:
    try:
        return by_priority(ranges)
    except ValueError as error:
        raise ValueError(f"shutdownGracePeriodByPodPriority: {error}") from error


def _seconds_of(field: str, text: str | None) -> float:
    """0 if it is not given; else the kubelet's rule: nothing, or at least a second."""
    if text is None:
        return 0.0
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    if seconds < 0 or 0 < seconds < 1:
        raise ValueError(f"{field}: {text} is not 0 or at least 1s")
    return seconds


class ConditionPolicy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A node is unhealthy if its condition `type` has this status; tolerated for `toleration_seconds`."""

    type: Annotated[str, msgspec.Meta(min_length=1)]
    status: Literal["True", "False", "Unknown"]
    toleration_seconds: Seconds


NOT_READY = (
    ConditionPolicy(names.READY, names.FALSE, 900.0),
    ConditionPolicy(names.READY, names.UNKNOWN, 900.0),
)


class HealthSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Whether and when a node is terminated because it is unhealthy."""

    enabled: bool | None = None
    """None: if the provider terminates machines; with provider `none` unhealthy nodes are cordoned and reported."""
    conditions: tuple[ConditionPolicy, ...] = NOT_READY
    maximum_unhealthy: Annotated[int, msgspec.Meta(ge=0)] | str = "20%"
    """With more unhealthy nodes than this, a number or a share of the managed ones, none is terminated for its
    health.
    """
    force: bool = False
    """Terminate it immediately with all its pods, regardless of budgets and protection."""


class VoluntarySettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Pace of terminations for health, label or age."""

    maximum_at_once: Annotated[int, msgspec.Meta(ge=1)] | str = "10%"
    """A number, or a percentage of the managed nodes: rounded down, but never less than one."""
    wait_for_replacement: bool = True
    """A termination counts until its pods are Ready elsewhere; else until its node is gone."""
    pending_patience: str = "5m"
    """Maximum time after the node is gone (a Go duration)."""
    windows: tuple[Window, ...] = ()
    """When terminations may begin; empty: always."""

    @property
    def patience_seconds(self) -> float:
        """`pending_patience` in seconds. ValueError if it cannot be read, or is negative."""
        seconds = parse_seconds(self.pending_patience)
        if seconds < 0:
            raise ValueError(f"{self.pending_patience!r} is negative; give a duration such as 5m, or 0s")
        return seconds


class ReplaceFirst(msgspec.Struct, frozen=True):
    """Pods that are replaced before their eviction, and how long they wait for that.

    `namespaces`, `pods`: both must match; None: any. With neither, only annotated pods. `always`: also pods of
    workloads with several replicas that their budgets do not block. Seconds: `patience` until the replacement is Ready;
    `expected`: how long it is likely to take.
    """

    namespaces: LabelSelector | None = None
    pods: LabelSelector | None = None
    patience: float = 600.0
    always: bool = False
    expected: float = 30.0


DEFAULT_LEAD_SECONDS: Final = 900.0
"""Time before the end of a machine from which its paced termination is urgent."""

DEFAULT_JITTER: Final = 0.1
"""Share of expireAfter by which nodes of one age expire apart."""


class NodeGroup(msgspec.Struct, frozen=True):
    """Settings for the nodes that `selector` matches. None: those for all nodes."""

    selector: LabelSelector
    termination_grace_seconds: float | None = None
    """Default for nodes without a claim, or with a claim without a TGP; None: no deadline."""
    drain: DrainSettings | None = None
    order: DrainOrder | None = None
    expire_seconds: float | None = None
    """The age at which nodes without a claim are terminated; None: never."""
    expire_jitter: float = DEFAULT_JITTER
    """Maximum share of the lifetime by which a node is terminated earlier."""


class PolicySettings(msgspec.Struct, frozen=True):
    """Everything that `plan` takes from the settings."""

    drain: DrainSettings = DrainSettings()
    order: DrainOrder = DEFAULT_ORDER
    """The waves of a drain."""
    protection: ProtectionSettings = ProtectionSettings()
    health: HealthSettings = HealthSettings()
    voluntary: VoluntarySettings = VoluntarySettings()
    replace_first: ReplaceFirst = ReplaceFirst()
    node_groups: tuple[NodeGroup, ...] = ()
    """The first group with a matching selector applies to a node."""
    lead_seconds: float = DEFAULT_LEAD_SECONDS
    """See `interruption.urgent_at`."""
    terminates_instances: bool = True
    """False with provider `none`."""

    @property
    def terminates_unhealthy(self) -> bool:
        """Whether an unhealthy node is terminated; else it is cordoned and reported, unless health is disabled."""
        return self.terminates_instances if self.health.enabled is None else self.health.enabled

    def group_of(self, labels: Mapping[str, str]) -> NodeGroup | None:
        """The group of a node with these labels."""
        return next((group for group in self.node_groups if group.selector.matches(labels)), None)

    def drain_of(self, labels: Mapping[str, str]) -> DrainSettings:
        """The drain settings of a node with these labels."""
        group = self.group_of(labels)
        return self.drain if group is None or group.drain is None else group.drain

    @property
    def knows_shutdowns(self) -> bool:
        """Whether any node has an order with periods, as a shutdown needs it."""
        orders = (self.order, *(group.order for group in self.node_groups))
        return any(order is not None and order.is_timed for order in orders)

    def order_of(self, labels: Mapping[str, str]) -> DrainOrder:
        """The waves of a node with these labels."""
        group = self.group_of(labels)
        return self.order if group is None or group.order is None else group.order
