"""docker-compose.yml and the files under deploy/compose/: that they name what is there, and agree with each other.

Whether an engine starts it has to be seen with one; docs/compose.md says what was.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
from kubesim.scenarios.parser import read_file
from support.tools import FINAL, ROOT, read_yaml, the_only

from gracectl.cli.root import root
from gracectl.cli.simulate import simulate
from gracectl.config import Settings, load_settings
from gracectl.controllers.termination.statistics import TerminationDurations
from gracectl.kube.auth.kubeconfig import read_context
from gracectl.runtime.histogram import SpanRef
from gracectl.telemetry.exposition import family_of
from gracectl.telemetry.metrics import TERMINATION_DURATION, Sample

COMPOSE = read_yaml("docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
SIMULATED = simulate.make_context("simulate", SERVICES["cluster"]["command"][1:], **root.context_settings).params


def mounts(name: str) -> dict[PurePosixPath, str]:
    """What a service has mounted, by where."""
    parts = [mount.split(":") for mount in SERVICES[name].get("volumes", [])]
    return {PurePosixPath(target): source for source, target, *_ in parts}


def settings() -> Settings:
    """What the controller's command finds at its `--config`."""
    command = the_only(FINAL, "CMD").listed
    return load_settings(ROOT / mounts("controller")[PurePosixPath(command[command.index("--config") + 1])])


def asked(name: str) -> str:
    """The URL in a service's health check."""
    words = " ".join(SERVICES[name]["healthcheck"]["test"]).replace("'", " ").replace("=", " ").split()
    return next(word for word in words if word.startswith("http://"))


def test_what_there_is() -> None:
    assert list(SERVICES) == ["cluster", "controller", "jaeger", "prometheus", "grafana"]
    assert OURS == ["cluster", "controller"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_names_what_is_there(name: str) -> None:
    service = SERVICES[name]
    for source in mounts(name).values():
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other] or other == "controller"


def test_every_volume_is_used() -> None:
    used = {source for name in SERVICES for source in mounts(name).values() if not source.startswith("./")}
    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert all(mount.endswith(":ro") for mount in service.get("volumes", []) if mount.startswith("./"))
    assert not {"privileged", "user", "network_mode", "pid", "env_file", "secrets"} & set(service)


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_named_by_tag_and_digest(name: str) -> None:
    # Ours are built here: they have the project's version, and no digest yet.
    digest = "" if name in OURS else "@sha256:[0-9a-f]{64}"
    assert re.fullmatch(rf"[a-z/-]+:v?\d+\.\d+\.\d+{digest}", SERVICES[name]["image"])


def test_no_two_services_want_the_same_port() -> None:
    published = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == len(set(published))


