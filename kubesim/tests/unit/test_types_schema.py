"""A schema, node by node; and the catalogue of the built-in kinds."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.types.catalog import built_in_type, catalog
from kubesim.types.gotypes import go_fields
from kubesim.types.schema import Schema


def field(path: str, *kind: str) -> Schema:
    schema = built_in_type(*(kind or ("", "v1", "Pod")))
    for name in path.split("."):
        assert schema is not None
        schema = schema.items if name == "[]" else schema.field(name)
    assert schema is not None
    return schema


class TestSchema:
    def test_an_unknown_reference_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            Schema({"$ref": "#/missing"})

    @pytest.mark.parametrize(
        ("raw", "list_type", "keys"),
        [
            ({}, "atomic", ()),
            ({"x-kubernetes-list-type": "set"}, "set", ()),
            ({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a", "b"]}, "map", ("a", "b")),
            ({"x-kubernetes-list-type": "atomic", "x-kubernetes-patch-strategy": "merge"}, "atomic", ()),
            ({"x-kubernetes-patch-strategy": "merge"}, "set", ()),
            ({"x-kubernetes-patch-strategy": "merge,retainKeys", "x-kubernetes-patch-merge-key": "n"}, "map", ("n",)),
            ({"x-kubernetes-patch-strategy": "replace"}, "atomic", ()),
        ],
    )
    def test_how_a_list_merges(self, raw: dict[str, Any], list_type: str, keys: tuple[str, ...]) -> None:
        schema = Schema(raw)
        assert (schema.list_type, schema.list_keys) == (list_type, keys)


class TestCatalog:
    def test_fields_say_what_they_are_for(self) -> None:
        assert field("spec.nodeName").description.startswith("NodeName indicates in which node this pod is scheduled.")

    def test_schemas_and_structs_know_the_same_fields(self) -> None:
        for name, node in catalog().schemas.items():
            if name in catalog().structs and "properties" in node:
                assert {each.name for each in go_fields(name)} == set(node["properties"]), name
