"""Whether an instance of EC2 is the one behind a node."""

from __future__ import annotations

import msgspec
import pytest
from support.stage import staged

from gracectl.cloud.aws.provider import AwsProvider
from gracectl.cloud.aws.region import Instance, check_ownership, instance_of
from gracectl.cloud.provider import NodeIdentity, ProviderRefused
from gracectl.kube.client import KubeClient

NAME = "i-0123456789abcdef0"
HERE = f"aws:///us-east-1a/{NAME}"
DNS = "ip-10-0-0-7.ec2.internal"


def an_instance(**fields: object) -> Instance:
    """As EC2 describes one, with a second interface."""
    described = {
        "InstanceId": NAME, "State": {"Name": "running"}, "Placement": {"AvailabilityZone": "us-east-1a"},
        "PrivateIpAddress": "10.0.0.7", "PrivateDnsName": DNS,
        "NetworkInterfaces": [
            {
                "PrivateIpAddresses": [{"PrivateIpAddress": "10.0.1.8", "PrivateDnsName": "ip-10-0-1-8.ec2.internal"}],
                "Ipv6Addresses": [{"Ipv6Address": "2001:db8::7"}],
            },
        ],
        **fields,
    }  # fmt: skip
    return msgspec.convert(described, Instance)


@pytest.mark.parametrize(("name", "addresses"), [
    (DNS, ()),
    ("ip-10-0-0-7.corp.example.com", ()),  # a domain of one's own, by DHCP
    ("IP-10-0-0-7", ()), ("ip-10-0-1-8.ec2.internal", ()),
    (NAME, ()),  # kOps
    (f"{NAME}.ec2.internal", ()),  # named by the resource
    ("10.0.0.7", ()), ("worker-1", ("10.0.0.7", "worker-1")), ("worker-1", ("192.168.0.1", "10.0.1.8")),
    ("worker-1", ("2001:DB8::7",)), ("worker-1", ("IP-10-0-0-7.ec2.internal",)),
])  # fmt: skip
def test_a_node_is_known_by_its_name_or_by_an_address(name: str, addresses: tuple[str, ...]) -> None:
    for provider_id in (HERE, f"aws:////{NAME}"):
        check_ownership(NodeIdentity(name, addresses), instance_of(provider_id, "us-east-1"), an_instance())


@pytest.mark.parametrize(("name", "addresses", "why"), [
    ("ip-10-0-0-9.ec2.internal", (), "not one of its names"),
    # The addresses are the kubelet's to write; a name that EC2 has made is not.
    ("ip-10-0-0-9.ec2.internal", ("10.0.0.7", DNS), "not one of its names"),
    ("i-0fedcba9876543210", ("10.0.0.7",), "not one of its names"),
    ("worker-2", ("10.0.0.9", "worker-2"), "its name and addresses do not match"),
    ("worker-2", (), "its name and addresses do not match"),
    ("10.0.0.9", (), "its name and addresses do not match"),
    ("10.0.1.7", (), "its name and addresses do not match"),
])  # fmt: skip
def test_the_instance_of_another_node_is_refused(name: str, addresses: tuple[str, ...], why: str) -> None:
    with pytest.raises(ProviderRefused) as caught:
        check_ownership(NodeIdentity(name, addresses), instance_of(HERE), an_instance())
    assert str(caught.value).startswith(
        f"instance {NAME} belongs to another node: EC2 has {DNS} in us-east-1a, the node is {name}: {why}; "
        "check spec.providerID of the node"
    )


def test_a_zone_that_is_not_the_instances_is_refused_whatever_the_name() -> None:
    with pytest.raises(ProviderRefused, match=r"belongs to another node: .*: spec\.providerID has zone us-east-1b;"):
        check_ownership(NodeIdentity(DNS), instance_of(f"aws:///us-east-1b/{NAME}"), an_instance())


def test_where_ec2_says_nothing_of_it_nothing_is_ended() -> None:
    bare = an_instance(Placement={}, PrivateIpAddress="", PrivateDnsName="", NetworkInterfaces=[])
    check_ownership(NodeIdentity(NAME), instance_of(HERE), bare)
    with pytest.raises(ProviderRefused, match="EC2 has without a private name in no zone"):
        check_ownership(NodeIdentity("worker-1", ("10.0.0.7",)), instance_of(HERE), bare)


async def test_a_node_with_copied_addresses_is_refused_while_another_node_has_the_instances_name() -> None:
    """The node's name is its own, so that only addresses tell, which its kubelet writes."""
    host = DNS.partition(".")[0]
    copy = NodeIdentity("worker-1", ("10.0.0.7",))
    check_ownership(copy, instance_of(HERE), an_instance())
    async with staged(host) as stage:
        provider = AwsProvider(AwsProvider.Options())
        provider.use(KubeClient(stage.transport, stage.clock))
        assert provider.rights() == ()
        with pytest.raises(ProviderRefused) as caught:
            await provider._check_names(copy, an_instance())
        assert str(caught.value) == (
            f"instance {NAME} belongs to another node: {host} has its name, and not worker-1; check spec.providerID of "
            f"the node, which its kubelet has written; or delete node {host} if it is left over"
        )
        await provider._check_names(NodeIdentity(host), an_instance())
        await stage.call("DELETE", f"/api/v1/nodes/{host}")
        await provider._check_names(copy, an_instance())
