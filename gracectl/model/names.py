"""Names that gracectl reads from or writes to a cluster.

Existing manifests must keep working, so the names come from Kubernetes and from the Karpenter designs that gracectl
follows. No other module spells an annotation, label, taint, finalizer, condition type or event reason.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# -- API groups ---------------------------------------------------------------------------------------
KARPENTER_GROUP: Final = "karpenter.sh"
"""NodeClaim; served as v1 and v1beta1."""
TERMINATION_GROUP: Final = "termination.karpenter.sh"
"""NodeDisruptionBudget."""
TERMINATION_VERSION: Final = "v1alpha2"
GROUP: Final = "gracectl.io"
"""NodeDrain."""
CLUSTER_API_GROUP: Final = "cluster.x-k8s.io"
"""Machine of Cluster API; served as v1beta2 and v1beta1."""

# -- finalizers ---------------------------------------------------------------------------------------
FINALIZER: Final = "karpenter.sh/termination"
"""Holds Nodes and NodeClaims until the instance is gone; always removed last."""
OWN_FINALIZER: Final = "gracectl.io/termination"
"""The same, where Karpenter is installed."""
FINALIZERS: Final = (FINALIZER, OWN_FINALIZER)
OUR_FINALIZER: Final = f"finalizer of gracectl ({FINALIZER} or {OWN_FINALIZER})"
"""The finalizer in messages about objects that may have either."""

# -- annotations --------------------------------------------------------------------------------------
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
"""On pods: "true" or a Go duration."""
DO_NOT_EVICT: Final = "karpenter.sh/do-not-evict"
"""On pods, label or annotation, "true": blocks the drain of the whole node."""
TERMINATION_TIMESTAMP: Final = "karpenter.sh/nodeclaim-termination-timestamp"
"""On claims and nodes: the deadline, RFC 3339; never moved later."""
FORCED_DEADLINE: Final = "gracectl.io/forced-deadline"
"""On claims and nodes that are terminated by force: the deadline that was written for it and, behind a space, the
one before. Removed when the force is lifted.
"""
KEEP_DRAINED: Final = "gracectl.io/keep-drained"
"""On nodes: request to drain it for maintenance; when (RFC 3339). Removed to end the maintenance."""
DRAIN_DEADLINE: Final = "gracectl.io/drain-deadline"
"""On nodes in maintenance: the deadline of their drain, RFC 3339. Removed when the node is drained."""
CORDONED: Final = "gracectl.io/cordoned"
"""On nodes in maintenance: what an uncordon removes, words with commas between; empty when only conditions are left."""
UNCORDONED: Final = "gracectl.io/uncordoned"
"""Node annotation: end (RFC 3339) of a maintenance of an unhealthy node, from which its health counts."""
NODE_DRAIN: Final = "gracectl.io/node-drain"
"""On nodes that a NodeDrain has begun: its name and UID, with a slash between. On NodeDrains: our finalizer."""
REQUESTED_BY: Final = "gracectl.io/requested-by"
"""On NodeDrains: the user who created it. Written by our admission webhook, whatever the client sends."""
GATE: Final = "gate.gracectl.io/"
"""Prefix of annotations on nodes and NodeDrains: no NodeDrain begins the node before its owner removes it."""
PENDING_CORDONED: Final = "gracectl.io/pending-cordoned"
"""Node annotation: comma-separated list of what gracectl added to a pending node, removed with the label."""
SHUTDOWN_CORDONED: Final = "gracectl.io/shutdown-cordoned"
"""Node annotation of the agent: what it added for a shutdown and removes when the machine is up, comma-separated
between.
"""
INTERRUPTION: Final = "gracectl.io/interruption"
"""On nodes: notice that their machine will go, its kind, time and source: `spot 2026-01-01T00:02:00Z aws`. Removed to
ignore it."""
TRACEPARENT: Final = "gracectl.io/traceparent"
"""On nodes and claims that are terminated while traces are exported: the W3C trace context."""
REPLACE_FIRST: Final = "gracectl.io/replace-first"
"""On pods: "true" to replace it before its eviction, "false" never to. As a label in the selector of a ReplicaSet
without a Deployment: the label that is changed."""
RELEASED_FROM: Final = "gracectl.io/released-from"
"""On pods that are released for their replacement: what they were released from (see `policy.release`)."""
REPLACEMENT_FAILED: Final = "gracectl.io/replacement-failed"
"""On pods: when (RFC 3339) it was returned since its replacement was not Ready in time."""
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
MIRROR_POD: Final = "kubernetes.io/config.mirror"
"""Set by the kubelet on the API object of a static pod."""
AUTOSCALER_DAEMON_POD: Final = "cluster-autoscaler.kubernetes.io/daemonset-pod"
"""On pods, "true": Cluster Autoscaler takes it for a pod of a DaemonSet."""

A8R_OWNER: Final = "a8r.io/owner"
"""On workloads, by the convention of https://ambassadorlabs.github.io/k8s-for-humans: who owns it."""
OWNER_KEYS: Final = (A8R_OWNER, "owner", "team", "contact")
"""Annotations and labels of pods that name the owner of the workload; the first one counts."""

