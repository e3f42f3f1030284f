"""Which claim a node belongs to: rules against a model that says the same another way."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.builders import a_node

from gracectl.model import names
from gracectl.model.claim import NodeClaim, belongs, only_claim, surviving_nodes
from gracectl.model.meta import Condition

NAMES = st.sampled_from(["n1", "n2"])
IDS = st.sampled_from(["", "i-1", "i-2"])
CLAIMS = st.builds(
    lambda name, provider_id, node_name: NodeClaim(
        name=name, uid=f"uid-{name}", provider_id=provider_id, node_name=node_name
    ),
    st.sampled_from(["c1", "c2", "c3"]),
    IDS,
    st.sampled_from(["", "n1", "n2"]),
)


def a_claim(provider_id: str = "", node_name: str = "") -> NodeClaim:
    return NodeClaim(name="c", uid="uid-c", provider_id=provider_id, node_name=node_name)


def test_the_instance_decides_where_both_know_it() -> None:
    node = a_node("n1", provider_id="i-1")
    assert belongs(node, a_claim("i-1"))
    assert belongs(node, a_claim("i-1", "n2"))  # it has registered under another name by now
    assert not belongs(node, a_claim("i-2", "n1"))  # it came back under the name of another
    assert not belongs(node, a_claim("i-2"))


def test_before_that_the_claim_names_its_node() -> None:
    assert belongs(a_node("n1"), a_claim("i-1", "n1"))
    assert belongs(a_node("n1", provider_id="i-1"), a_claim("", "n1"))
    assert not belongs(a_node("n1", provider_id="i-1"), a_claim("", "n2"))


def test_nothing_in_common_is_not_the_same() -> None:
    assert not belongs(a_node("n1"), a_claim())
    assert not belongs(a_node(""), a_claim())
    assert not belongs(a_node("n1"), a_claim("i-1"))


@given(NAMES, IDS, CLAIMS)
@example("n1", "", NodeClaim(name="c", uid="u"))
def test_belongs_against_a_table(name: str, provider_id: str, claim: NodeClaim) -> None:
    same_name = claim.node_name == name
    expected = {
        # (does the node know its instance, does the claim)
        (True, True): provider_id == claim.provider_id,
        (True, False): same_name,
        (False, True): same_name,
        (False, False): same_name,
    }[bool(provider_id), bool(claim.provider_id)]
    assert belongs(a_node(name, provider_id=provider_id), claim) == expected


@given(NAMES, NAMES, st.sampled_from(["i-1", "i-2"]), CLAIMS)
def test_a_claim_with_an_instance_has_one_node(name: str, other: str, provider_id: str, claim: NodeClaim) -> None:
    """Two instances are never both a claim's, once both providerIDs are known."""
    if claim.provider_id:
        first = belongs(a_node(name, provider_id="i-1"), claim)
        second = belongs(a_node(other, provider_id="i-2"), claim)
        assert not (first and second)


@given(st.lists(CLAIMS, max_size=4))
def test_a_node_has_a_claim_only_when_there_is_no_doubt(claims: list[NodeClaim]) -> None:
    assert only_claim(iter(claims)) == (claims[0] if len(claims) == 1 else None)


@pytest.mark.parametrize(("is_ready", "other_is_ready", "other_is_deleted", "expected"), [
    (False, True, False, True), (True, True, False, True), (False, False, False, True),
    (True, False, False, True),  # the copy of a kubelet reports as well
    (False, True, True, False), (False, False, True, False), (True, True, True, False),
])  # fmt: skip
def test_which_node_lives_on_beside_one_that_goes(
    is_ready: bool, other_is_ready: bool, other_is_deleted: bool, expected: bool
) -> None:
    node, other = (
        a_node(name, conditions=(Condition(names.READY, names.TRUE if ready else names.UNKNOWN),))
        for name, ready in (("n1", is_ready), ("n2", other_is_ready))
    )
    other = msgspec.structs.replace(other, deletion_timestamp=1.0 if other_is_deleted else None)
    for each in (node, msgspec.structs.replace(node, deletion_timestamp=1.0)):
        assert surviving_nodes(each, [each, other]) == ((other,) if expected else ())
