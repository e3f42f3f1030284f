"""What a providerID of AWS tells."""

from __future__ import annotations

import pytest

from gracectl.cloud.aws.provider import AwsProvider
from gracectl.cloud.aws.region import InstanceId, instance_of
from gracectl.cloud.provider import KeysInstances, ProviderRefused

NAME = "i-0123456789abcdef0"


@pytest.mark.parametrize(("zone", "region"), [
    ("us-west-2a", "us-west-2"), ("us-west-2-lax-1a", "us-west-2"), ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
    ("us-gov-west-1a", "us-gov-west-1"), ("cn-north-1a", "cn-north-1"), ("ap-southeast-12b", "ap-southeast-12"),
    ("us-iso-east-1a", "us-iso-east-1"),
])  # fmt: skip
def test_the_region_is_what_stands_before_the_zone(zone: str, region: str) -> None:
    assert instance_of(f"aws:///{zone}/{NAME}", "elsewhere-1") == InstanceId(region, NAME, zone)


def test_every_spelling_of_an_instance_has_one_key() -> None:
    provider = AwsProvider(AwsProvider.Options(region="us-west-2"))
    spellings = (f"aws:///us-west-2a/{NAME}", f"aws:///us-west-2b/{NAME}", f"aws:////{NAME}", f" aws:////{NAME} ")
    assert {provider.instance_key(each) for each in spellings} == {f"us-west-2/{NAME}"}
    assert provider.instance_key(f"aws:///us-east-1a/{NAME}") != f"us-west-2/{NAME}"
    assert provider.instance_key(" gce://project/us-west1-a/node ") == "gce://project/us-west1-a/node"
    assert isinstance(provider, KeysInstances)


def test_an_old_short_id_is_one_as_well() -> None:
    assert instance_of("aws:///us-west-2a/i-01234567").name == "i-01234567"


def test_without_a_zone_the_settings_say_the_region() -> None:
    assert instance_of(f"aws:////{NAME}", "us-west-2") == InstanceId("us-west-2", NAME)
    with pytest.raises(ProviderRefused, match=r"has no region; set provider\.options\.region"):
        instance_of(f"aws:////{NAME}")


@pytest.mark.parametrize(("provider_id", "message"), [
    ("aws:///us-west-2a/abc/fargate-ip-10-0-0-1.us-west-2.compute.internal", "Fargate.*; delete its pod"),
    ("aws:///us-west-2a/fargate-ip-10-0-0-1", "Fargate.*; delete its pod"),
    ("gce://project/us-west1-a/node", "not of the form.*nodeSelector"),
    ("eks-hybrid:///us-west-2/cluster/mi-0123456789abcdef0", "not of the form.*nodeSelector"),
    ("aws:///us-west-2a/mi-0123456789abcdef0", "has no EC2 instance id"),
    ("aws:///us-west-2a/i-0123456789ABCDEF0", "has no EC2 instance id"),
    ("aws:///us-west-2a/i-0123456789abcdef0 x", "has no EC2 instance id"),
    (f"aws:///nowhere/{NAME}", r"has no AWS zone \(nowhere\)"),
    (f"aws:///us-west-2/{NAME}", r"has no AWS zone \(us-west-2\)"),
    ("", "not of the form"),
])  # fmt: skip
def test_what_is_no_instance_of_ec2_is_refused(provider_id: str, message: str) -> None:
    with pytest.raises(ProviderRefused, match=message):
        instance_of(provider_id, "us-west-2")
