"""What each field of the settings may be, and how a file is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from msgspec import inspect

from gracectl.config import ConfigError, load_settings
from gracectl.config.fields import Field, alternatives

NOTHING: Final = ""

UNLIMITED: Final = 1e9
"""The page says once that seconds and rates end here."""

EXAMPLES: Final[dict[str, tuple[str, Any, str]]] = {
    "shutdownGracePeriod": ("5m", "5m", NOTHING),
    "shutdownGracePeriodCriticalPods": ("30s", "30s", "shutdownGracePeriod: 1m"),
    "shutdownGracePeriodByPodPriority": (
        "[{priority: 0, shutdownGracePeriodSeconds: 60}]",
        ({"priority": 0, "shutdownGracePeriodSeconds": 60},),
        NOTHING,
    ),
    "clusterName": ("prod", "prod", "clusterName: other"),
    "nodeSelector": ("{matchLabels: {a: b}}", {"matchLabels": {"a": "b"}, "matchExpressions": None}, NOTHING),
    "nodeSelector.matchLabels": ("{a: b}", {"a": "b"}, "nodeSelector: {}"),
    "nodeSelector.matchExpressions": (
        "[{key: a, operator: Exists}]",
        [{"key": "a", "operator": "Exists", "values": None}],
        "nodeSelector: {}",
    ),
    "nodeGroups": (
        "[{selector: {}, terminationGracePeriod: 5m}]",
        (
            {
                "shutdownGracePeriod": None,
                "shutdownGracePeriodCriticalPods": None,
                "shutdownGracePeriodByPodPriority": None,
                "selector": {"matchLabels": None, "matchExpressions": None},
                "terminationGracePeriod": "5m",
                "drain": None,
                "expireAfter": None,
                "expireJitter": None,
            },
        ),
        NOTHING,
    ),
    "drain.minimumSeconds": ("7", 7.0, "drain: {minimumSeconds: 3}"),
    "protection.from": ("start", "start", NOTHING),
    "protection.maximumSeconds": ("1.5", 1.5, "protection: {from: start}"),
    "replaceFirst.namespaceSelector": (
        "{matchLabels: {a: b}}",
        {"matchLabels": {"a": "b"}, "matchExpressions": None},
        NOTHING,
    ),
    "replaceFirst.namespaceSelector.matchLabels": ("{a: b}", {"a": "b"}, "replaceFirst: {namespaceSelector: {}}"),
    "replaceFirst.namespaceSelector.matchExpressions": (
        "[{key: a, operator: Exists}]",
        [{"key": "a", "operator": "Exists", "values": None}],
        "replaceFirst: {namespaceSelector: {}}",
    ),
    "replaceFirst.podSelector": (
        "{matchLabels: {a: b}}",
        {"matchLabels": {"a": "b"}, "matchExpressions": None},
        NOTHING,
    ),
    "replaceFirst.podSelector.matchLabels": ("{a: b}", {"a": "b"}, "replaceFirst: {podSelector: {}}"),
    "replaceFirst.podSelector.matchExpressions": (
        "[{key: a, operator: Exists}]",
        [{"key": "a", "operator": "Exists", "values": None}],
        "replaceFirst: {podSelector: {}}",
    ),
    "replaceFirst.patience": ("90s", "90s", NOTHING),
    "replaceFirst.always": ("true", True, NOTHING),
    "health.enabled": ("off", False, NOTHING),
    "health.conditions": (
        "[{type: DiskPressure, status: 'True', tolerationSeconds: 5}]",
        ({"type": "DiskPressure", "status": "True", "tolerationSeconds": 5.0},),
        NOTHING,
    ),
    "health.maximumUnhealthy": ("50%", "50%", "health: {maximumUnhealthy: 7}"),
    "health.force": ("yes", True, NOTHING),
    "voluntary.maximumAtOnce": ("25%", "25%", "voluntary: {maximumAtOnce: 3}"),
    "voluntary.waitForReplacement": ("off", False, NOTHING),
    "voluntary.pendingPatience": ("90s", "90s", NOTHING),
    "voluntary.windows": (
        "[{schedule: 0 22 * * *, duration: 4h, timeZone: Europe/Berlin}]",
        ({"schedule": "0 22 * * *", "duration": "4h", "timeZone": "Europe/Berlin"},),
        "voluntary: {windows: [{schedule: '@daily', duration: 1h}]}",
    ),
    "interruption.sources": (
        "[{name: taints, options: {a: b}}]",
        ({"name": "taints", "options": {"a": "b"}},),
        "interruption: {sources: [{name: conditions}]}",
    ),
    "interruption.leadTime": ("1h", "1h", NOTHING),
    "eviction.qps": ("0", 0.0, "eviction: {qps: 5}"),
    "eviction.burst": ("7", 7, NOTHING),
    "eviction.maxInFlight": ("20", 20, "eviction: {maxInFlight: 1}"),
    "eviction.backoffInitialSeconds": ("0.25", 0.25, NOTHING),
    "eviction.backoffMaximumSeconds": ("20", 20.0, NOTHING),
    "eviction.misconfiguredRetrySeconds": ("30", 30.0, NOTHING),
    "eviction.probeSeconds": ("30", 30.0, NOTHING),
    "eviction.settleSeconds": ("5", 5.0, NOTHING),
    "instance.pollInitialSeconds": ("0.75", 0.75, NOTHING),
    "instance.pollMaximumSeconds": ("20", 20.0, NOTHING),
    "instance.retryInitialSeconds": ("2", 2.0, NOTHING),
    "instance.retryMaximumSeconds": ("20", 20.0, NOTHING),
    "provider.name": ("simulated", "simulated", NOTHING),
    "provider.options": ("{endpoint: http://x}", {"endpoint": "http://x"}, "provider: {options: {a: b}}"),
    "client.requestTimeoutSeconds": ("5", 5.0, NOTHING),
    "client.maximumClockOffsetSeconds": ("60", 60.0, NOTHING),
    "leaderElection.enabled": ("false", False, NOTHING),
    "leaderElection.namespace": ("shop", "shop", NOTHING),
    "leaderElection.name": ("other", "other", "leaderElection: {name: another}"),
    "leaderElection.leaseDurationSeconds": ("60", 60, NOTHING),
    "leaderElection.renewDeadlineSeconds": ("12", 12.0, NOTHING),
    "leaderElection.retryPeriodSeconds": ("3", 3.0, NOTHING),
    "assist.karpenter": ("true", True, NOTHING),
    "assist.clusterAutoscaler": ("true", True, NOTHING),
    "assist.clusterAPI": ("true", True, NOTHING),
    "finalizer": ("gracectl.io/termination", "gracectl.io/termination", "finalizer: karpenter.sh/termination"),
    "plan.replacementSeconds": ("60", 60.0, NOTHING),
    "log.format": ("json", "json", NOTHING),
    "log.level": ("debug", "debug", "log: {level: error}"),
    "metrics.listen": (":9090", ":9090", "metrics: {listen: ':1'}"),
    "metrics.labels": ("[zone, nodepool]", ("zone", "nodepool"), "metrics: {labels: [zone]}"),
    "probes.listen": (":9090", ":9090", NOTHING),
    "tracing.url": ("http://t/{trace_id}", "http://t/{trace_id}", "tracing: {url: 'http://u/{trace_id}'}"),
    "admission.listen": (":8443", ":8443", "admission: {service: {name: a}}"),
    "admission.service": ("{name: b}", {"name": "b", "namespace": "", "port": 443}, NOTHING),
    "admission.service.name": ("b", "b", "admission: {service: {name: a}}"),
    "admission.service.namespace": ("shop", "shop", "admission: {service: {name: a}}"),
    "admission.service.port": ("8443", 8443, "admission: {service: {name: a}}"),
    "admission.url": ("https://x:1", "https://x:1", NOTHING),
    "admission.failurePolicy": ("Ignore", "Ignore", NOTHING),
    "admission.timeoutSeconds": ("5", 5, NOTHING),
    "admission.certificates.certFile": ("/a", "/a", NOTHING),
    "admission.certificates.keyFile": ("/a", "/a", NOTHING),
    "admission.certificates.injectFrom": ("a/b", "a/b", NOTHING),
    "admission.certificates.caFile": ("/a", "/a", NOTHING),
    "admission.clientCertificates.caFile": ("/a", "/a", NOTHING),
    "admission.clientCertificates.names": ("[a, b]", ("a", "b"), "admission: {clientCertificates: {caFile: x}}"),
    "admission.secret": ("other", "other", NOTHING),
    "admission.name": ("other", "other", NOTHING),
    "notifications.urlFile": ("/x", "/x", NOTHING),
    "notifications.events": ("[drain-stuck]", ("drain-stuck",), NOTHING),
    "notifications.interval": ("1h", "1h", NOTHING),
    "notifications.text": ("$message", "$message", NOTHING),
    "agent.busAddress": ("unix:path=/x", "unix:path=/x", NOTHING),
    "agent.logindDropInDirectory": ("/x", "/x", NOTHING),
    "agent.impersonateNode": ("true", True, NOTHING),
    "agent.interruptionSource": ("gce", "gce", NOTHING),
    "agent.metadataUrl": ("http://x:80", "http://x:80", NOTHING),
    "agent.approveEvents": ("true", True, "agent: {interruptionSource: azure}"),
    "featureGates.PodPriorityBasedGracefulNodeShutdown": ("false", False, NOTHING),
}
"""By path: another value than the default, as YAML and as it is read; and a file that it fits to, in which the field is
something else."""


def kind_in_words(kind: inspect.Type) -> str:
    """What a field may be, as the documentation says it."""
    return " or ".join(_in_words(each) for each in alternatives(kind) if not isinstance(each, inspect.NoneType))


def _in_words(kind: inspect.Type) -> str:
    match kind:
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{value}`" for value in values)
        case inspect.BoolType():
            return "`true`, `false`"
        case inspect.IntType():
            return f"whole number{_bounds(kind)}"
        case inspect.FloatType():
            return f"number{_bounds(kind)}"
        case inspect.StrType(pattern=str()):
            return "name"
        case inspect.StrType():
            return "text"
        case inspect.ListType() | inspect.VarTupleType():
            return "list"
    return "mapping"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    least = f"≥ {kind.ge:g}" if kind.ge is not None else f"> {kind.gt:g}" if kind.gt is not None else ""
    most = f"≤ {kind.le:g}" if kind.le is not None and kind.le < UNLIMITED else ""
    bounds = ", ".join(filter(None, (least, most)))
    return f" {bounds}" if bounds else ""


def default_in_words(path: str, field: Field) -> str:
    """The defaults, as the documentation has them."""
    if field.default is None:
        # Of what is there with something else only, and has to be said then.
        return "needed" if path == "admission.service.name" else "none"
    if path == "health.conditions":
        return "`Ready` is `False` or `Unknown`, 900 s"
    if field.default in ("", (), {}):
        return {"": '`""`'}.get(str(field.default), "none")
    if isinstance(field.default, tuple):
        return f"`[{', '.join(map(str, field.default))}]`"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"


def refused(file: Path, text: str) -> str:
    """The message with which a settings file of this text is refused, without the file's name."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    message = str(caught.value)
    assert message.startswith(f"settings file {file}: ")
    assert "\n" not in message
    return message.removeprefix(f"settings file {file}: ")
