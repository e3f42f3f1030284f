"""Contents of the settings file, joined from the settings of each package, and what applies without a restart."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from gracectl.admission.settings import AdmissionSettings
from gracectl.agent.settings import AgentSettings, FeatureGates
from gracectl.cloud.provider import NONE, ProviderSettings
from gracectl.config.errors import prefix_errors
from gracectl.controllers.settings import AssistSettings, InstanceSettings, TerminationSettings
from gracectl.eviction.settings import EvictionSettings
from gracectl.interruption.source import InterruptionSettings
from gracectl.kube.leader.settings import LeaderElectionSettings
from gracectl.kube.transport.skew import LARGEST_OFFSET
from gracectl.model.durations import parse_seconds
from gracectl.model.selectors import WireLabelSelector, WireRequirement
from gracectl.policy.deadlines import parse_grace_period
from gracectl.policy.eviction_queues import EvictionRate
from gracectl.policy.finalizers import FinalizerSetting
from gracectl.policy.forecast import Assumptions
from gracectl.policy.owners import EVERY_NODE, ManagedNodes
from gracectl.policy.settings import (
    DEFAULT_JITTER,
    DrainSettings,
    HealthSettings,
    NodeGroup,
    PolicySettings,
    ProtectionSettings,
    ReplaceFirst,
    ShutdownPeriods,
    VoluntarySettings,
)
from gracectl.policy.voluntary import parse_expire_after, parse_jitter
from gracectl.policy.waves import DEFAULT_ORDER
from gracectl.telemetry.settings import MetricsSettings, NotificationSettings, ProbesSettings, TracingSettings

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
    "replaceFirst",
    "health",
    "voluntary",
    "interruption.leadTime",
    "eviction",
    "instance",
    "assist.karpenter",
    "assist.clusterAutoscaler",
    "plan",
    "log.level",
    "tracing",
)
"""Reloaded by a running controller: whole sections, and single fields by their path. All else needs a restart."""


class Expression(WireRequirement, frozen=False, forbid_unknown_fields=True):
    """A matchExpressions entry; an unknown field is rejected, because a selector without it selects more."""


class NodeSelector(WireLabelSelector, forbid_unknown_fields=True):
    """Label selector as in manifests."""

    match_expressions: list[Expression] | None = None  # type: ignore[assignment]  # stricter than what it inherits


class NamedNodes(NodeSelector):
    """Selector of a command that a person runs: every node, of any owner."""


class ReplaceFirstSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Which pods are replaced before their eviction, without an annotation of their own; see docs/replace-first.md."""

    namespace_selector: NodeSelector | None = None
    pod_selector: NodeSelector | None = None
    patience: str = "10m"
    always: bool = False

    @property
    def is_wanted(self) -> bool:
        """Whether these settings choose pods."""
        return self.namespace_selector is not None or self.pod_selector is not None or self.always

    def replace_first(self, expected: float) -> ReplaceFirst:
        """Settings for the policy. ValueError, with the field in front, for an invalid value."""
        selectors = {"namespaceSelector": self.namespace_selector, "podSelector": self.pod_selector}
        for field, selector in selectors.items():
            with prefix_errors(field):
                if selector is not None:
                    selector.selector().validate()
        with prefix_errors("patience"):
            patience = parse_seconds(self.patience)
            if patience <= 0:
                raise ValueError(f"{self.patience!r} is not positive; give a duration such as 10m")
        namespaces, pods = (None if each is None else each.selector() for each in selectors.values())
        return ReplaceFirst(namespaces, pods, patience, self.always, expected)


