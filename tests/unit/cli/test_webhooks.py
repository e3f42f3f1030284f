"""`gracectl webhooks` against a cluster: what it prints is what it writes, and what it cannot know yet is said."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e_support.target import embedded_cluster
from support.fleet import Fleet

from gracectl.admission.rotation import FIELDS, CertificateState, next_state
from gracectl.model import names
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time

SECRETS = "/api/v1/namespaces/infra/secrets"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/gracectl"
SETTINGS = 'admission: {listen: ":8443", service: {name: gracectl}}\n'
LABELS = dict(part.split("=") for part in names.SETTINGS_SELECTOR.split(","))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster with the settings of a controller, and no controller."""
    folder = tmp_path_factory.mktemp("webhooks")
    with embedded_cluster(folder, "--nodes", "2", "--pods", "1") as kubeconfig:
        fleet = Fleet(kubeconfig, folder)
        fleet.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "infra"}})
        config_map = {"metadata": {"name": "gracectl", "labels": LABELS}, "data": {names.SETTINGS_KEY: SETTINGS}}
        fleet.ask("POST", "/api/v1/namespaces/infra/configmaps", config_map)
        lease = {"metadata": {"name": "gracectl"}, "spec": {"leaseDurationSeconds": 15}}
        fleet.ask("POST", "/apis/coordination.k8s.io/v1/namespaces/infra/leases", lease)
        yield fleet


def secret_of(state: CertificateState) -> dict[str, Any]:
    values = (*(state.pair.certificate, state.pair.key, state.authorities, state.authority_key), state.segment.encode())
    data = {field: b64encode(value).decode() for field, value in zip(FIELDS, values, strict=True)}
    return {"metadata": {"name": "gracectl-webhook-tls"}, "type": "kubernetes.io/tls", "data": data}


def test_without_a_controllers_secret_nothing_is_written(place: Fleet) -> None:
    for arguments in ((), ("--apply", "--wait", "1ms")):
        result = place.run("webhooks", *arguments)
        assert result.exit_code == 3
        assert result.stderr == (
            "gracectl: secret infra/gracectl-webhook-tls: not written by this version of the controller; start it, "
            "see whether one leads (gracectl doctor), or give --wait 2m\n"
        )
    assert place.call("GET", CONFIGURATION.format("mutating"))[0] == 404


def test_without_admission_it_says_so(place: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "off.yaml"
    file.write_text("{}")
    result = place.run("webhooks", "--config", str(file))
    assert (result.exit_code, "admission is off in file" in result.stderr) == (2, True)


def test_what_is_printed_is_what_is_written(place: Fleet) -> None:
    hosts = ("gracectl.infra.svc", "gracectl.infra.svc.cluster.local", "gracectl.infra")
    state = next_state(CertificateState(), hosts, SystemClock().now(), lambda authority: 0.0)
    place.ask("POST", SECRETS, secret_of(state))
    printed = yaml.safe_load(place.run("webhooks").stdout)
    assert place.call("GET", CONFIGURATION.format("mutating"))[0] == 404
    result = place.run("webhooks", "--apply")
    assert result.stdout.splitlines()[-2:] == [
        "MutatingWebhookConfiguration gracectl: created",
        "ValidatingWebhookConfiguration gracectl: created",
    ]
    assert printed["kind"] == "List"
    for each in printed["items"]:
        kind = each["kind"].removesuffix("WebhookConfiguration").lower()
        written = place.ask("GET", CONFIGURATION.format(kind))
        assert written["webhooks"] == each["webhooks"]
        assert written["metadata"]["labels"] == each["metadata"]["labels"]
        for webhook in each["webhooks"]:
            service = webhook["clientConfig"]["service"]
            assert (service["namespace"], service["path"].split("/")[1]) == ("infra", state.segment)
    again = place.run("webhooks", "--apply", "-n", "infra")
    assert [line.rpartition(" ")[2] for line in again.stdout.splitlines()[-2:]] == ["unchanged", "unchanged"]
