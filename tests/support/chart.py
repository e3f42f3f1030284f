"""The chart: rendering it, sets of values, and the agent's manifests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from kubesim.cel.program import compile_expression
from kubesim.cel.types import DYN
from kubesim.controllers.paths import KINDS
from kubesim.server.api import JsonObject

from support.shutdowns import BY_KEP

# Rendering the chart, as helm does it for a release on some cluster.
#
# Without helm (`make helm` puts it beside our Python) tests of the chart are skipped, and say so; where CI is set they
# fail.

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "gracectl"
KUBERNETES: Final = "1.33.4"
"""A helm that was built by `go install` takes an ancient version for granted."""

HELM: Final = next(
    filter(None, (shutil.which("helm", path=str(Path(sys.executable).parent)), shutil.which("helm"))), ""
)
WITHOUT: Final = "helm is not there: `make helm` builds it"


class Refused(Exception):
    """helm did not render; the message is its own."""


def needs_helm() -> None:
    """Skip the test, or module, where there is no helm; in continuous integration, fail."""
    if not HELM and os.environ.get("CI"):
        pytest.fail(WITHOUT)
    if not HELM:
        pytest.skip(WITHOUT, allow_module_level=True)


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """An installation, and its cluster. `values`: what differs from values.yaml; `apis`: what the cluster
    serves beside its own, as GROUP/VERSION/KIND."""

    name: str = "gracectl"
    namespace: str = "gracectl"
    values: JsonObject = {}
    apis: tuple[str, ...] = ()
    kubernetes: str = KUBERNETES

    def text(self) -> str:
        """As helm prints it: hooks and tests too. Raises Refused."""
        return _rendered(msgspec.json.encode(self, order="deterministic"))

    def notes(self) -> str:
        """What helm says after an installation. It shows them to those who have a cluster only, so a copy of the chart
        has them as a template."""
        with tempfile.TemporaryDirectory() as folder:
            chart = Path(folder, "gracectl")
            shutil.copytree(CHART, chart)
            shutil.copy(chart / "templates" / "NOTES.txt", chart)
            (chart / "templates" / "shown.yaml").write_text('notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n')
            shown = yaml.safe_load(_template(self, chart, "-s", "templates/shown.yaml"))
        notes: str = shown["notes"]
        return notes

    def objects(self) -> list[JsonObject]:
        """The same, read; in helm's order, hooks last. Raises Refused."""
        objects: list[JsonObject] = msgspec.json.decode(_read(self.text()))
        return objects

    def of_kind(self, kind: str, *, component: str = "") -> list[JsonObject]:
        """Those of a kind, and of a component if one is given."""
        wanted = [each for each in self.objects() if each["kind"] == kind]
        return [each for each in wanted if component in ("", each["metadata"]["labels"][COMPONENT])]

    def one(self, kind: str, *, component: str = "") -> JsonObject:
        """The only one of that kind."""
        (thing,) = self.of_kind(kind, component=component)
        return thing

    def settings(self, *, component: str = "controller") -> str:
        """The settings file of a part."""
        label = "settings" if component == "controller" else component
        text: str = self.one("ConfigMap", component=label)["data"]["config.yaml"]
        return text


COMPONENT: Final = "app.kubernetes.io/component"