CLUSTER_API_MACHINE: Final = "cluster.x-k8s.io/machine"
"""On nodes, by Cluster API, as are the next three: the name of its Machine."""
CLUSTER_API_NAMESPACE: Final = "cluster.x-k8s.io/cluster-namespace"
CLUSTER_API_CLUSTER: Final = "cluster.x-k8s.io/cluster-name"
"""A label of Machines, too."""
CLUSTER_API_OWNER_KIND: Final = "cluster.x-k8s.io/owner-kind"
"""MachineSet, or MachinePool, or the kind of a control plane."""
CLUSTER_API_PAUSED: Final = "cluster.x-k8s.io/paused"
"""On Machines: Cluster API leaves it alone."""
CLUSTER_API_DRAIN: Final = "cluster.x-k8s.io/drain"
"""Label of pods: Cluster API does not evict the pod."""
EXCLUDE_NODE_DRAINING: Final = "machine.cluster.x-k8s.io/exclude-node-draining"
"""On Machines: Cluster API does not drain its node before deleting it."""
EXCLUDE_VOLUME_DETACH: Final = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach"
"""Machine annotation: do not wait for the volumes of its node."""

CLAIM_ANNOTATIONS: Final = frozenset({TERMINATION_TIMESTAMP, FORCED_DEADLINE, TRACEPARENT})
"""Likewise for node claims."""
NODE_ANNOTATIONS: Final = CLAIM_ANNOTATIONS | {
    *(DO_NOT_DISRUPT, KEEP_DRAINED, DRAIN_DEADLINE, CORDONED, UNCORDONED, PENDING_CORDONED, SHUTDOWN_CORDONED),
    *(INTERRUPTION, NODE_DRAIN),
}
"""Likewise for nodes."""

# -- labels -------------------------------------------------------------------------------------------
LIFECYCLE_PHASE: Final = "karpenter.sh/lifecycle-phase"
LIFECYCLE_PHASE_TERMINABLE: Final = "terminable"
"""Value of LIFECYCLE_PHASE that requests the (voluntary) termination of a node."""
NODE_POOL: Final = "karpenter.sh/nodepool"
"""On nodes and claims of Karpenter: the name of their NodePool."""
EXCLUDE_FROM_LOAD_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
CONTROL_PLANE_ROLE: Final = "node-role.kubernetes.io/control-plane"

# -- taints -------------------------------------------------------------------------------------------
DISRUPTED_TAINT_KEY: Final = "karpenter.sh/disrupted"
"""Put on a node that is being drained; pods that tolerate it stay."""
UNREGISTERED_TAINT_KEY: Final = "karpenter.sh/unregistered"
"""On nodes of Karpenter that it has not labeled yet."""
UNSCHEDULABLE_TAINT_KEY: Final = "node.kubernetes.io/unschedulable"
"""Put by the node controller on a node with spec.unschedulable."""
TO_BE_DELETED_TAINT_KEY: Final = "ToBeDeletedByClusterAutoscaler"
"""On nodes that Cluster Autoscaler drains: the value is the instant (Unix seconds)."""
UNREACHABLE_TAINT_KEY: Final = "node.kubernetes.io/unreachable"

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
POD_TEMPLATE_HASH: Final = "pod-template-hash"
ROLLOUT_HASH: Final = "rollouts-pod-template-hash"
"""POD_TEMPLATE_HASH of Argo Rollouts."""
RELEASED: Final = "released"
"""Value of that label of a released pod: no hash, which has no vowels."""
HOSTNAME: Final = "kubernetes.io/hostname"

