"""Files of tools/: versions, templates as lib.sh fills them, and what kind and kwok read, by their published types."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
import yaml

from support.dockerfile import ROOT

TOOLS = ROOT / "tools"


def versions() -> dict[str, str]:
    """tools/versions.env."""
    lines = (TOOLS / "versions.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled(name: str, **values: str) -> list[Any]:
    """The documents of a file of tools/kind with its `${NAME}`s replaced; KeyError for one that has no value."""
    text = (TOOLS / "kind" / name).read_text(encoding="utf-8")
    known = {**versions(), **values}
    return list(yaml.safe_load_all(re.sub(r"\$\{(\w+)\}", lambda place: known[place[1]], text)))


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Decoded as Go does it strictly: an unknown field is an error."""


# -- kind.x-k8s.io/v1alpha4 (sigs.k8s.io/kind/pkg/apis/config/v1alpha4), as far as validated --------------------------


class PortMapping(Strict):
    container_port: int
    host_port: int = 0
    listen_address: str = ""
    protocol: Literal["TCP", "UDP", "SCTP"] = "TCP"


class Mount(Strict):
    container_path: str
    host_path: str
    read_only: bool = False
    selinux_relabel: bool = False
    propagation: Literal["None", "HostToContainer", "Bidirectional"] = "None"


class PatchJson(Strict):
    group: str
    version: str
    kind: str
    patch: str


class KindNode(Strict):
    role: Literal["control-plane", "worker"] = "control-plane"
    image: str = ""
    labels: dict[str, str] = {}
    extra_mounts: list[Mount] = []
    extra_port_mappings: list[PortMapping] = []
    kubeadm_config_patches: list[str] = []
    patches: list[PatchJson] = msgspec.field(name="kubeadmConfigPatchesJSON6902", default_factory=list)


class KindNetworking(Strict):
    ip_family: Literal["ipv4", "ipv6", "dual"] = "ipv4"
    api_server_port: int = msgspec.field(name="apiServerPort", default=0)
    api_server_address: str = msgspec.field(name="apiServerAddress", default="")
    pod_subnet: str = ""
    service_subnet: str = ""
    disable_default_cni: bool = msgspec.field(name="disableDefaultCNI", default=False)
    kube_proxy_mode: Literal["none", "iptables", "ipvs", "nftables"] = "iptables"
    dns_search: list[str] = []


class KindCluster(Strict):
    """The file of `kind create cluster --config`."""

    kind: Literal["Cluster"]
    api_version: Literal["kind.x-k8s.io/v1alpha4"]
    name: str = ""
    nodes: list[KindNode] = []
    networking: KindNetworking = msgspec.field(default_factory=KindNetworking)
    feature_gates: dict[str, bool] = {}
    runtime_config: dict[str, str] = {}
    kubeadm_config_patches: list[str] = []
    patches: list[PatchJson] = msgspec.field(name="kubeadmConfigPatchesJSON6902", default_factory=list)
    containerd_config_patches: list[str] = []


# -- kwok.x-k8s.io/v1alpha1 and config.kwok.x-k8s.io/v1alpha1 (sigs.k8s.io/kwok v0.8.0), as far as used ----------------


class Requirement(Strict):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []


class Selector(Strict):
    match_expressions: list[Requirement] = []
    match_labels: dict[str, str] = {}
    match_annotations: dict[str, str] = {}


class ResourceRef(Strict):
    api_group: str
    kind: Literal["Node", "Pod"]


class Delay(Strict):
    duration_milliseconds: int = 0
    jitter_duration_milliseconds: int = 0


class Next(Strict):
    status_template: str = ""
    delete: bool = False


class StageSpec(Strict):
    resource_ref: ResourceRef
    selector: Selector
    next: Next
    delay: Delay = msgspec.field(default_factory=Delay)


class Named(Strict):
    name: str


class LifeStage(Strict):
    """A Stage of kwok."""

    api_version: Literal["kwok.x-k8s.io/v1alpha1"]
    kind: Literal["Stage"]
    metadata: Named
    spec: StageSpec


class KwokOptions(Strict):
    manage_all_nodes: bool
    manage_nodes_with_annotation_selector: str
    node_lease_duration_seconds: int
    cidr: str
    node_port: int
    node_lease_parallelism: int
    pods_on_node_sync_parallelism: int
    node_play_stage_parallelism: int
    pod_play_stage_parallelism: int


class KwokConfiguration(Strict):
    """The options of kwok."""

    api_version: Literal["config.kwok.x-k8s.io/v1alpha1"]
    kind: Literal["KwokConfiguration"]
    options: KwokOptions