def run(*arguments: str, given: str = "") -> str:
    """What helm prints. Raises Refused."""
    done = subprocess.run([HELM, *arguments], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def defaults() -> JsonObject:
    """values.yaml."""
    read: JsonObject = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return read


def refusal(values: JsonObject, **more: Any) -> str:
    """Why helm does not render these values; "" if it does."""
    try:
        Release(values=values, **more).text()
    except Refused as refused:
        return str(refused)
    return ""


@cache
def _rendered(encoded: bytes) -> str:
    return _template(msgspec.json.decode(encoded, type=Release), CHART)


@cache
def _read(text: str) -> bytes:
    # As JSON: what is decoded from it is the caller's to change.
    return msgspec.json.encode([each for each in read_yaml(text) if each is not None])


def read_yaml(text: str) -> Iterator[Any]:
    """The documents of a YAML stream; by libyaml where PyYAML has it, ten times as fast."""
    documents: Iterator[Any] = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return documents


def _template(release: Release, chart: Path, *only: str) -> str:
    place = ("--namespace", release.namespace, "--kube-version", release.kubernetes)
    apis = [argument for api in release.apis for argument in ("--api-versions", api)]
    values = json.dumps(release.values)
    return run("template", release.name, str(chart), *only, *place, *apis, "--values", "-", given=values)


# The manifests of the node agent as they are shipped, and what API servers make of admission policies.

FILES = Path(__file__).parents[2] / "helm" / "manifests"
NAMESPACE = "kube-system"
NAME = "gracectl-agent"
NODE_NAME = "authentication.kubernetes.io/node-name"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
PATHS = {**KINDS, "ValidatingAdmissionPolicy": POLICIES, "ValidatingAdmissionPolicyBinding": BINDINGS}


def agent_objects(namespace: str = NAMESPACE, name: str = NAME) -> list[JsonObject]:
    """All that lets agents run, in another namespace and under another name if one is given."""
    return _manifest("agent.yaml", namespace, name)


def policy_objects(namespace: str = NAMESPACE, name: str = NAME) -> list[JsonObject]:
    """The admission policies and their bindings, likewise."""
    return _manifest("agent-policy.yaml", namespace, name)


def _manifest(file: str, namespace: str, name: str) -> list[JsonObject]:
    text = (FILES / file).read_text().replace(NAMESPACE, namespace).replace(NAME, name)
    return list(yaml.safe_load_all(text))


def of_kind(objects: list[JsonObject], kind: str) -> JsonObject:
    """The only one of that kind."""
    (thing,) = (each for each in objects if each["kind"] == kind)
    return thing


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A write as an admission policy sees it. `node`: what the token says; None: it names none."""

    user: str = f"system:serviceaccount:{NAMESPACE}:{NAME}"
    node: str | None = None
    operation: str
    resource: str
    name: str
    old: JsonObject | None = msgspec.field(default_factory=dict)
    new: JsonObject | None = None
    namespace: str = ""
    kind: str = ""

    @property
    def variables(self) -> dict[str, Any]:
        """What expressions look at."""
        extra = {} if self.node is None else {"extra": {NODE_NAME: [self.node]}}
        request = {
            "userInfo": {"username": self.user, **extra},
            "name": self.name,
            "namespace": self.namespace,
            "kind": {"kind": self.kind},
        }
        return {"request": request, "object": self.new, "oldObject": self.old, "variables": {}}


def denial(policies: list[JsonObject], request: Request) -> str:
    """Why these policies deny a request; "" if they do not."""
    for policy in policies:
        if policy["kind"] == "ValidatingAdmissionPolicy" and _is_meant(policy["spec"], request):
            known = request.variables
            for variable in policy["spec"]["variables"]:
                known["variables"][variable["name"]] = _value(variable["expression"], known)
            for rule in policy["spec"]["validations"]:
                if not _value(rule["expression"], known):
                    return str(
                        _value(rule["messageExpression"], known) if "messageExpression" in rule else rule["message"]
                    )
    return ""


def _is_meant(spec: JsonObject, request: Request) -> bool:
    rules = spec["matchConstraints"]["resourceRules"]
    is_selected = any(
        request.operation in rule["operations"] and request.resource in rule["resources"] for rule in rules
    )
    conditions = spec.get("matchConditions", ())
    return is_selected and all(_value(each["expression"], request.variables) for each in conditions)


def _value(expression: str, known: dict[str, Any]) -> Any:
    return compile_expression(expression, dict.fromkeys(known, DYN)).run(known)


# Installations: sets of values, each for a release on some cluster.

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
AGENT: Final[dict[str, Any]] = {"enabled": True, "settings": dict(BY_KEP)}

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
                **BY_KEP,
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
