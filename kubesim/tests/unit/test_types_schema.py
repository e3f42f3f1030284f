"""A schema, node by node; and the catalogue of the built-in kinds."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.types.catalog import built_in_type, catalog
from kubesim.types.gotypes import go_fields
from kubesim.types.schema import MISSING, Schema


def field(path: str, *kind: str) -> Schema:
    schema = built_in_type(*(kind or ("", "v1", "Pod")))
    for name in path.split("."):
        assert schema is not None
        schema = schema.items if name == "[]" else schema.field(name)
    assert schema is not None
    return schema


class TestSchema:
    def test_a_reference_is_replaced_and_what_stands_beside_it_wins(self) -> None:
        known = {"#/x": {"type": "object", "description": "x", "default": 1}}
        schema = Schema({"allOf": [{"$ref": "#/x"}], "description": "y"}, known.__getitem__)
        assert (schema.type, schema.description, schema.default, schema.reference) == ("object", "y", 1, "#/x")

    def test_an_unknown_reference_is_an_error(self) -> None:
        with pytest.raises(KeyError):
            Schema({"$ref": "#/missing"})

    def test_a_field_is_a_property_or_else_an_entry_of_the_map(self) -> None:
        schema = Schema({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}})
        assert [getattr(schema.field(name), "type", None) for name in "ab"] == ["string", "integer"]
        assert Schema({"additionalProperties": False}).field("a") is None
        assert Schema({"additionalProperties": True}).additional is not None

    def test_children_are_made_once(self) -> None:
        schema = Schema({"properties": {"a": {}}, "items": {}})
        assert schema.properties["a"] is schema.properties["a"]
        assert schema.items is schema.items

    def test_a_default_of_null_is_a_default(self) -> None:
        assert Schema({"default": None}).default is None
        assert Schema({}).default is MISSING

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

    def test_what_kubernetes_adds(self) -> None:
        schema = Schema(
            {
                "x-kubernetes-int-or-string": True,
                "x-kubernetes-preserve-unknown-fields": True,
                "x-kubernetes-embedded-resource": True,
                "x-kubernetes-map-type": "atomic",
                "nullable": True,
            }
        )
        assert schema.int_or_string
        assert schema.preserves_unknown
        assert schema.embedded
        assert schema.nullable
        assert schema.map_type == "atomic"


class TestCatalog:
    def test_kinds_are_found_by_group_version_and_name(self) -> None:
        assert built_in_type("apps", "v1", "Deployment") is not None
        assert built_in_type("apps", "v1", "Pod") is None
        assert built_in_type("policy", "v1beta1", "PodDisruptionBudget") is not None

    def test_ports_are_told_apart_by_number_and_protocol(self) -> None:
        ports = field("spec.containers.[].ports")
        assert (ports.list_type, ports.list_keys) == ("map", ("containerPort", "protocol"))
        assert ports.items is not None
        assert ports.items.properties["protocol"].default == "TCP"
        assert ports.merge_key == "containerPort"

    def test_taints_are_one_thing_and_finalizers_a_set(self) -> None:
        assert field("spec.taints", "", "v1", "Node").list_type == "atomic"
        assert field("metadata.finalizers").list_type == "set"
        assert field("spec.nodeSelector").map_type == "atomic"

    def test_a_strategy_that_changes_forgets_what_belonged_to_the_other(self) -> None:
        assert "retainKeys" in field("spec.strategy", "apps", "v1", "Deployment").patch_strategies
        assert field("spec.volumes").patch_strategies == {"merge", "retainKeys"}

    def test_types_may_contain_themselves(self) -> None:
        schema = field(
            "spec.versions.[].schema.openAPIV3Schema", "apiextensions.k8s.io", "v1", "CustomResourceDefinition"
        )
        deeper = schema.properties["not"].properties["not"].properties["not"]
        assert deeper.properties["type"].type == "string"

    def test_fields_say_what_they_are_for(self) -> None:
        assert field("spec.nodeName").description.startswith("NodeName indicates in which node this pod is scheduled.")

    def test_schemas_and_structs_know_the_same_fields(self) -> None:
        for name, node in catalog().schemas.items():
            if name in catalog().structs and "properties" in node:
                assert {each.name for each in go_fields(name)} == set(node["properties"]), name
