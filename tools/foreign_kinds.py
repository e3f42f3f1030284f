"""Makes tests/packaging/chart/definitions.json: what kinds of the Prometheus Operator and of cert-manager look like.

Origin: the CustomResourceDefinitions of both (Apache-2.0; Copyright The prometheus-operator Authors, Copyright The
cert-manager Authors). Only names, types and bounds of fields are taken, and of the kinds that the chart makes.

    go mod download github.com/prometheus-operator/prometheus-operator@v0.85.0
    go mod download github.com/cert-manager/cert-manager@v1.18.2
    python tools/foreign_kinds.py "$(go env GOMODCACHE)"

Two runs write the same bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parent.parent / "tests" / "packaging" / "chart" / "definitions.json"
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
CERT_MANAGER = "github.com/cert-manager/cert-manager@v1.18.2"
FILES = (
    *(f"{OPERATOR}/example/prometheus-operator-crd/monitoring.coreos.com_{plural}.yaml"
      for plural in ("servicemonitors", "podmonitors", "prometheusrules")),
    *(f"{CERT_MANAGER}/deploy/crds/crd-{plural}.yaml" for plural in ("issuers", "certificates")),
)  # fmt: skip
KEPT = {
    *("type", "properties", "additionalProperties", "items", "required", "enum", "pattern"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
}


def main() -> None:
    """Read the definitions, write the file."""
    modules = Path(sys.argv[1])
    kinds = {}
    for file in FILES:
        spec = yaml.safe_load((modules / file).read_text(encoding="utf-8"))["spec"]
        (version,) = (each for each in spec["versions"] if each["storage"])
        name = f"{spec['group']}/{version['name']}/{spec['names']['kind']}"
        kinds[name] = pruned(version["schema"]["openAPIV3Schema"])
        kinds[name]["properties"].pop("status", None)
    document = {"origin": [OPERATOR, CERT_MANAGER], "madeBy": "tools/foreign_kinds.py", "kinds": kinds}
    TARGET.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n", encoding="utf-8")


def pruned(node: dict[str, Any]) -> dict[str, Any]:
    """A schema without its words and defaults. Fields are kept whatever their names."""
    kept = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: pruned(each) for name, each in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            kept[key] = pruned(value)
        elif key in KEPT:
            kept[key] = value
    return kept


if __name__ == "__main__":
    main()
