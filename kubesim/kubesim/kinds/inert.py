"""Kinds that are validated and stored but do nothing, so that charts can be applied.

For example CronJob, Ingress, ResourceQuota, ValidatingAdmissionPolicy.
"""

from __future__ import annotations

from typing import NamedTuple

from kubesim.kinds.workloads import Counted, Plain, TopLevel
from kubesim.server.resource import Resource, Strategy

STATUS = ("status",)
API_EXTENSIONS = ("api-extensions",)
ADMISSION = "admissionregistration.k8s.io"
POLICY = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}


class Inert(NamedTuple):
    """A kind as one row."""

    group: str
    version: str
    plural: str
    kind: str
    strategy: Strategy
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    namespaced: bool = True
    categories: tuple[str, ...] = ()


KINDS = (
    Inert("", "v1", "limitranges", "LimitRange", Plain(), ("limits",)),
    Inert("", "v1", "podtemplates", "PodTemplate", TopLevel()),
    Inert("", "v1", "resourcequotas", "ResourceQuota", Plain({}), ("quota",), STATUS),
    Inert(
        ADMISSION,
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        Counted({}, failurePolicy="Fail", matchConstraints=POLICY),
        subresources=STATUS,
        namespaced=False,
        categories=API_EXTENSIONS,
    ),
    Inert(
        ADMISSION,
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        Counted(),
        namespaced=False,
        categories=API_EXTENSIONS,
    ),
    Inert("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", Plain({}), ("hpa",), STATUS),
    Inert("batch", "v1", "cronjobs", "CronJob", Counted({}), ("cj",), STATUS),
    Inert("networking.k8s.io", "v1", "ingressclasses", "IngressClass", Counted(), namespaced=False),
    Inert("networking.k8s.io", "v1", "ingresses", "Ingress", Counted({"loadBalancer": {}}), ("ing",), STATUS),
    Inert("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", Counted(), ("netpol",)),
    Inert("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", TopLevel(), namespaced=False),
    Inert("storage.k8s.io", "v1", "csidrivers", "CSIDriver", Plain(), namespaced=False),
)


def inert_kinds() -> tuple[Resource, ...]:
    """All of them as resources."""
    return tuple(Resource(**kind._asdict()) for kind in KINDS)
