"""The columns of kubectl's tables, kind by kind (recording tables; others as kube-apiserver's printers write them).

A cell is read from the stored object and the present instant; ages are text, as the server sends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gracectl.model.times import parse_time
from gracectl.sim.server.api import Json, JsonObject
from gracectl.sim.server.resource import Cell, Column

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
ROLE_PREFIX: Final = "node-role.kubernetes.io/"
NAME: Final = Column("Name", lambda object_, now: object_["metadata"].get("name", ""), format="name")


def age(object_: JsonObject, now: float) -> str:
    """How old an object is, as kubectl words it."""
    return since(object_["metadata"].get("creationTimestamp"), now)


def since(instant: str | None, now: float) -> str:
    """How long ago an instant was: `5s`, `3m12s`, `2h`, `4d`."""
    if not instant:
        return UNKNOWN
    return duration(int(now - parse_time(instant)))


def duration(seconds: int) -> str:
    """Seconds as duration.HumanDuration of apimachinery words them: coarser with distance."""
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    return f"{days}d" if days < 730 else f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"


def path(*keys: str, missing: Json = NONE) -> Cell:
    """A cell that shows one field."""

    def read(object_: JsonObject, now: float) -> Json:
        value: Json = object_
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return missing if value in (None, "") else value

    return read


def labels_of(*keys: str) -> Cell:
    """A cell that shows a label selector (matchLabels only)."""
    read = path(*keys, missing={})

    def show(object_: JsonObject, now: float) -> str:
        selector = read(object_, now)
        return ",".join(f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())) or NONE

    return show


def containers(*keys: str, field: str) -> Cell:
    """A cell that joins one field of all containers of a template."""
    read = path(*keys, "containers", missing=[])
    return lambda object_, now: ",".join(container.get(field, "") for container in read(object_, now))


def _node_status(node: JsonObject, now: float) -> str:
    conditions: list[JsonObject] = node["status"].get("conditions") or []
    ready = next((condition["status"] for condition in conditions if condition["type"] == "Ready"), "Unknown")
    words = {"True": "Ready", "False": "NotReady"}.get(ready, "Unknown" if not conditions else "NotReady")
    return f"{words},SchedulingDisabled" if node["spec"].get("unschedulable") else words


def _node_roles(node: JsonObject, now: float) -> str:
    labels: dict[str, str] = node["metadata"].get("labels") or {}
    roles = sorted(label.removeprefix(ROLE_PREFIX) for label in labels if label.startswith(ROLE_PREFIX))
    return ",".join(filter(None, roles)) or NONE


def _node_address(kind: str) -> Cell:
    def read(node: JsonObject, now: float) -> Json:
        addresses: list[JsonObject] = node["status"].get("addresses") or []
        return next((address["address"] for address in addresses if address["type"] == kind), NONE)

    return read


def _pod_ready(pod: JsonObject, now: float) -> str:
    states: list[JsonObject] = pod["status"].get("containerStatuses") or []
    total = len(pod["spec"].get("containers") or ())
    if states:
        return f"{sum(bool(state.get('ready')) for state in states)}/{total}"
    conditions: list[JsonObject] = pod["status"].get("conditions") or []
    ready = any(condition["type"] == "Ready" and condition.get("status") == "True" for condition in conditions)
    return f"{total if ready else 0}/{total}"


def _pod_status(pod: JsonObject, now: float) -> Json:
    status = pod["status"]
    if "deletionTimestamp" in pod["metadata"]:
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    for state in reversed(status.get("containerStatuses") or []):
        here: JsonObject = state.get("state") or {}
        waiting, terminated = here.get("waiting") or {}, here.get("terminated") or {}
        if waiting.get("reason") or terminated.get("reason"):
            return waiting.get("reason") or terminated.get("reason")
    if status.get("reason"):
        return status["reason"]
    return "Completed" if status.get("phase") == "Succeeded" else status.get("phase", "")


def _pod_restarts(pod: JsonObject, now: float) -> str:
    return str(sum(state.get("restartCount", 0) for state in pod["status"].get("containerStatuses") or ()))


def _event_seen(event: JsonObject, now: float) -> str:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return since(last or event["metadata"].get("creationTimestamp"), now)


def _event_object(event: JsonObject, now: float) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _workload_ready(object_: JsonObject, now: float) -> str:
    return f"{object_.get('status', {}).get('readyReplicas', 0)}/{object_.get('spec', {}).get('replicas', 0)}"


def _number(name: str, *keys: str) -> Column:
    return Column(name, path(*keys, missing=0), "integer")


AGE: Final = Column("Age", age)
TEMPLATE: Final = ("spec", "template", "spec")
WIDE_TEMPLATE: Final = (
    Column("Containers", containers(*TEMPLATE, field="name"), wide=True),
    Column("Images", containers(*TEMPLATE, field="image"), wide=True),
    Column("Selector", labels_of("spec", "selector"), wide=True),
)

COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "nodes": (
        NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        AGE,
        Column("Version", path("status", "nodeInfo", "kubeletVersion", missing="")),
        Column("Internal-IP", _node_address("InternalIP"), wide=True),
        Column("External-IP", _node_address("ExternalIP"), wide=True),
        Column("OS-Image", path("status", "nodeInfo", "osImage", missing=UNKNOWN), wide=True),
        Column("Kernel-Version", path("status", "nodeInfo", "kernelVersion", missing=UNKNOWN), wide=True),
        Column("Container-Runtime", path("status", "nodeInfo", "containerRuntimeVersion", missing=UNKNOWN), wide=True),
    ),
    "pods": (
        NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        AGE,
        Column("IP", path("status", "podIP"), wide=True),
        Column("Node", path("spec", "nodeName"), wide=True),
        Column("Nominated Node", path("status", "nominatedNodeName"), wide=True),
        Column("Readiness Gates", lambda pod, now: NONE, wide=True),
    ),
    "poddisruptionbudgets": (
        NAME,
        Column("Min Available", path("spec", "minAvailable", missing="N/A")),
        Column("Max Unavailable", path("spec", "maxUnavailable", missing="N/A")),
        _number("Allowed Disruptions", "status", "disruptionsAllowed"),
        AGE,
    ),
    "deployments": (
        NAME,
        Column("Ready", _workload_ready),
        Column("Up-to-date", path("status", "updatedReplicas", missing=0), "integer"),
        _number("Available", "status", "availableReplicas"),
        AGE,
        *WIDE_TEMPLATE,
    ),
    "replicasets": (
        NAME,
        _number("Desired", "spec", "replicas"),
        _number("Current", "status", "replicas"),
        _number("Ready", "status", "readyReplicas"),
        AGE,
        *WIDE_TEMPLATE,
    ),
    "statefulsets": (NAME, Column("Ready", _workload_ready), AGE, *WIDE_TEMPLATE[:2]),
    "daemonsets": (
        NAME,
        _number("Desired", "status", "desiredNumberScheduled"),
        _number("Current", "status", "currentNumberScheduled"),
        _number("Ready", "status", "numberReady"),
        _number("Up-to-date", "status", "updatedNumberScheduled"),
        _number("Available", "status", "numberAvailable"),
        Column("Node Selector", labels_of("spec", "template", "spec", "nodeSelector")),
        AGE,
        *WIDE_TEMPLATE,
    ),
    "events": (
        Column("Last Seen", _event_seen),
        Column("Type", path("type", missing="")),
        Column("Reason", path("reason", missing="")),
        Column("Object", _event_object),
        Column("Subobject", path("involvedObject", "fieldPath", missing=""), wide=True),
        Column("Source", path("source", "component", missing=""), wide=True),
        Column("Message", path("message", missing="")),
        Column("First Seen", lambda event, now: since(event.get("firstTimestamp"), now), wide=True),
        _number("Count", "count")._replace(wide=True),
        NAME._replace(wide=True),
    ),
    "leases": (NAME, Column("Holder", path("spec", "holderIdentity", missing="")), AGE),
    "serviceaccounts": (NAME, Column("Secrets", lambda account, now: str(len(account.get("secrets") or ()))), AGE),
    "namespaces": (NAME, Column("Status", path("status", "phase", missing="")), AGE),
    "volumeattachments": (
        NAME,
        Column("Attacher", path("spec", "attacher", missing="")),
        Column("PV", path("spec", "source", "persistentVolumeName", missing="")),
        Column("Node", path("spec", "nodeName", missing="")),
        Column("Attached", path("status", "attached", missing=False), "boolean"),
        AGE,
    ),
    "persistentvolumeclaims": (
        NAME,
        Column("Status", path("status", "phase", missing="")),
        Column("Volume", path("spec", "volumeName", missing="")),
        Column("StorageClass", path("spec", "storageClassName", missing="")),
        AGE,
    ),
}
DEFAULT: Final = (NAME, Column("Created At", path("metadata", "creationTimestamp", missing=UNKNOWN), "date"))
