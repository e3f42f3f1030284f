"""What helm refuses, and how it says so; and what is made of the values: schema, page, manifests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
import yaml
from kubesim.server.api import JsonObject
from support.chart import AGENT, CHART, ROOT, Release, needs_helm, refusal

from gracectl import __version__

needs_helm()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 3}, "additional properties 'replicas' not allowed"),
        ({"replicaCount": "2"}, "at '/replicaCount': got string, want integer"),
        ({"replicaCount": -1}, "at '/replicaCount': minimum: got -1, want 0"),
        ({"image": {"tags": "x"}}, "at '/image': additional properties 'tags' not allowed"),
        ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy': value must be one of 'Always'"),
        ({"image": {"digest": "sha256:12"}}, "at '/image/digest': 'sha256:12' does not match pattern"),
        ({"fullnameOverride": "Not_A_Name"}, "at '/fullnameOverride'"),
        ({"settings": {"evict": {}}}, "at '/settings': additional properties 'evict' not allowed"),
        ({"settings": {"eviction": {"qps": "many"}}}, "at '/settings/eviction/qps': got string, want number"),
        ({"settings": {"eviction": {"burst": 0}}}, "at '/settings/eviction/burst': minimum: got 0, want 1"),
        ({"settings": {"log": {"level": "loud"}}}, "at '/settings/log/level': value must be one of"),
        ({"settings": {"nodeGroups": [{"drain": {}}]}}, "missing property 'selector'"),
        ({"settings": {"nodeSelector": {"matchLabel": {}}}}, "additional properties 'matchLabel' not allowed"),
        ({"settings": {"admission": {"secret": "-"}}}, "at '/settings/admission/secret': '-' does not match pattern"),
        ({"agent": {"settings": {"drain": {"seconds": 1}}}}, "additional properties 'seconds' not allowed"),
        ({"agent": {"terminationGracePeriodSeconds": 0}}, "at '/agent/terminationGracePeriodSeconds'"),
        ({"rbac": {"nodeClaims": "perhaps"}}, "at '/rbac/nodeClaims'"),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "at '/podDisruptionBudget/maxUnavailable'"),
        ({"prometheusRule": {"runbookUrl": "docs/alerts.md"}}, "at '/prometheusRule/runbookUrl'"),
        ({"prometheusRule": {"runbookUrl": "https://a.b/{{ x }}"}}, "at '/prometheusRule/runbookUrl'"),
        ({"uninstall": {"wait": "long"}}, "at '/uninstall/wait'"),
        ({"crds": {"install": "yes"}}, "at '/crds/install': got string, want boolean"),
    ],
)
def test_unknown_values_are_refused_and_named(values: JsonObject, words: str) -> None:
    assert words in refusal(values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"settings": {"leaderElection": {"enabled": False}}}, "set replicaCount to 1, or leave leader election on"),
        ({"agent": {"enabled": True}}, "agents need an order for shutdowns, and settings have none"),
        (
            {"settings": {"provider": {"name": "gce"}}},
            'settings.provider.name: "gce" is no provider; choose one of none, aws, clusterapi, webhook',
        ),
        (
            {"agent": {**AGENT, "terminationGracePeriodSeconds": 689}},
            "terminationGracePeriodSeconds is 689, and a shutdown takes up to 660 s",
        ),
        (
            {
                "agent": AGENT,
                "settings": {
                    "nodeGroups": [
                        {
                            "selector": {},
                            "shutdownGracePeriodByPodPriority": [{"priority": 0, "shutdownGracePeriodSeconds": 900}],
                        }
                    ]
                },
            },
            "a shutdown takes up to 900 s",
        ),
        ({"serviceMonitor": {"enabled": True}, "settings": {"metrics": {"listen": ""}}}, "there is nothing to scrape"),
        (
            {
                "admission": {"certManager": {"enabled": True}},
                "settings": {"admission": {"url": "https://gracectl.example.com"}},
            },
            "the certificate is made for a Service",
        ),
        (
            {"admission": {"existingSecret": "mine", "certManager": {"enabled": True}}},
            "both provide the certificate",
        ),
        ({"serviceAccount": {"create": False}}, "serviceAccount.name must say which account of yours"),
        ({"agent": {**AGENT, "serviceAccount": {"create": False}}}, "agent.serviceAccount.name must say which"),
    ],
)
def test_what_cannot_work_together_is_refused_with_what_to_do(values: JsonObject, words: str) -> None:
    assert words in refusal(values)


def test_a_cluster_without_admission_policies_is_told_what_it_does_without() -> None:
    message = refusal({"agent": AGENT}, kubernetes="1.29.3")
    assert "Kubernetes v1.29.3 has no ValidatingAdmissionPolicies" in message
    assert refusal({"agent": {**AGENT, "admissionPolicy": False}}, kubernetes="1.29.3") == ""


def test_enough_time_to_finish_is_enough() -> None:
    assert refusal({"agent": {**AGENT, "terminationGracePeriodSeconds": 690}}) == ""


def nodes(node: Any, path: str = "") -> Any:
    """All schemas within a schema."""
    if isinstance(node, dict):
        yield path, node
        for key, each in node.items():
            yield from nodes(each, f"{path}/{key}")


def test_no_object_of_the_charts_own_takes_unknown_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    for path, node in nodes(schema):
        if node.get("properties") and isinstance(node.get("type"), str):
            assert node["additionalProperties"] is False, path


def test_schema_page_and_manifests_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/chart.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_is_of_the_programs_version_and_runs_its_image() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    manifests = (ROOT / "helm" / "manifests" / "gracectl.yaml").read_text(encoding="utf-8")
    assert f"image: {services['controller']['image']}\n" in manifests


def test_every_value_has_a_comment_that_says_what_it_is_for() -> None:
    page = (ROOT / "docs" / "chart.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_value_is_on_the_page() -> None:
    page = (ROOT / "docs" / "chart.md").read_text(encoding="utf-8")

    def missing(mapping: JsonObject, before: str = "") -> Any:
        for key, value in mapping.items():
            path = f"{before}{key}"
            if f"| `{path}` |" not in page:
                yield from missing(value, f"{path}.") if isinstance(value, dict) and value else [path]

    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert list(missing(values)) == []


def test_the_chart_knows_the_providers_that_are_shipped_and_takes_those_of_an_image() -> None:
    shipped = {point.name for point in entry_points(group="gracectl.providers")}
    assert (
        set(re.findall(r"\w+", refusal({"settings": {"provider": {"name": "gce"}}}).partition("one of")[2])) >= shipped
    )
    own = Release(values={"settings": {"provider": {"name": "rental"}}, "image": {"providers": ["rental"]}})
    assert "name: rental" in own.text()
