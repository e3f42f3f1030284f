"""Admission as the chart sets it up: webhooks of its own are the program's, certificates bear the names that are asked
for, and what serves them is where API servers look."""

from __future__ import annotations

from pathlib import Path

import pytest
from chart.sets import SETS
from support.helm import JsonObject, Release, needs_helm

from gracectl.admission.registration import CONFIGURATIONS
from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import WEBHOOKS, Kind, manifest
from gracectl.config import load_settings

needs_helm()

OF_THE_CHART = {name: release for name, release in SETS.items() if name.startswith("webhooks-")}


def admission(release: Release, folder: Path) -> AdmissionSettings:
    """What the controller reads."""
    file = folder / "config.yaml"
    file.write_text(release.settings(), encoding="utf-8")
    return load_settings(file).admission


@pytest.mark.parametrize("kind", CONFIGURATIONS)
@pytest.mark.parametrize("release", OF_THE_CHART.values(), ids=OF_THE_CHART)
def test_webhooks_of_the_chart_are_those_that_a_leader_would_make(release: Release, kind: Kind, tmp_path: Path) -> None:
    settings = admission(release, tmp_path)
    made = release.one(CONFIGURATIONS[kind].kind)
    assert made["metadata"]["name"] == settings.name
    assert made["webhooks"] == [manifest(each, settings, b"") for each in WEBHOOKS if each.kind == kind]


@pytest.mark.parametrize("release", [each for name, each in SETS.items() if name not in OF_THE_CHART])
def test_where_the_leader_makes_them_the_chart_makes_none(release: Release) -> None:
    assert not [each for each in release.objects() if each["kind"].endswith("WebhookConfiguration")]


@pytest.mark.parametrize("name", ["cert-manager", "cert-manager-issuer"])
def test_a_certificate_of_cert_manager_bears_the_names_that_are_asked_for(name: str, tmp_path: Path) -> None:
    release = SETS[name]
    settings = admission(release, tmp_path)
    certificate = release.one("Certificate")["spec"]
    assert tuple(certificate["dnsNames"]) == settings.hosts
    assert len(release.of_kind("Issuer")) == (name == "cert-manager")
    if name == "cert-manager":
        issuer = release.one("Issuer")["metadata"]["name"]
        assert certificate["issuerRef"] == {"group": "cert-manager.io", "kind": "Issuer", "name": issuer}
    assert _mounted(release)["/tls"] == certificate["secretName"]


def test_a_secret_of_somebody_elses_is_mounted_where_it_is_looked_for(tmp_path: Path) -> None:
    release = SETS["webhooks-of-the-chart"]
    files = admission(release, tmp_path).certificates
    folder = {str(Path(each).parent) for each in (files.cert_file, files.key_file, files.ca_file)}
    assert {place: _mounted(release)[place] for place in folder} == {"/tls": "of-mine"}


def _mounted(release: Release) -> dict[str, str]:
    """The Secrets that a controller mounts, by where."""
    spec = release.one("Deployment")["spec"]["template"]["spec"]
    secrets = {each["name"]: each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}
    mounts: list[JsonObject] = spec["containers"][0]["volumeMounts"]
    return {each["mountPath"]: secrets[each["name"]] for each in mounts if each["name"] in secrets}


def test_where_files_are_given_nothing_is_mounted_over_them() -> None:
    assert _mounted(SETS["webhooks-elsewhere"]) == {"/mine": "mine"}


def test_the_service_that_the_settings_name_leads_to_where_it_is_served(tmp_path: Path) -> None:
    for name in ("defaults", "another-name"):
        release = SETS[name]
        settings = admission(release, tmp_path)
        assert settings.service is not None
        (service,) = (each for each in release.of_kind("Service") if each["metadata"]["name"] == settings.service.name)
        assert service["metadata"]["namespace"] == settings.namespace
        (port,) = service["spec"]["ports"]
        assert port["port"] == settings.service.port
        (container,) = release.one("Deployment")["spec"]["template"]["spec"]["containers"]
        (served,) = (each for each in container["ports"] if each["name"] == port["targetPort"])
        assert settings.address() == (None, served["containerPort"])