@pytest.mark.parametrize("name", [name for name in SERVICES if "healthcheck" in SERVICES[name]])
def test_the_health_check_asks_the_service_itself(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert urlsplit(asked(name)).hostname == "127.0.0.1"


def test_the_cluster_is_where_all_services_look_for_it() -> None:
    cluster = f"http://cluster:{SIMULATED['port']}"
    kubeconfig = ROOT / mounts("controller")[PurePosixPath(SERVICES["controller"]["environment"]["KUBECONFIG"])]
    assert read_context((kubeconfig,), None).cluster["server"] == cluster
    assert settings().provider.options["endpoint"] == cluster
    assert urlsplit(asked("cluster")).port == SIMULATED["port"]
    host = read_context((kubeconfig,), "host").cluster["server"].removeprefix("http://")
    assert SERVICES["cluster"]["ports"] == [f"{host}:{SIMULATED['port']}"]


def test_the_world_that_it_plays() -> None:
    scenario = read_file(ROOT / mounts("cluster")[PurePosixPath(SIMULATED["scenario"])])
    groups = [(group.name, group.count) for group in scenario.nodes]
    nodes = {name.replace("{n}", str(n + 1)) for name, count in groups for n in range(count)}
    for step in sorted(scenario.timeline, key=lambda step: step.at):
        assert step.delete is not None
        added = {group.name for group in step.add_nodes}
        # One for another: a name must be free again before it comes back.
        assert (step.delete.kind, added & nodes, len(added)) == ("Node", set(), 1)
        assert step.delete.name in nodes
        nodes = nodes - {step.delete.name} | added
    assert {name.partition("-")[0] for name in nodes} == {"blue"}
    assert len(nodes) == 6
    (every,) = {step.every for step in scenario.timeline}
    assert scenario.timeline[-1].at - scenario.timeline[0].at < every


def test_the_controller_is_where_all_services_look_for_it() -> None:
    assert settings().log.format == "json"
    image = load_settings(ROOT / "deploy/container" / "config.yaml")
    assert (settings().metrics, settings().probes) == (image.metrics, image.probes)
    (job,) = read_yaml("deploy/compose/prometheus.yml")["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    address = settings().metrics.address()
    assert address is not None
    assert (discovery["names"], discovery["port"]) == (["controller"], address[1])
    # Several replicas must be possible.
    assert "container_name" not in SERVICES["controller"]
    assert "ports" not in SERVICES["controller"]


def test_traces_go_where_jaeger_listens() -> None:
    endpoint = urlsplit(SERVICES["controller"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"])
    assert endpoint.hostname == "jaeger"
    assert f"127.0.0.1:{endpoint.port}:{endpoint.port}" in SERVICES["jaeger"]["ports"]


def test_jaeger_keeps_traces_where_a_restart_leaves_them() -> None:
    places = mounts("jaeger")
    (flag,) = SERVICES["jaeger"]["command"]
    config = read_yaml(places[PurePosixPath(flag.removeprefix("--config="))])
    extensions, (pipeline,) = config["extensions"], config["service"]["pipelines"].values()
    assert set(extensions) == set(config["service"]["extensions"])
    written = {config["exporters"][name]["trace_storage"] for name in pipeline["exporters"]}
    assert {extensions["jaeger_query"]["storage"]["traces"]} == written == set(extensions["jaeger_storage"]["backends"])
    for backend in extensions["jaeger_storage"]["backends"].values():
        assert backend["badger"]["ephemeral"] is False
        for folder in backend["badger"]["directories"].values():
            assert places[PurePosixPath(folder).parents[1]] == "jaeger"
    served = [
        part["http"]["endpoint"]
        for part in (extensions["jaeger_query"], config["receivers"]["otlp"]["protocols"], extensions["healthcheckv2"])
    ]
    ports = [port.rpartition(":")[2] for port in SERVICES["jaeger"]["ports"]]
    assert served == [f"0.0.0.0:{port}" for port in (*ports, urlsplit(asked("jaeger")).port)]


def test_prometheus_keeps_exemplars() -> None:
    assert "--enable-feature=exemplar-storage" in SERVICES["prometheus"]["command"]
    offered = read_yaml("deploy/compose/prometheus.yml")["global"]["scrape_protocols"]
    assert offered[0].startswith("OpenMetricsText")


def test_prometheus_reads_the_alert_rules() -> None:
    places = mounts("prometheus")
    (pattern,) = read_yaml("deploy/compose/prometheus.yml")["rule_files"]
    rules = [source for place, source in places.items() if fnmatch(str(place), pattern)]
    assert rules == ["./helm/gracectl/files/alerts.yaml"]
    flags = dict(flag.removeprefix("--").split("=") for flag in SERVICES["prometheus"]["command"])
    assert places[PurePosixPath(flags["config.file"])] == "./deploy/compose/prometheus.yml"
    assert places[PurePosixPath(flags["storage.tsdb.path"])] == "prometheus"


def provisioned(kind: str) -> Any:
    """What Grafana is given of a kind."""
    return read_yaml(f"{mounts('grafana')[PurePosixPath('/etc/grafana/provisioning')]}/{kind}/gracectl.yaml")


def test_grafana_shows_the_dashboard_of_the_data_that_it_gets() -> None:
    places = mounts("grafana")
    sources = provisioned("datasources")["datasources"]
    for source in sources:
        url = urlsplit(source["url"])
        assert url.hostname in SERVICES["grafana"]["depends_on"]
        assert f"127.0.0.1:{url.port}:{url.port}" in SERVICES[url.hostname]["ports"]
    assert [source["type"] for source in sources if source.get("isDefault")] == ["prometheus"]
    (provider,) = provisioned("dashboards")["providers"]
    home = PurePosixPath(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.parent == PurePosixPath(provider["options"]["path"])
    assert places[home] == "./helm/gracectl/files/dashboard.json"


def exemplar_labels() -> set[str]:
    """Labels of the exemplars that the controller exports."""
    durations = TerminationDurations()
    durations.note(
        "node", 90.0, {"drain": 80.0}, span=SpanRef("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 7.0)
    )
    exposed = family_of(TERMINATION_DURATION, [Sample(TERMINATION_DURATION, ("node",), durations.whole()["node",])])
    return {label for sample in exposed.samples if sample.exemplar for label in sample.exemplar.labels}


def test_grafana_leads_from_a_duration_to_its_trace_and_back() -> None:
    sources = {source["type"]: source for source in provisioned("datasources")["datasources"]}
    (destination,) = sources["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert destination["datasourceUid"] == sources["jaeger"]["uid"]
    assert {destination["name"]} == exemplar_labels()
    back = sources["jaeger"]["jsonData"]["tracesToMetrics"]
    assert back["datasourceUid"] == sources["prometheus"]["uid"]
    # A single `$` would be a variable of Grafana's environment.
    assert all("$" not in query["query"].replace("$$__tags", "") for query in back["queries"])
