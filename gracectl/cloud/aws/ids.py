"""providerIDs of EC2: instance and region."""

from __future__ import annotations

import re

import msgspec

from gracectl.cloud.provider import ProviderRefused

# The region is the zone without its suffix: a letter, or the name of a Local Zone or a Wavelength Zone.
_ZONE = re.compile(r"(?P<region>[a-z]+(?:-[a-z]+)+-[0-9]+)(?:[a-z]|(?:-[a-z0-9]+)+)")
# A node of Fargate has one more part, before its name.
_PROVIDER_ID = re.compile(r"aws:///(?P<zone>[^/]*)/(?:[^/]+/)?(?P<name>[^/]+)")
_INSTANCE = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")

NOT_OURS = "terminate its machine where it was created, or exclude this node with nodeSelector"


class InstanceId(msgspec.Struct, frozen=True):
    """An instance: its region and its name there (`us-west-2`, `i-0123456789abcdef0`).

    `zone` as the providerID has it, which does not identify the instance; "" without one.
    """

    region: str
    name: str
    zone: str = ""


def instance_of(provider_id: str, region: str = "") -> InstanceId:
    """Parse `aws:///us-west-2a/i-0123456789abcdef0`; `region` is for those without a zone.

    Raises ProviderRefused for other than instances of EC2.
    """
    found = _PROVIDER_ID.fullmatch(provider_id)
    if found is None:
        raise ProviderRefused(f"providerID {provider_id} is not of the form aws:///<zone>/i-<id>", NOT_OURS)
    zone, name = found["zone"], found["name"]
    if name.startswith("fargate-"):
        remedy = "delete its pod, with which Fargate terminates the machine, or exclude these nodes with nodeSelector"
        raise ProviderRefused(f"providerID {provider_id} is a Fargate node, not an EC2 instance", remedy)
    if _INSTANCE.fullmatch(name) is None or provider_id != f"aws:///{zone}/{name}":
        raise ProviderRefused(f"providerID {provider_id} has no EC2 instance id ({name})", NOT_OURS)
    if not zone:
        if not region:
            remedy = "set provider.options.region"
            raise ProviderRefused(f"providerID {provider_id} has no region", remedy)
        return InstanceId(region, name)
    matched = _ZONE.fullmatch(zone)
    if matched is None:
        raise ProviderRefused(f"providerID {provider_id} has no AWS zone ({zone})", NOT_OURS)
    return InstanceId(matched["region"], name, zone)
