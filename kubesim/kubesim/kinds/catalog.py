"""The kinds that are built in, as data: where each is served, its short names, its selectable fields, its strategy."""

from __future__ import annotations

from kubesim.kinds.events import CORE_FIELDS, NEW_FIELDS, NEW_VIEW, NewEventStrategy
from kubesim.kinds.eventttl import Expiry
from kubesim.kinds.inert import inert_kinds
from kubesim.kinds.nodes import NodeStrategy
from kubesim.kinds.pods import PodStrategy
from kubesim.kinds.rbac import access_kinds
from kubesim.kinds.serviceaccounts import AccountedPods
from kubesim.kinds.services import Service
from kubesim.kinds.settings import PriorityClass, Secret
from kubesim.kinds.workloads import (
    Attachment,
    Budget,
    Counted,
    EventStrategy,
    Job,
    LeaseStrategy,
    NamespaceStrategy,
    Plain,
    Protected,
    Stateful,
    Templated,
    TopLevel,
    VolumeStrategy,
    new_budget,
    old_budget,
)
from kubesim.printers.columns import DEFAULT
from kubesim.server.api import JsonObject
from kubesim.server.resource import NO_COLLECTION, Resource, View, fields
from kubesim.server.store import Store

UNSELECTABLE = "field label not supported: {field}"
POD_FIELDS = fields(
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
NODE_FIELDS = {
    **fields(),
    # A bool that is left out when false still selects as "false".
    "spec.unschedulable": lambda node: "true" if node["spec"].get("unschedulable") else "false",
}
ZERO: JsonObject = {"replicas": 0}
DEPLOYMENT: JsonObject = {
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}},
    "revisionHistoryLimit": 10,
    "progressDeadlineSeconds": 600,
}
STATEFUL_SET: JsonObject = {
    "podManagementPolicy": "OrderedReady",
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    "revisionHistoryLimit": 10,
    "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
}
DAEMON_SET: JsonObject = {
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
    "revisionHistoryLimit": 10,
}
JOB: JsonObject = {
    "backoffLimit": 6,
    "completionMode": "NonIndexed",
    "suspend": False,
    "podReplacementPolicy": "TerminatingOrFailed",
}
DAEMON_STATUS = {
    "currentNumberScheduled": 0,
    "numberMisscheduled": 0,
    "desiredNumberScheduled": 0,
    "numberReady": 0,
}
IN_CONTAINERS = ("attach", "exec", "log", "portforward", "proxy")
NO_CONTAINERS = "this is an embedded cluster: pods have no containers that could answer"
ALL = ("all",)
STATUS = ("status",)
SCALE = ("scale", "status")


def built_in(store: Store, expiry: Expiry | None = None, *, service_accounts: bool = False) -> tuple[Resource, ...]:
    """Every built-in resource. `expiry` notes written events; `service_accounts`: every pod needs an existing one."""
    priorities, accounts = store.table("priorityclasses.scheduling.k8s.io"), store.table("serviceaccounts")
    pods = AccountedPods(priorities, accounts) if service_accounts else PodStrategy(priorities)
    return (*_core(pods, expiry), *_apps(), *_others(expiry), *_policy(), *_storage(), *access_kinds(), *inert_kinds())


def _core(pods: PodStrategy, expiry: Expiry | None) -> tuple[Resource, ...]:
    return (
        Resource(
            group="",
            version="v1",
            plural="pods",
            kind="Pod",
            namespaced=True,
            strategy=pods,
            subresources=("binding", "eviction", "status"),
            absent=dict.fromkeys(IN_CONTAINERS, NO_CONTAINERS),
            short_names=("po",),
            categories=ALL,
            selectable=POD_FIELDS,
            unselectable=UNSELECTABLE,
        ),
        Resource(
            group="",
            version="v1",
            plural="nodes",
            kind="Node",
            namespaced=False,
            strategy=NodeStrategy(),
            subresources=STATUS,
            short_names=("no",),
            selectable=NODE_FIELDS,
            unselectable=UNSELECTABLE,
        ),
        Resource(
            group="",
            version="v1",
            plural="namespaces",
            kind="Namespace",
            namespaced=False,
            strategy=NamespaceStrategy(),
            verbs=NO_COLLECTION,
            subresources=("finalize", "status"),
            short_names=("ns",),
            selectable=fields("status.phase"),
            unselectable=UNSELECTABLE,
        ),
        Resource(
            group="",
            version="v1",
            plural="events",
            kind="Event",
            namespaced=True,
            strategy=EventStrategy(expiry),
            short_names=("ev",),
            selectable=CORE_FIELDS,
            unselectable=UNSELECTABLE,
            watch_cached=False,
        ),
        Resource(
            group="",
            version="v1",
            plural="persistentvolumes",
            kind="PersistentVolume",
            namespaced=False,
            strategy=VolumeStrategy(
                "kubernetes.io/pv-protection",
                persistentVolumeReclaimPolicy="Retain",
                volumeMode="Filesystem",
            ),
            subresources=STATUS,
            short_names=("pv",),
        ),
        Resource(
            group="",
            version="v1",
            plural="persistentvolumeclaims",
            kind="PersistentVolumeClaim",
            namespaced=True,
            strategy=Protected("kubernetes.io/pvc-protection", volumeMode="Filesystem"),
            subresources=STATUS,
            short_names=("pvc",),
        ),
        *(
            Resource(
                group="",
                version="v1",
                plural=plural,
                kind=kind,
                namespaced=True,
                strategy=strategy,
                short_names=short,
                subresources=subresources,
            )
            for plural, kind, short, subresources, strategy in (
                ("configmaps", "ConfigMap", ("cm",), (), TopLevel()),
                ("endpoints", "Endpoints", ("ep",), (), TopLevel()),
                ("secrets", "Secret", (), (), Secret()),
                ("serviceaccounts", "ServiceAccount", ("sa",), ("token",), TopLevel()),
            )
        ),
        Resource(
            group="",
            version="v1",
            plural="services",
            kind="Service",
            namespaced=True,
            strategy=Service(),
            subresources=STATUS,
            short_names=("svc",),
            categories=ALL,
        ),
        Resource(
            group="",
            version="v1",
            plural="replicationcontrollers",
            kind="ReplicationController",
            namespaced=True,
            strategy=Counted({"replicas": 0}, replicas=1),
            subresources=SCALE,
            short_names=("rc",),
            categories=ALL,
        ),
    )


