"""Makes what follows from the chart's values and from the program: run `make chart` after a change of either.

- helm/gracectl/values.schema.json: with it helm refuses unknown values. What `settings` takes is the program's own
  schema; everything else is read off values.yaml, whose keys and kinds are all there are.
- docs/chart.md and the chart's README, the table of values: the comments of values.yaml.
- helm/gracectl/icon.svg, and the icon of Chart.yaml: that of gracectl ui, as a URL that needs no server.
- helm/gracectl/files/crds: the program's definitions. Copies, as links out of a chart are nothing to Flux and others.
- helm/manifests/*.yaml: the chart rendered for people (and tests) without helm. Needs helm.

`--check` writes nothing and fails if anything would change.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from gracectl.config.fields import schema as settings_schema
from gracectl.telemetry.metrics import CATALOGUE, Metric

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "helm" / "gracectl"
MANIFESTS: Final = ROOT / "helm" / "manifests"
PAGES: Final = {ROOT / "docs" / "chart.md": "settings.md", CHART / "README.md": "../../docs/settings.md"}
"""Pages with the table, and where from there the page on settings is."""
METRICS: Final = ROOT / "docs" / "metrics.md"
METADATA: Final = CHART / "Chart.yaml"
ICON: Final = ROOT / "gracectl" / "cli" / "ui" / "page" / "icon.svg"
SCHEMA: Final = CHART / "values.schema.json"
DEFINITIONS: Final = ROOT / "gracectl" / "crds"
KUBERNETES: Final = "1.33.0"
"""For which manifests are rendered; helm by itself takes what it was built with."""

BEGIN, END = "<!-- values: made by `make chart` -->\n", "<!-- end of values -->"

OPEN: Final = frozenset(
    {
        "affinity",
        "agent.appArmorProfile",
        "agent.nodeSelector",
        "agent.podAnnotations",
        "agent.podLabels",
        "agent.resources",
        "agent.seLinuxOptions",
        "agent.serviceAccount.annotations",
        "commonLabels",
        "dashboard.annotations",
        "dashboard.labels",
        "nodeSelector",
        "podAnnotations",
        "podLabels",
        "prometheusRule.labels",
        "resources",
        "serviceAccount.annotations",
        "serviceMonitor.labels",
        "ui.resources",
        "uninstall.resources",
    }
)
"""Values that Kubernetes knows better than we do."""

NUMBER_OR_SHARE: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]}
CHOICE: Final = {"enum": ["auto", True, False, "true", "false"]}
NARROWER: Final[Mapping[str, dict[str, Any]]] = {
    "image.repository": {"type": "string", "minLength": 1},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.providers": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    "fullnameOverride": {"type": "string", "pattern": "^([a-z]([-a-z0-9]{0,38}[a-z0-9])?)?$"},
    "replicaCount": {"type": "integer", "minimum": 0},
    "podDisruptionBudget.maxUnavailable": NUMBER_OR_SHARE,
    "agent.maxSurge": NUMBER_OR_SHARE,
    "agent.terminationGracePeriodSeconds": {"type": "integer", "minimum": 1},
    "agent.kubeconfig": {"type": "string", "pattern": "^(/[^/]+)*$"},
    "agent.kubeconfigDirectories": {"type": "array", "items": {"type": "string", "pattern": "^(/[^/]+)+$"}},
    "agent.settings": {"$ref": "#/$defs/Settings"},
    "rbac.nodeClaims": CHOICE,
    "rbac.nodeDisruptionBudgets": CHOICE,
    "rbac.replaceFirst": CHOICE,
    "protectionPolicy.enabled": CHOICE,
    "admission.certManager.enabled": CHOICE,
    "protectionPolicy.action": {"enum": ["Warn", "Deny"]},
    "protectionPolicy.maximumSeconds": {"type": ["number", "null"], "minimum": 0},
    "protectionPolicy.maximumSecondsByNamespace": {
        "type": "object",
        "additionalProperties": {"type": "number", "minimum": 0},
    },
    # It becomes a part of alerts.yaml, and of Prometheus' templates.
    "prometheusRule.runbookUrl": {"type": "string", "pattern": "^https?://[^\\s#{}\"']+$"},
    "ui.basePath": {"type": "string", "pattern": "^(/[A-Za-z0-9._~-]+)*$"},
    "ui.allowedHosts": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "ui.grafanaUrl": {"type": "string", "pattern": "^(https?://\\S+)?$"},
    "uninstall.wait": {"type": "string", "pattern": "^([0-9]+(\\.[0-9]+)?(s|m|h))+$|^0$"},
    "uninstall.backoffLimit": {"type": "integer", "minimum": 0},
    "settings": {"$ref": "#/$defs/Settings"},
}


class Render(NamedTuple):
    """A file of helm/manifests. `arguments`: those of helm template; `only`: templates, all if empty."""

    file: str
    head: str
    namespace: str
    arguments: tuple[str, ...]
    only: tuple[str, ...] = ()


KEP: Final = (
    'settings.shutdownGracePeriodByPodPriority=[{"priority":100000,"shutdownGracePeriodSeconds":300},'
    '{"priority":10000,"shutdownGracePeriodSeconds":180},{"priority":1000,"shutdownGracePeriodSeconds":120},'
    '{"priority":0,"shutdownGracePeriodSeconds":60}]'
)
NAMESPACE: Final = (
    "# Before you delete it: gracectl uninstall (docs/uninstall.md); no hook does that here.\n"
    "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: gracectl\n"
)
AGENT: Final = ("--set", "controller.enabled=false,crds.install=false,agent.enabled=true", "--set-json", KEP)
RENDERS: Final = (
    Render(
        "gracectl.yaml",
        "# The chart with its own values: kubectl apply --server-side -f gracectl.yaml\n"
        "# Then the webhook configurations, which no account of this file may write (docs/install.md):\n"
        "# kubectl -n gracectl rollout status deployment/gracectl\n"
        "# kubectl -n gracectl exec deployment/gracectl -- gracectl webhooks --wait 2m \\\n"
        "#   --config /etc/gracectl/config.yaml | kubectl apply --server-side --force-conflicts -f -\n" + NAMESPACE,
        "gracectl",
        ("--set", "admission.certManager.enabled=false"),
    ),
    Render(
        "agent.yaml",
        "# The agent alone, with the example of KEP-2712 (docs/agent.md): kubectl apply -f agent.yaml\n"
        "# and agent-policy.yaml beside it.\n"
        "# For another namespace, or other names, change them in both files, or use the chart.\n",
        "kube-system",
        AGENT,
        ("agent.yaml",),
    ),
    Render(
        "agent-policy.yaml",
        "# Each agent on its own node, and of that only the cordon: beside agent.yaml, on Kubernetes 1.30 and newer.\n",
        "kube-system",
        AGENT,
        ("agent-policy.yaml",),
    ),
)


# -- values and their comments -----------------------------------------------------------------------------------------


class Value(NamedTuple):
    """A key of values.yaml: its path, its default, and what the comment above it says."""

    path: str
    default: Any
    comment: str


def values() -> dict[str, Any]:
    """The defaults."""
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return loaded


def documented() -> Iterator[Value]:
    """Each value that is no mapping of others, in the order of the file; `settings` as one."""
    defaults, comments = values(), _comments()
    for path, default in _leaves(defaults):
        yield Value(path, default, comments.get(path, ""))


def _leaves(mapping: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        path = f"{before}{key}"
        if isinstance(value, dict) and value and path not in OPEN and path not in NARROWER and path != "settings":
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value


@cache
def _comments() -> dict[str, str]:
    """What stands above each key, by its path. A comment over a section is its first field's as well if that has
    none."""
    found: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    pending: list[str] = []
    for line in (CHART / "values.yaml").read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith("#"):
            pending = [] if text.startswith("# --") else [*pending, text[1:].strip()]
            continue
        key = re.match(r"(\w+):", text)
        if key:
            indent = len(line) - len(line.lstrip())
            parents = [each for each in parents if each[0] < indent]
            parents.append((indent, key[1]))
            found[".".join(name for _, name in parents)] = " ".join(pending)
        pending = []
    return found


# -- the schema --------------------------------------------------------------------------------------------------------


def schema() -> str:
    """The text of values.schema.json."""
    settings = settings_schema()
    whole = {
        # The one that every helm 3 reads.
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of gracectl",
        **_object(values(), ""),
        "$defs": settings["$defs"],
    }
    whole["properties"]["global"] = {"type": "object", "description": "Helm's own, for charts within charts."}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _object(mapping: Mapping[str, Any], before: str) -> dict[str, Any]:
    comments = _comments()
    properties = {}
    for key, value in mapping.items():
        path = f"{before}{key}"
        shape = NARROWER.get(path) or _shape(value, path)
        described = {"description": comments[path]} if comments.get(path) and "$ref" not in shape else {}
        properties[key] = {**described, **shape}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _shape(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"type": "object"} if path in OPEN else _object(value, f"{path}.")
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return {"type": kinds[type(value)]}


# -- the tables of the pages, the icon ---------------------------------------------------------------------------------


def page(path: Path, settings: str) -> str:
    """A page with the table of now. `settings`: where the page on settings is."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = ["| value | default | |\n", "|---|---|---|\n"]
    for value in documented():
        if value.path == "settings":
            rows.append(f"| `settings` | | the settings file, field by field: [settings]({settings}) |\n")
            continue
        default = json.dumps(value.default, ensure_ascii=False)
        rows.append(f"| `{value.path}` | `{default}` | {value.comment.replace('|', chr(92) + '|')} |\n")
    return f"{before}{BEGIN}{''.join(rows)}{END}{after}"


