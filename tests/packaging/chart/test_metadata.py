"""What indexes of charts read, and the examples for GitOps: their values fit the chart, their versions are this one."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import yaml
from support.chart import CHART, ROOT
from support.schemas import fits

from gracectl import __version__
from gracectl.cli.crds import shipped_definitions

METADATA: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
ANNOTATIONS: dict[str, str] = METADATA["annotations"]
PREFIX = "artifacthub.io/"
EXAMPLES = ROOT / "examples" / "gitops"


def documents(name: str) -> dict[str, Any]:
    """The objects of an example, by kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8"))}


def test_the_icon_is_in_the_metadata_itself() -> None:
    kind, _, encoded = METADATA["icon"].partition(";base64,")
    assert kind == "data:image/svg+xml"
    assert base64.b64decode(encoded) == (CHART / "icon.svg").read_bytes()
    assert len(encoded) < 2000


def test_annotations_are_texts_that_artifact_hub_knows() -> None:
    assert set(ANNOTATIONS) <= {
        f"{PREFIX}{name}"
        for name in ("license", "category", "operator", "operatorCapabilities", "prerelease", "crds", "crdsExamples")
    }
    assert all(isinstance(value, str) for value in ANNOTATIONS.values())
    levels = ["Basic Install", "Seamless Upgrades", "Full Lifecycle", "Deep Insights", "Auto Pilot"]
    assert ANNOTATIONS[f"{PREFIX}operatorCapabilities"] in levels


def test_annotations_name_the_definitions_that_are_shipped() -> None:
    shipped = {each["metadata"]["name"]: each["spec"] for each in shipped_definitions()}
    listed = {each["name"]: each for each in yaml.safe_load(ANNOTATIONS[f"{PREFIX}crds"])}
    assert set(listed) == set(shipped)
    for name, each in listed.items():
        assert set(each) == {"kind", "version", "name", "displayName", "description"}
        assert each["kind"] == shipped[name]["names"]["kind"]
        storage = [version["name"] for version in shipped[name]["versions"] if version["storage"]]
        assert [each["version"]] == storage
    for example in yaml.safe_load(ANNOTATIONS[f"{PREFIX}crdsExamples"]):
        (spec,) = (each for each in shipped.values() if each["names"]["kind"] == example["kind"])
        (version,) = (each for each in spec["versions"] if each["storage"])
        assert example["apiVersion"] == f"{spec['group']}/{version['name']}"
        fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        assert set(example["spec"]) <= set(fields)


def test_the_examples_have_the_same_values_and_they_fit() -> None:
    argo = documents("argocd.yaml")["Application"]["spec"]["source"]["helm"]["valuesObject"]
    flux = documents("flux.yaml")["HelmRelease"]["spec"]["values"]
    terraform = yaml.safe_load((EXAMPLES / "terraform" / "values.yaml").read_text(encoding="utf-8"))
    assert argo == flux == terraform
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert fits(argo, schema, schema)
    assert not fits({**argo, "setting": {}}, schema, schema)


def test_the_examples_take_this_version_from_where_the_chart_is() -> None:
    source = documents("argocd.yaml")["Application"]["spec"]["source"]
    assert (source["targetRevision"], source["path"]) == (f"v{__version__}", "helm/gracectl")
    flux = documents("flux.yaml")
    assert flux["GitRepository"]["spec"]["ref"] == {"tag": f"v{__version__}"}
    assert flux["GitRepository"]["spec"]["url"] == source["repoURL"]
    chart = flux["HelmRelease"]["spec"]["chart"]["spec"]
    assert chart["chart"] == "helm/gracectl"
    assert chart["sourceRef"] == {"kind": "GitRepository", "name": flux["GitRepository"]["metadata"]["name"]}


def test_the_terraform_example_names_files_that_are_there() -> None:
    module = (EXAMPLES / "terraform" / "main.tf").read_text(encoding="utf-8")
    paths = re.findall(r'"\$\{path\.module\}/([^"]+)"', module)
    assert len(paths) == 2
    assert all((EXAMPLES / "terraform" / path).exists() for path in paths)
    # As much as can be told without the program: what is opened is closed, and variables are declared.
    code = re.sub(r'"[^"\n]*"|#.*', "", module)
    assert all(code.count(first) == code.count(last) > 0 for first, last in ("{}", "[]", "()"))
    assert set(re.findall(r"\bvar\.(\w+)", module)) == set(re.findall(r'^variable "(\w+)"', module, re.MULTILINE))
