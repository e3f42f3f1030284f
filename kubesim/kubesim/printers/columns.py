"""The columns of kubectl's tables, kind by kind (recording tables; others as kube-apiserver's printers write them).

A cell is read from the stored object and the present instant; ages are text, as the server sends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubesim.printers import services, volumes
from kubesim.printers.cells import AGE as AGE
from kubesim.printers.cells import NAME as NAME
from kubesim.printers.cells import (
    NONE,
    UNKNOWN,
    containers,
    count,
    duration,
    labels_of,
    number,
    path,
    selector_of,
)
from kubesim.printers.cells import since as since
from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Cell, Column
from kubesim.values import parse_time

ROLE_PREFIX: Final = "node-role.kubernetes.io/"


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
    states: list[JsonObject] = pod["status"].get("containerStatuses") or []
    restarts = sum(state.get("restartCount", 0) for state in states)
    ends = [((state.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or "" for state in states]
    last = max(ends, default="")
    return f"{restarts} ({since(last, now)} ago)" if restarts and last else str(restarts)


def _event_seen(event: JsonObject, now: float) -> str:
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return since(last or event["metadata"].get("creationTimestamp"), now)


def _event_object(event: JsonObject, now: float) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _workload_ready(object_: JsonObject, now: float) -> str:
    return f"{object_.get('status', {}).get('readyReplicas', 0)}/{object_.get('spec', {}).get('replicas', 0)}"


PARTS_OF_MAP: Final = ("data", "binaryData")
TEMPLATE: Final = ("spec", "template", "spec")


def _job_status(job: JsonObject, now: float) -> str:
    met = {each["type"] for each in (job.get("status") or {}).get("conditions") or () if each.get("status") == "True"}
    for end, said in (("Complete", "Complete"), ("Failed", "Failed")):
        if end in met:
            return said
    if "deletionTimestamp" in job["metadata"]:
        return "Terminating"
    on_the_way = ("Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((condition for condition in on_the_way if condition in met), "Running")


def _job_completions(job: JsonObject, now: float) -> str:
    spec, succeeded = job["spec"], (job.get("status") or {}).get("succeeded", 0)
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism") or 0
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(job: JsonObject, now: float) -> str:
    status = job.get("status") or {}
    begin, end = status.get("startTime"), status.get("completionTime")
    return duration(int((parse_time(end) if end else now) - parse_time(begin))) if begin else ""


def _controller(revision: JsonObject, now: float) -> str:
    for owner in revision["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            group = owner["apiVersion"].rpartition("/")[0]
            return f"{owner['kind'].lower()}{'.' if group else ''}{group}/{owner['name']}"
    return NONE


WIDE_TEMPLATE: Final = (
    Column("Containers", containers(*TEMPLATE, field="name"), wide=True),
    Column("Images", containers(*TEMPLATE, field="image"), wide=True),
    Column("Selector", selector_of("spec", "selector"), wide=True),
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
        number("Allowed Disruptions", "status", "disruptionsAllowed"),
        AGE,
    ),
    "deployments": (
        NAME,
        Column("Ready", _workload_ready),
        Column("Up-to-date", path("status", "updatedReplicas", missing=0), "integer"),
        number("Available", "status", "availableReplicas"),
        AGE,
        *WIDE_TEMPLATE,
    ),
    "replicasets": (
        NAME,
        number("Desired", "spec", "replicas"),
        number("Current", "status", "replicas"),
        number("Ready", "status", "readyReplicas"),
        AGE,
        *WIDE_TEMPLATE,
    ),
    "statefulsets": (NAME, Column("Ready", _workload_ready), AGE, *WIDE_TEMPLATE[:2]),
    "daemonsets": (
        NAME,
        number("Desired", "status", "desiredNumberScheduled"),
        number("Current", "status", "currentNumberScheduled"),
        number("Ready", "status", "numberReady"),
        number("Up-to-date", "status", "updatedNumberScheduled"),
        number("Available", "status", "numberAvailable"),
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
        number("Count", "count", wide=True),
        NAME._replace(wide=True),
    ),
    "leases": (NAME, Column("Holder", path("spec", "holderIdentity", missing="")), AGE),
    "serviceaccounts": (NAME, Column("Secrets", lambda account, now: str(len(account.get("secrets") or ()))), AGE),
    "namespaces": (NAME, Column("Status", path("status", "phase", missing="")), AGE),
    "replicationcontrollers": (
        NAME,
        number("Desired", "spec", "replicas"),
        number("Current", "status", "replicas"),
        number("Ready", "status", "readyReplicas"),
        AGE,
        *WIDE_TEMPLATE[:2],
        Column("Selector", labels_of("spec", "selector"), wide=True),
    ),
    "controllerrevisions": (NAME, Column("Controller", _controller), number("Revision", "revision"), AGE),
    "jobs": (
        NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        AGE,
        *WIDE_TEMPLATE,
    ),
    "configmaps": (NAME, Column("Data", lambda map_, now: sum(count(part)(map_, now) for part in PARTS_OF_MAP)), AGE),
    "secrets": (NAME, Column("Type", path("type", missing="")), Column("Data", count("data")), AGE),
    "priorityclasses": (
        NAME,
        number("Value", "value"),
        Column("Global-Default", path("globalDefault", missing=False), "boolean"),
        AGE,
        Column("PreemptionPolicy", path("preemptionPolicy", missing="")),
    ),
    **services.COLUMNS,
    **volumes.COLUMNS,
}
DEFAULT: Final = (NAME, Column("Created At", path("metadata", "creationTimestamp", missing=UNKNOWN), "date"))
