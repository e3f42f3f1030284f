"""Every name that gracectl reads from or writes to a cluster, once.

Existing manifests must keep working, so the names are those of Kubernetes and of the Karpenter designs
that gracectl follows. No other module spells an annotation, label, taint, finalizer, condition type or
event reason; a name that is not here is not used.
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
CLUSTER_API_GROUP: Final = "cluster.x-k8s.io"
"""Machine of Cluster API; served as v1beta2 and v1beta1."""

# -- finalizers ---------------------------------------------------------------------------------------
FINALIZER: Final = "karpenter.sh/termination"
"""Holds Nodes and NodeClaims until the instance is gone; always removed last."""

# -- annotations --------------------------------------------------------------------------------------
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
"""On pods: "true" or a Go duration."""
DO_NOT_EVICT: Final = "karpenter.sh/do-not-evict"
"""On pods, label or annotation, "true": holds the drain of the whole node."""
TERMINATION_TIMESTAMP: Final = "karpenter.sh/nodeclaim-termination-timestamp"
"""On claims and nodes: the deadline, RFC 3339; never moved later."""
FORCED_DEADLINE: Final = "gracectl.io/forced-deadline"
"""On claims and nodes whose end is forced: the deadline that we have written for it and, behind a space, the one that
stood there before. Gone when the end is not forced after all."""
KEEP_DRAINED: Final = "gracectl.io/keep-drained"
"""On nodes: somebody asks to drain it and to keep it so; when (RFC 3339). Taken off to get it back."""
CORDONED: Final = "gracectl.io/cordoned"
"""On nodes that are kept drained: what an uncordon takes off again, words with commas between; empty when all of it is
off but our conditions."""
UNCORDONED: Final = "gracectl.io/uncordoned"
"""On nodes that were given back while they were unhealthy: when (RFC 3339). Their health counts from then."""
PENDING_CORDONED: Final = "gracectl.io/pending-cordoned"
"""On nodes that are labelled terminable and wait: what comes off again when the label goes, words with commas
between."""
SHUTDOWN_CORDONED: Final = "gracectl.io/shutdown-cordoned"
"""On nodes whose machine shuts down, by the agent: what comes off again when the machine is up, words with commas
between."""
TRACEPARENT: Final = "gracectl.io/traceparent"
"""On nodes and claims that end while somebody wants traces: the W3C trace context of the end."""
MIRROR_POD: Final = "kubernetes.io/config.mirror"
"""Set by the kubelet on the API object of a static pod."""

CLUSTER_API_MACHINE: Final = "cluster.x-k8s.io/machine"
"""On nodes, by Cluster API, as are the next three: the name of its Machine."""
CLUSTER_API_NAMESPACE: Final = "cluster.x-k8s.io/cluster-namespace"
CLUSTER_API_CLUSTER: Final = "cluster.x-k8s.io/cluster-name"
"""A label of Machines, too."""
CLUSTER_API_OWNER_KIND: Final = "cluster.x-k8s.io/owner-kind"
"""MachineSet, or MachinePool, or the kind of a control plane."""
CLUSTER_API_PAUSED: Final = "cluster.x-k8s.io/paused"
"""On Machines: Cluster API leaves it alone."""
EXCLUDE_NODE_DRAINING: Final = "machine.cluster.x-k8s.io/exclude-node-draining"
"""On Machines: Cluster API does not drain its node before it ends it."""
EXCLUDE_VOLUME_DETACH: Final = "machine.cluster.x-k8s.io/exclude-wait-for-node-volume-detach"
"""On Machines: nor does it wait for the volumes of its node."""

POD_ANNOTATIONS: Final = frozenset({DO_NOT_DISRUPT, DO_NOT_EVICT, MIRROR_POD})
"""The annotations of a pod that a decision reads; the others are not kept in memory."""
CLAIM_ANNOTATIONS: Final = frozenset({TERMINATION_TIMESTAMP, FORCED_DEADLINE, TRACEPARENT})
"""Likewise for node claims."""
NODE_ANNOTATIONS: Final = CLAIM_ANNOTATIONS | {KEEP_DRAINED, CORDONED, UNCORDONED, PENDING_CORDONED, SHUTDOWN_CORDONED}
"""Likewise for nodes."""

# -- labels -------------------------------------------------------------------------------------------
LIFECYCLE_PHASE: Final = "karpenter.sh/lifecycle-phase"
LIFECYCLE_PHASE_TERMINABLE: Final = "terminable"
"""Value of LIFECYCLE_PHASE that asks for the (voluntary) end of a node."""
EXCLUDE_FROM_LOAD_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
CONTROL_PLANE_ROLE: Final = "node-role.kubernetes.io/control-plane"
MASTER_ROLE: Final = "node-role.kubernetes.io/master"
"""The older word for CONTROL_PLANE_ROLE, still found on clusters made before 1.24."""
HOSTNAME: Final = "kubernetes.io/hostname"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
ZONE: Final = "topology.kubernetes.io/zone"
NODE_POOL: Final = "karpenter.sh/nodepool"
CAPACITY_TYPE: Final = "karpenter.sh/capacity-type"
STATEFUL_SET_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"

# -- taints -------------------------------------------------------------------------------------------
DISRUPTED_TAINT_KEY: Final = "karpenter.sh/disrupted"
"""Put on a node that is being drained; pods that tolerate it stay."""
UNSCHEDULABLE_TAINT_KEY: Final = "node.kubernetes.io/unschedulable"
"""The taint that the node controller adds for spec.unschedulable."""
NOT_READY_TAINT_KEY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE_TAINT_KEY: Final = "node.kubernetes.io/unreachable"

NO_SCHEDULE: Final = "NoSchedule"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
NO_EXECUTE: Final = "NoExecute"

# -- conditions ---------------------------------------------------------------------------------------
READY: Final = "Ready"
"""Of nodes, pods and claims."""
DRAINED: Final = "Drained"
"""Of claims and nodes; while False its message names what blocks."""
VOLUMES_DETACHED: Final = "VolumesDetached"
INSTANCE_TERMINATING: Final = "InstanceTerminating"
INSTANCE_GONE: Final = "InstanceGone"
"""Reason of INSTANCE_TERMINATING once the provider has said so: it is not asked about this instance any more."""
STEP_FAILING: Final = "StepFailing"
"""Reason of DRAINED and INSTANCE_TERMINATING while a step fails that has to be done first: what they wait for."""
TERMINATION_PENDING: Final = "TerminationPending"
"""Of nodes: to be terminated for their health, label or age, and waiting; the reason says for what."""
SHUTTING_DOWN: Final = "ShuttingDown"
"""Of nodes, by the agent: the machine shuts down, and its pods leave range by range."""
REGISTERED: Final = "Registered"
"""Of claims: the instance has become a node. Present and not True: it has not, so far."""
DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
"""Of budgets, Kubernetes' own and ours."""
SYNC_FAILED: Final = "SyncFailed"
"""Reason of DISRUPTION_ALLOWED where nobody can count what the budget expects; its message says why."""

