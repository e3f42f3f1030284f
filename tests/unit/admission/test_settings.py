"""Settings of admission: what cannot work is refused with its field and remedy; and the rights that follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from kubesim_support.accounts import guarded, rule
from support.inprocess import InProcessTransport

from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import admission_permissions
from gracectl.config import ConfigError, load_settings
from gracectl.kube.client import KubeClient
from gracectl.kube.rbac import missing_permissions
from gracectl.runtime.clock import LoopClock

SERVICE = {"name": "gracectl", "namespace": "infra"}


def settings(**fields: Any) -> AdmissionSettings:
    return msgspec.convert({"listen": ":8443", **fields}, AdmissionSettings)


@pytest.mark.parametrize(("text", "why"), [
    ("{listen: ':8443'}", "admission.service: needed for the API server to reach gracectl; set its name, or a url"),
    (
            "{listen: ':8443', service: {name: a}, certificates: {injectFrom: a/b}}",
            "admission.certificates.injectFrom: needs certFile and keyFile, and no caFile, as cert-manager has the "
            "authority",
        ),
    ("{listen: ':8443', service: {name: a}, url: 'https://a'}", "admission.url: excludes service; remove one of them"),
    ("{listen: ':8443', url: 'http://a'}",
     "admission.url: 'http://a' is not a URL such as https://gracectl.example.com:8443"),
    ("{listen: ':8443', url: 'https://b\u00fccher.example'}",
     "admission.url: 'https://b\u00fccher.example' is not a URL such as https://gracectl.example.com:8443"),
    ("{listen: ':8443', url: 'https://a:0'}",
     "admission.url: 'https://a:0' is not a URL such as https://gracectl.example.com:8443"),
    ("{listen: ':8443', url: 'https://a:x'}",
     "admission.url: 'https://a:x' is not a URL such as https://gracectl.example.com:8443"),
    ("{listen: ':8443', url: 'https://a/?b=c'}",
     "admission.url: 'https://a/?b=c' has a user, query or fragment, which API servers do not support; " "remove it"),
    ("{listen: ':8443', service: {name: a}, certificates: {certFile: x}}",
     "admission.certificates.keyFile: needed with certFile; set both, or neither"),
    ("{listen: ':8443', service: {name: a}, certificates: {keyFile: x}}",
     "admission.certificates.certFile: needed with keyFile; set both, or neither"),
    (
            "{listen: ':8443', service: {name: a}, certificates: {caFile: x}}",
            "admission.certificates.caFile: needs certFile and keyFile; set them, or remove it (a self-made "
            "certificate has its own authority)",
        ),
    ("{listen: ':8443', service: {name: a}, clientCertificates: {names: [b]}}",
     "admission.clientCertificates.names: needs caFile; set the file of their authorities"),
    ("{listen: '8443'}", "admission.listen: '8443' is not an address such as 0.0.0.0:9090, [::1]:9090 or :9090"),
    ("{listen: ':9090', service: {name: a}}\nmetrics: {listen: ':9090'}",
     "admission.listen: :9090 is served without TLS by metrics.listen; choose another port"),
    ("{listen: ':8443', service: {}}", "admission.service: Object missing required field `name`"),
    ("{timeoutSeconds: 31}", "admission.timeoutSeconds: Expected `int` <= 30, got 31"),
    ("{failurePolicy: fail}", "admission.failurePolicy: Invalid enum value 'fail'; choose one of Fail, Ignore"),
])  # fmt: skip
def test_what_cannot_work_is_refused_with_its_field(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"admission: {text}")
    with pytest.raises(ConfigError) as caught:
        load_settings(file)
    assert str(caught.value) == f"settings file {file}: {why}"


@pytest.mark.parametrize("text", [
    "{}",
    "{url: nonsense, certificates: {caFile: x}}",  # it is off
    "{listen: ':8443', service: {name: gracectl}}",
    "{listen: ':8443', url: 'https://10.0.0.1:8443/hooks'}",
    "{listen: ':8443', service: {name: a}, certificates: {certFile: a, keyFile: b, injectFrom: c/d}}",
    "{listen: ':0', service: {name: a}}\nmetrics: {listen: ':0'}",
])  # fmt: skip
def test_what_can_work_is_taken(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"admission: {text}")
    load_settings(file)


def test_the_certificate_bears_the_names_by_which_it_is_asked_for() -> None:
    assert settings(service=SERVICE).hosts == (
        "gracectl.infra.svc", "gracectl.infra.svc.cluster.local", "gracectl.infra",
    )  # fmt: skip
    assert settings(url="https://hooks.example.com:8443/x").hosts == ("hooks.example.com",)
    assert settings(url="https://[0:0::1]:8443").hosts == ("::1",)


MUTATING = "mutatingwebhookconfigurations"
VALIDATING = "validatingwebhookconfigurations"
GROUP = " in API group admissionregistration.k8s.io"


@pytest.mark.parametrize(("fields", "rights"), [
    ({"listen": ""}, []),
    (
            {"service": SERVICE},
            [
                "get secrets gracectl-webhook-tls in namespace infra",
                "update secrets gracectl-webhook-tls in namespace infra",
                "create secrets in namespace infra",
                f"get {MUTATING} gracectl{GROUP}",
                f"get {VALIDATING} gracectl{GROUP}",
            ],
        ),
    (
            {"service": SERVICE, "name": "chart", "certificates": {"certFile": "a", "keyFile": "b", "caFile": "c"}},
            [
                "get secrets gracectl-webhook-tls in namespace infra",
                "update secrets gracectl-webhook-tls in namespace infra",
                "create secrets in namespace infra",
                f"get {MUTATING} chart{GROUP}",
                f"get {VALIDATING} chart{GROUP}",
            ],
        ),
])  # fmt: skip
def test_it_needs_as_little_as_does(fields: dict[str, Any], rights: list[str]) -> None:
    assert [str(right) for right in admission_permissions(settings(**fields))] == rights


async def test_rights_by_name_are_asked_for_by_name() -> None:
    clock = LoopClock()
    mine = {
        "verbs": ["get", "update"], "apiGroups": [""], "resources": ["secrets"],
        "resourceNames": ["gracectl-webhook-tls"],
    }  # fmt: skip
    server = await guarded(clock, "gracectl", mine, rule("create", "secrets"))
    client = KubeClient(InProcessTransport(server, clock, token="t"), clock)
    wanted = admission_permissions(settings(service=SERVICE))
    missing = await missing_permissions(client, wanted)
    assert missing == tuple(right for right in wanted if right.plural != "secrets")
    another = admission_permissions(settings(service=SERVICE, secret="another"))
    refused = [str(right) for right in await missing_permissions(client, another) if right.plural == "secrets"]
    assert refused == [f"{verb} secrets another in namespace infra" for verb in ("get", "update")]
