"""The pure heart of server-side apply: sets of fields, what values speak of, merging, comparing, pruning, owning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kubesim.managedfields import updater
from kubesim.managedfields.extraction import fields_of
from kubesim.managedfields.managers import APPLY, NO_OWNERS, UPDATE, Managed, Manager, decoded, encoded
from kubesim.managedfields.merging import merged
from kubesim.managedfields.updater import Author, Conflicts
from kubesim.types.schema import Schema

TEXT = {"type": "string"}
PART = {
    "type": "object",
    "properties": {"name": TEXT, "port": {"type": "integer", "default": 80}, "value": TEXT},
}
GADGET = Schema(
    {
        "type": "object",
        "properties": {
            "size": {"type": "integer"},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": TEXT},
            "plain": {"type": "array", "items": TEXT},
            "parts": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name", "port"],
                "items": PART,
            },
            "options": {"type": "object", "additionalProperties": TEXT},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": TEXT},
            "deep": {"type": "object", "properties": {"x": TEXT, "y": TEXT}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
)


@pytest.mark.parametrize(
    ("live", "applied", "result"),
    [
        ("abc", "b", "abc"),
        ("ab", "ac", "abc"),
        ("ab", "cb", "acb"),
        ("ab", "ca", "cab"),
        ("ab", "ba", "ba"),
        ("abc", "cxa", "bcxa"),
        ("axbycz", "cba", "xyczba"),
        ("ab", "cd", "abcd"),
        ("", "ba", "ba"),
        ("abcd", "dNb", "acdNb"),
    ],
)
def test_the_order_of_merged_lists(live: str, applied: str, result: str) -> None:
    new = merged({"tags": list(live)}, {"tags": list(applied)}, GADGET)
    assert "".join(new["tags"]) == result


NAMES = st.sampled_from("abc")
GADGETS = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(1, 2),
        "tags": st.lists(NAMES, unique=True, min_size=1),
        "plain": st.lists(NAMES, max_size=2),
        "parts": st.lists(
            st.fixed_dictionaries(
                {"name": NAMES}, optional={"port": st.integers(80, 81), "value": st.sampled_from("12")}
            ),
            unique_by=lambda part: (part["name"], part.get("port", 80)),
            min_size=1,
            max_size=3,
        ),
        "options": st.dictionaries(NAMES, st.sampled_from("12"), min_size=1),
        "whole": st.dictionaries(NAMES, st.sampled_from("12"), max_size=2),
        "deep": st.dictionaries(st.sampled_from("xy"), st.sampled_from("12"), min_size=1),
        "free": st.dictionaries(NAMES, st.dictionaries(NAMES, st.just([1]), min_size=1), min_size=1),
    },
)


def author(name: str, operation: str = APPLY, now: str = "2026-01-01T00:00:00Z") -> Author:
    """A manager at work on a gadget."""
    return Author(Manager(name, operation, "v1" if operation == UPDATE else ""), "v1", now, GADGET)


def filled(value: Any) -> Any:
    """A value without what is empty or null."""
    if isinstance(value, dict):
        return {key: kept for key, each in value.items() if (kept := filled(each)) not in (None, {}, [])}
    return [filled(each) for each in value] if isinstance(value, list) else value


@given(GADGETS, GADGETS)
def test_to_apply_twice_is_to_apply_once(live: Any, applied: Any) -> None:
    first, owners = updater.applied(NO_OWNERS, live, applied, author("a"), force=False)
    second, same = updater.applied(owners, first, applied, author("a", now="2026-01-01T00:01:00Z"), force=False)
    assert (second, same) == (first, owners)


@given(GADGETS, GADGETS)
def test_what_is_given_up_leaves_what_was_there(live: Any, applied: Any) -> None:
    owners = updater.updated(NO_OWNERS, {}, live, author("before", UPDATE))
    try:
        new, after = updater.applied(owners, live, applied, author("a"), force=False)
    except Conflicts:
        assume(False)
    left, last = updater.applied(after, new, {}, author("a"), force=False)
    assert filled(sorted_lists(left)) == filled(sorted_lists(live))
    assert last == owners


def sorted_lists(value: Any) -> Any:
    """A gadget with the lists that merge in one order: applying may have given them another."""
    return {
        key: sorted(each, key=lambda item: (item, 0) if isinstance(item, str) else (item["name"], item.get("port", 80)))
        if key in ("tags", "parts")
        else each
        for key, each in value.items()
    }


@given(st.lists(st.tuples(st.sampled_from("ab"), GADGETS), max_size=5))
def test_absent_fields_have_no_owner(steps: list[tuple[str, Any]]) -> None:
    live: Any = {}
    owners: Managed = NO_OWNERS
    for name, configuration in steps:
        live, owners = updater.applied(owners, live, configuration, author(name), force=True)
        there = fields_of(live, GADGET)
        for manager, owned in owners.items():
            assert not owned.fields - there, manager
    assert decoded(encoded(owners)) == owners