def metrics_page() -> str:
    """docs/metrics.md with the catalogue of now: a table below the heading of each section. SystemExit without one."""
    text = METRICS.read_text(encoding="utf-8")
    head = "| metric | type | meaning, and what to look at |\n|---|---|---|\n"
    for section in dict.fromkeys(metric.section for metric in CATALOGUE):
        rows = "".join(_metric_row(metric) for metric in CATALOGUE if metric.section == section)
        table = re.compile(rf"(^## {re.escape(section)}\n(?:(?!## ).*\n)*?){re.escape(head)}(?:\|.*\n)*", re.MULTILINE)
        text, found = table.subn(lambda match, rows=rows: f"{match[1]}{head}{rows}", text)  # type: ignore[misc]
        if found != 1:
            sys.exit(f"docs/metrics.md: has no table below the heading {section!r}: add heading and table head")
    return text


def _metric_row(metric: Metric) -> str:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    return f"| `{metric.name}{labels}` | {metric.type} | {metric.text.replace('|', chr(92) + '|')} |\n"


def metadata() -> str:
    """Chart.yaml with the icon of now. A data URL: there is no public server, and an index of charts needs none."""
    encoded = base64.b64encode(ICON.read_bytes()).decode()
    return re.sub(
        r"^icon: .*$",
        f"icon: data:image/svg+xml;base64,{encoded}",
        METADATA.read_text(encoding="utf-8"),
        count=1,
        flags=re.MULTILINE,
    )


