"""Where each kind lives, and the path of one object of it."""

from __future__ import annotations

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
CLAIMS = "/api/v1/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
EVENTS = "/api/v1/events"
CONFIG_MAPS = "/api/v1/configmaps"
SECRETS = "/api/v1/secrets"
SERVICES = "/api/v1/services"
SERVICE_ACCOUNTS = "/api/v1/serviceaccounts"
ENDPOINTS = "/api/v1/endpoints"
REPLICATION_CONTROLLERS = "/api/v1/replicationcontrollers"
DEPLOYMENTS = "/apis/apps/v1/deployments"
REPLICA_SETS = "/apis/apps/v1/replicasets"
STATEFUL_SETS = "/apis/apps/v1/statefulsets"
DAEMON_SETS = "/apis/apps/v1/daemonsets"
REVISIONS = "/apis/apps/v1/controllerrevisions"
JOBS = "/apis/batch/v1/jobs"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
LEASES = "/apis/coordination.k8s.io/v1/leases"
ENDPOINT_SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
ROLES = "/apis/rbac.authorization.k8s.io/v1/roles"
ROLE_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/rolebindings"
CLUSTER_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
CLUSTER_ROLE_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

KINDS = {
    "Pod": PODS,
    "Node": NODES,
    "Namespace": NAMESPACES,
    "PersistentVolumeClaim": CLAIMS,
    "PersistentVolume": VOLUMES,
    "Event": EVENTS,
    "ConfigMap": CONFIG_MAPS,
    "Secret": SECRETS,
    "Service": SERVICES,
    "ServiceAccount": SERVICE_ACCOUNTS,
    "ReplicationController": REPLICATION_CONTROLLERS,
    "Deployment": DEPLOYMENTS,
    "ReplicaSet": REPLICA_SETS,
    "StatefulSet": STATEFUL_SETS,
    "DaemonSet": DAEMON_SETS,
    "ControllerRevision": REVISIONS,
    "Job": JOBS,
    "PriorityClass": PRIORITY_CLASSES,
    "StorageClass": STORAGE_CLASSES,
    "PodDisruptionBudget": BUDGETS,
    "VolumeAttachment": ATTACHMENTS,
    "Lease": LEASES,
    "Endpoints": ENDPOINTS,
    "EndpointSlice": ENDPOINT_SLICES,
    "Role": ROLES,
    "RoleBinding": ROLE_BINDINGS,
    "ClusterRole": CLUSTER_ROLES,
    "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS,
    "CustomResourceDefinition": DEFINITIONS,
}
"""The collection of each kind that the controllers deal with, over all namespaces."""

CLUSTER_KINDS = frozenset(
    {
        "Node",
        "Namespace",
        "PersistentVolume",
        "PriorityClass",
        "StorageClass",
        "VolumeAttachment",
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
    }
)
"""Cluster-scoped kinds of these."""


def path_of(collection: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """`path_of(PODS, "ns", "a", "status")` is `/api/v1/namespaces/ns/pods/a/status`."""
    head, plural = collection.rsplit("/", 1)
    place = f"/namespaces/{namespace}" if namespace else ""
    return "/".join(part for part in (f"{head}{place}/{plural}", name, subresource) if part)
