"""Defaults of pod specs, for pods and templates (k8s.io/kubernetes pkg/apis/core/v1/defaults.go).

Admission defaults (priority, tolerations) are elsewhere. Values are shared, never changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.server.api import Json, JsonObject

SPEC_DEFAULTS: Final[Mapping[str, Json]] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
}
CONTAINER_DEFAULTS: Final[Mapping[str, Json]] = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
PROBE_DEFAULTS: Final[Mapping[str, Json]] = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
MODE: Final = 0o644
VOLUME_DEFAULTS: Final[Mapping[str, Mapping[str, Json]]] = {
    "secret": {"defaultMode": MODE},
    "configMap": {"defaultMode": MODE},
    "downwardAPI": {"defaultMode": MODE},
    "projected": {"defaultMode": MODE},
    "hostPath": {"type": ""},
}


def with_spec_defaults(given: JsonObject) -> JsonObject:
    """A pod's spec with what the server fills in."""
    spec: JsonObject = {**given, "containers": [with_defaults(each) for each in given.get("containers") or []]}
    if given.get("initContainers"):
        spec["initContainers"] = [with_defaults(each) for each in given["initContainers"]]
    if given.get("volumes"):
        spec["volumes"] = [_volume(each) for each in given["volumes"]]
    account = given.get("serviceAccountName") or given.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for key, value in SPEC_DEFAULTS.items():
        spec.setdefault(key, value)
    return spec


def with_template_defaults(template: Json) -> Json:
    """A pod template with what the server fills in; the very same if nothing was missing."""
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        return template
    spec = with_spec_defaults(template["spec"])
    if spec == template["spec"]:
        return template
    metadata = template.get("metadata") or {}
    return {**template, "metadata": {"creationTimestamp": None, **metadata}, "spec": spec}


def with_defaults(container: JsonObject) -> JsonObject:
    """A container with what the server fills in."""
    image: str = container.get("image", "")
    tag = image.rpartition("/")[2].partition(":")[2]
    policy = "IfNotPresent" if "@" in image or (tag and tag != "latest") else "Always"
    filled = {**CONTAINER_DEFAULTS, "imagePullPolicy": policy, **container}
    if container.get("ports"):
        filled["ports"] = [{**port, "protocol": port.get("protocol") or "TCP"} for port in container["ports"]]
    if container.get("env"):
        filled["env"] = [_variable(each) for each in container["env"]]
    limits = (container.get("resources") or {}).get("limits")
    if limits:
        requests = container["resources"].get("requests") or {}
        filled["resources"] = {**container["resources"], "requests": {**limits, **requests}}
    for name in PROBES:
        if container.get(name):
            filled[name] = _probe(container[name])
    return filled


def _probe(probe: JsonObject) -> JsonObject:
    filled = {**PROBE_DEFAULTS, **probe}
    if probe.get("httpGet"):
        filled["httpGet"] = {"path": "/", "scheme": "HTTP", **probe["httpGet"]}
    if probe.get("grpc"):
        filled["grpc"] = {"service": "", **probe["grpc"]}
    return filled


def _variable(variable: JsonObject) -> JsonObject:
    source = variable.get("valueFrom") or {}
    if not source.get("fieldRef"):
        return variable
    return {**variable, "valueFrom": {**source, "fieldRef": {"apiVersion": "v1", **source["fieldRef"]}}}


def _volume(volume: JsonObject) -> JsonObject:
    filled = volume if len(volume) > 1 else {**volume, "emptyDir": {}}
    for kind, defaults in VOLUME_DEFAULTS.items():
        source = filled.get(kind)
        if isinstance(source, dict):
            filled = {**filled, kind: {**defaults, **source}}
    return filled