SUFFICIENT_NODES: Final = "SufficientNodes"
INSUFFICIENT_NODES: Final = "InsufficientNodes"
"""Reasons of DISRUPTION_ALLOWED of a node disruption budget that can be counted."""

NEVER_REPORTED: Final = "NodeStatusNeverUpdated"
"""Reason that the node lifecycle controller gives where no kubelet has ever spoken."""

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
DAEMON_SET: Final = "DaemonSet"
NODE_KIND: Final = "Node"
"""Owner kind of a mirror pod."""

# -- budgets ------------------------------------------------------------------------------------------
DISRUPTION_BUDGET_CAUSE: Final = "DisruptionBudget"
"""Cause type in the Status of an eviction that a budget refuses (429)."""
IF_HEALTHY_BUDGET: Final = "IfHealthyBudget"
ALWAYS_ALLOW: Final = "AlwaysAllow"

# -- admission ----------------------------------------------------------------------------------------
NODE_CREATION_WEBHOOK: Final = "create.nodes.gracectl.io"
NODE_DELETION_WEBHOOK: Final = "delete.nodes.gracectl.io"
NODE_BUDGET_WEBHOOK: Final = "write.nodedisruptionbudgets.gracectl.io"
NODE_CLAIM_WEBHOOK: Final = "write.nodeclaims.gracectl.io"
"""Which webhook of a configuration is which; people see them in front of a denial."""
WEBHOOK_DOMAIN: Final = ".gracectl.io"
"""With which the names of all our webhooks end, of other releases too."""
NODE_BUDGET_CAUSE: Final = "NodeDisruptionBudget"
"""Cause type in the Status of a deletion of a node that a node disruption budget refuses (429); its field is the
budget's name."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
"""Label of objects that we make for ourselves, with EVENT_COMPONENT as its value."""

# -- other objects ------------------------------------------------------------------------------------
KARPENTER_LEASE: Final = "karpenter-leader-election"
"""Fresh: a live Karpenter owns the finalizer."""
NEVER: Final = "Never"
"""NodeClaim spec.expireAfter of a claim that does not expire."""
EVENT_COMPONENT: Final = "gracectl"
"""source.component and reportingController of our Events."""
FIELD_MANAGER: Final = "gracectl"


class EventReason(StrEnum):
    """Why gracectl speaks up. One reason, one meaning; people filter by these."""

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
    """Node: more than one claim stands for it, so none counts."""
    UNDECODABLE = "Undecodable"
    """Any object: it cannot be decoded; the message says why, and what that means."""
    # node claims
    CLAIM_DELETION_FAILED = "NodeClaimDeletionFailed"
    """Node, claim: a node ends, and its claim cannot be deleted with it."""
    NODE_DELETION_FAILED = "NodeDeletionFailed"
    """Claim: it ends, and its node cannot be deleted with it."""
    UNMANAGED_CLAIM_HELD = "UnmanagedNodeClaimHeld"
    """Claim: carries our finalizer although no setting makes it ours."""
    # protection
    DO_NOT_DISRUPT_UNTIL = "DoNotDisruptUntil"
    """Pod: it is protected, and keeps a node that is being terminated. Node, claim: how many do, and until when."""
    DO_NOT_DISRUPT_GRACE_PERIOD_ELAPSED = "DoNotDisruptGracePeriodElapsed"
    """Pod: its time is over while its node waits for it. Node, claim: likewise, and if it is to end for a reason of its
    own: nothing that ends by itself protects its pods any more."""
    INVALID_DO_NOT_DISRUPT_ANNOTATION = "InvalidDoNotDisruptAnnotation"
    """Pod: nobody understands its annotation, so it protects for ever."""
    # the steps of a termination
    CORDONED = "Cordoned"
    DRAINING = "Draining"
    DRAIN_BLOCKED = "DrainBlocked"
    """Node: nothing moves; the message names what blocks."""
    DRAINED = "Drained"
    """Node: no pod is left that is waited for, and it is kept so."""
    AWAITING_VOLUME_DETACHMENT = "AwaitingVolumeDetachment"
    VOLUMES_DETACHED = "VolumesDetached"
    INSTANCE_TERMINATING = "InstanceTerminating"
    INSTANCE_TERMINATED = "InstanceTerminated"
    INSTANCE_TERMINATION_FAILED = "InstanceTerminationFailed"
    INSTANCE_SHARED = "InstanceShared"
    """Node: it goes without its instance, for which another node stands."""
    STEP_FAILING = "StepFailing"
    """Node, claim: a step of its end, or the keeping of its finalizer, has failed for a minute."""
    CORDON_UNDONE = "CordonUndone"
    """Node: what its cordon has put on it is taken off again, by a webhook or another controller."""
    FINALIZER_ADDED = "FinalizerAdded"
    FINALIZER_REMOVED = "FinalizerRemoved"
    UNMANAGED_NODE_HELD = "UnmanagedNodeHeld"
    """Node: carries our finalizer although no setting makes it ours."""
    # maintenance
    UNCORDONED = "Uncordoned"
    """Node: it was kept drained, and takes pods again."""
    UNMANAGED_NODE_KEPT = "UnmanagedNodeKept"
    """Node: somebody asks to keep it drained although no setting makes it ours."""
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
    """Node: its kubelet ends the pods of a shutdown as well."""
    # evictions
    EVICTED = "Evicted"
    EVICTION_BLOCKED = "EvictionBlocked"
    """Pod or node: a budget is spent."""
    EVICTION_FAILED = "EvictionFailed"
    MULTIPLE_BUDGETS = "MultipleBudgets"
    """Pod: more than one budget selects it; the eviction API cannot serve that."""
    KARPENTER_LEADS = "KarpenterLeads"
    """Node, Lease: a Karpenter leads, so gracectl stands by, and leaves what was under way to it."""
    # what starts a termination by itself
    NODE_UNHEALTHY = "NodeUnhealthy"
    UNHEALTHY_NODES_HELD = "UnhealthyNodesHeld"
    """Node: too many are unhealthy, so none is ended for that."""
    NODE_TERMINABLE = "NodeTerminable"
    CLAIM_EXPIRED = "ClaimExpired"
    NODE_EXPIRED = "NodeExpired"
    INVALID_EXPIRE_AFTER = "InvalidExpireAfter"
    """Claim: its expireAfter cannot be read, so it never expires."""
    DISRUPTION_HELD = "DisruptionHeld"
    """Node, claim: it is to end, but not as long as a pod is protected or its budget blocks."""
    DISRUPTION_REFUSED = "DisruptionRefused"
    """Node, claim: the server refuses its deletion; it is tried again."""
