"""Patches on plain JSON, as recordings of a real server have them, and differences that survive other changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gracectl.kube.patches import InvalidPatch, apply_difference, apply_patch, changed_fields, difference
from gracectl.kube.requests import JsonPatch, MergePatch, StrategicPatch

NODE: dict[str, Any] = {
    "metadata": {"name": "n1", "labels": {"a": "1"}, "finalizers": ["x/y", "grace"]},
    "spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Drained", "status": "False"}]},
}
TAINT = {"key": "ours", "effect": "NoSchedule"}


def patched(operations: Any, content_type: str = JsonPatch.content_type) -> dict[str, Any]:
    return apply_patch(NODE, operations, content_type)


def test_a_json_patch_adds_replaces_and_removes_by_path() -> None:
    after = patched(
        [
            {"op": "add", "path": "/spec/taints/-", "value": TAINT},
            {"op": "add", "path": "/metadata/labels/example.com~1b", "value": "2"},
            {"op": "replace", "path": "/spec/taints/0/effect", "value": "NoExecute"},
            {"op": "remove", "path": "/metadata/finalizers/1"},
            {"op": "test", "path": "/metadata/name", "value": "n1"},
        ]
    )
    assert after["spec"]["taints"] == [{"key": "other", "effect": "NoExecute"}, TAINT]
    assert after["metadata"]["labels"] == {"a": "1", "example.com/b": "2"}
    assert after["metadata"]["finalizers"] == ["x/y"]
    assert NODE["metadata"]["finalizers"] == ["x/y", "grace"]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/metadata/annotations/a"},
        {"op": "remove", "path": "/metadata/finalizers/2"},
        {"op": "replace", "path": "/spec/unschedulable", "value": True},
        {"op": "test", "path": "/metadata/name", "value": "n2"},
        {"op": "move", "path": "/metadata/name", "from": "/metadata/labels"},
    ],
)
def test_a_json_patch_that_does_not_fit_is_invalid(operation: dict[str, Any]) -> None:
    with pytest.raises(InvalidPatch, match=operation["path"]):
        patched([operation])


def test_a_merge_patch_removes_by_null_and_replaces_lists() -> None:
    after = patched({"metadata": {"labels": {"a": None}, "finalizers": ["z"]}}, MergePatch.content_type)
    assert (after["metadata"]["labels"], after["metadata"]["finalizers"]) == ({}, ["z"])


def test_a_strategic_patch_changes_one_condition_and_deletes_another() -> None:
    entries = [{"type": "Ready", "status": "False"}, {"type": "Drained", "$patch": "delete"}, {"type": "New"}]
    after = patched({"status": {"conditions": entries}}, StrategicPatch.content_type)
    assert after["status"]["conditions"] == [{"type": "Ready", "status": "False"}, {"type": "New"}]


def test_a_difference_leaves_what_others_change_meanwhile() -> None:
    after = patched(
        [
            {"op": "add", "path": "/spec/taints/-", "value": TAINT},
            {"op": "add", "path": "/spec/unschedulable", "value": True},
        ]
    )
    later = {**NODE, "spec": {"taints": [{"key": "third", "effect": "NoExecute"}], "podCIDR": "10.0.0.0/24"}}
    change = difference(NODE, after)
    assert list(changed_fields(change)) == ["spec.taints", "spec.unschedulable"]
    assert apply_difference(later, change)["spec"] == {
        "taints": [{"key": "third", "effect": "NoExecute"}, TAINT],
        "podCIDR": "10.0.0.0/24",
        "unschedulable": True,
    }


scalars = st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2)
values = st.recursive(scalars, lambda inner: st.dictionaries(st.sampled_from("xyz"), inner, max_size=3), max_leaves=8)


@given(st.dictionaries(st.sampled_from("xyz"), values), st.dictionaries(st.sampled_from("xyz"), values))
def test_a_difference_leads_from_one_state_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply_difference(old, difference(old, new)) == new
