"""The columns of Services and of what stands behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kubesim.printers.cells import AGE, NAME, NONE, labels_of, path
from kubesim.server.api import JsonObject
from kubesim.server.resource import Column

UNSET: Final = "<unset>"
SHOWN: Final = 3
"""So many addresses are named, the others counted."""


def _external(service: JsonObject, now: float) -> str:
    spec = service["spec"]
    addresses: list[str] = list(spec.get("externalIPs") or ())
    match spec.get("type"):
        case "ExternalName":
            return spec.get("externalName") or NONE
        case "LoadBalancer":
            entries = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
            addresses = [entry.get("ip") or entry.get("hostname", "") for entry in entries] + addresses
            return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or NONE


def _ports(service: JsonObject, now: float) -> str:
    ports = (
        f"{port['port']}{':' + str(port['nodePort']) if port.get('nodePort') else ''}/{port.get('protocol', 'TCP')}"
        for port in service["spec"].get("ports") or ()
    )
    return ",".join(ports) or NONE


def _endpoints(endpoints: JsonObject, now: float) -> str:
    found: list[str] = []
    for subset in endpoints.get("subsets") or ():
        ports = [port["port"] for port in subset.get("ports") or ()]
        for address in subset.get("addresses") or ():
            found += [f"{address['ip']}:{port}" for port in ports] or [address["ip"]]
    return _some(found, " + {} more...") if found else NONE


def _slice_ports(slice_: JsonObject, now: float) -> str:
    ports = [str(port.get("port") or "*") for port in slice_.get("ports") or ()]
    return _some(ports, " + {} more...") if ports else UNSET


def _slice_endpoints(slice_: JsonObject, now: float) -> str:
    found = [address for endpoint in slice_.get("endpoints") or () for address in endpoint.get("addresses") or ()]
    return _some(found, " + {} more...") if found else UNSET


def _some(found: Sequence[str], more: str) -> str:
    rest = len(found) - SHOWN
    return ",".join(found[:SHOWN]) + (more.format(rest) if rest > 0 else "")


COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "services": (
        NAME,
        Column("Type", path("spec", "type", missing="")),
        Column("Cluster-IP", path("spec", "clusterIP")),
        Column("External-IP", _external),
        Column("Port(s)", _ports),
        AGE,
        Column("Selector", labels_of("spec", "selector"), wide=True),
    ),
    "endpoints": (NAME, Column("Endpoints", _endpoints), AGE),
    "endpointslices": (
        NAME,
        Column("AddressType", path("addressType", missing="")),
        Column("Ports", _slice_ports),
        Column("Endpoints", _slice_endpoints),
        AGE,
    ),
}
