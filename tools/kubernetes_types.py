"""Makes kubesim/kubesim/types/kubernetes.json.gz: what the built-in kinds of Kubernetes look like.

Origin: the API description of Kubernetes (api/openapi-spec/v3 of the Go module k8s.io/kubernetes) and the field tags of
the Go types it was made from (k8s.io/api, k8s.io/apimachinery, k8s.io/apiextensions-apiserver). Copyright The
Kubernetes Authors, licensed under the Apache License, Version 2.0. Only names, numbers, types and descriptions of
fields are taken; no code.

    go mod download k8s.io/kubernetes@v1.33.4 k8s.io/api@v0.33.4 \
        k8s.io/apimachinery@v0.33.4 k8s.io/apiextensions-apiserver@v0.33.4
    python tools/kubernetes_types.py "$(go env GOMODCACHE)" 1.33.4

The file holds `schemas` (OpenAPI v3 by reference), `structs` (for each Go struct its fields as [JSON name, number in
protobuf, Go type, left out when empty]; a name of "" is inlined in JSON, a number of 0 has no protobuf) and `named`
(Go types that are another name of something). Go types are spelled with whole package paths:
`[]io.k8s.api.core.v1.Container`. Two runs write the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "kubesim" / "kubesim" / "types" / "kubernetes.json.gz"
SPEC = re.compile(r"(api|apis__(?!apiregistration).*)__v\d+_openapi\.json")
MODULES = ("api", "apimachinery", "apiextensions-apiserver")
PREFIX = "#/components/schemas/"

IMPORT = re.compile(r'^\s*(?:import\s+)?(\w+)?\s*"(k8s\.io/[^"]+)"', re.MULTILINE)
STRUCT = re.compile(r"^type (\w+) struct ?\{(?:\}|\n(.*?)^\})", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^(?:type |\t)(\w+)\s+((?:\[\]|map\[\w+\])?[\w.]+)$", re.MULTILINE)
FIELD = re.compile(r"^\t(?:(\w+)\s+)?([*\[\]\w.]+)\s+`([^`]*)`", re.MULTILINE)
TAG = re.compile(r'(\w+):"([^"]*)"')
NAME = re.compile(r"(?<![\w.])(\w+\.)?([A-Za-z]\w*)(?![\w.]|\[)")
BUILT_IN = {"string", "bool", "int32", "int64", "int", "float64", "byte", "map", "uint64", "any"}

Struct = list[tuple[str, int, str, int]]


def main() -> None:
    """Read the modules, write the file."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("modules", type=Path, help="the Go module cache")
    arguments.add_argument("version", help="of Kubernetes, e.g. 1.33.4")
    given = arguments.parse_args()
    library = given.modules / "k8s.io"
    schemas = read_schemas(library / f"kubernetes@v{given.version}" / "api" / "openapi-spec" / "v3")
    structs: dict[str, Struct] = {}
    named: dict[str, str] = {}
    for module in MODULES:
        root = library / f"{module}@v0.{given.version.partition('.')[2]}"
        for folder in sorted({path.parent for path in root.rglob("types*.go")}):
            read_package(folder, f"io.k8s.{module}.{'.'.join(folder.relative_to(root).parts)}", structs, named)
    named["io.k8s.apimachinery.pkg.types.UID"] = "string"
    kept = reachable(schemas, structs, named)
    document = {
        "origin": f"Kubernetes v{given.version}, https://github.com/kubernetes/kubernetes",
        "licence": "Apache-2.0, Copyright The Kubernetes Authors",
        "schemas": schemas,
        "structs": {name: fields for name, fields in structs.items() if name in kept},
        "named": {name: type_ for name, type_ in named.items() if name in kept},
    }
    raw = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    TARGET.write_bytes(gzip.compress(raw, 9, mtime=0))
    print(f"{TARGET.name}: {len(schemas)} schemas, {len(document['structs'])} structs, {TARGET.stat().st_size} bytes")


def read_schemas(folder: Path) -> dict[str, Any]:
    """The schemas of all stable versions, by reference without its prefix."""
    schemas: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if SPEC.fullmatch(path.name):
            schemas.update(json.loads(path.read_bytes())["components"]["schemas"])
    return schemas


def read_package(folder: Path, package: str, structs: dict[str, Struct], named: dict[str, str]) -> None:
    """Add the types of one Go package."""
    for path in sorted(folder.glob("*.go")):
        if path.name.endswith("_test.go") or path.name.startswith("zz_") or path.name == "generated.pb.go":
            continue
        source = path.read_text()
        imports = {}
        for alias, imported in IMPORT.findall(source):
            parts = imported.removeprefix("k8s.io/").split("/")
            imports[alias or parts[-1]] = f"io.k8s.{'.'.join(parts)}"
        for name, body in STRUCT.findall(source):
            structs[f"{package}.{name}"] = [*read_fields(body, package, imports)]
        for name, type_ in NAMED.findall(source):
            if not type_.startswith(("struct", "interface", "func")):
                named[f"{package}.{name}"] = spelled(type_, package, imports)


def read_fields(body: str, package: str, imports: Mapping[str, str]) -> Iterator[tuple[str, int, str, int]]:
    """The fields of a struct that JSON or protobuf knows."""
    for _, type_, tags in FIELD.findall(body):
        tag = dict(TAG.findall(tags))
        name, *options = tag.get("json", "-").split(",")
        protobuf = tag.get("protobuf", "-").split(",")
        number = int(protobuf[1]) if len(protobuf) > 1 else 0
        if name == "-" and not number:
            continue
        yield name, number, spelled(type_, package, imports), int("omitempty" in options)


def spelled(type_: str, package: str, imports: Mapping[str, str]) -> str:
    """A Go type with whole package paths."""

    def whole(match: re.Match[str]) -> str:
        alias, name = match.groups()
        if alias:
            return f"{imports.get(alias[:-1], alias[:-1])}.{name}"
        return name if name in BUILT_IN else f"{package}.{name}"

    return NAME.sub(whole, type_)


def reachable(schemas: Mapping[str, Any], structs: Mapping[str, Struct], named: Mapping[str, str]) -> set[str]:
    """The types that the schemas' Go types lead to."""
    seen: set[str] = set()
    waiting = [*schemas]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for type_ in [*(each[2] for each in structs.get(name, ())), named.get(name, "")]:
            waiting += re.findall(r"io\.k8s\.[\w.-]+", type_)
    return seen


if __name__ == "__main__":
    main()
