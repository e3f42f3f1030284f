"""What the settings file may say: joined from the settings that each room owns, and what counts without a restart."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from gracectl.admission.settings import AdmissionSettings
from gracectl.agent.settings import AgentSettings, FeatureGates
from gracectl.cloud.registry import ProviderSettings
from gracectl.config.naming import named
from gracectl.controllers.settings import InstanceSettings, KarpenterSettings, TerminationSettings
from gracectl.eviction.settings import EvictionSettings
from gracectl.kube.settings import LeaderElectionSettings
from gracectl.kube.skew import LARGEST_OFFSET
from gracectl.model.selectors import WireLabelSelector, WireRequirement
from gracectl.policy.deadlines import parse_grace_period
from gracectl.policy.settings import (
    DEFAULT_JITTER,
    DrainSettings,
    HealthSettings,
    NodeGroup,
    PolicySettings,
    ProtectionSettings,
    ShutdownPeriods,
    VoluntarySettings,
)
from gracectl.policy.voluntary import parse_expire_after, parse_jitter
from gracectl.policy.waves import DEFAULT_ORDER
from gracectl.telemetry.settings import MetricsSettings, ProbesSettings

SHUTDOWN_PERIODS: Final = (
    "shutdownGracePeriod",
    "shutdownGracePeriodCriticalPods",
    "shutdownGracePeriodByPodPriority",
)

RELOADABLE: Final = (
    *SHUTDOWN_PERIODS,
    "nodeGroups",
    "drain",
    "protection",
    "health",
    "voluntary",
    "eviction",
    "instance",
    "plan",
    "log.level",
)
"""What a running controller takes over from a changed file: sections as a whole, and single fields by their path. All
else counts from its next start."""


class Expression(WireRequirement, frozen=False, forbid_unknown_fields=True):
    """A matchExpressions entry; a misspelt field is refused here, because a selector without it selects more."""


class NodeSelector(WireLabelSelector, forbid_unknown_fields=True):
    """As manifests write selectors."""

    match_expressions: list[Expression] | None = None  # type: ignore[assignment]  # stricter than what it inherits


class NodeGroupSettings(ShutdownPeriods, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What holds for some nodes: the first group whose `selector` matches. What it leaves out is as for all nodes."""

    selector: NodeSelector
    termination_grace_period: str | None = None
    """As in a NodeClaim (`15m`, `1h30m`); left out: no deadline."""
    drain: DrainSettings | None = None
    expire_after: str | None = None
    """The age at which nodes without a claim are terminated: a Go duration (`720h`); left out or `Never`: at none."""
    expire_jitter: str | float | None = None
    """The share of it by which a node is terminated earlier at most (`10%`, `0.1`); left out: 10%."""

    def group(self) -> NodeGroup:
        """As decisions read it. ValueError, with the field in front, for what cannot be read."""
        selector, period = self.selector.selector(), self.termination_grace_period
        with named("selector"):
            selector.validate()
        with named("terminationGracePeriod"):
            seconds = None if period is None else parse_grace_period(period)
        with named("expireAfter"):
            expires = None if self.expire_after is None else parse_expire_after(self.expire_after)
        with named("expireJitter"):
            jitter = DEFAULT_JITTER if self.expire_jitter is None else parse_jitter(self.expire_jitter)
        return NodeGroup(selector, seconds, self.drain, self.order(), expires, jitter)


class LogSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`auto` writes text to a terminal and JSON elsewhere."""

    format: Literal["auto", "json", "text"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ClientSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How the API server is spoken to."""

    request_timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 30.0
    maximum_clock_offset_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = LARGEST_OFFSET
    """A server whose `Date` is further away from this machine's clock is not believed."""


class PlanSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a forecast takes for granted: the longest that a replacement takes from its creation until it is Ready."""

    replacement_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 30.0


class Settings(ShutdownPeriods, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The whole file; every field has a default, so an empty file is a valid one."""

    node_selector: NodeSelector | None = None
    """Which nodes are managed; left out: all without the control-plane role."""
    node_groups: tuple[NodeGroupSettings, ...] = ()
    """For nodes without a claim of their own that says otherwise; the first one that matches."""
    drain: DrainSettings = DrainSettings()
    protection: ProtectionSettings = ProtectionSettings()
    health: HealthSettings = HealthSettings()
    voluntary: VoluntarySettings = VoluntarySettings()
    eviction: EvictionSettings = EvictionSettings()
    instance: InstanceSettings = InstanceSettings()
    provider: ProviderSettings = ProviderSettings()
    client: ClientSettings = ClientSettings()
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    karpenter: KarpenterSettings = KarpenterSettings()
    plan: PlanSettings = PlanSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    probes: ProbesSettings = ProbesSettings()
    admission: AdmissionSettings = AdmissionSettings()
    agent: AgentSettings = AgentSettings()
    feature_gates: FeatureGates = FeatureGates()

    @property
    def termination(self) -> TerminationSettings:
        """What the termination room gets of it."""
        joined = TerminationSettings(instance=self.instance, policy=self._policy())
        if self.node_selector is None:
            return joined
        return msgspec.structs.replace(joined, node_selector=self.node_selector.selector())

    @property
    def shutdown(self) -> PolicySettings:
        """What the agent gets of it: the orders in which pods leave a machine that shuts down, as far as there are
        any; ranges by priority only with their feature gate."""
        if self.feature_gates.by_pod_priority:
            return self._policy()
        groups = tuple(group.without_priorities() for group in self.node_groups)
        return msgspec.structs.replace(self.without_priorities(), node_groups=groups)._policy()

    def _policy(self) -> PolicySettings:
        return PolicySettings(
            drain=self.drain,
            order=self.order() or DEFAULT_ORDER,
            protection=self.protection,
            health=self.health,
            voluntary=self.voluntary,
            node_groups=tuple(group.group() for group in self.node_groups),
        )
