"""Granularity of values for server-side apply: maps and lists with owners of their parts, or atomic values.

Without a schema, maps have parts and lists are atomic. A value that its schema does not allow is atomic. Rules:
https://github.com/kubernetes/kube-openapi/blob/master/pkg/schemaconv/openapi.go
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from kubesim.managedfields.pathelements import Element, item, item_with
from kubesim.server.api import Json, JsonObject
from kubesim.types.catalog import named_type
from kubesim.types.schema import MISSING

if TYPE_CHECKING:
    from kubesim.types.schema import Schema


METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
RAW = "runtime.RawExtension"
"""Embedded objects of any kind: the one built-in type that is never taken apart."""

OF_EVERY_OBJECT = ("apiVersion", "kind", "metadata")


class Form(Enum):
    """How a value is owned."""

    MAP = "field by field"
    LIST = "item by item"
    WHOLE = "as a whole"


def form_of(schema: Schema | None, value: Json) -> Form:
    """The form of a value. null takes the form of its schema."""
    declared = schema.type if schema is not None else ""
    if isinstance(value, dict) or (value is None and declared in ("object", "")):
        if declared not in ("object", "") or (schema is not None and is_one_thing(schema)):
            return Form.WHOLE
        return Form.MAP
    if isinstance(value, list) or (value is None and declared == "array"):
        if schema is None or declared not in ("array", "") or schema.list_type == "atomic":
            return Form.WHOLE
        return Form.LIST
    return Form.WHOLE


def is_one_thing(schema: Schema) -> bool:
    """Whether a map of this type is owned as a whole."""
    return schema.map_type == "atomic" or schema.reference.endswith(RAW)


def is_named(schema: Schema | None, name: str) -> bool:
    """Whether an object's type lists the field; entries of maps are not listed."""
    if schema is None:
        return False
    return name in schema.properties or (schema.embedded and name in OF_EVERY_OBJECT)


def is_allowed(schema: Schema | None, name: str, *, preserving: bool) -> bool:
    """Whether an object may have the field. `preserving`: a schema above keeps unknown fields."""
    if schema is None or preserving or is_named(schema, name):
        return True
    if "additionalProperties" in schema.raw:
        return schema.additional is not None
    return not schema.properties


def field_type(schema: Schema | None, name: str) -> Schema | None:
    """The type of a field."""
    if schema is None:
        return None
    if schema.embedded and name == "metadata":
        # A custom resource's own schema says nothing about its metadata, or only that there is some.
        return named_type(METADATA)
    return schema.field(name)


def element_of(schema: Schema, value: Json) -> Element:
    """The element that names an item of a list of the form LIST. Raises ValueError for an item that has no name."""
    if not schema.list_keys:
        return _set_element(value)
    if not isinstance(value, dict):
        what = "a null element" if value is None else "non-map elements"
        raise ValueError(f"associative list with keys may not have {what}")
    return item_with({name: _key(schema, value, name) for name in schema.list_keys})


def _key(schema: Schema, value: JsonObject, name: str) -> Json:
    if name in value:
        return value[name]
    key_type = schema.items.field(name) if schema.items is not None else None
    if key_type is None or key_type.default is MISSING or key_type.default is None:
        raise ValueError(
            f'associative list with keys has an element that omits key field "{name}" (and doesn\'t have default value)'
        )
    return key_type.default


def _set_element(value: Json) -> Element:
    if isinstance(value, dict):
        raise ValueError("associative list without keys has an element that's a map type")
    if isinstance(value, list):
        raise ValueError("not supported: associative list with lists as elements")
    if value is None:
        raise ValueError("associative list without keys has an element that's an explicit null")
    return item(value)
