"""Pods as an API server tells of them: six kilobytes of JSON, of which decisions need a tenth.

Number n is the same pod in every run and every version of gracectl, from which nothing is taken here. Its workload has
`REPLICAS` pods, of which each is on another node; a node has about 30.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

REPLICAS: Final = 40
PODS_OF_A_NODE: Final = 30

Json = dict[str, Any]


def labels_of(workload: int) -> dict[str, str]:
    """What the pods of a workload have in common."""
    return {
        "app.kubernetes.io/component": "server",
        "app.kubernetes.io/instance": f"web-{workload}",
        "app.kubernetes.io/managed-by": "Helm",
        "app.kubernetes.io/name": "web",
        "helm.sh/chart": "web-4.2.1",
        "pod-template-hash": f"{workload:08x}8d",
        "team": f"team-{workload % 200}",
    }


def namespace_of(workload: int) -> str:
    """Some workloads share one."""
    return f"team-{workload % 200}"


def pod(number: int, of: int, *, version: int = 1, ready: bool = True) -> Json:
    """Pod `number` of `of` in a cluster; `version` is its resourceVersion."""
    workload, replica = divmod(number, REPLICAS)
    node = (number * 7919) % max(1, of // PODS_OF_A_NODE)
    since = "2026-03-05T08:14:31Z" if ready else "2026-03-06T17:02:09Z"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "annotations": {
                "checksum/config": f"{workload:064x}",
                "prometheus.io/port": "9102",
                "prometheus.io/scrape": "true",
            },
            "creationTimestamp": "2026-03-05T08:14:07Z",
            "generateName": f"web-{workload}-{workload:08x}8d-",
            "generation": 1,
            "labels": labels_of(workload),
            "managedFields": _managed_fields(),
            "name": f"web-{workload}-{workload:08x}8d-{replica:05d}",
            "namespace": namespace_of(workload),
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "blockOwnerDeletion": True,
                    "controller": True,
                    "kind": "ReplicaSet",
                    "name": f"web-{workload}-{workload:08x}8d",
                    "uid": f"5b1d77c2-0e0f-4f3e-9d10-{workload:012x}",
                }
            ],
            "resourceVersion": str(1_000_000_000 + version),
            "uid": uid_of(number),
        },
        "spec": _spec(f"ip-10-{node // 250}-{node % 250}-17.eu-central-1.compute.internal", workload),
        "status": _status(number, node, since, ready),
    }


def uid_of(number: int) -> str:
    """The UID of a pod."""
    return f"0b7a2e4c-9f3d-4c51-8e6a-{number:012x}"


def event(kind: str, thing: Json) -> bytes:
    """A line of a watch."""
    return orjson.dumps({"type": kind, "object": thing}) + b"\n"


def _spec(node: str, workload: int) -> Json:
    probe = {"failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1}
    token = {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": "kube-api-access", "readOnly": True}
    return {
        "containers": [
            {
                "args": ["--listen=:8080", "--config=/etc/web/config.yaml", "--log-format=json"],
                "env": [
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                    {"name": "GOMAXPROCS", "value": "2"},
                    {
                        "name": "DATABASE_URL",
                        "valueFrom": {"secretKeyRef": {"key": "url", "name": f"web-{workload}-database"}},
                    },
                ],
                "image": "registry.example/shop/web:4.2.1",
                "imagePullPolicy": "IfNotPresent",
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}, **probe},
                "name": "web",
                "ports": [
                    {"containerPort": 8080, "name": "http", "protocol": "TCP"},
                    {"containerPort": 9102, "name": "metrics", "protocol": "TCP"},
                ],
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http", "scheme": "HTTP"}, **probe},
                "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "250m", "memory": "512Mi"}},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "volumeMounts": [{"mountPath": "/etc/web", "name": "config"}, token],
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "nodeName": node,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {"fsGroup": 2000, "runAsNonRoot": True},
        "serviceAccount": "web",
        "serviceAccountName": "web",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        ],
        "volumes": [
            {"configMap": {"defaultMode": 420, "name": f"web-{workload}"}, "name": "config"},
            {
                "name": "kube-api-access",
                "projected": {
                    "defaultMode": 420,
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
                    ],
                },
            },
        ],
    }


def _status(number: int, node: int, since: str, ready: bool) -> Json:
    started, truth = "2026-03-05T08:14:07Z", "True" if ready else "False"
    ip = f"10.{128 + number % 120}.{number % 250}.{number % 240 + 2}"
    image = "registry.example/shop/web"
    return {
        "conditions": [
            {"lastProbeTime": None, "lastTransitionTime": instant, "status": status, "type": kind}
            for kind, status, instant in (
                ("PodReadyToStartContainers", "True", started),
                ("Initialized", "True", started),
                ("Ready", truth, since),
                ("ContainersReady", truth, since),
                ("PodScheduled", "True", started),
            )
        ],
        "containerStatuses": [
            {
                "containerID": f"containerd://{number:064x}",
                "image": f"{image}:4.2.1",
                "imageID": f"{image}@sha256:9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0",
                "lastState": {},
                "name": "web",
                "ready": ready,
                "restartCount": 0,
                "started": True,
                "state": {"running": {"startedAt": "2026-03-05T08:14:19Z"}},
            }
        ],
        "hostIP": f"10.{node // 250}.{node % 250}.17",
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "qosClass": "Burstable",
        "startTime": started,
    }


def _managed_fields() -> list[Json]:
    def fields(*names: str) -> Json:
        return {f"f:{name}": {} for name in names}

    probe = {**fields("failureThreshold", "periodSeconds", "successThreshold", "timeoutSeconds"), "f:httpGet": {
        ".": {}, **fields("path", "port", "scheme")}}  # fmt: skip
    container = {
        ".": {},
        **fields("args", "image", "imagePullPolicy", "name", "terminationMessagePath", "terminationMessagePolicy"),
        "f:env": {
            ".": {},
            **{f'k:{{"name":"{name}"}}': {".": {}, **fields("name", "value")} for name in ("POD_NAME",)},
        },
        "f:livenessProbe": probe,
        "f:readinessProbe": probe,
        "f:ports": {
            ".": {},
            'k:{"containerPort":8080,"protocol":"TCP"}': {".": {}, **fields("containerPort", "name", "protocol")},
        },
        "f:resources": {".": {}, "f:limits": fields("memory"), "f:requests": fields("cpu", "memory")},
        "f:volumeMounts": {".": {}, 'k:{"mountPath":"/etc/web"}': {".": {}, **fields("mountPath", "name")}},
    }
    condition = {".": {}, **fields("lastProbeTime", "lastTransitionTime", "status", "type")}
    return [
        {
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {
                    "f:generateName": {},
                    "f:labels": {".": {}, **fields(*labels_of(0))},
                    "f:ownerReferences": {".": {}},
                },
                "f:spec": {
                    'f:containers': {'k:{"name":"web"}': container},
                    **fields("dnsPolicy", "enableServiceLinks", "restartPolicy", "schedulerName", "securityContext"),
                },
            },
            "manager": "kube-controller-manager",
            "operation": "Update",
            "time": "2026-03-05T08:14:07Z",
        },
        {
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:status": {
                    "f:conditions": {
                        f'k:{{"type":"{kind}"}}': condition for kind in ("ContainersReady", "Initialized", "Ready")
                    },
                    **fields("containerStatuses", "hostIP", "phase", "podIP", "podIPs", "startTime"),
                }
            },
            "manager": "kubelet",
            "operation": "Update",
            "subresource": "status",
            "time": "2026-03-05T08:14:31Z",
        },
    ]  # fmt: skip
