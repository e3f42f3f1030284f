"""The Go types behind the built-in kinds, as far as JSON and protobuf show them.

The catalogue spells a type as Go would with whole package paths (`map[string][]io.k8s.api.core.v1.Container`); here it
is read, once for each spelling.
"""

from __future__ import annotations

from functools import cache
from typing import Final, Literal, NamedTuple

from kubesim.types.catalog import catalog

Kind = Literal[
    "string",
    "bool",
    "int32",
    "int64",
    "float64",
    "bytes",
    "time",
    "microTime",
    "duration",
    "quantity",
    "intOrString",
    "any",
    "schemaOrBool",
    "schemaOrArray",
    "schemaOrStrings",
    "struct",
    "list",
    "map",
]

_MACHINERY: Final = "io.k8s.apimachinery.pkg."
_EXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
SCHEMA: Final = f"{_EXTENSIONS}JSONSchemaProps"

_SPECIAL: Final[dict[str, Kind]] = {
    "string": "string",
    "bool": "bool",
    "int32": "int32",
    "int64": "int64",
    "int": "int64",
    "float64": "float64",
    "[]byte": "bytes",
    f"{_MACHINERY}apis.meta.v1.Time": "time",
    f"{_MACHINERY}apis.meta.v1.MicroTime": "microTime",
    f"{_MACHINERY}apis.meta.v1.Duration": "duration",
    f"{_MACHINERY}api.resource.Quantity": "quantity",
    f"{_MACHINERY}util.intstr.IntOrString": "intOrString",
    f"{_MACHINERY}apis.meta.v1.FieldsV1": "any",
    f"{_MACHINERY}runtime.RawExtension": "any",
    f"{_MACHINERY}runtime.Object": "any",
    f"{_EXTENSIONS}JSON": "any",
    f"{_EXTENSIONS}JSONSchemaPropsOrBool": "schemaOrBool",
    f"{_EXTENSIONS}JSONSchemaPropsOrArray": "schemaOrArray",
    f"{_EXTENSIONS}JSONSchemaPropsOrStringArray": "schemaOrStrings",
}


class GoType(NamedTuple):
    """A type: `of` is the type of a list's items or a map's values, `struct` names a struct in the catalogue."""

    kind: Kind
    shown: str
    """As Go's error messages spell it: `[]v1.Container`."""
    pointer: bool = False
    of: str = ""
    struct: str = ""
    wrapped: bool = False
    """A list that has a name of its own, and so is a message of its own in protobuf."""


class GoField(NamedTuple):
    """A field of a struct: its name in JSON, its type, whether it is left out of JSON when it is empty."""

    name: str
    type: GoType
    omitted: bool


@cache
def go_type(spelled: str) -> GoType:
    """A Go type. Raises KeyError for one that the catalogue does not know."""
    if spelled.startswith("*"):
        return go_type(spelled[1:])._replace(pointer=True)
    if spelled in _SPECIAL:
        return GoType(_SPECIAL[spelled], "[]uint8" if spelled == "[]byte" else _short(spelled))
    if spelled.startswith("[]"):
        item = go_type(spelled[2:])
        return GoType("list", f"[]{'*' if item.pointer else ''}{item.shown}", of=spelled[2:])
    if spelled.startswith("map["):
        key, _, of = spelled[4:].partition("]")
        return GoType("map", f"map[{_short(key)}]{go_type(of).shown}", of=of)
    if spelled in catalog().named:
        real = go_type(catalog().named[spelled])
        return real._replace(shown=_short(spelled), wrapped=real.kind == "list")
    if spelled not in catalog().structs:
        raise KeyError(spelled)
    return GoType("struct", _short(spelled), struct=spelled)


def _short(spelled: str) -> str:
    return ".".join(spelled.rsplit(".", 2)[-2:])


@cache
def go_fields(struct: str) -> tuple[GoField, ...]:
    """The fields of a struct as JSON shows them, inlined ones in their place. Raises KeyError."""
    found: list[GoField] = []
    for name, _, spelled, omitted in catalog().structs[struct]:
        if name == "":
            found += go_fields(spelled.removeprefix("*"))
        elif name != "-":
            found.append(GoField(name, go_type(spelled), bool(omitted)))
    return tuple(found)
