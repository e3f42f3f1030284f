"""Files of tools/ and the Dockerfile, read by published schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

# Reading the Dockerfile: its instructions, one after the other, as far as ours uses the language.

ROOT = Path(__file__).parents[2]


class Instruction(msgspec.Struct, frozen=True):
    """One instruction: `COPY --from=build /a /b` has the flag `from`, and what is behind the flags as `rest`."""

    word: str
    flags: dict[str, str]
    rest: str

    @property
    def listed(self) -> list[str]:
        """What is written as a JSON list, which no shell gets to see. ValueError for anything else."""
        listed = json.loads(self.rest)
        if not isinstance(listed, list):
            raise ValueError(self.rest)
        return listed


def instructions(text: str) -> list[Instruction]:
    """All of a Dockerfile, without its comments."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    parsed = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        flags = {}
        while match := re.match(r"--([\w-]+)=(\S+)\s+", rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        parsed.append(Instruction(word, flags, rest))
    return parsed


def _stages(text: str) -> list[list[Instruction]]:
    """What stands before the first FROM, and then each stage from its FROM on."""
    split: list[list[Instruction]] = [[]]
    for instruction in instructions(text):
        if instruction.word == "FROM":
            split.append([])
        split[-1].append(instruction)
    return split


def the_only(stage: list[Instruction], word: str) -> Instruction:
    """The one instruction of that word; AssertionError if there are several or none."""
    matching = [instruction for instruction in stage if instruction.word == word]
    assert len(matching) == 1, (word, matching)
    return matching[0]


def read_yaml(path: str) -> Any:
    """A YAML file of the project."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


BEFORE, BUILD, BUILD_KUBESIM, FINAL, KUBESIM, DEFAULT = _stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
"""The project's Dockerfile: arguments, the stage that builds, the one that is the image, the same two with kubesim, and
the one without a target."""


# Files of tools/: versions, templates as lib.sh fills them, and what kind and kwok read, by their published types.

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
