"""The files for kubectl: the right to write webhook configurations is the exception, and says what it means."""

from __future__ import annotations

from support.grants import grants_of
from support.installed import Installed
from support.rbac.value_sets import MANIFESTS

WEBHOOKS, CORE = "admissionregistration.k8s.io", ""


def rights(file: str) -> set[tuple[str, str]]:
    """Verbs of the controller on webhook configurations and Secrets."""
    installed = Installed.of((MANIFESTS / file).read_text())
    grants = grants_of(installed.objects, installed.account())
    return {
        (each.verb, each.resource)
        for each in grants
        if each.group == WEBHOOKS or (each.group, each.resource) == (CORE, "secrets")
    }


def test_by_default_the_controller_writes_neither_webhook_configurations_nor_secrets() -> None:
    assert rights("gracectl.yaml") == set()


def test_the_exception_says_what_it_means() -> None:
    assert ("create", "mutatingwebhookconfigurations") in rights("gracectl-register.yaml")
    head = (MANIFESTS / "gracectl-register.yaml").read_text().partition("apiVersion:")[0]
    assert "cluster-admin in effect" in head
