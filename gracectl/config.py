"""The settings file: one YAML document, read once, checked whole, joined from the settings that each room owns.

A file that does not fit changes nothing: the error names the file, the path of the field, what is wrong and what would
be right, and the program ends before it has spoken to any cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

from gracectl.admission.settings import AdmissionSettings
from gracectl.agent.settings import AgentSettings, FeatureGates
from gracectl.cloud.registry import ProviderSettings
from gracectl.eviction.settings import EvictionSettings
from gracectl.kube.settings import LeaderElectionSettings
from gracectl.model.selectors import WireLabelSelector, WireRequirement
from gracectl.policy.deadlines import parse_grace_period
from gracectl.policy.health import Tally
from gracectl.policy.settings import (
    DrainSettings,
    HealthSettings,
    NodeGroup,
    PolicySettings,
    ProtectionSettings,
    ShutdownPeriods,
)
from gracectl.policy.waves import DEFAULT_ORDER
from gracectl.runtime.documents import DocumentError, document, file_text
from gracectl.telemetry.settings import MetricsSettings, ProbesSettings
from gracectl.termination.settings import InstanceSettings, KarpenterSettings, TerminationSettings


class ConfigError(Exception):
    """The settings cannot be used; the message names the file, the field and the remedy."""


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

    def group(self) -> NodeGroup:
        """As decisions read it. ValueError, with the field in front, for what cannot be read."""
        selector, period = self.selector.selector(), self.termination_grace_period
        with _named("selector"):
            selector.validate()
        with _named("terminationGracePeriod"):
            seconds = None if period is None else parse_grace_period(period)
        return NodeGroup(selector, seconds, self.drain, self.order())


class LogSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`auto` writes text to a terminal and JSON elsewhere."""

    format: Literal["auto", "json", "text"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ClientSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How the API server is spoken to."""

    request_timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 30.0


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
            node_groups=tuple(group.group() for group in self.node_groups),
        )


def load_settings(path: Path | None) -> Settings:
    """Read the settings file; no path means the defaults. Raises ConfigError."""
    if path is None:
        return Settings()
    try:
        read: Any = document(file_text(path))
    except DocumentError as error:
        raise ConfigError(f"settings file {path}: {error}") from error
    try:
        settings = msgspec.convert({} if read is None else read, Settings)
        _check(settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings file {path}: {_explained(error)}") from error
    except ValueError as error:
        raise ConfigError(f"settings file {path}: {error}") from error
    return settings


def _check(settings: Settings) -> None:
    """ValueError, with the field in front, for what the types alone cannot tell."""
    with _named("health.maximumUnhealthy"):
        Tally(unhealthy=0, managed=0, maximum=settings.health.maximum_unhealthy).validate()
    for field, initial, maximum in (
        ("eviction.backoff", settings.eviction.backoff_initial_seconds, settings.eviction.backoff_maximum_seconds),
        ("instance.poll", settings.instance.poll_initial_seconds, settings.instance.poll_maximum_seconds),
        ("instance.retry", settings.instance.retry_initial_seconds, settings.instance.retry_maximum_seconds),
    ):
        if initial > maximum:
            raise ValueError(
                f"{field}InitialSeconds: {initial:g} is more than {field}MaximumSeconds, which is {maximum:g}"
            )
    if settings.node_selector is not None:
        with _named("nodeSelector"):
            settings.node_selector.selector().validate()
    with _named("metrics.listen"):
        settings.metrics.address()
    with _named("probes.listen"):
        settings.probes.address()
    for section, validate in (
        ("leaderElection", settings.leader_election.validate),
        ("admission", settings.admission.validate),
        ("agent", settings.agent.validate),
    ):
        try:
            validate()
        except ValueError as error:
            raise ValueError(f"{section}.{error}") from error
    _check_doors(settings)
    settings.order()
    for number, group in enumerate(settings.node_groups):
        try:
            group.group()
        except ValueError as error:
            raise ValueError(f"nodeGroups[{number}].{error}") from error


def _check_doors(settings: Settings) -> None:
    """ValueError where the same address would have to be with TLS and without."""
    address = settings.admission.address()
    for field, other in (("metrics", settings.metrics.address()), ("probes", settings.probes.address())):
        if address is not None and address == other and address[1]:
            raise ValueError(
                f"admission.listen: {settings.admission.listen} is where {field}.listen is served without TLS; choose "
                "another port"
            )


@contextmanager
def _named(field: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error


def _explained(error: msgspec.ValidationError) -> str:
    """`$.eviction.qps` becomes `eviction.qps`; the field first, then what is wrong with it, and what would be right."""
    reason, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".") or "the document"
    if "unknown field" in reason:
        reason += "; remove it or correct its name (the README lists every field)"
    elif reason == "Expected `str`, got `bool`":
        reason += "; put the word in quotes"
    elif choices := _choices(field):
        reason += f"; choose one of {', '.join(choices)}"
    return f"{field}: {reason}"


def _choices(field: str) -> tuple[str, ...]:
    """The words that a field takes, if it takes only some."""
    kind: inspect.Type = inspect.type_info(Settings)
    for name in (part.partition("[")[0] for part in field.split(".")):
        fields = {one.encode_name: one.type for one in kind.fields} if isinstance(kind, inspect.StructType) else {}
        if name not in fields:
            return ()
        kind = fields[name]
        if isinstance(kind, inspect.VarTupleType):
            kind = kind.item_type
    return tuple(map(str, kind.values)) if isinstance(kind, inspect.LiteralType) else ()
