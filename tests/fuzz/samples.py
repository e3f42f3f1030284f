"""Objects as a server sends them, in full: what documents are made of beside the recorded ones."""

from __future__ import annotations

from typing import Any, Final

from gracectl.model import names

TRACEPARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
META: Final[dict[str, Any]] = {
    "name": "a-1",
    "namespace": "shop",
    "uid": "u-1",
    "resourceVersion": "7",
    "generation": 2,
    "creationTimestamp": "2026-01-01T00:00:00Z",
    "deletionTimestamp": "2026-01-01T00:10:00Z",
    "deletionGracePeriodSeconds": 30,
    "finalizers": [names.FINALIZER],
    "labels": {"app": "web", names.LIFECYCLE_PHASE: "terminable"},
    "annotations": {
        names.DO_NOT_DISRUPT: "4h",
        names.TERMINATION_TIMESTAMP: "2026-01-01T01:00:00Z",
        names.KEEP_DRAINED: "2026-01-01T00:00:00Z",
        names.TRACEPARENT: TRACEPARENT,
    },
    "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "uid": "r-1", "controller": True}],
    "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {"f:phase": {}}}}],
}
CONDITIONS: Final = [
    {
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "no",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
]
POD: Final = {
    "kind": "Pod",
    "metadata": META,
    "spec": {
        "nodeName": "n1",
        "terminationGracePeriodSeconds": 30,
        "priority": 0,
        "priorityClassName": "high",
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "e", "emptyDir": {}}],
    },
    "status": {"phase": "Running", "startTime": "2026-01-01T00:00:05Z", "conditions": CONDITIONS},
}
RUNNING: Final = {**POD, "metadata": {k: v for k, v in META.items() if not k.startswith("deletion")}}
NODE: Final = {
    "kind": "Node",
    "metadata": META,
    "spec": {
        "unschedulable": True,
        "providerID": "aws:///us-east-1a/i-1",
        "taints": [{"key": names.DISRUPTED_TAINT_KEY, "value": "", "effect": "NoSchedule"}],
    },
    "status": {"conditions": CONDITIONS},
}
CLAIM: Final = {
    "kind": "NodeClaim",
    "metadata": META,
    "spec": {"terminationGracePeriod": "1h30m", "expireAfter": "720h"},
    "status": {"providerID": "aws:///us-east-1a/i-1", "nodeName": "n1", "conditions": CONDITIONS},
}
SELECTOR: Final = {
    "matchLabels": {"app": "web"},
    "matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "shop"]}],
}
BUDGET: Final = {
    "kind": "PodDisruptionBudget",
    "metadata": META,
    "spec": {"selector": SELECTOR, "minAvailable": "50%", "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    "status": {
        "observedGeneration": 2,
        "disruptionsAllowed": 1,
        "currentHealthy": 3,
        "desiredHealthy": 2,
        "expectedPods": 3,
        "disruptedPods": {"web-1": "2026-01-01T00:00:00Z"},
        "conditions": CONDITIONS,
    },
}
NODE_BUDGET: Final = {
    "kind": "NodeDisruptionBudget",
    "metadata": META,
    "spec": {"selector": SELECTOR, "maxUnavailable": "10%"},
    "status": {"expectedNodes": 3, "disruptedNodes": {"n1": "2026-01-01T00:00:00Z"}, "conditions": CONDITIONS},
}
NODE_DRAIN: Final = {
    "kind": "NodeDrain",
    "metadata": {**META, "annotations": {"gracectl.io/requested-by": "ana", "gate.gracectl.io/backup": ""}},
    "spec": {
        "action": "Terminate",
        "nodeSelector": SELECTOR,
        "maxConcurrent": "10%",
        "order": "ByForecast",
        "onUndrainable": "Skip",
        "timeout": "1h30m",
        "ttlSecondsAfterFinished": 60,
    },
    "status": {
        "startTime": "2026-01-01T00:00:00Z",
        "counts": {"total": 2, "done": 1},
        "nodes": [
            {
                "name": "n1",
                "uid": "u1",
                "state": "Draining",
                "podsLeft": 1,
                "blockedBy": [{"kind": "PodDisruptionBudget", "name": "web", "until": "2026-01-01T00:00:00Z"}],
            }
        ],
        "scope": {"inProgress": ["n1/u1"], "drained": ["n2/u2"]},
        "conditions": CONDITIONS,
    },
}
ATTACHMENT: Final = {
    "kind": "VolumeAttachment",
    "metadata": META,
    "spec": {"nodeName": "n1", "source": {"persistentVolumeName": "v"}},
    "status": {"attached": True},
}
VOLUME_CLAIM: Final = {"kind": "PersistentVolumeClaim", "metadata": META, "spec": {"volumeName": "v"}}
_AFFINITY: Final = {
    "nodeSelectorTerms": [
        {
            "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
        }
    ]
}
VOLUME: Final = {
    "kind": "PersistentVolume",
    "metadata": META,
    "spec": {"local": {"path": "/x"}, "nodeAffinity": {"required": _AFFINITY}},
}
WORKLOAD: Final = {
    "kind": "ReplicaSet",
    "metadata": META,
    "spec": {
        "replicas": 3,
        "selector": SELECTOR,
        "strategy": {"type": "Recreate"},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "nodeSelector": {"pool": "a"},
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _AFFINITY}},
                "hostNetwork": True,
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "containers": [
                    {
                        "ports": [{"hostPort": 80}],
                        "resources": {
                            "requests": {"cpu": "1500m", "memory": "2Gi", "x/gpu": 1},
                            "limits": {"cpu": "2"},
                        },
                    }
                ],
            },
        },
    },
    "status": {
        "observedGeneration": "3",
        "updatedReplicas": 3,
        "conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}],
    },
}
NETWORK_POLICY: Final = {
    "kind": "NetworkPolicy",
    "metadata": META,
    "spec": {
        "podSelector": SELECTOR,
        "ingress": [{"from": [{"podSelector": SELECTOR}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}],
        "egress": [{"to": [{"podSelector": SELECTOR}]}],
    },
}
QUOTA: Final = {
    "kind": "ResourceQuota",
    "metadata": META,
    "spec": {"scopes": ["BestEffort"]},
    "status": {"hard": {"pods": "10", "requests.cpu": "4"}, "used": {"pods": "3", "requests.cpu": "1500m"}},
}
SERVICE: Final = {
    "kind": "Service",
    "metadata": META,
    "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "externalTrafficPolicy": "Local"},
}
ROOM: Final = {"kind": "Node", "metadata": META, "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}}
PENDING: Final = {
    "kind": "Pod",
    "metadata": META,
    "status": {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
        ]
    },
}
LEASE: Final = {
    "kind": "Lease",
    "metadata": META,
    "spec": {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:10.000000Z",
        "leaseTransitions": 3,
    },
}
EVENT: Final = {
    "kind": "Event",
    "metadata": META,
    "involvedObject": {"kind": "Node", "namespace": "", "name": "n", "uid": "u"},
    "source": {"component": "karpenter"},
    "reportingComponent": "karpenter",
    "type": "Warning",
    "reason": "FailedDraining",
    "message": "Failed to drain node",
    "count": 2,
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "lastTimestamp": "2026-01-01T00:00:10Z",
    "eventTime": None,
}
MACHINE: Final = {
    "kind": "Machine",
    "metadata": META,
    "spec": {"clusterName": "c", "providerID": "aws:///i-1"},
    "status": {"phase": "Running", "conditions": CONDITIONS, "v1beta2": {"conditions": CONDITIONS}},
}
STATUS: Final = {
    "kind": "Status",
    "code": 429,
    "reason": "TooManyRequests",
    "message": "Cannot evict pod as it would violate the pod's disruption budget.",
    "details": {
        "name": "web-1",
        "kind": "pods",
        "uid": "u",
        "retryAfterSeconds": 10,
        "causes": [{"reason": "DisruptionBudget", "message": "no", "field": "spec"}],
    },
}
