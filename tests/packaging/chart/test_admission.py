"""Admission as the chart sets it up: a hook registers the webhooks, certificates bear the names that are asked
for, and what serves them is where API servers look."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubesim.server.api import JsonObject
from support.chart import SETS, Release, needs_helm

from gracectl.admission.settings import AdmissionSettings
from gracectl.config import load_settings

needs_helm()

GROUP = "admissionregistration.k8s.io"


SILENT = ("dry run", "webhooks-elsewhere", "agent-alone", "page-alone", "minimal")
"""Register no webhooks."""


def _registers(release: Release) -> bool:
    return any(str(job["metadata"]["name"]).endswith("-webhooks") for job in release.of_kind("Job"))


def admission(release: Release, folder: Path) -> AdmissionSettings:
    """What the controller reads."""
    file = folder / "config.yaml"
    file.write_text(release.settings(), encoding="utf-8")
    return load_settings(file).admission


@pytest.mark.parametrize("release", SETS.values(), ids=SETS)
def test_no_webhook_configuration_is_part_of_a_release_and_no_standing_account_writes_one(release: Release) -> None:
    assert not [each for each in release.objects() if each["kind"].endswith("WebhookConfiguration")]
    for role in release.of_kind("ClusterRole"):
        rules = [each for each in role["rules"] if each["apiGroups"] == [GROUP]]
        hook = (role["metadata"].get("annotations") or {}).get("helm.sh/hook-delete-policy", "")
        written = {verb for each in rules for verb in each["verbs"]} - {"get"}
        assert not written or "hook-succeeded" in hook, role["metadata"]["name"]


@pytest.mark.parametrize("name", [name for name in SETS if name not in SILENT])
def test_a_hook_registers_with_rights_that_go_with_it(name: str) -> None:
    release = SETS[name]
    assert _registers(release)
    full = release.one("Deployment")["metadata"]["name"] if len(release.of_kind("Deployment")) == 1 else ""
    ours = [each for each in release.objects() if each["metadata"]["name"] == f"{full}-webhooks"]
    kinds = {"ServiceAccount", "Job"}
    if release.values.get("rbac", {}).get("create", True):
        kinds |= {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    assert not full or {each["kind"] for each in ours} == kinds
    for each in ours:
        annotations = each["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "post-install,post-upgrade,post-rollback"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        assert annotations["helm.sh/hook-weight"] == ("0" if each["kind"] == "Job" else "-1")


def test_without_webhooks_or_replicas_nothing_is_registered() -> None:
    assert not any(
        _registers(release) for release in (*(SETS[each] for each in SILENT), Release(values={"replicaCount": 0}))
    )
    assert "gracectl webhooks --apply" in SETS["webhooks-elsewhere"].notes()
    assert "cluster-admin" not in SETS["defaults"].notes()


def test_authorities_of_clients_are_mounted_where_they_are_looked_for(tmp_path: Path) -> None:
    release = SETS["a-secret-of-mine"]
    settings = admission(release, tmp_path).client_certificates
    assert (settings.ca_file, settings.names) == ("/client-ca/ca.crt", ("kube-apiserver",))
    spec = release.one("Deployment")["spec"]["template"]["spec"]
    (volume,) = (each for each in spec["volumes"] if each["name"] == "client-ca")
    assert volume["configMap"] == {"name": "api-servers"}
    assert {"name": "client-ca", "mountPath": "/client-ca", "readOnly": True} in spec["containers"][0]["volumeMounts"]


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
    (found,) = (each for each in release.of_kind("Certificate") if each["spec"] == certificate)
    assert settings.certificates.inject_from == f"{release.namespace}/{found['metadata']['name']}"


def test_an_existing_secret_is_mounted_where_it_is_looked_for(tmp_path: Path) -> None:
    release = SETS["a-secret-of-mine"]
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
