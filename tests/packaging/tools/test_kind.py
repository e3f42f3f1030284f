"""What `make kind` puts into a cluster: read as kind, kwok and a server read it, held against what else names the same.

Docker is needed for none of it. That a real kwok plays these stages on a real server has to be seen with both;
docs/kind.md says what was.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml
from kubesim.controllers.paths import KINDS, path_of
from kubesim.server import api
from kubesim.server.api import JsonObject
from kubesim.server.patches import json_patch
from support.chart import Release, needs_helm
from support.clients import being_deleted, seeing
from support.stage import staged, the_settings
from support.tools import ROOT, TOOLS, KindCluster, KwokConfiguration, LifeStage, filled, read_yaml, versions

from gracectl.config import Settings
from gracectl.inspect.status import node_statuses

VERSIONS = versions()
COMPOSE: dict[str, Any] = read_yaml("docker-compose.yml")["services"]
CLUSTER = msgspec.convert(read_yaml("tools/kind/cluster.yaml"), KindCluster)
MONITORING = filled("monitoring.yaml")
VALUES: JsonObject = read_yaml("tools/kind/values.yaml")


def fake_node(name: str) -> JsonObject:
    (manifest,) = filled("node.yaml", NODE=name, ZONE="a")
    node: JsonObject = manifest
    return node


# -- versions ----------------------------------------------------------------------------------------------------------


def test_every_image_is_pinned_by_tag_and_digest() -> None:
    images = {name: value for name, value in VERSIONS.items() if name.endswith("_IMAGE") or "_NODE_" in name}
    assert len(images) == 7
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}", image) for image in images.values())
    assert len(set(images.values())) == len(images)


def test_the_three_supported_versions_of_kubernetes() -> None:
    nodes = {name: value for name, value in VERSIONS.items() if "_NODE_" in name}
    minors = [int(name.rpartition("_")[2]) for name in nodes]
    assert minors == list(range(minors[0], minors[0] - 3, -1))
    assert f"1.{minors[0]}" == VERSIONS["KIND_KUBERNETES"]
    for minor, image in zip(minors, nodes.values(), strict=True):
        assert image.startswith(f"kindest/node:v1.{minor}.")


def test_compose_has_the_same_images() -> None:
    ours = {name.removesuffix("_IMAGE").lower(): value for name, value in VERSIONS.items() if name.endswith("_IMAGE")}
    assert {name: COMPOSE[name]["image"] for name in ours if name != "kwok"} == {
        name: image for name, image in ours.items() if name != "kwok"
    }


# -- kind --------------------------------------------------------------------------------------------------------------


def test_kind_maps_the_ports_of_services_on_the_loopback_address() -> None:
    (node,) = CLUSTER.nodes
    mapped = {mapping.container_port: mapping for mapping in node.extra_port_mappings}
    assert {mapping.listen_address for mapping in mapped.values()} == {"127.0.0.1"}
    services = [each for each in (*MONITORING, *filled("page.yaml")) if each["kind"] == "Service"]
    ports = [port for each in services for port in each["spec"].get("ports", ())]
    published = {port["nodePort"]: port["port"] for port in ports if "nodePort" in port}
    assert {where: mapping.host_port for where, mapping in mapped.items()} == published


@pytest.mark.parametrize(
    ("version", "arguments", "expected"),
    [
        ("v1beta3", {"runtime-config": ""}, {"runtime-config": "", "enable-admission-plugins": "PLUGINS"}),
        (
            "v1beta4",
            [{"name": "runtime-config", "value": ""}],
            [{"name": "runtime-config", "value": ""}, {"name": "enable-admission-plugins", "value": "PLUGINS"}],
        ),
    ],
)
def test_each_form_of_kubeadm_gets_the_admission_plugins(version: str, arguments: Any, expected: Any) -> None:
    (patch,) = (each for each in CLUSTER.nodes[0].patches if each.version == version)
    assert (patch.group, patch.kind) == ("kubeadm.k8s.io", "ClusterConfiguration")
    changed = json_patch({"apiServer": {"extraArgs": arguments}}, yaml.safe_load(patch.patch))
    plugins = "NodeRestriction,OwnerReferencesPermissionEnforcement"
    assert changed == {"apiServer": {"extraArgs": yaml.safe_load(yaml.safe_dump(expected).replace("PLUGINS", plugins))}}


# -- kwok --------------------------------------------------------------------------------------------------------------


def test_kwok_has_a_stage_for_each_step_of_a_life() -> None:
    options, *stages = filled("kwok-config.yaml", READY_MS="1000", STOP_MS="4000")
    read = msgspec.convert(options, KwokConfiguration).options
    key, _, value = read.manage_nodes_with_annotation_selector.partition("=")
    assert fake_node("n")["metadata"]["annotations"] == {key: value}
    lives = {stage.metadata.name: stage.spec for stage in (msgspec.convert(each, LifeStage) for each in stages)}
    assert list(lives) == ["node-ready", "pod-ready", "pod-ready-again", "pod-stop"]
    assert lives["pod-ready"].delay.duration_milliseconds == 1000
    assert lives["pod-stop"].delay.duration_milliseconds == 4000
    assert lives["pod-stop"].next.delete


def test_kwok_reads_the_file_that_kind_up_gives_it() -> None:
    (deployment,) = (each for each in filled("kwok.yaml", CONFIG="1") if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert container["args"][0] == f"--config={mount['mountPath']}/kwok-config.yaml"
    assert 'configmap kube-system kwok "kwok-config.yaml=' in (TOOLS / "lib.sh").read_text()
    assert volume["configMap"]["name"] == "kwok"


# -- monitoring --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jaeger", "prometheus", "grafana"])
def test_monitoring_is_what_compose_starts(name: str) -> None:
    service = COMPOSE[name]
    (deployment,) = (each for each in MONITORING if (each["kind"], each["metadata"]["name"]) == ("Deployment", name))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == service["image"]
    environment = {each["name"]: each["value"] for each in container.get("env", ())}
    assert environment == service.get("environment", {})
    flags = [flag for flag in service.get("command", ()) if "config" not in flag]
    assert [flag for flag in container.get("args", ()) if "config" not in flag] == flags
    context = container["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_prometheus_finds_the_controllers_by_the_name_of_compose() -> None:
    (job,) = read_yaml("deploy/compose/prometheus.yml")["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    (alias,) = (each for each in MONITORING if each.get("spec", {}).get("type") == "ExternalName")
    assert [alias["metadata"]["name"]] == discovery["names"]
    assert alias["spec"]["externalName"] == "gracectl-metrics.gracectl.svc.cluster.local"


def test_what_is_mounted_is_in_the_config_maps_that_kind_up_makes() -> None:
    script = (TOOLS / "kind-up").read_text(encoding="utf-8").replace("\\\n", " ")
    made = {
        name: dict(part.split("=") for part in parts.split())
        for name, parts in re.findall(r"^configmap monitoring (\w+) (.+)$", script, re.MULTILINE)
    }
    for each in MONITORING:
        for volume in each.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ()):
            if source := volume.get("configMap"):
                wanted = {item["key"] for item in source.get("items", ())}
                assert wanted <= set(made[source["name"]])
    assert all((ROOT / file).is_file() for files in made.values() for file in files.values())


# -- the chart ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("with_helm")
def test_the_chart_takes_the_values() -> None:
    release = Release(values=VALUES, kubernetes=f"{VERSIONS['KIND_KUBERNETES']}.0")
    (container,) = release.one("Deployment", component="controller")["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("gracectl:")
    assert VALUES["extraEnv"][0] in container["env"]
    services = {each["metadata"]["name"] for each in release.of_kind("Service")}
    assert "gracectl-metrics" in services
    (page,) = filled("page.yaml")
    (template,) = (each["spec"]["template"] for each in release.of_kind("Deployment", component="ui"))
    assert page["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert page["spec"]["ports"][0]["targetPort"] in {
        each["name"] for each in template["spec"]["containers"][0]["ports"]
    }
    assert page["metadata"]["namespace"] == release.namespace
    settings = msgspec.yaml.decode(release.settings(), type=dict)
    assert settings["nodeSelector"]["matchLabels"].items() <= fake_node("n")["metadata"]["labels"].items()


@pytest.fixture
def with_helm() -> None:
    """helm, or the test is skipped."""
    needs_helm()


def test_spans_go_where_jaeger_listens() -> None:
    (variable,) = VALUES["extraEnv"]
    (jaeger,) = (each for each in MONITORING if each["kind"] == "Service" and each["metadata"]["name"] == "jaeger")
    otlp = jaeger["spec"]["ports"][0]["port"]
    assert variable["value"] == f"http://jaeger.{jaeger['metadata']['namespace']}:{otlp}"
    http = read_yaml("deploy/compose/jaeger.yaml")["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert http == f"0.0.0.0:{otlp}"
    assert VALUES["settings"]["tracing"]["url"].startswith("http://127.0.0.1:16686/")


# -- what a server makes of it -----------------------------------------------------------------------------------------


async def test_a_server_takes_every_object_strictly() -> None:
    objects = [
        *filled("kwok.yaml", CONFIG="1"),
        *MONITORING,
        *filled("page.yaml"),
        fake_node("n"),
        *filled("workload.yaml"),
    ]
    async with staged() as stage:
        await stage.call("POST", "/api/v1/namespaces", {"metadata": {"name": "gracectl"}})
        # kubesim has no priorities of requests.
        for each in (each for each in objects if each["kind"] != "FlowSchema"):
            path = path_of(KINDS[each["kind"]], each["metadata"].get("namespace", ""))
            request = api.Request(method="POST", path=path, query={"fieldValidation": "Strict"}, body=each)
            answer = await stage.server.handle(request)
            assert answer.status == 201, (each["metadata"]["name"], answer.body)


async def test_the_termination_of_one_node_is_stuck_on_purpose() -> None:
    selector = VALUES["settings"]["nodeSelector"]
    async with staged(settings=the_settings(nodeSelector=selector, provider={"name": "none"})) as stage:
        for number in range(1, 11):
            await stage.call("POST", "/api/v1/nodes", fake_node(f"fake-{number}"))
        await stage.create(*filled("workload.yaml"))
        async with stage.controller() as controller, seeing(stage, being_deleted) as sight:
            await stage.settle(controller)
            held = {pod["spec"]["nodeName"] for pod in stage.cluster.pods() if pod["metadata"]["namespace"] == "bank"}
            stuck = min(held)
            other = next(name for name in (f"fake-{number}" for number in range(1, 11)) if name not in held)
            for name in (stuck, other):
                await stage.delete_node(name)
            await stage.until_gone(other)
            await stage.clock.sleep(600)
            (status,) = node_statuses(
                sight.cluster, stage.settings.termination, {stuck}, stage.clock.now(), has_pods=sight.has_pods_of
            )
            blocked = {pod.entry.pod.namespace for pod in status.pods or ()}
            assert blocked == {"bank"}
            assert "budget bank/legacy allows no disruption" in status.waits_for
            assert any("bank" in pod.remedy for pod in status.pods or ())
            # As kind-up says how to let it go.
            patch = {"spec": {"maxUnavailable": 1}}
            path = "/apis/policy/v1/namespaces/bank/poddisruptionbudgets/legacy"
            await stage.call("PATCH", path, patch, "application/merge-patch+json")
            await stage.until_gone(stuck)


def test_settings_of_the_values_are_known() -> None:
    assert msgspec.convert(VALUES["settings"], Settings).cluster_name == "kind"