# -- manifests ---------------------------------------------------------------------------------------------------------


def helm() -> str:
    """The program that `make` has put beside our Python, or that of the machine."""
    beside = Path(sys.executable).parent / "helm"
    return str(beside) if beside.exists() else "helm"


def rendered(one: Render) -> str:
    """The text of one file of helm/manifests. Raises CalledProcessError with helm's own words."""
    shown = [argument for name in one.only for argument in ("--show-only", f"templates/{name}")]
    command = [helm(), "template", "gracectl", str(CHART), "--namespace", one.namespace, "--kube-version", KUBERNETES]
    made = subprocess.run(
        [*command, "--no-hooks", "--skip-tests", *shown, *one.arguments], check=True, capture_output=True, text=True
    )
    # Labels of helm's own mean nothing without helm.
    lines = [
        line
        for line in made.stdout.splitlines(keepends=True)
        if not re.match(r"# Source: |\s+(helm\.sh/|app\.kubernetes\.io/managed-by: Helm)", line)
    ]
    text = re.sub(r"\n  annotations:\n(?=  \w)", "\n", "".join(lines))
    text = re.sub(r"(^---\n)+", "---\n", text, flags=re.MULTILINE)
    return one.head + (text if "kind:" in one.head else text.removeprefix("---\n"))


def products(*, with_manifests: bool) -> Iterator[tuple[Path, str]]:
    """All files that follow from others, with what should be in them."""
    yield SCHEMA, schema()
    for path in sorted(DEFINITIONS.glob("*.yaml")):
        yield CHART / "files" / "crds" / path.name, path.read_text(encoding="utf-8")
    for path, settings in PAGES.items():
        yield path, page(path, settings)
    yield CHART / ICON.name, ICON.read_text(encoding="utf-8")
    yield METADATA, metadata()
    yield METRICS, metrics_page()
    if with_manifests:
        for one in RENDERS:
            yield MANIFESTS / one.file, rendered(one)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    stale = []
    try:
        # The manifests depend on the schema: helm refuses values by what is written.
        for with_manifests in (False, True):
            for path, text in products(with_manifests=with_manifests):
                if path.exists() and path.read_text(encoding="utf-8") == text:
                    continue
                stale.append(path)
                if not is_check:
                    path.parent.mkdir(exist_ok=True, parents=True)
                    path.write_text(text, encoding="utf-8")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(error.cmd)}: {error.stderr}")
    for path in dict.fromkeys(stale):
        print(f"{path.relative_to(ROOT)}: {'out of date; run make chart' if is_check else 'written'}")
    if is_check and stale:
        sys.exit(1)


if __name__ == "__main__":
    main()
