"""What replicas see of the webhook configurations, what the leader writes into the Secret, and who writes the rest."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import anyio
import msgspec
import pytest
from kubesim.apiserver import ApiServer
from kubesim.faults.rules import Refuse, Rule
from kubesim.server.api import JsonObject, Request
from support.inprocess import InProcessTransport, Line

from gracectl.admission.registration import RegistrationWatch, is_complete, register
from gracectl.admission.rotation import (
    LIFE_SECONDS,
    READ_SECONDS,
    SYNC_SECONDS,
    CertificateRotator,
    CertificateSecret,
    SharedCertificate,
)
from gracectl.admission.serving_certificate import SETTLING_SECONDS, Material, ServingCertificate
from gracectl.admission.settings import AdmissionSettings, CertificateFiles
from gracectl.admission.webhooks import HAS_NODE, IS_AVAILABLE, admission_permissions
from gracectl.kube.client import KubeClient
from gracectl.runtime.certificates import authorities_in, certificate_info, issue, issuers_of
from gracectl.runtime.clock import LoopClock

KEY = ("infra", "gracectl-webhook-tls")
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/gracectl"
SECRET = "/api/v1/namespaces/infra/secrets/gracectl-webhook-tls"
DAY = 86_400.0
SETTINGS = msgspec.convert(
    {"listen": ":8443", "service": {"name": "gracectl", "namespace": "infra"}}, AdmissionSettings
)


class Replica:
    """One process of several, as far as this room goes."""

    def __init__(self, line: Line, clock: LoopClock, settings: AdmissionSettings) -> None:
        client = KubeClient(line, clock)
        self.clock = clock
        self.watch = RegistrationWatch(client, settings, clock)
        self.identity = ServingCertificate(clock, self.watch.trusted_for, settings.hosts)
        secret = CertificateSecret(client, KEY)
        has_files = settings.certificates.are_given
        self.shared = SharedCertificate(secret, None if has_files else self.identity, clock)
        hosts = None if has_files else settings.hosts
        self.rotator = CertificateRotator(secret, self.shared, self.identity, hosts, self.watch.trusted_for)

    async def sync(self) -> bool:
        await self.watch.look(self.shared.state)
        return await self.rotator.try_sync(self.clock.now())

    async def look(self) -> str:
        """What it says of the configurations."""
        await self.shared.reload()
        await self.watch.look(self.shared.state)
        return self.watch.problem(self.shared.state)

    async def run(self) -> None:
        while True:
            await self.sync()
            await self.clock.sleep(SYNC_SECONDS)


class World:
    """An API server, and replicas at it."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.server = ApiServer(self.clock)
        self.transport = InProcessTransport(self.server, self.clock)

    def replica(self, settings: AdmissionSettings = SETTINGS) -> Replica:
        return Replica(self.transport.line(), self.clock, settings)

    async def register(self, settings: AdmissionSettings = SETTINGS) -> tuple[str, ...]:
        """What a person does, or the hook of the chart."""
        client = KubeClient(self.transport.line(), self.clock)
        stored = await CertificateSecret(client, KEY).read()
        assert stored is not None
        assert is_complete(stored.state, settings)
        return await register(client, settings, stored.state)

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        headers = {"content-type": kind}
        response = await self.server.handle(Request(method=method, path=path, headers=headers, body=body))
        assert response.status < 300 or response.status == 404, response.body
        return deepcopy(response.body) if response.status < 300 else None

    async def configuration(self, kind: str = "validating") -> Any:
        return await self.call("GET", CONFIGURATION.format(kind))

    async def bundles(self) -> set[bytes]:
        """What our webhooks trust: one bundle, unless something is wrong."""
        configurations = [await self.configuration(kind) for kind in ("mutating", "validating")]
        return {b64decode(each["clientConfig"]["caBundle"]) for body in configurations for each in body["webhooks"]}

    async def kept(self) -> dict[str, bytes]:
        secret = await self.call("GET", SECRET)
        return {name: b64decode(value) for name, value in secret["data"].items()}

    async def merge(self, path: str, patch: JsonObject) -> None:
        await self.call("PATCH", path, patch, "application/merge-patch+json")


@asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        for part in parts:
            group.start_soon(part)
        yield
        group.cancel_scope.cancel()


