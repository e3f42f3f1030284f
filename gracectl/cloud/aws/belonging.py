"""Whether an instance is the one behind a node, by what EC2 says of it.

A providerID is written by the kubelet, and so by any holder of its credentials: it may name another node's instance.
The zone must be the instance's. The node's name, to which the credentials are bound, decides where EC2 has made it; the
addresses, which the kubelet writes as well, where the name was chosen by hand.
"""

from __future__ import annotations

import re
from typing import Final

from gracectl.cloud.aws.ids import InstanceId
from gracectl.cloud.aws.region import Instance
from gracectl.cloud.provider import NodeIdentity, ProviderRefused
from gracectl.model.foreign import harmless

# The host names that EC2 makes, of an address or of the instance's id, before the domain.
_MADE_BY_EC2: Final = re.compile(r"ip-[0-9]+-[0-9]+-[0-9]+-[0-9]+|i-[0-9a-f]{8,17}")

REMEDY: Final = (
    "check spec.providerID of the node, which its kubelet has written; if names and addresses of the nodes are none "
    "that EC2 knows, set provider.options.verifyNode to false"
)


def check_belongs(node: NodeIdentity, asked: InstanceId, instance: Instance) -> None:
    """Raises ProviderRefused where the instance is another node's."""
    if asked.zone and instance.zone and asked.zone != instance.zone:
        raise _refusal(node, instance, f"spec.providerID says zone {harmless(asked.zone)}")
    known = {*instance.addresses, instance.id}
    host = _host(node.name)
    if host in {_host(each) for each in known}:
        return
    if _MADE_BY_EC2.fullmatch(host):
        raise _refusal(node, instance, "that is no name of it")
    if not {address.lower() for address in node.addresses} & known:
        raise _refusal(node, instance, "neither its name nor its addresses are of it")


def _host(name: str) -> str:
    """A host name without its domain, which may be one of your own; an IP address as it is."""
    lower = name.lower()
    is_address = ":" in lower or lower.replace(".", "").isdigit()
    return lower if is_address else lower.partition(".")[0]


def _refusal(node: NodeIdentity, instance: Instance, why: str) -> ProviderRefused:
    is_named = instance.private_dns_name or instance.private_ip_address or "without a private name"
    told = f"EC2 knows it as {is_named} in {instance.zone or 'no zone'}, the node is {harmless(node.name, 253)}"
    return ProviderRefused(f"instance {instance.id} belongs to another node: {told}: {why}", REMEDY)
