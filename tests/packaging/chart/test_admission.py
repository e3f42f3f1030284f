"""Admission as the chart sets it up: webhooks of its own are the program's, certificates bear the names that are asked
for, and what serves them is where API servers look."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from support.chart_sets import SETS
from support.helm import JsonObject, Release, needs_helm

from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import CONFIGURATIONS, WEBHOOKS, Kind, manifest
from gracectl.config import load_settings

needs_helm()

OF_THE_CHART = {name: release for name, release in SETS.items() if name.startswith(("webhooks-", "cert-manager"))}
WITHOUT_RIGHTS = ("cert-manager", "cert-manager-found", "webhooks-of-the-chart-trusted", "webhooks-elsewhere")
"""Where the program writes to no webhook configuration."""


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
    bundle = b64encode(release.values.get("admission", {}).get("caBundle", "").encode())
    assert made["webhooks"] == [manifest(each, settings, bundle) for each in WEBHOOKS if each.kind == kind]
    told_by_cert_manager = "cert-manager.io/inject-ca-from" in (made["metadata"].get("annotations") or {})
    assert told_by_cert_manager == bool(release.of_kind("Certificate"))


@pytest.mark.parametrize("name", WITHOUT_RIGHTS)
def test_with_a_ca_bundle_of_the_chart_the_controller_has_no_permission_on_configurations(
    name: str, tmp_path: Path
) -> None:
    release = SETS[name]
    settings = admission(release, tmp_path)
    assert not settings.writes_configurations
    assert "admissionregistration.k8s.io" not in _groups(release, "controller")


@pytest.mark.parametrize("name", ["defaults", "controller-beside-cert-manager", "secret-beside-cert-manager"])
def test_otherwise_it_has_and_the_notes_say_what_that_means(name: str, tmp_path: Path) -> None:
    release = SETS[name]
    assert admission(release, tmp_path).writes_configurations
    assert "admissionregistration.k8s.io" in _groups(release, "controller")
    assert "cluster-admin in effect" in release.notes()


def test_the_notes_of_other_installations_do_not_mention_it() -> None:
    assert "cluster-admin" not in SETS["cert-manager"].notes()
    assert "networkPolicy.enabled restricts nothing" in SETS["webhooks-of-the-chart-trusted"].notes()


def _groups(release: Release, component: str) -> set[str]:
    """The API groups of a ClusterRole."""
    roles = [each for each in release.of_kind("ClusterRole") if each["metadata"]["name"].endswith(f"-{component}")]
    return {group for role in roles for rule in role["rules"] for group in rule["apiGroups"]}


def test_authorities_of_clients_are_mounted_where_they_are_looked_for(tmp_path: Path) -> None:
    release = SETS["webhooks-of-the-chart-trusted"]
    settings = admission(release, tmp_path).client_certificates
    assert (settings.ca_file, settings.names) == ("/client-ca/ca.crt", ("kube-apiserver",))
    spec = release.one("Deployment")["spec"]["template"]["spec"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "client-ca")
    assert volume["configMap"] == {"name": "api-servers"}
    assert {"name": "client-ca", "mountPath": "/client-ca", "readOnly": True} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("release", [each for name, each in SETS.items() if name not in OF_THE_CHART])
def test_where_the_leader_makes_them_the_chart_makes_none(release: Release) -> None:
    assert not [each for each in release.objects() if each["kind"].endswith("WebhookConfiguration")]


@pytest.mark.parametrize("name", ["cert-manager", "cert-manager-issuer"])
def test_a_certificate_of_cert_manager_bears_the_names_that_are_asked_for(name: str, tmp_path: Path) -> None:
    release = SETS[name]
    settings = admission(release, tmp_path)
    certificate, *authority = sorted(
        (each["spec"] for each in release.of_kind("Certificate")), key=lambda spec: spec.get("isCA", False)
    )
    assert tuple(certificate["dnsNames"]) == settings.hosts
    issuers = {each["metadata"]["name"]: each["spec"] for each in release.of_kind("Issuer")}
    assert bool(issuers) == bool(authority) == (name == "cert-manager")
    if name == "cert-manager":
        # Its authority outlives it, so that a renewal changes no trust.
        assert issuers[certificate["issuerRef"]["name"]] == {"ca": {"secretName": authority[0]["secretName"]}}
        assert issuers[authority[0]["issuerRef"]["name"]] == {"selfSigned": {}}
    assert _mounted(release)["/tls"] == certificate["secretName"]


def test_an_existing_secret_is_mounted_where_it_is_looked_for(tmp_path: Path) -> None:
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
