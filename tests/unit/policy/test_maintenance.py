"""Which nodes are kept drained, which are being given back, and what is recorded on them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import NOW, a_node

from gracectl.model import names
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.cordon import Mark, recorded
from gracectl.policy.maintenance import (
    drain_deadline,
    is_in_maintenance,
    is_maintenance_ending,
    is_maintenance_requested,
    maintenance_request,
    maintenance_since,
    recorded_marks,
)

ALL = "taint,label,unschedulable"


def marked(keep: str | None = None, cordoned: str | None = None, **fields: Any) -> Node:
    annotations = {names.KEEP_DRAINED: keep, names.CORDONED: cordoned}
    return a_node(annotations={key: value for key, value in annotations.items() if value is not None}, **fields)


@pytest.mark.parametrize(("node", "state"), [
    (marked(), ""), (marked(unschedulable=True), ""),
    # Asked for: not cordoned yet; cordoned by another client; by us; by us, and not all of it stands any more.
    (marked("2026-01-01T00:00:00Z"), "kept"), (marked("nonsense"), "kept"), (marked(""), "kept"),
    (marked("", unschedulable=True), "kept"),
    (marked("", ALL, unschedulable=True), "kept"),
    # Uncordoned by hand.
    (marked("", ALL), "given back"), (marked("", "unschedulable"), "given back"),
    # Taken off.
    (marked(None, ALL, unschedulable=True), "given back"),
    (marked(None, ALL), "given back"), (marked(None, ""), "given back"),
    # Asked for once more while something of the last time is left.
    (marked("", ""), "kept"), (marked("", "", unschedulable=True), "kept"),
    # A record that was changed.
    (marked("", "whatever"), "kept"), (marked(None, "whatever"), "given back"),
    # A deletion is the last word.
    (marked("", ALL, unschedulable=True, deletion_timestamp=NOW), ""),
    (marked("", ALL, deletion_timestamp=NOW), ""),
    (marked(None, ALL, deletion_timestamp=NOW), ""),
])  # fmt: skip
def test_a_node_is_kept_or_being_given_back_or_neither(node: Node, state: str) -> None:
    assert is_maintenance_requested(node) is (state == "kept")
    assert is_maintenance_ending(node) is (state == "given back")
    assert is_in_maintenance(node) is (state != "")


@pytest.mark.parametrize(("value", "since"), [
    (format_time(NOW - 60), NOW - 60), ("1970-01-01T00:00:00Z", 0.0), (format_time(NOW + 60), NOW), ("", NOW),
    ("true", NOW), ("yesterday", NOW),
])  # fmt: skip
def test_since_when_a_node_is_kept(value: str, since: float) -> None:
    assert maintenance_since(marked(value), NOW) == since


@given(st.frozensets(st.sampled_from(Mark)))
def test_what_is_recorded_is_read_again(marks: frozenset[Mark]) -> None:
    assert recorded_marks(marked(None, recorded(marks))) == marks


@pytest.mark.parametrize(("text", "marks"), [
    ("", set()), (",", set()), ("label , taint", {Mark.LABEL, Mark.TAINT}), ("Taint", set()),
    ("taint,sticker", {Mark.TAINT}),
])  # fmt: skip
def test_unknown_words_in_a_record_are_ignored(text: str, marks: set[Mark]) -> None:
    assert recorded_marks(marked(None, text)) == marks


def requested(deadline: float | None, **fields: Any) -> Node:
    written = {} if deadline is None else {names.DRAIN_DEADLINE: format_time(deadline)}
    return a_node(annotations={names.KEEP_DRAINED: format_time(NOW - 60), **written}, **fields)


@pytest.mark.parametrize(("known", "seconds", "deadline"), [
    (None, None, None), (None, 60.0, NOW + 60), (NOW + 30, None, NOW + 30),
    (NOW + 90, 60.0, NOW + 60), (NOW + 60, 60.0, NOW + 60), (NOW + 30, 60.0, NOW + 30),
    # An option that says a minute does not mean now.
    (NOW - 30, 60.0, NOW + 60), (NOW - 30, None, NOW - 30),
])  # fmt: skip
def test_a_repeated_request_makes_the_deadline_earlier_and_never_later(
    known: float | None, seconds: float | None, deadline: float | None
) -> None:
    node = requested(known)
    after = a_node(annotations={**node.annotations, **maintenance_request(node, NOW, seconds)})
    ends = drain_deadline(after)
    assert (None if ends is None else ends.at) == deadline
    assert after.annotations[names.KEEP_DRAINED] == format_time(NOW - 60)


@pytest.mark.parametrize("node", [
    pytest.param(a_node(annotations={names.DRAIN_DEADLINE: format_time(NOW - 30)}), id="no request"),
    pytest.param(
        a_node(annotations={**requested(NOW - 30).annotations, names.CORDONED: "unschedulable"}), id="uncordoned"
    ),
])  # fmt: skip
def test_a_new_request_has_no_deadline_of_an_old_one(node: Node) -> None:
    assert drain_deadline(node) is None
    assert maintenance_request(node, NOW) == {names.KEEP_DRAINED: format_time(NOW), names.DRAIN_DEADLINE: None}
    assert maintenance_request(node, NOW, 5.0)[names.DRAIN_DEADLINE] == format_time(NOW + 5)