def shown_by(replica: Replica) -> bytes:
    assert replica.identity.served is not None
    return replica.identity.served.certificate


async def a_world() -> World:
    world = World()
    await world.call("POST", "/api/v1/namespaces", {"metadata": {"name": "infra"}})
    return world


async def test_a_secret_is_made_and_webhooks_are_registered_by_what_it_has() -> None:
    world = await a_world()
    replica = world.replica()
    assert await replica.sync()
    secret = await world.call("GET", SECRET)
    assert secret["type"] == "kubernetes.io/tls"
    assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt", "ca.key", "path"}
    assert secret["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "gracectl"}
    kept = await world.kept()
    assert shown_by(replica) == kept["tls.crt"]
    assert certificate_info(kept["tls.crt"]).names == {
        "gracectl.infra.svc", "gracectl.infra.svc.cluster.local", "gracectl.infra",
    }  # fmt: skip
    assert await world.register() == (
        "MutatingWebhookConfiguration gracectl: created",
        "ValidatingWebhookConfiguration gracectl: created",
    )
    assert await replica.look() == ""
    assert await world.bundles() == {kept["ca.crt"]}
    [creation, _] = (await world.configuration("mutating"))["webhooks"]
    path = f"/{kept['path'].decode()}/mutate/nodes"
    assert creation == {
        "name": "create.nodes.gracectl.io",
        "clientConfig": {
            "service": {"name": "gracectl", "namespace": "infra", "port": 443, "path": path},
            "caBundle": b64encode(kept["ca.crt"]).decode(),
        },
        "rules": [
            {
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"],
                "scope": "Cluster",
            },
        ],
        "admissionReviewVersions": ["v1"], "failurePolicy": "Ignore", "matchPolicy": "Equivalent",
        "sideEffects": "None", "timeoutSeconds": 10, "namespaceSelector": {}, "objectSelector": {},
        "reinvocationPolicy": "Never",
    }  # fmt: skip
    validating = {each["name"]: each for each in (await world.configuration())["webhooks"]}
    assert {name: (each["failurePolicy"], each["sideEffects"]) for name, each in validating.items()} == {
        "delete.nodes.gracectl.io": ("Fail", "NoneOnDryRun"),
        "write.nodedisruptionbudgets.gracectl.io": ("Ignore", "None"),
        "write.nodeclaims.gracectl.io": ("Ignore", "None"),
        "write.nodedrains.gracectl.io": ("Ignore", "None"),
        "delete.nodeclaims.gracectl.io": ("Fail", "NoneOnDryRun"),
    }
    conditions = validating["delete.nodes.gracectl.io"]["matchConditions"]
    assert conditions == [{"name": "available", "expression": IS_AVAILABLE}]
    conditions = validating["delete.nodeclaims.gracectl.io"]["matchConditions"]
    assert conditions == [{"name": "has-node", "expression": HAS_NODE}]
    assert validating["write.nodeclaims.gracectl.io"]["rules"][0]["apiVersions"] == ["v1", "v1beta1"]


async def test_what_is_as_it_should_be_is_not_written() -> None:
    world = await a_world()
    first, second = world.replica(), world.replica()
    await first.sync()
    await world.register()
    written = writes(world)
    assert written == 3
    for replica in (first, second):
        for _ in range(3):
            assert await replica.sync()
            await world.clock.sleep(SYNC_SECONDS)
    assert await world.register() == (
        "MutatingWebhookConfiguration gracectl: unchanged",
        "ValidatingWebhookConfiguration gracectl: unchanged",
    )
    assert writes(world) == written


def writes(world: World) -> int:
    return len([each for each in world.transport.executed if each.request.method != "GET"])


def narrowed(webhooks: list[Any]) -> None:
    webhooks[0]["objectSelector"] = {"matchLabels": {"a": "b"}}


def loosened(webhooks: list[Any]) -> None:
    webhooks[0]["failurePolicy"] = "Ignore"


def rerouted(webhooks: list[Any]) -> None:
    webhooks[0]["clientConfig"]["service"]["path"] = "/validate/nodes"


def distrusted(webhooks: list[Any]) -> None:
    webhooks[1]["clientConfig"]["caBundle"] = ""


DELETION = "delete.nodes.gracectl.io: "


@pytest.mark.parametrize(("edit", "reason"), [
    (narrowed, f"{DELETION}not as the settings have it (objectSelector)"),
    (loosened, f"{DELETION}not as the settings have it (failurePolicy)"),
    (rerouted, f"{DELETION}not as the settings have it (clientConfig)"),
    (distrusted, "caBundle does not have the authority of the certificate"),
    (lambda webhooks: webhooks.pop(0), f"{DELETION}not as the settings have it (missing)"),
    (list.clear, "caBundle does not have the authority of the certificate"),
])  # fmt: skip
async def test_a_changed_configuration_is_reported_and_restored(edit: Callable[[list[Any]], None], reason: str) -> None:
    world = await a_world()
    replica = world.replica()
    await replica.sync()
    await world.register()
    before = await world.configuration()
    webhooks = (await world.configuration())["webhooks"]
    edit(webhooks)
    metadata = {"annotations": {"a": "b"}, "labels": None}
    await world.merge(CONFIGURATION.format("validating"), {"webhooks": webhooks, "metadata": metadata})
    problem = f"ValidatingWebhookConfiguration gracectl: {reason}; run gracectl webhooks --apply"
    assert await replica.look() == problem
    assert (await world.register())[1] == "ValidatingWebhookConfiguration gracectl: updated"
    after = await world.configuration()
    assert after["webhooks"] == before["webhooks"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["metadata"]["annotations"] == {"a": "b"}  # what is not ours stays
    assert await replica.look() == ""


async def test_a_missing_configuration_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    world = await a_world()
    replica = world.replica()
    await replica.sync()
    missing = (
        "MutatingWebhookConfiguration gracectl: missing, so API servers do not call gracectl; "
        "run gracectl webhooks --apply"
    )
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        assert [await replica.look() for _ in range(3)] == [missing] * 3
    assert caplog.messages in ([missing], [])  # the first look of all may have said it
    await world.register()
    assert await replica.look() == ""
    world.transport.before.add(Rule(fault=Refuse(403), path="/validatingwebhookconfigurations"))
    assert (await replica.look()).startswith("webhook configurations gracectl: unknown: ")
    assert not replica.watch.is_known


async def test_an_older_server_that_drops_a_field_is_not_reported() -> None:
    world = await a_world()
    replica = world.replica()
    await replica.sync()
    await world.register()
    stored = await world.configuration()
    # As a server before 1.27 would have stored it.
    table = world.server.store.table("validatingwebhookconfigurations.admissionregistration.k8s.io")
    pruned = [{k: v for k, v in each.items() if k != "matchConditions"} for each in stored["webhooks"]]
    table.get("", "gracectl")["webhooks"] = pruned  # type: ignore[index]
    assert await replica.look() == ""


@pytest.mark.parametrize("settings", [SETTINGS, msgspec.structs.replace(SETTINGS, service=None, url="https://a/b/")])
async def test_plain_paths_are_known_while_a_configuration_names_them(settings: AdmissionSettings) -> None:
    world = await a_world()
    replica = world.replica(settings)
    await replica.sync()
    assert not replica.watch.names_plain_paths
    await world.register(settings)
    await replica.look()
    assert not replica.watch.names_plain_paths
    webhooks = (await world.configuration())["webhooks"]
    segment = f"/{(await world.kept())['path'].decode()}/"
    for client in (each["clientConfig"] for each in webhooks[:1]):
        for place, field in ((client, "url"), (client.get("service", {}), "path")):
            if field in place:
                place[field] = place[field].replace(segment, "/")
    await world.merge(CONFIGURATION.format("validating"), {"webhooks": webhooks})
    await replica.look()
    assert replica.watch.names_plain_paths


FILES = CertificateFiles("tls.crt", "tls.key", inject_from="infra/gracectl-webhook-cert")


async def test_a_ca_bundle_that_cert_manager_writes_is_left_to_it() -> None:
    world = await a_world()
    settings = msgspec.structs.replace(SETTINGS, certificates=FILES)
    replica = world.replica(settings)
    await replica.sync()
    assert set(await world.kept()) == {"path"}
    await world.register(settings)
    configuration = await world.configuration()
    assert configuration["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "infra/gracectl-webhook-cert"}
    assert not any("caBundle" in each["clientConfig"] for each in configuration["webhooks"])
    injected = b64encode(issue(("a",), world.clock.now(), DAY).authority).decode()
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["caBundle"] = injected
    configuration["webhooks"][0]["failurePolicy"] = "Ignore"
    await world.merge(CONFIGURATION.format("validating"), {"webhooks": configuration["webhooks"]})
    await world.register(settings)
    after = (await world.configuration())["webhooks"]
    assert {each["clientConfig"]["caBundle"] for each in after} == {injected}
    assert after[0]["failurePolicy"] == "Fail"
    assert await replica.look() == ""


async def test_the_authority_of_files_is_in_the_secret_and_a_new_one_is_reported() -> None:
    world = await a_world()
    settings = msgspec.structs.replace(SETTINGS, certificates=CertificateFiles("tls.crt", "tls.key", "ca.crt"))
    replica = world.replica(settings)
    first, second = (issue(settings.hosts, world.clock.now(), DAY) for _ in range(2))
    replica.identity.offer(Material(first.pair, first.authority))
    await replica.sync()
    assert (await world.kept()).keys() == {"path", "ca.crt"}
    await world.register(settings)
    assert await world.bundles() == {first.authority}
    assert await replica.look() == ""
    replica.identity.offer(Material(second.pair, second.authority))
    await replica.sync()
    assert "caBundle does not have the authority" in await replica.look()
    await world.register(settings)
    assert await replica.look() == ""
    assert await world.bundles() == {first.authority + second.authority}


# -- the Secret --------------------------------------------------------------------------------------------------------


async def test_a_renewed_pair_is_shown_by_all_and_the_configurations_stay() -> None:
    world = await a_world()
    leader, follower = world.replica(), world.replica()
    await leader.sync()
    await world.register()
    for replica in (leader, follower):
        await replica.look()
    first, bundles = await world.kept(), await world.bundles()
    await world.clock.sleep(LIFE_SECONDS * 2 / 3)
    async with running(leader.run, leader.shared.run, follower.shared.run):
        await world.clock.sleep(READ_SECONDS + 1)
        kept = await world.kept()
        assert kept["tls.crt"] != first["tls.crt"]
        assert {shown_by(leader), shown_by(follower)} == {kept["tls.crt"]}
    assert await world.bundles() == bundles
    assert await leader.look() == ""


async def test_the_secret_of_an_earlier_version_goes_on_until_the_new_authority_is_registered() -> None:
    world = await a_world()
    old = issue(SETTINGS.hosts, world.clock.now(), LIFE_SECONDS)
    data = {"tls.crt": old.pair.certificate, "tls.key": old.pair.key, "ca.crt": old.authority, "next.crt": b"A"}
    encoded = {name: b64encode(value).decode() for name, value in data.items()}
    body = {"metadata": {"name": KEY[1]}, "type": "kubernetes.io/tls", "data": encoded}
    await world.call("POST", SECRET.rpartition("/")[0], body)
    replica = world.replica()
    await replica.sync()
    kept = await world.kept()
    assert set(kept) == {"tls.crt", "tls.key", "ca.crt", "ca.key", "path"}
    assert shown_by(replica) == old.pair.certificate
    await world.register()
    assert await replica.look() == ""
    for _ in range(6):
        await replica.sync()
        await world.clock.sleep(SYNC_SECONDS)
    after = await world.kept()
    assert after["ca.key"] == kept["ca.key"]
    assert shown_by(replica) == after["tls.crt"] != old.pair.certificate
    assert await replica.look() == ""  # it trusts more than it needs to


async def test_an_authority_counts_anew_from_when_it_is_back() -> None:
    world = await a_world()
    replica = world.replica()
    await replica.sync()
    await world.register()
    await replica.look()
    [authority] = authorities_in((await world.kept())["ca.crt"])
    await world.clock.sleep(100)
    assert replica.watch.trusted_for(authority) == 100
    webhooks = (await world.configuration())["webhooks"]
    webhooks[1]["clientConfig"]["caBundle"] = ""
    await world.merge(CONFIGURATION.format("validating"), {"webhooks": webhooks})
    await replica.look()
    assert replica.watch.trusted_for(authority) == 0
    assert replica.watch.trusted_for(b"no authority") == 0


async def test_a_deleted_secret_is_written_again_as_it_was() -> None:
    world = await a_world()
    replica = world.replica()
    await replica.sync()
    before = await world.kept()
    await world.call("DELETE", SECRET)
    await replica.sync()
    assert await world.kept() == before


async def test_a_damaged_secret_is_repaired_and_foreign_keys_stay() -> None:
    world = await a_world()
    leader, follower = world.replica(), world.replica()
    await leader.sync()
    await world.register()
    for replica in (leader, follower):
        await replica.look()
    await world.clock.sleep(SETTLING_SECONDS)
    before = await world.kept()
    await world.merge(SECRET, {"data": {"tls.crt": b64encode(b"spoilt").decode(), "mine": "QQ=="}})
    await follower.shared.reload()
    assert shown_by(follower) == before["tls.crt"]
    await leader.sync()
    kept = await world.kept()
    assert kept["mine"] == b"A"
    assert (kept["ca.crt"], kept["path"]) == (before["ca.crt"], before["path"])
    await follower.shared.reload()
    assert {shown_by(leader), shown_by(follower)} == {kept["tls.crt"]}  # of the authority that all know


async def test_three_replicas_have_one_certificate_even_if_two_believe_to_lead() -> None:
    world = await a_world()
    replicas = [world.replica() for _ in range(3)]
    async with running(replicas[0].run, replicas[1].run, *(each.shared.run for each in replicas)):
        await world.clock.sleep(SYNC_SECONDS + READ_SECONDS)
        kept = await world.kept()
        shown = {shown_by(each) for each in replicas}
        assert shown == {kept["tls.crt"]}


async def test_what_a_server_refuses_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()  # without the namespace
    replica = world.replica()
    async with running(replica.run):
        with caplog.at_level(logging.WARNING):
            await world.clock.sleep(20)
        [message] = [each for each in caplog.messages if each.startswith("admission")]
        assert message.startswith("admission: certificate not up to date: ")
        assert message.endswith("; retrying")
        await world.call("POST", "/api/v1/namespaces", {"metadata": {"name": "infra"}})
        await world.clock.sleep(SYNC_SECONDS)
        assert await world.kept()


@pytest.mark.parametrize("settings", [SETTINGS, msgspec.structs.replace(SETTINGS, certificates=FILES)])
async def test_nothing_is_asked_that_the_rights_do_not_name(settings: AdmissionSettings) -> None:
    world = await a_world()
    replica = world.replica(settings)
    for _ in range(3):
        await replica.sync()
        await world.clock.sleep(LIFE_SECONDS * 2 / 3)
    granted = {(right.verb, right.plural) for right in admission_permissions(settings)}
    asked = {(each.operation.verb, each.operation.plural) for each in world.transport.executed}
    assert asked <= granted
    assert {name for each in world.transport.executed if (name := each.operation.name)} <= {KEY[1], "gracectl"}


@pytest.mark.parametrize("field", ["tls.crt", "tls.key", "ca.crt", "ca.key", "path"])
@pytest.mark.parametrize("spoilt", ["", "not base64!", "AAAA", "cut", "other"])
async def test_whatever_is_written_into_the_secret_is_repaired_in_the_end(field: str, spoilt: str) -> None:
    world = await a_world()
    replica = world.replica()
    await replica.sync()
    secret = await world.call("GET", SECRET)
    good = secret["data"][field]
    contents = {
        "cut": b64encode(b64decode(good)[:-40]).decode(),
        "other": b64encode(issue(("elsewhere",), world.clock.now(), DAY).pair.certificate).decode(),
    }
    data = {**secret["data"], field: contents.get(spoilt, spoilt)}
    table = world.server.store.table("secrets")
    table.get(*KEY)["data"] = data  # type: ignore[index]  # past the server's own checks
    for _ in range(9):
        await replica.sync()
        await world.register()
        await world.clock.sleep(SYNC_SECONDS)
    kept = await world.kept()
    assert set(kept) == {"tls.crt", "tls.key", "ca.crt", "ca.key", "path"}
    assert await replica.look() == ""
    assert issuers_of(kept["tls.crt"], authorities_in(kept["ca.crt"]))
    assert shown_by(replica) == kept["tls.crt"]
