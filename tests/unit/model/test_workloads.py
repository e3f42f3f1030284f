"""Workloads, quotas and network policies, as a replacement reads them."""

from __future__ import annotations

from fractions import Fraction

from fuzz.samples import NETWORK_POLICY, QUOTA, WORKLOAD
from support.builders import encoded

from gracectl.model.workloads import RolloutState, decode_network_policy, decode_quota, decode_workload


def test_a_whole_workload() -> None:
    found = decode_workload(encoded(**WORKLOAD))
    assert found.rollout == RolloutState(
        kind_above=found.rollout.kind_above,
        strategy="Recreate",
        is_observed=False,
        is_deleted=True,
        updated=3,
        failure="quota",
    )
    assert (found.uses_host, found.claims, found.limits) == (True, ("data",), {"cpu": Fraction(2)})


def test_the_labels_that_a_network_policy_selects_by() -> None:
    policy = {
        **NETWORK_POLICY,
        "spec": {"podSelector": {}, "egress": [{"to": [{"podSelector": {"matchLabels": {"a": "b"}}}]}]},
    }
    assert decode_network_policy(encoded(**policy)).keys == {"a"}


def test_a_quota_with_scopes_may_not_apply() -> None:
    assert decode_quota(encoded(**QUOTA)).hard == {}
    found = decode_quota(encoded(**{**QUOTA, "spec": {}}))
    assert (found.hard["pods"], found.used["requests.cpu"]) == (Fraction(10), Fraction(3, 2))


def test_what_is_missing_reads_as_absent() -> None:
    bare = {"metadata": {"name": "web"}}
    assert decode_workload(encoded(**bare)).rollout == RolloutState()
    assert decode_network_policy(encoded(**bare)).keys == set()
    assert decode_quota(encoded(**bare)).hard == {}