# -- conditions ---------------------------------------------------------------------------------------
READY: Final = "Ready"
"""Condition of nodes, pods and claims."""
DRAINED: Final = "Drained"
"""Condition of claims and nodes; while it is False, its message names the blocker."""
VOLUMES_DETACHED: Final = "VolumesDetached"
STILL_ATTACHED: Final = "StillAttached"
"""Reason of VolumesDetached: a volume has been attached for a minute after its pod was gone."""
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by hand on a node without power: Kubernetes detaches its volumes immediately."""
INSTANCE_TERMINATING: Final = "InstanceTerminating"
INSTANCE_GONE: Final = "InstanceGone"
"""Reason of INSTANCE_TERMINATING after the provider has confirmed it; the instance is not queried again."""
EVICTION_REFUSED: Final = "EvictionRefused"
"""Reason of DRAINED while the server refuses evictions, and not for a budget: only the controller knows that."""
BUDGET_SETTLING: Final = "BudgetSettling"
"""Reason of DRAINED while pods wait that have just lost their budget: only the controller has seen that."""
REPLACING: Final = "Replacing"
"""Reason of DRAINED while pods are replaced before their eviction: only the controller has read their workloads."""
STEP_FAILING: Final = "StepFailing"
"""Reason of DRAINED and INSTANCE_TERMINATING while an earlier step fails."""
TERMINATION_CONDITIONS: Final = frozenset({DRAINED, VOLUMES_DETACHED, INSTANCE_TERMINATING})
MAINTENANCE: Final = "Maintenance"
"""Reason of DRAINED, True, of a node in maintenance."""
STUCK_PODS: Final = "StuckPods"
"""Reason of DRAINED, False, of a node in maintenance on which nothing is left but stuck pods."""
MAINTENANCE_REASONS: Final = frozenset({MAINTENANCE, STUCK_PODS})
TERMINATION_PENDING: Final = "TerminationPending"
"""Condition of nodes: a termination for health, label or age is pending; the reason names the cause of the wait."""
INTERRUPTED: Final = "Interrupted"
"""Condition of nodes: a notice says that the machine will go; the reason is its kind."""
SHUTTING_DOWN: Final = "ShuttingDown"
"""Condition of nodes, set by the agent: the machine shuts down, and its pods leave range by range."""
REGISTERED: Final = "Registered"
"""Condition of claims: the instance has become a node. Present but not True: not yet."""
DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
"""Condition of disruption budgets, for pods and for nodes."""
SYNC_FAILED: Final = "SyncFailed"
"""Reason of DISRUPTION_ALLOWED where the budget cannot be counted; its message says why."""

PROGRESSING: Final = "Progressing"
BLOCKED: Final = "Blocked"
COMPLETE: Final = "Complete"
"""Conditions of NodeDrains; the fourth is FAILED."""

SUFFICIENT_NODES: Final = "SufficientNodes"
INSUFFICIENT_NODES: Final = "InsufficientNodes"
"""Reasons of DISRUPTION_ALLOWED of a node disruption budget that can be counted."""

NEVER_REPORTED: Final = "NodeStatusNeverUpdated"
"""Reason set by the node lifecycle controller where no kubelet has ever reported."""

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

# -- pods ---------------------------------------------------------------------------------------------
PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
SYSTEM_CLUSTER_CRITICAL: Final = "system-cluster-critical"
SYSTEM_NODE_CRITICAL: Final = "system-node-critical"
CRITICAL_PRIORITY_CLASSES: Final = frozenset({SYSTEM_CLUSTER_CRITICAL, SYSTEM_NODE_CRITICAL})
CRITICAL_PRIORITY: Final = 2_000_000_000
"""The priority of SYSTEM_CLUSTER_CRITICAL, the least that is critical."""
DISRUPTION_TARGET: Final = "DisruptionTarget"
"""Condition of pods that end because of a disruption; the Job controller does not take it for a failure (KEP-3329)."""
DELETION_BY_GRACECTL: Final = "DeletionByGracectl"
"""Reason of DISRUPTION_TARGET: deleted for the deadline of its node. An eviction has EvictionByEvictionAPI."""
TERMINATION_BY_GRACECTL: Final = "TerminationByGracectl"
"""Reason of DISRUPTION_TARGET: its machine shuts down. The kubelet's own shutdown has TerminationByKubelet."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
DAEMON_SET: Final = "DaemonSet"
REPLICA_SET: Final = "ReplicaSet"
STATEFUL_SET: Final = "StatefulSet"
DEPLOYMENT: Final = "Deployment"
NODE_KIND: Final = "Node"
"""Owner kind of a mirror pod."""

# -- budgets ------------------------------------------------------------------------------------------
ALWAYS_ALLOW: Final = "AlwaysAllow"

