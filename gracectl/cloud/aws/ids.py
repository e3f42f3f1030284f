"""What a providerID says about an instance of EC2: which one it is, and in which region."""

from __future__ import annotations

import re

import msgspec

from gracectl.cloud.provider import ProviderRefused

# The region is what stands before its zone: a letter, or the name of a Local Zone or a Wavelength Zone.
_ZONE = re.compile(r"(?P<region>[a-z]+(?:-[a-z]+)+-[0-9]+)(?:[a-z]|(?:-[a-z0-9]+)+)")
# A node of Fargate has one part more, before its name.
_PROVIDER_ID = re.compile(r"aws:///(?P<zone>[^/]*)/(?:[^/]+/)?(?P<name>[^/]+)")
_INSTANCE = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")

NOT_OURS = "end its machine where it was made, or keep gracectl away from this node with nodeSelector"


class InstanceId(msgspec.Struct, frozen=True):
    """An instance, by the region that it runs in and its name there (`us-west-2`, `i-0123456789abcdef0`).

    `zone` is what the providerID says, and says nothing about which instance it is; "" if it does not say.
    """

    region: str
    name: str
    zone: str = ""


def instance_of(provider_id: str, region: str = "") -> InstanceId:
    """Read `aws:///us-west-2a/i-0123456789abcdef0`; `region` is for those that name no zone.

    Raises ProviderRefused for what is no instance of EC2.
    """
    found = _PROVIDER_ID.fullmatch(provider_id)
    if found is None:
        raise ProviderRefused(f"providerID {provider_id} is not of the form aws:///<zone>/i-<id>", NOT_OURS)
    zone, name = found["zone"], found["name"]
    if name.startswith("fargate-"):
        remedy = "delete its pod, with which Fargate ends the machine, or exclude these nodes with nodeSelector"
        raise ProviderRefused(f"providerID {provider_id} is a node of Fargate, not an instance of EC2", remedy)
    if _INSTANCE.fullmatch(name) is None or provider_id != f"aws:///{zone}/{name}":
        raise ProviderRefused(f"providerID {provider_id} names no instance of EC2 ({name})", NOT_OURS)
    if not zone:
        if not region:
            remedy = "say it with provider.options.region"
            raise ProviderRefused(f"providerID {provider_id} does not tell the region", remedy)
        return InstanceId(region, name)
    placed = _ZONE.fullmatch(zone)
    if placed is None:
        raise ProviderRefused(f"providerID {provider_id} names no zone of AWS ({zone})", NOT_OURS)
    return InstanceId(placed["region"], name, zone)
