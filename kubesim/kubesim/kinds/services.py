"""Services: their defaults and the addresses they are given. There is no network behind them."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator, Mapping
from typing import Final

from kubesim.kinds.workloads import Plain
from kubesim.server.api import Json, JsonObject
from kubesim.server.resource import Occasion
from kubesim.server.status import Cause, not_supported, required

TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
OPEN_OUTSIDE: Final = ("LoadBalancer", "NodePort")
FIRST_ADDRESS: Final = ipaddress.IPv4Address("10.96.0.10")
FIRST_NODE_PORT: Final = 30_000
INSIDE: Final[Mapping[str, Json]] = {
    "ipFamilies": ["IPv4"],
    "ipFamilyPolicy": "SingleStack",
    "internalTrafficPolicy": "Cluster",
}


class Service(Plain):
    """Services get an address in the cluster, and a port on every node where they are open to the outside."""

    def __init__(self) -> None:
        super().__init__({"loadBalancer": {}})
        self._addresses = itertools.count()
        self._node_ports = itertools.count(FIRST_NODE_PORT)

    def prepare_create(self, new: JsonObject, occasion: Occasion) -> JsonObject:
        new = super().prepare_create(new, occasion)
        return {**new, "spec": self._placed(_filled(new["spec"]))}

    def normalise(self, new: JsonObject) -> JsonObject:
        return {**new, "spec": _filled(new.get("spec") or {})}

    def _placed(self, spec: JsonObject) -> JsonObject:
        if spec["type"] == "ExternalName":
            return spec
        if not spec.get("clusterIP"):
            spec = {**spec, "clusterIP": str(FIRST_ADDRESS + next(self._addresses))}
        spec = {**spec, "clusterIPs": spec.get("clusterIPs") or [spec["clusterIP"]]}
        if spec["type"] in OPEN_OUTSIDE:
            spec["ports"] = [
                port if port.get("nodePort") else {**port, "nodePort": next(self._node_ports)}
                for port in spec.get("ports") or ()
            ]
        return spec

    def validate(self, new: JsonObject) -> list[Cause]:
        return list(_faults(new["spec"]))


def _filled(given: JsonObject) -> JsonObject:
    kind = given.get("type") or "ClusterIP"
    spec: JsonObject = {**given, "type": kind, "sessionAffinity": given.get("sessionAffinity") or "None"}
    if spec.get("ports"):
        spec["ports"] = [_port(port) for port in spec["ports"]]
    if kind == "ExternalName":
        return spec
    spec = {**INSIDE, **spec}
    if kind in OPEN_OUTSIDE:
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    return spec


def _port(port: JsonObject) -> JsonObject:
    filled = {"protocol": "TCP", **port}
    if not filled.get("targetPort"):
        filled["targetPort"] = filled.get("port", 0)
    return filled


def _faults(spec: JsonObject) -> Iterator[Cause]:
    ports = spec.get("ports") or ()
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield required("spec.ports")
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield required(f"spec.ports[{index}].name")
    if spec["type"] not in TYPES:
        yield not_supported("spec.type", f'"{spec["type"]}"', TYPES)
