"""Roles and bindings that every cluster has from the start (names, rules and order of Kubernetes 1.33).

Roles of components that are not simulated are left out; the parts that replace them are superusers. `view`, `edit` and
`admin` hold the rules that the aggregation controller would gather.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from kubesim.auth.authentication import AUTHENTICATED, UNAUTHENTICATED
from kubesim.auth.rbac import MASTERS, RBAC_GROUP
from kubesim.server.api import JsonObject
from kubesim.server.store import Store

API_VERSION: Final = f"{RBAC_GROUP}/v1"
ANNOTATIONS: Final = {"rbac.authorization.kubernetes.io/autoupdate": "true"}
LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}
AGGREGATE: Final = f"{RBAC_GROUP}/aggregate-to-"

READ: Final = ("get", "list", "watch")
WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
BOTH: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
HEALTH: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")

Given = tuple[str, str, Sequence[str]]
"""A rule on resources: the API group, the resources with blanks between, the verbs."""

TO_VIEW: Final[tuple[Given, ...]] = (
    (
        "",
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers "
        "replicationcontrollers/scale serviceaccounts services services/status",
        READ,
    ),
    (
        "",
        "bindings events limitranges namespaces/status pods/log pods/status replicationcontrollers/status "
        "resourcequotas resourcequotas/status",
        READ,
    ),
    ("", "namespaces", READ),
    ("discovery.k8s.io", "endpointslices", READ),
    (
        "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status replicasets "
        "replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
        READ,
    ),
    ("autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status", READ),
    ("batch", "cronjobs cronjobs/status jobs jobs/status", READ),
    (
        "extensions",
        "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status "
        "networkpolicies replicasets replicasets/scale replicasets/status replicationcontrollers/scale",
        READ,
    ),
    ("policy", "poddisruptionbudgets poddisruptionbudgets/status", READ),
    ("networking.k8s.io", "ingresses ingresses/status networkpolicies", READ),
)
TO_EDIT: Final[tuple[Given, ...]] = (
    ("", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy", READ),
    ("", "serviceaccounts", ("impersonate",)),
    ("", "pods pods/attach pods/exec pods/portforward pods/proxy", WRITE),
    ("", "pods/eviction", ("create",)),
    (
        "",
        "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets "
        "serviceaccounts services services/proxy",
        WRITE,
    ),
    ("", "serviceaccounts/token", ("create",)),
    (
        "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale statefulsets "
        "statefulsets/scale",
        WRITE,
    ),
    ("autoscaling", "horizontalpodautoscalers", WRITE),
    ("batch", "cronjobs jobs", WRITE),
    (
        "extensions",
        "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies replicasets "
        "replicasets/scale replicationcontrollers/scale",
        WRITE,
    ),
    ("policy", "poddisruptionbudgets", WRITE),
    ("networking.k8s.io", "ingresses networkpolicies", WRITE),
    ("coordination.k8s.io", "leases", BOTH),
)
TO_ADMIN: Final[tuple[Given, ...]] = (
    ("authorization.k8s.io", "localsubjectaccessreviews", ("create",)),
    (RBAC_GROUP, "rolebindings roles", BOTH),
)
BASIC: Final[tuple[Given, ...]] = (
    ("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", ("create",)),
    ("authentication.k8s.io", "selfsubjectreviews", ("create",)),
)
DELEGATOR: Final[tuple[Given, ...]] = (
    ("authentication.k8s.io", "tokenreviews", ("create",)),
    ("authorization.k8s.io", "subjectaccessreviews", ("create",)),
)
DISCOVERY: Final = (
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
)
BINDINGS: Final = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}
"""Groups by the name of a binding, which is also that of its role."""


def put_in(store: Store, now: str) -> None:
    """Put the first roles and bindings into an empty store. `now`: their creationTimestamp."""
    for kind, objects in (("ClusterRole", roles()), ("ClusterRoleBinding", bindings())):
        table = store.table(f"{kind.lower()}s.{RBAC_GROUP}")
        store.load(table, [created(kind, object_, now) for object_ in objects])


def roles() -> Iterator[JsonObject]:
    """The first ClusterRoles."""
    view, to_edit, to_admin = on(TO_VIEW), on(TO_EDIT), on(TO_ADMIN)
    edit = [*to_edit, *view]
    yield aggregated("admin", [*edit, *to_admin])
    yield {**named("cluster-admin"), "rules": [*on((("*", "*", ("*",)),)), at(("*",), "*")]}
    yield aggregated("edit", edit, "admin")
    yield {**named("system:aggregate-to-admin", "admin"), "rules": to_admin}
    yield {**named("system:aggregate-to-edit", "edit"), "rules": to_edit}
    yield {**named("system:aggregate-to-view", "view"), "rules": view}
    yield {**named("system:auth-delegator"), "rules": on(DELEGATOR)}
    yield {**named("system:basic-user"), "rules": on(BASIC)}
    yield {**named("system:discovery"), "rules": [at(DISCOVERY, "get")]}
    yield {**named("system:public-info-viewer"), "rules": [at(HEALTH, "get")]}
    yield aggregated("view", view, "edit")


def bindings() -> Iterator[JsonObject]:
    """The first ClusterRoleBindings."""
    for name, groups in BINDINGS.items():
        yield {
            **named(name),
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": RBAC_GROUP, "kind": "Group", "name": group} for group in groups],
        }


def named(name: str, part_of: str = "") -> JsonObject:
    """The metadata of a first object; `part_of` is the role that gathers it."""
    labels = {**LABELS, f"{AGGREGATE}{part_of}": "true"} if part_of else dict(LABELS)
    return {"metadata": {"name": name, "labels": labels, "annotations": dict(ANNOTATIONS)}}


def aggregated(name: str, rules: list[JsonObject], part_of: str = "") -> JsonObject:
    """A role that gathers the rules of others."""
    selector = {"matchLabels": {f"{AGGREGATE}{name}": "true"}}
    return {**named(name, part_of), "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": rules}


def on(given: Sequence[Given]) -> list[JsonObject]:
    """Rules on resources."""
    return [
        {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs)}
        for group, resources, verbs in given
    ]


def at(urls: Sequence[str], verb: str) -> JsonObject:
    """A rule on paths."""
    return {"nonResourceURLs": list(urls), "verbs": [verb]}


def created(kind: str, object_: JsonObject, now: str) -> JsonObject:
    """The object as it is stored, but for its version. Uids follow from names, so that no chance is used up."""
    metadata = object_["metadata"]
    uid = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{API_VERSION}/{kind}/{metadata['name']}"))
    metadata = {"name": metadata["name"], "uid": uid, "creationTimestamp": now, **metadata}
    return {"kind": kind, "apiVersion": API_VERSION, **object_, "metadata": metadata}
