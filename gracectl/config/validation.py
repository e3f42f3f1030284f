"""Validation beyond the types: contradictory values, and texts without a meaning."""

from __future__ import annotations

from gracectl.config.errors import prefix_errors
from gracectl.config.settings import Settings
from gracectl.policy.health import UnhealthyNodes
from gracectl.policy.pace import validate_maximum


def validate_settings(settings: Settings) -> None:
    """Raise ValueError, with the field in front, for invalid values."""
    with prefix_errors("health.maximumUnhealthy"):
        UnhealthyNodes(unhealthy=0, managed=0, maximum=settings.health.maximum_unhealthy).validate()
    with prefix_errors("voluntary.maximumAtOnce"):
        validate_maximum(settings.voluntary.maximum_at_once)
    with prefix_errors("tracing.url"):
        settings.tracing.validate()
    with prefix_errors("voluntary.pendingPatience"):
        assert settings.voluntary.patience_seconds >= 0
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
        with prefix_errors("nodeSelector"):
            settings.node_selector.selector().validate()
    with prefix_errors("metrics.listen"):
        settings.metrics.address()
    with prefix_errors("metrics.labels"):
        settings.metrics.validate()
    with prefix_errors("probes.listen"):
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
    _check_addresses(settings)
    settings.order()
    for number, group in enumerate(settings.node_groups):
        try:
            group.group()
        except ValueError as error:
            raise ValueError(f"nodeGroups[{number}].{error}") from error


def _check_addresses(settings: Settings) -> None:
    """Raise ValueError if an address would have to be served with TLS and without."""
    address = settings.admission.address()
    for field, other in (("metrics", settings.metrics.address()), ("probes", settings.probes.address())):
        if address is not None and address == other and address[1]:
            raise ValueError(
                f"admission.listen: {settings.admission.listen} is served without TLS by {field}.listen; choose "
                "another port"
            )