# -- admission ----------------------------------------------------------------------------------------
NODE_CREATION_WEBHOOK: Final = "create.nodes.gracectl.io"
NODE_DELETION_WEBHOOK: Final = "delete.nodes.gracectl.io"
NODE_BUDGET_WEBHOOK: Final = "write.nodedisruptionbudgets.gracectl.io"
NODE_DRAIN_REQUESTER_WEBHOOK: Final = "request.nodedrains.gracectl.io"
NODE_DRAIN_WEBHOOK: Final = "write.nodedrains.gracectl.io"
NODE_CLAIM_DELETION_WEBHOOK: Final = "delete.nodeclaims.gracectl.io"
NODE_CLAIM_WEBHOOK: Final = "write.nodeclaims.gracectl.io"
"""Names of the webhooks in a configuration; API servers print them in front of a denial."""
WEBHOOK_DOMAIN: Final = ".gracectl.io"
"""Suffix of the names of all our webhooks, of other releases too."""
NODE_BUDGET_CAUSE: Final = "NodeDisruptionBudget"
"""Cause type in the Status of a deletion of a node that a node disruption budget refuses (429); its field is the
budget's name."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""Label of objects that gracectl creates for itself, with EVENT_COMPONENT as its value."""

# -- settings -----------------------------------------------------------------------------------------
SETTINGS_SELECTOR: Final = "app.kubernetes.io/name=gracectl,app.kubernetes.io/component=settings"
"""Labels of the ConfigMap with the controller's settings, which the chart makes."""
SETTINGS_KEY: Final = "config.yaml"
"""Key of the settings in the ConfigMap."""

FREEZE: Final = "gracectl-freeze"
"""Name of the ConfigMap that stops voluntary terminations, in the controller's namespace."""

# -- other objects ------------------------------------------------------------------------------------
NEVER: Final = "Never"
"""NodeClaim spec.expireAfter of a claim that does not expire."""
EVENT_COMPONENT: Final = "gracectl"
"""source.component and reportingController of our Events."""


