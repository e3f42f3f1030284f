"""The pure heart of server-side apply: sets of fields, what values speak of, merging, comparing, pruning, owning."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kubesim.managedfields import pathelements, updater
from kubesim.managedfields.comparison import compare
from kubesim.managedfields.extraction import fields_of, with_named_fields
from kubesim.managedfields.fieldsets import NOTHING, FieldSet
from kubesim.managedfields.managers import APPLY, NO_OWNERS, UPDATE, Managed, Manager, decoded, encoded
from kubesim.managedfields.merging import merged
from kubesim.managedfields.pruning import without_fields
from kubesim.managedfields.updater import Author, Conflicts
from kubesim.managedfields.validation import faults
from kubesim.types.schema import MISSING, Schema

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


def field_set(fields: Any) -> FieldSet:
    """A set by its FieldsV1."""
    return FieldSet.decoded(fields)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ({}, {}),
        ({"size": 1}, {"f:size": {}}),
        ({"size": None}, {"f:size": {}}),
        ({"plain": ["a"]}, {"f:plain": {}}),
        ({"plain": []}, {"f:plain": {}}),
        ({"tags": ["b", "a"]}, {"f:tags": {'v:"a"': {}, 'v:"b"': {}}}),
        ({"tags": []}, {}),
        ({"tags": ["a", "a"]}, {"f:tags": {'v:"a"': {}}}),
        ({"parts": [{"name": "p"}]}, {"f:parts": {'k:{"name":"p","port":80}': {".": {}, "f:name": {}}}}),
        ({"options": {}}, {"f:options": {}}),
        ({"options": {"a": "1"}}, {"f:options": {"f:a": {}}}),
        ({"whole": {"a": "1"}}, {"f:whole": {}}),
        ({"deep": {"x": "1"}}, {"f:deep": {"f:x": {}}}),
        ({"deep": {}}, {"f:deep": {}}),
        ({"free": {"a": {"b": [1]}}}, {"f:free": {"f:a": {".": {}, "f:b": {}}}}),
    ],
)
def test_what_a_value_speaks_of(value: Any, fields: Any) -> None:
    assert fields_of(value, GADGET).encoded() == fields


def test_without_a_schema_maps_have_parts_and_lists_are_one_thing() -> None:
    value = {"a": {"b": [{"name": "x"}], "c": {}}}
    assert fields_of(value, None).encoded() == {"f:a": {".": {}, "f:b": {}, "f:c": {}}}
    assert merged({"a": {"b": [1]}}, {"a": {"b": [2], "d": 1}}, None) == {"a": {"b": [2], "d": 1}}


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


def test_items_merge_by_their_keys_and_the_defaults_of_those() -> None:
    live = {"parts": [{"name": "p", "port": 80, "value": "1"}, {"name": "p", "port": 81}]}
    new = merged(live, {"parts": [{"name": "p", "value": "2"}]}, GADGET)
    assert new["parts"] == [{"name": "p", "port": 80, "value": "2"}, {"name": "p", "port": 81}]


@pytest.mark.parametrize(
    ("old", "new", "removed", "modified", "added"),
    [
        ({"size": 1}, {"size": 1}, {}, {}, {}),
        ({"size": 1}, {"size": 2}, {}, {"f:size": {}}, {}),
        ({}, {"options": {"a": "1"}}, {}, {}, {"f:options": {".": {}, "f:a": {}}}),
        ({"options": {"a": "1"}}, {"options": {}}, {"f:options": {"f:a": {}}}, {}, {}),
        ({"options": {"a": "1"}}, {}, {"f:options": {".": {}, "f:a": {}}}, {}, {}),
        ({"whole": {"a": "1"}}, {"whole": {"b": "1"}}, {}, {"f:whole": {}}, {}),
        ({"tags": ["a", "b"]}, {"tags": ["b", "c"]}, {"f:tags": {'v:"a"': {}}}, {}, {"f:tags": {'v:"c"': {}}}),
        ({"tags": ["a", "b"]}, {"tags": ["b", "a"]}, {}, {}, {}),
        ({"tags": ["a"]}, {"tags": ["a", "a"]}, {"f:tags": {'v:"a"': {}}}, {}, {"f:tags": {'v:"a"': {}}}),
        ({"free": {"a": 1}}, {"free": {"a": {"b": 1}}}, {}, {"f:free": {"f:a": {}}}, {"f:free": {"f:a": {"f:b": {}}}}),
    ],
)
def test_what_changed(old: Any, new: Any, removed: Any, modified: Any, added: Any) -> None:
    change = compare(old, new, GADGET)
    assert (change.removed.encoded(), change.modified.encoded(), change.added.encoded()) == (removed, modified, added)


def test_fields_are_taken_out() -> None:
    value = {"size": 1, "tags": ["a", "b"], "parts": [{"name": "p", "value": "1"}], "options": {"a": "1", "b": "1"}}
    gone = {"f:size": {}, "f:tags": {'v:"a"': {}}, "f:parts": {'k:{"name":"p","port":80}': {"f:value": {}}}}
    rest = without_fields(value, field_set({**gone, "f:options": {"f:a": {}, "f:b": {}}}), GADGET)
    assert rest == {"tags": ["b"], "parts": [{"name": "p"}], "options": None}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"size": "1"}, ".size: expected numeric (int or float), got string"),
        ({"tags": "a"}, ".tags: expected list, got &{a}"),
        ({"options": [1]}, ".options: expected map, got &{[1]}"),
        ({"options": {"a": 1}}, ".options.a: expected string, got &value.valueUnstructured{Value:1}"),
        ({"nope": 1}, ".nope: field not declared in schema"),
        ({"deep": {"nope": 1}}, ".deep.nope: field not declared in schema"),
        ({"tags": ["a", "a"]}, '.tags: duplicate entries for key [="a"]'),
        (
            {"parts": [{"port": 1}]},
            '.parts: element 0: associative list with keys has an element that omits key field "name" '
            "(and doesn't have default value)",
        ),
    ],
)
def test_what_does_not_fit(value: Any, found: str) -> None:
    assert faults(value, GADGET) == [found]


def test_what_fits() -> None:
    assert faults({"free": {"a": [1, {"b": None}]}, "size": None, "parts": [{"name": "p"}]}, GADGET) == []


@pytest.mark.parametrize("text", ["f", "name", "v:{", "k:1", "i:x"])
def test_no_element(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        pathelements.read(text)


ENTRY = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:a": {}}}


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        {"manager": "m"},
        {**ENTRY, "operation": "Replace"},
        {**ENTRY, "apiVersion": ""},
        {**ENTRY, "fieldsType": "FieldsV2"},
        {**ENTRY, "fieldsV1": ["f:a"]},
        {**ENTRY, "fieldsV1": {"a": {}}},
        {**ENTRY, "manager": 1},
        {**ENTRY, "time": "yesterday"},
    ],
)
def test_entries_that_make_no_sense(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded([entry])


def test_elements_have_one_spelling_and_one_order() -> None:
    fields: dict[str, Any] = {
        'v:"b"': {},
        "i:10": {},
        'k:{ "b":1, "a":"<" }': {},
        "f:z": {},
        "v:2": {},
        "i:9": {},
        "x:new": {},
        "f:a": {},
    }
    assert list(field_set(fields).encoded()) == [
        "f:a",
        "f:z",
        'k:{"a":"\\u003c","b":1}',
        "v:2",
        'v:"b"',
        "i:9",
        "i:10",
    ]


def test_a_field_and_what_lies_in_it_belong_to_a_set_apart() -> None:
    both = field_set({"f:a": {".": {}, "f:b": {}}})
    parent = field_set({"f:a": {}})
    assert (both - parent).encoded() == {"f:a": {"f:b": {}}}
    assert both.without(parent) == NOTHING
    assert (both & parent) == parent
    assert with_named_fields(field_set({"f:deep": {"f:x": {}}}), GADGET).encoded() == {"f:deep": {".": {}, "f:x": {}}}


NAMES = st.sampled_from("abc")
ELEMENTS = st.one_of(
    NAMES.map(pathelements.field),
    NAMES.map(pathelements.item),
    st.builds(lambda name, port: pathelements.item_with({"name": name, "port": port}), NAMES, st.integers(80, 81)),
)
SETS = st.lists(st.lists(ELEMENTS, min_size=1, max_size=3).map(tuple), max_size=8).map(FieldSet.of)
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


@given(SETS)
def test_sets_survive_their_spelling(fields: FieldSet) -> None:
    assert FieldSet.decoded(fields.encoded()) == fields
    assert FieldSet.of(fields.paths()) == fields


@given(SETS, SETS)
def test_sets_obey_the_laws_of_sets(one: FieldSet, other: FieldSet) -> None:
    assert (one - other) | (one & other) == one
    assert one | other == other | one
    assert set((one & other).paths()) == set(one.paths()) & set(other.paths())
    assert not (one - other) & other
    assert set(one.without(other).paths()) <= set((one - other).paths())


@given(GADGETS, GADGETS)
def test_comparing_finds_what_merging_changed(live: Any, applied: Any) -> None:
    new = merged(live, applied, GADGET)
    change = compare(live, new, GADGET)
    assert not change.removed
    assert not compare(applied, new, GADGET).modified
    said = with_named_fields(fields_of(applied, GADGET), GADGET)
    assert not change.written - said


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


def test_a_value_is_its_own_when_nothing_is_there() -> None:
    assert merged(MISSING, {"size": 1}, GADGET) == {"size": 1}