class NodeGroupSettings(ShutdownPeriods, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Settings for some nodes: the first group whose `selector` matches. Omitted fields are as for all nodes."""

    selector: NodeSelector
    termination_grace_period: str | None = None
    """As in a NodeClaim (`15m`, `1h30m`); omitted: no deadline."""
    drain: DrainSettings | None = None
    expire_after: str | None = None
    """Age at which nodes without a claim are terminated: a Go duration (`720h`); omitted or `Never`: never."""
    expire_jitter: str | float | None = None
    """Maximum share of the lifetime by which a node is terminated earlier (`10%`, `0.1`); omitted: 10%."""

    def group(self) -> NodeGroup:
        """Group for the policy. ValueError, with the field in front, for an invalid value."""
        selector, period = self.selector.selector(), self.termination_grace_period
        with prefix_errors("selector"):
            selector.validate()
        with prefix_errors("terminationGracePeriod"):
            seconds = None if period is None else parse_grace_period(period)
        with prefix_errors("expireAfter"):
            expires = None if self.expire_after is None else parse_expire_after(self.expire_after)
        with prefix_errors("expireJitter"):
            jitter = DEFAULT_JITTER if self.expire_jitter is None else parse_jitter(self.expire_jitter)
        return NodeGroup(selector, seconds, self.drain, self.order(), expires, jitter)


class LogSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`auto`: text on a terminal and JSON elsewhere."""

    format: Literal["auto", "json", "text"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ClientSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Client of the API server."""

    request_timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 30.0
    maximum_clock_offset_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = LARGEST_OFFSET
    """Maximum difference of a trusted server's `Date` from this machine's clock."""


class PlanSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Assumption of forecasts: the longest time of a replacement from its creation until it is Ready."""

    replacement_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 30.0


class Settings(ShutdownPeriods, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The whole file; every field has a default, so an empty file is valid."""

    cluster_name: str = ""
    """Name of the cluster in traces; "": `clusterName` of the provider's options, if they have one."""
    node_selector: NodeSelector | None = None
    """Managed nodes; omitted: all without the control-plane role."""
    finalizer: FinalizerSetting = "auto"
    """Holds nodes and claims; `auto`: `gracectl.io/termination` where Karpenter is installed."""
    node_groups: tuple[NodeGroupSettings, ...] = ()
    """Defaults for nodes without a value in their claim; the first match applies."""
    drain: DrainSettings = DrainSettings()
    protection: ProtectionSettings = ProtectionSettings()
    replace_first: ReplaceFirstSettings = ReplaceFirstSettings()
    health: HealthSettings = HealthSettings()
    voluntary: VoluntarySettings = VoluntarySettings()
    interruption: InterruptionSettings = InterruptionSettings()
    eviction: EvictionSettings = EvictionSettings()
    instance: InstanceSettings = InstanceSettings()
    provider: ProviderSettings = ProviderSettings()
    client: ClientSettings = ClientSettings()
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    assist: AssistSettings = AssistSettings()
    plan: PlanSettings = PlanSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    probes: ProbesSettings = ProbesSettings()
    tracing: TracingSettings = TracingSettings()
    notifications: NotificationSettings = NotificationSettings()
    admission: AdmissionSettings = AdmissionSettings()
    agent: AgentSettings = AgentSettings()
    feature_gates: FeatureGates = FeatureGates()

    @property
    def cluster(self) -> str:
        """Name of the cluster in traces; "" if the settings do not name it."""
        named = self.provider.options.get("clusterName")
        return self.cluster_name or (named if isinstance(named, str) else "")

    @property
    def termination(self) -> TerminationSettings:
        """Settings of the controllers."""
        joined = TerminationSettings(
            finalizer=self.finalizer, instance=self.instance, assist=self.assist, policy=self._policy()
        )
        if self.node_selector is None:
            return joined
        is_named = isinstance(self.node_selector, NamedNodes)
        managed = EVERY_NODE if is_named else ManagedNodes(self.node_selector.selector())
        return msgspec.structs.replace(joined, managed=managed)

    @property
    def assumptions(self) -> Assumptions:
        """Assumptions of forecasts."""
        return Assumptions(self.plan.replacement_seconds, EvictionRate(self.eviction.qps, self.eviction.burst))

    @property
    def shutdown(self) -> PolicySettings:
        """Settings of the agent: the shutdown orders, if any; ranges by priority only with their feature gate."""
        if self.feature_gates.by_pod_priority:
            return self._policy()
        groups = tuple(group.without_priorities() for group in self.node_groups)
        return msgspec.structs.replace(self.without_priorities(), node_groups=groups)._policy()

    def _policy(self) -> PolicySettings:
        return PolicySettings(
            drain=self.drain,
            order=self.order() or DEFAULT_ORDER,
            protection=self.protection,
            replace_first=self.replace_first.replace_first(self.plan.replacement_seconds),
            health=self.health,
            voluntary=self.voluntary,
            node_groups=tuple(group.group() for group in self.node_groups),
            lead_seconds=self.interruption.lead_seconds,
            terminates_instances=self.provider.name != NONE,
        )
