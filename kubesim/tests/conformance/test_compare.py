"""How the suite compares: what placeholders may stand for, what counts as a difference, and what entries cover."""

from __future__ import annotations

import pytest
from conformance.differences import Difference, Side, steps_of
from conformance.placeholders import ABSENT, Bindings, Deviation
from conformance.report import brief
from conformance.trims import trim_named
from kubesim.server.api import Json


def compared(recorded: Json, here: Json, bindings: Bindings | None = None) -> list[Deviation]:
    return list((bindings or Bindings()).deviations(recorded, here, "body"))


def test_a_placeholder_keeps_what_it_first_stood_for() -> None:
    bindings = Bindings()
    assert compared({"uid": "<uid:1>", "of": "<uid:2>"}, {"uid": "a", "of": "b"}, bindings) == []
    assert compared("<uid:1>", "a", bindings) == []
    assert compared("<uid:1>", "b", bindings) == [Deviation("body", "a", "b")]
    assert bindings.filled({"x": "see <uid:2>"}) == {"x": "see b"}


def test_two_placeholders_of_a_kind_are_two_values() -> None:
    assert compared(["<rv:1>", "<rv:2>"], ["5", "5"]) == [Deviation("body[1]", "<rv:2>", "5")]
    assert compared(["<rv:1>", "<list-rv:1>", "<time>", "<time>"], ["5", "5", "x", "x"]) == []


@pytest.mark.parametrize(
    ("recorded", "here", "at"),
    [
        ({"a": 1}, {}, "body.a"),
        ({}, {"a": 1}, "body.a"),
        ([1], [1, 2], "body"),
        (1, True, "body"),
        ({"a": [{"b": "x"}]}, {"a": [{"b": "y"}]}, "body.a[0].b"),
    ],
)
def test_where_an_answer_deviates(recorded: Json, here: Json, at: str) -> None:
    (deviation,) = compared(recorded, here)
    assert deviation.at == at
    assert ABSENT in (deviation.recorded, deviation.here) or at != "body.a"


def test_an_object_in_a_message_is_compared_as_an_object() -> None:
    recorded = 'no: Invalid value: "{\\"a\\":1,\\"b\\":2,\\"managedFields\\":[]}": why'
    assert compared(recorded, 'no: Invalid value: "{\\"b\\":2,\\"a\\":1}": why') == []
    (deviation,) = compared(recorded, 'no: Invalid value: "{\\"b\\":3,\\"a\\":1}": why')
    assert deviation == Deviation("body.quoted.b", 2, 3)


def test_a_reduced_answer_shows_what_is_absent() -> None:
    trim = trim_named("reduced to metadata.name, spec; those not shown are absent")
    assert trim({"metadata": {"name": "a", "uid": "b"}, "status": {}}) == {"metadata": {"name": "a"}}
    assert trim({"kind": "Status", "code": 404}) == {"kind": "Status", "code": 404}
    with pytest.raises(KeyError):
        trim_named("whatever")


def test_an_entry_covers_its_steps_its_place_and_what_is_there() -> None:
    entry = Difference(Side.TODAY, "a reason", "crds 3; leases 5-7", "body.items[*].x", "2*")
    assert entry.steps == {"crds": (3,), "leases": (5, 6, 7)}
    deviation = Deviation("body.items[4].x", 1, 25)
    assert [entry.covers(*place, deviation) for place in (("crds", 3), ("crds", 5), ("leases", 6), ("auth", 3))] == [
        True,
        False,
        True,
        False,
    ]
    assert not entry.covers("crds", 3, Deviation("body.items[4].y", 1, 25))
    assert not entry.covers("crds", 3, Deviation("body.items[4].x", 1, 35))


def test_places_are_told_in_runs() -> None:
    places = [f"a {step}" for step in (1, 2, 3, 5)] + ["b 2"]
    assert brief(places) == "a 1-3, 5; b 2"
    assert steps_of(brief(places)) == {"a": (1, 2, 3, 5), "b": (2,)}
