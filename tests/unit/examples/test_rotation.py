"""Manifests of examples/rotation and docs/rotation.md: a server with the shipped definition takes each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Request

from gracectl import __version__
from gracectl.cli.crds import shipped_definitions
from gracectl.model.encoding import encode
from gracectl.model.nodedrain import Action, decode_node_drain

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "rotation"


def documents(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


def workflow() -> Any:
    templates = {each["name"]: each for each in documents("argo-workflow.yaml")["spec"]["templates"]}
    return templates


def on_the_page() -> Any:
    page = (ROOT / "docs" / "rotation.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(apiVersion: gracectl.io.*?)^```", page, re.DOTALL | re.MULTILINE)
    return yaml.safe_load(block)


MANIFESTS = {
    "nodedrain.yaml": lambda: documents("nodedrain.yaml"),
    "argocd-hook.yaml": lambda: documents("argocd-hook.yaml"),
    "argo-workflow.yaml": lambda: yaml.safe_load(workflow()["create"]["resource"]["manifest"]),
    "the page": on_the_page,
}


@pytest.mark.parametrize("name", MANIFESTS)
async def test_a_server_takes_the_manifest_and_a_controller_reads_it(name: str) -> None:
    manifest = MANIFESTS[name]()
    server = ApiServer(LoopClock())
    server.predefine(*shipped_definitions())
    path = "/apis/gracectl.io/v1alpha1/nodedrains"
    made = await server.handle(Request(method="POST", path=path, query={"fieldValidation": "Strict"}, body=manifest))
    assert (made.status, isinstance(made.body, dict)) == (201, True), made.body
    drain = decode_node_drain(encode(made.body))
    assert (drain.action, drain.max_concurrent, drain.selector_error) == (Action.TERMINATE, "10%", "")
    assert drain.name.startswith(manifest["metadata"].get("generateName", manifest["metadata"].get("name")))


def test_what_gitops_would_create_again_is_never_deleted() -> None:
    assert "ttlSecondsAfterFinished" not in documents("nodedrain.yaml")["spec"]
    assert "generateName" not in documents("nodedrain.yaml")["metadata"]


def test_the_workflow_waits_for_what_it_has_created_with_this_version() -> None:
    container = workflow()["wait"]["container"]
    assert container["image"].endswith(f":{__version__}")
    assert container["command"] == ["gracectl", "drains", "show", "{{inputs.parameters.name}}", "--watch"]
