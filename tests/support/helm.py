"""Rendering the chart, as helm does it for a release on some cluster.

Without helm (`make helm` puts it beside our Python) tests of the chart are skipped, and say so; where CI is set they
fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "helm" / "gracectl"
KUBERNETES: Final = "1.33.4"
"""A helm that was built by `go install` takes an ancient version for granted."""

HELM: Final = next(
    filter(None, (shutil.which("helm", path=str(Path(sys.executable).parent)), shutil.which("helm"))), ""
)
WITHOUT: Final = "helm is not there: `make helm` builds it"

JsonObject = dict[str, Any]


class Refused(Exception):
    """helm did not render; the message is its own."""


def needs_helm() -> None:
    """Skip the test, or module, where there is no helm; in continuous integration, fail."""
    if not HELM and os.environ.get("CI"):
        pytest.fail(WITHOUT)
    if not HELM:
        pytest.skip(WITHOUT, allow_module_level=True)


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """An installation, and its cluster. `values`: what differs from values.yaml; `apis`: what the cluster
    serves beside its own, as GROUP/VERSION/KIND."""

    name: str = "gracectl"
    namespace: str = "gracectl"
    values: JsonObject = {}
    apis: tuple[str, ...] = ()
    kubernetes: str = KUBERNETES

    def text(self) -> str:
        """As helm prints it: hooks and tests too. Raises Refused."""
        return _rendered(msgspec.json.encode(self, order="deterministic"))

    def notes(self) -> str:
        """What helm says after an installation. It shows them to those who have a cluster only, so a copy of the chart
        has them as a template."""
        with tempfile.TemporaryDirectory() as folder:
            chart = Path(folder, "gracectl")
            shutil.copytree(CHART, chart)
            shutil.copy(chart / "templates" / "NOTES.txt", chart)
            (chart / "templates" / "shown.yaml").write_text('notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n')
            shown = yaml.safe_load(_template(self, chart, "-s", "templates/shown.yaml"))
        notes: str = shown["notes"]
        return notes

    def objects(self) -> list[JsonObject]:
        """The same, read; in helm's order, hooks last. Raises Refused."""
        objects: list[JsonObject] = msgspec.json.decode(_read(self.text()))
        return objects

    def of_kind(self, kind: str, *, component: str = "") -> list[JsonObject]:
        """Those of a kind, and of a component if one is given."""
        wanted = [each for each in self.objects() if each["kind"] == kind]
        return [each for each in wanted if component in ("", each["metadata"]["labels"][COMPONENT])]

    def one(self, kind: str, *, component: str = "") -> JsonObject:
        """The only one of that kind."""
        (found,) = self.of_kind(kind, component=component)
        return found

    def settings(self, *, component: str = "controller") -> str:
        """The settings file of a part."""
        label = "settings" if component == "controller" else component
        text: str = self.one("ConfigMap", component=label)["data"]["config.yaml"]
        return text


COMPONENT: Final = "app.kubernetes.io/component"


def run(*arguments: str, given: str = "") -> str:
    """What helm prints. Raises Refused."""
    done = subprocess.run([HELM, *arguments], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def defaults() -> JsonObject:
    """values.yaml."""
    read: JsonObject = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return read


def refusal(values: JsonObject, **more: Any) -> str:
    """Why helm does not render these values; "" if it does."""
    try:
        Release(values=values, **more).text()
    except Refused as refused:
        return str(refused)
    return ""


@cache
def _rendered(encoded: bytes) -> str:
    return _template(msgspec.json.decode(encoded, type=Release), CHART)


@cache
def _read(text: str) -> bytes:
    # As JSON: what is decoded from it is the caller's to change.
    return msgspec.json.encode([each for each in read_yaml(text) if each is not None])


def read_yaml(text: str) -> Iterator[Any]:
    """The documents of a YAML stream; by libyaml where PyYAML has it, ten times as fast."""
    documents: Iterator[Any] = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return documents


def _template(release: Release, chart: Path, *only: str) -> str:
    place = ("--namespace", release.namespace, "--kube-version", release.kubernetes)
    apis = [argument for api in release.apis for argument in ("--api-versions", api)]
    values = json.dumps(release.values)
    return run("template", release.name, str(chart), *only, *place, *apis, "--values", "-", given=values)
