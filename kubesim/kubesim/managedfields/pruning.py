"""Takes fields out of a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubesim.managedfields.fieldsets import FieldSet
from kubesim.managedfields.forms import Form, element_of, field_type, form_of
from kubesim.managedfields.pathelements import field
from kubesim.server.api import Json

if TYPE_CHECKING:
    from kubesim.types.schema import Schema


def without_fields(value: Json, fields: FieldSet, schema: Schema | None) -> Json:
    """The value without these fields, entries and items; null when nothing is left (so that the owner of the emptied
    list or map keeps it). What it keeps is shared."""
    match form_of(schema, value):
        case Form.MAP if value:
            kept = {}
            for name, each in value.items():
                element = field(name)
                if element in fields.members:
                    continue
                below = fields.below(element)
                kept[name] = without_fields(each, below, field_type(schema, name)) if below else each
            return kept or None
        case Form.LIST if value and schema is not None:
            left = [
                without_fields(each, fields.below(element), schema.items) if fields.below(element) else each
                for each in value
                if (element := element_of(schema, each)) not in fields.members
            ]
            return left or None
        case Form.WHOLE if not isinstance(value, dict | list):
            return value
    return None
