"""Installations: sets of values, each for a release on some cluster."""

from __future__ import annotations

from typing import Any, Final

from support.agents import KEP
from support.helm import Release

CLAIMS: Final = "karpenter.sh/v1/NodeClaim"
CERT_MANAGER: Final = "cert-manager.io/v1/Certificate"
ISSUER: Final = {"kind": "ClusterIssuer", "name": "internal", "group": "cert-manager.io"}
MONITORED: Final[dict[str, Any]] = {
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "relabelings": [{"action": "labeldrop", "regex": "endpoint"}],
    },
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "dashboard": {"enabled": True, "annotations": {"folder": "nodes"}},
}
AGENT: Final[dict[str, Any]] = {"enabled": True, "settings": dict(KEP)}

SETS: Final = {
    "defaults": Release(),
    "dry run": Release(values={"dryRun": True}),
    "everything": Release(
        apis=(CLAIMS,),
        values={
            **MONITORED,
            "settings": {
                "nodeSelector": {"matchLabels": {"pool": "workers"}},
                "nodeGroups": [
                    {
                        "selector": {"matchLabels": {"pool": "spot"}},
                        "terminationGracePeriod": "110s",
                        "drain": {"minimumSeconds": 0.5},
                        "shutdownGracePeriodByPodPriority": [
                            {"priority": 2000000000, "shutdownGracePeriodSeconds": 10},
                            {"priority": -2147483648, "shutdownGracePeriodSeconds": 5},
                        ],
                    }
                ],
                **KEP,
                "provider": {"name": "webhook", "options": {"url": "https://ends.example.com/"}},
                "health": {"maximumUnhealthy": 3},
            },
            "image": {"repository": "registry.example.com/tools/gracectl", "digest": f"sha256:{'0' * 64}"},
            "imagePullSecrets": [{"name": "registry"}],
            "commonLabels": {"team": "platform"},
            "crds": {"nodeClaims": True, "keep": False},
            "agent": {
                "enabled": True,
                "seLinuxOptions": {"type": "spc_t"},
                "appArmorProfile": {"type": "Unconfined"},
                "podLabels": {"team": "nodes"},
                "podAnnotations": {"note": "agent"},
                "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"}],
                "serviceAccount": {"annotations": {"note": "agent"}},
            },
            "networkPolicy": {
                "enabled": True,
                "apiServers": [{"ipBlock": {"cidr": "10.0.0.0/28"}}],
                "scrapers": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            },
            "priorityQuota": True,
            "podDisruptionBudget": {"maxUnavailable": "50%"},
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "topologySpreadConstraints": [
                {
                    "maxSkew": 2,
                    "topologyKey": "topology.kubernetes.io/zone",
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "controller"}},
                }
            ],
            "podLabels": {"team": "platform"},
            "podAnnotations": {"note": "controller"},
            "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/gracectl"}},
            "extraEnv": [
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "ends", "key": "token"}}},
            ],
            "extraVolumes": [{"name": "ca", "secret": {"secretName": "ends"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/ends", "readOnly": True}],
        },
    ),
    "cert-manager": Release(values={"admission": {"certManager": {"enabled": True}}}),
    "cert-manager-issuer": Release(
        values={"admission": {"certManager": {"enabled": True, "issuerRef": ISSUER}}, "fullnameOverride": "ender"}
    ),
    "cert-manager-found": Release(apis=(CERT_MANAGER,)),
    "secret-beside-cert-manager": Release(apis=(CERT_MANAGER,), values={"admission": {"existingSecret": "of-mine"}}),
    "a-secret-of-mine": Release(
        values={
            "admission": {"existingSecret": "of-mine", "clientCAConfigMap": "api-servers"},
            "settings": {
                "admission": {
                    "clientCertificates": {"names": ["kube-apiserver"]},
                    "failurePolicy": "Ignore",
                    "timeoutSeconds": 3,
                }
            },
            "networkPolicy": {"enabled": True},
        }
    ),
    "webhooks-elsewhere": Release(
        values={
            "admission": {"register": False},
            "settings": {
                "admission": {
                    "name": "other",
                    "url": "https://gracectl.example.com:8443/hooks/",
                    "certificates": {"certFile": "/mine/tls.crt", "keyFile": "/mine/tls.key"},
                }
            },
            "extraVolumes": [{"name": "mine", "secret": {"secretName": "mine"}}],
            "extraVolumeMounts": [{"name": "mine", "mountPath": "/mine"}],
        }
    ),
    "url": Release(values={"settings": {"admission": {"url": "https://gracectl.example.com:8443"}}}),
    "service-elsewhere": Release(
        values={
            "settings": {
                "admission": {"service": {"name": "front", "namespace": "edge", "port": 8443}},
                "leaderElection": {"namespace": "kube-system", "name": "ender"},
                "karpenter": {"namespaces": []},
            }
        }
    ),
    "agent-alone": Release(
        namespace="kube-system",
        values={**MONITORED, "controller": {"enabled": False}, "crds": {"install": False}, "agent": AGENT},
    ),
    "agent-without-drop-ins": Release(
        kubernetes="1.29.0",
        values={
            "agent": {
                **AGENT,
                "admissionPolicy": False,
                "priorityClassName": "",
                "settings": {
                    "shutdownGracePeriod": "5m",
                    "agent": {"logindDropInDirectory": ""},
                    "metrics": {"listen": ":8081"},
                },
            }
        },
    ),
    "agent-as-kubelet": Release(
        values={"agent": {**AGENT, "kubeconfig": "/etc/kubernetes/kubelet.conf"}},
    ),
    "agent-as-its-node": Release(
        kubernetes="1.37.2", values={"agent": AGENT, "settings": {"agent": {"impersonateNode": True}}}
    ),
    "one-replica": Release(
        values={
            "replicaCount": 1,
            "settings": {"leaderElection": {"enabled": False}},
            "podDisruptionBudget": {"enabled": False},
        }
    ),
    "clusterapi": Release(apis=(CLAIMS,), values={"settings": {"provider": {"name": "clusterapi"}}}),
    "clusterapi-in-a-namespace": Release(
        values={"settings": {"provider": {"name": "clusterapi", "options": {"namespace": "machines"}}}}
    ),
    "clusterapi-elsewhere": Release(
        values={
            "settings": {"provider": {"name": "clusterapi", "options": {"kubeconfig": "/management/kubeconfig"}}},
            "extraVolumes": [{"name": "management", "secret": {"secretName": "management"}}],
            "extraVolumeMounts": [{"name": "management", "mountPath": "/management", "readOnly": True}],
        }
    ),
    "another-name": Release(name="blue", namespace="platform"),
    "accounts-of-mine": Release(
        values={
            "serviceAccount": {"create": False, "name": "mine"},
            "rbac": {"create": False},
            "agent": {**AGENT, "serviceAccount": {"create": False, "name": "mine"}},
        }
    ),
    "page": Release(
        apis=(CLAIMS,),
        values={
            "ui": {
                "enabled": True,
                "basePath": "/gracectl",
                "allowedHosts": ["board.example.com"],
                "tokenSecret": "page",
                "grafanaUrl": "https://grafana.example.com/d/gracectl",
            },
            "networkPolicy": {"enabled": True, "viewers": [{"podSelector": {"matchLabels": {"app": "proxy"}}}]},
        },
    ),
    "page-alone": Release(
        values={
            "controller": {"enabled": False},
            "crds": {"install": False},
            "ui": {"enabled": True},
            "settings": {"leaderElection": {"namespace": "kube-system"}},
        }
    ),
    "host-network": Release(values={"hostNetwork": True}),
    "minimal": Release(
        kubernetes="1.28.0",
        values={
            "settings": {"admission": {"listen": ""}, "metrics": {"listen": ""}, "probes": {"listen": ""}},
            "replicaCount": 1,
            "crds": {"install": False},
            "podDisruptionBudget": {"enabled": False},
            "uninstall": {"enabled": False},
            "priorityClassName": "",
            "tolerations": [],
        },
    ),
}