OLD_BUDGETS = (
    "policy/v1beta1 PodDisruptionBudget is deprecated in v1.21+, unavailable in v1.25+; use policy/v1 "
    "PodDisruptionBudget"
)


def _policy() -> tuple[Resource, ...]:
    old = View(from_stored=old_budget, to_stored=new_budget)
    return tuple(
        Resource(
            group="policy",
            version=version,
            plural="poddisruptionbudgets",
            kind="PodDisruptionBudget",
            namespaced=True,
            strategy=Budget(),
            subresources=STATUS,
            short_names=("pdb",),
            view=view,
            warning=warning,
        )
        for version, view, warning in (("v1", None, ""), ("v1beta1", old, OLD_BUDGETS))
    )


SCALABLE = ("deployments", "replicasets", "statefulsets")


def _apps() -> tuple[Resource, ...]:
    kinds = (
        ("apps", "deployments", "Deployment", Templated("Deployment", {}, replicas=1, **DEPLOYMENT), ("deploy",)),
        ("apps", "replicasets", "ReplicaSet", Templated("ReplicaSet", ZERO, replicas=1), ("rs",)),
        ("apps", "statefulsets", "StatefulSet", Stateful("StatefulSet", ZERO, replicas=1, **STATEFUL_SET), ("sts",)),
        ("apps", "daemonsets", "DaemonSet", Templated("DaemonSet", DAEMON_STATUS, **DAEMON_SET), ("ds",)),
        ("batch", "jobs", "Job", Job("Job", {}, **JOB), ()),
    )
    revisions = Resource(
        group="apps",
        version="v1",
        plural="controllerrevisions",
        kind="ControllerRevision",
        namespaced=True,
        strategy=TopLevel(),
    )
    return revisions, *(
        Resource(
            group=group,
            version="v1",
            plural=plural,
            kind=kind,
            namespaced=True,
            strategy=strategy,
            subresources=SCALE if plural in SCALABLE else STATUS,
            short_names=short,
            categories=ALL,
        )
        for group, plural, kind, strategy, short in kinds
    )


def _storage() -> tuple[Resource, ...]:
    return (
        Resource(
            group="storage.k8s.io",
            version="v1",
            plural="volumeattachments",
            kind="VolumeAttachment",
            namespaced=False,
            strategy=Attachment(),
            subresources=STATUS,
        ),
        Resource(
            group="storage.k8s.io",
            version="v1",
            plural="storageclasses",
            kind="StorageClass",
            namespaced=False,
            strategy=TopLevel(),
            short_names=("sc",),
        ),
        Resource(
            group="storage.k8s.io",
            version="v1",
            plural="csinodes",
            kind="CSINode",
            namespaced=False,
            strategy=Plain(),
        ),
    )


def _others(expiry: Expiry | None) -> tuple[Resource, ...]:
    return (
        Resource(
            group="events.k8s.io",
            version="v1",
            plural="events",
            kind="Event",
            namespaced=True,
            stored_as="events",
            strategy=NewEventStrategy(expiry),
            short_names=("ev",),
            selectable=NEW_FIELDS,
            unselectable=UNSELECTABLE,
            columns=DEFAULT,
            view=NEW_VIEW,
            watch_cached=False,
        ),
        Resource(
            group="coordination.k8s.io",
            version="v1",
            plural="leases",
            kind="Lease",
            namespaced=True,
            strategy=LeaseStrategy(),
        ),
        Resource(
            group="discovery.k8s.io",
            version="v1",
            plural="endpointslices",
            kind="EndpointSlice",
            namespaced=True,
            strategy=TopLevel(),
        ),
        Resource(
            group="scheduling.k8s.io",
            version="v1",
            plural="priorityclasses",
            kind="PriorityClass",
            namespaced=False,
            strategy=PriorityClass(),
            short_names=("pc",),
        ),
    )
