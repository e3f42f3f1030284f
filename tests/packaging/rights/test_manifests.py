"""The file for kubectl: its account writes no webhook configuration, and the head says who does."""

from __future__ import annotations

from support.rights import Installed, grants_of
from support.rights_stories import MANIFESTS

WEBHOOKS, CORE = "admissionregistration.k8s.io", ""


def test_the_controller_reads_its_webhook_configurations_and_writes_one_secret() -> None:
    installed = Installed.of((MANIFESTS / "gracectl.yaml").read_text())
    grants = grants_of(installed.objects, installed.account())
    configurations = {(each.verb, each.name) for each in grants if each.group == WEBHOOKS}
    assert configurations == {("get", "gracectl")}
    secrets = {(each.verb, each.name) for each in grants if (each.group, each.resource) == (CORE, "secrets")}
    assert secrets == {("get", "gracectl-webhook-tls"), ("update", "gracectl-webhook-tls"), ("create", "")}


def test_the_head_says_how_webhooks_are_registered() -> None:
    head = (MANIFESTS / "gracectl.yaml").read_text().partition("apiVersion:")[0]
    assert "gracectl webhooks --wait 2m" in head
    assert "kubectl apply --server-side --force-conflicts -f -" in head