class EventReason(StrEnum):
    """Reasons of Events. One reason, one meaning; people filter by these."""

    # the deadline
    TERMINATION_GRACE_PERIOD_EXPIRING = "TerminationGracePeriodExpiring"
    """Node, claim: the deadline is set, everything is forced then."""
    TERMINATION_GRACE_PERIOD_EXPIRED = "TerminationGracePeriodExpired"
    """Node, claim: the deadline has passed while pods were left; the message names them."""
    DELETED_FOR_DEADLINE = "DeletedForDeadline"
    """Pod: deleted, not evicted, because it would outlive the deadline."""
    DELETION_FAILED = "DeletionFailed"
    INVALID_TERMINATION_TIMESTAMP = "InvalidTerminationTimestamp"
    """Node, claim: the annotation that names the deadline cannot be read."""
    SEVERAL_CLAIMS = "SeveralNodeClaims"
    """Node: more than one claim belongs to it, so none counts."""
    UNDECODABLE = "Undecodable"
    """Any object: it cannot be decoded; the message says why, and what that means."""
    # node claims
    CLAIM_DELETION_FAILED = "NodeClaimDeletionFailed"
    """Node, claim: a node is terminated, and its claim cannot be deleted with it."""
    NODE_DELETION_FAILED = "NodeDeletionFailed"
    """Claim: it is deleted, and its node cannot be deleted with it."""
    UNMANAGED_CLAIM_HELD = "UnmanagedNodeClaimHeld"
    """Claim: has our finalizer although it is not managed."""
    # protection
    DO_NOT_DISRUPT_UNTIL = "DoNotDisruptUntil"
    """Pod: it is protected, and blocks a node that is being terminated. Node, claim: how many pods do, and until
    when.
    """
    DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED = "DoNotDisruptGracePeriodElapsed"
    """Pod: its protection has ended while its node waits for it. Node, claim: likewise, and for a voluntary
    termination: it is no longer blocked by protection.
    """
    INVALID_DO_NOT_DISRUPT_ANNOTATION = "InvalidDoNotDisruptAnnotation"
    """Pod: its annotation cannot be parsed, so it protects indefinitely."""
    # the steps of a termination
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    DRAIN_BLOCKED = "DrainBlocked"
    """Node: nothing moves; the message names what blocks."""
    DRAINED = "Drained"
    """Node: no pod is left that is waited for, and it stays for maintenance."""
    PODS_STUCK = "PodsStuck"
    """Node, claim: pods may still run a minute after their grace; no wave waits for them. The message names them."""
    PODS_RETURN = "PodsReturn"
    """Node: a controller makes pods on it again after each eviction; the message names it, and how they come."""
    AWAITING_VOLUME_DETACHMENT = "AwaitingVolumeDetachment"
    VOLUMES_STILL_ATTACHED = "VolumesStillAttached"
    """Node, claim: volumes of drained pods are attached for a minute; the message has the remedy."""
    INSTANCE_TERMINATING = "InstanceTerminating"
    INSTANCE_TERMINATED = "InstanceTerminated"
    INSTANCE_TERMINATION_FAILED = "InstanceTerminationFailed"
    NODE_TERMINATED = "NodeTerminated"
    """Node: removed at the end of its termination; says how its pods left. A Warning if gracectl did not remove it."""
    INSTANCE_SHARED = "InstanceShared"
    """Node: it is deleted without its instance, which another node uses."""
    MACHINE_KEEPS_RUNNING = "MachineKeepsRunning"
    """Node, claim: removed, but no provider terminates its cloud machine."""
    STEP_FAILING = "StepFailing"
    """Node, claim: a step of its termination, or its finalizer, has failed for a minute."""
    CORDON_UNDONE = "CordonUndone"
    """Node: its cordon has been removed by a webhook or another controller."""
    UNMANAGED_NODE_HELD = "UnmanagedNodeHeld"
    """Node: has our finalizer although it is not managed."""
    # maintenance
    UNCORDONED = "Uncordoned"
    """Node: its maintenance has ended, and it takes pods again."""
    MAINTENANCE_IGNORED = "MaintenanceIgnored"
    """Node: maintenance is requested although it is not managed."""
    # the machine shuts down
    NODE_SHUTDOWN = "NodeShutdown"
    """Node: its machine shuts down; what happens to its pods, and how that ended."""
    NODE_SHUTDOWN_CANCELLED = "NodeShutdownCancelled"
    NODE_SHUTDOWN_OVERDUE = "NodeShutdownOverdue"
    """Node: pods of a range were still there when its period was over; the message names them."""
    DELETED_FOR_SHUTDOWN = "DeletedForShutdown"
    """Pod: deleted because the machine of its node shuts down."""
    SHUTDOWN_DELAY_TOO_SHORT = "ShutdownDelayTooShort"
    """Node: its machine would not wait for its pods as long as the settings want."""
    SHUTDOWN_UNWATCHED = "ShutdownUnwatched"
    """Node: a shutdown of its machine would not wait for its pods; the message says why."""
    SHUTDOWN_HANDLED_TWICE = "ShutdownHandledTwice"
    """Node: its kubelet deletes the pods of a shutdown as well."""
    # replace first
    POD_RELEASED = "PodReleased"
    """Pod, workload: it is replaced before its eviction, and was released from its ReplicaSet for that."""
    POD_RETURNED = "PodReturned"
    """Pod: it was returned to its ReplicaSet; a Warning if its replacement was not Ready in time."""
    # evictions
    EVICTED = "Evicted"
    EVICTION_FAILED = "EvictionFailed"
    MULTIPLE_BUDGETS = "MultipleBudgets"
    """Pod: more than one budget selects it; the eviction API cannot serve that."""
    CLOCKS_DISAGREE = "ClocksDisagree"
    """Node, claim, Lease: clocks differ by more than can be corrected, so deadlines are paused."""
    # voluntary terminations
    NODE_UNHEALTHY = "NodeUnhealthy"
    UNHEALTHY_NODES_HELD = "UnhealthyNodesHeld"
    """Node: too many are unhealthy, so none is terminated for that."""
    NODE_TERMINABLE = "NodeTerminable"
    NODE_INTERRUPTED = "NodeInterrupted"
    """Node, claim: terminated because its machine will go."""
    CLAIM_EXPIRED = "ClaimExpired"
    NODE_EXPIRED = "NodeExpired"
    INVALID_EXPIRE_AFTER = "InvalidExpireAfter"
    """Claim: its expireAfter cannot be read, so it never expires."""
    DISRUPTION_HELD = "DisruptionHeld"
    """Node, claim: its voluntary termination is blocked by a protected pod or a budget."""
    # campaigns
    NODE_DRAIN_STARTED = "NodeDrainStarted"
    """NodeDrain: its nodes are fixed; who requested it, and why."""
    NODE_DRAIN_BLOCKED = "NodeDrainBlocked"
    """NodeDrain: a node in progress waits for a person; the message names pod and budget."""
    NODE_SKIPPED = "NodeSkipped"
    """NodeDrain: an undrainable node is set aside."""
    NODE_FAILED = "NodeFailed"
    """NodeDrain: a node was not drained or terminated; the message says why."""
    NODE_DRAIN_COMPLETED = "NodeDrainCompleted"
    NODE_DRAIN_FAILED = "NodeDrainFailed"
    """NodeDrain: it cannot begin, or a node has failed."""
    NODE_DRAIN_CANCELED = "NodeDrainCanceled"
    """NodeDrain: deleted before it was finished; what became of its nodes."""
    DISRUPTION_REFUSED = "DisruptionRefused"
    """Node, claim: the server refuses its deletion; it is retried."""
