"""What the leader does: one certificate for all replicas, and webhook configurations that stay as they should be."""

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

from gracectl.admission.controller import SYNC_SECONDS, CertificateRotator, WebhookController
from gracectl.admission.rotation import (
    LIFE_SECONDS,
    READ_SECONDS,
    SETTLING_SECONDS,
    CertificateSecret,
    SharedCertificate,
)
from gracectl.admission.serving_certificate import RETAINED_SECONDS, Material, ServingCertificate
from gracectl.admission.settings import AdmissionSettings, CertificateFiles
from gracectl.admission.webhooks import IS_AVAILABLE, WEBHOOKS, WebhookRegistration, admission_permissions
from gracectl.kube.client import KubeClient
from gracectl.runtime.certificates import authorities_in, certificate_info, issue, issuers_of
from gracectl.runtime.clock import LoopClock

pytestmark = pytest.mark.anyio

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
        self.line = line
        self.identity = ServingCertificate(clock, SETTLING_SECONDS, settings.hosts)
        secret = CertificateSecret(client, KEY)
        self.shared = SharedCertificate(secret, self.identity, clock)
        custody = None
        if not settings.certificates.are_given:
            custody = CertificateRotator(secret, self.shared, settings.hosts, clock)
        self.registration = WebhookRegistration(client, settings, clock)
        self.controller = WebhookController(self.identity, self.registration, custody, self.identity.is_good, clock)


class World:
    """An API server, and replicas at it."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.server = ApiServer(self.clock)
        self.transport = InProcessTransport(self.server, self.clock)

    def replica(self, settings: AdmissionSettings = SETTINGS) -> Replica:
        return Replica(self.transport.line(), self.clock, settings)

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        headers = {"content-type": kind}
        response = await self.server.handle(Request(method=method, path=path, headers=headers, body=body))
        assert response.status < 300 or response.status == 404, response.body
        return deepcopy(response.body) if response.status < 300 else None

    async def configuration(self, kind: str = "validating") -> Any:
        return await self.call("GET", CONFIGURATION.format(kind))

    async def bundles(self) -> set[bytes]:
        """What our webhooks trust: one bundle, unless something is wrong."""
        found = [await self.configuration(kind) for kind in ("mutating", "validating")]
        return {b64decode(each["clientConfig"]["caBundle"]) for body in found for each in body["webhooks"]}

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


async def test_a_certificate_is_made_and_only_then_are_webhooks_registered() -> None:
    world = await a_world()
    replica = world.replica()
    assert await replica.controller.sync()
    secret = await world.call("GET", SECRET)
    assert secret["type"] == "kubernetes.io/tls"
    assert set(secret["data"]) == {"tls.crt", "tls.key", "ca.crt"}
    assert secret["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "gracectl"}
    kept = await world.kept()
    assert shown_by(replica) == kept["tls.crt"]
    assert certificate_info(kept["tls.crt"]).names == {
        "gracectl.infra.svc",
        "gracectl.infra.svc.cluster.local",
        "gracectl.infra",
    }
    assert await world.bundles() == {kept["ca.crt"]}
    [creation] = (await world.configuration("mutating"))["webhooks"]
    assert creation == {
        "name": "create.nodes.gracectl.io",
        "clientConfig": {
            "service": {"name": "gracectl", "namespace": "infra", "port": 443, "path": "/mutate/nodes"},
            "caBundle": b64encode(kept["ca.crt"]).decode(),
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["nodes"],
                "scope": "Cluster",
            }
        ],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": 10,
        "namespaceSelector": {},
        "objectSelector": {},
        "reinvocationPolicy": "Never",
    }
    validating = {each["name"]: each for each in (await world.configuration())["webhooks"]}
    assert {name: (each["failurePolicy"], each["sideEffects"]) for name, each in validating.items()} == {
        "delete.nodes.gracectl.io": ("Fail", "NoneOnDryRun"),
        "write.nodedisruptionbudgets.gracectl.io": ("Ignore", "None"),
        "write.nodeclaims.gracectl.io": ("Ignore", "None"),
    }
    conditions = validating["delete.nodes.gracectl.io"]["matchConditions"]
    assert conditions == [{"name": "available", "expression": IS_AVAILABLE}]
    assert validating["write.nodeclaims.gracectl.io"]["rules"][0]["apiVersions"] == ["v1", "v1beta1"]


async def test_what_is_as_it_should_be_is_not_written() -> None:
    world = await a_world()
    first, second = world.replica(), world.replica()
    await first.controller.sync()
    written = len([each for each in world.transport.executed if each.request.method != "GET"])
    assert written == 3
    for replica in (first, second):
        for _ in range(3):
            assert await replica.controller.sync()
            await world.clock.sleep(SYNC_SECONDS)
    assert len([each for each in world.transport.executed if each.request.method != "GET"]) == written


def narrowed(webhooks: list[Any]) -> None:
    webhooks[0]["objectSelector"] = {"matchLabels": {"a": "b"}}


def loosened(webhooks: list[Any]) -> None:
    webhooks[0]["failurePolicy"] = "Ignore"


def unconditional(webhooks: list[Any]) -> None:
    del webhooks[0]["matchConditions"]


def added_to(webhooks: list[Any]) -> None:
    webhooks.append({**webhooks[1], "name": "more.example.com"})


@pytest.mark.parametrize("edit", [narrowed, loosened, unconditional, added_to, list.clear])
async def test_a_changed_configuration_is_soon_restored(edit: Callable[[list[Any]], None]) -> None:
    world = await a_world()
    replica = world.replica()
    async with running(replica.controller.run):
        await world.clock.sleep(1)
        before = await world.configuration()
        webhooks = (await world.configuration())["webhooks"]
        edit(webhooks)
        metadata = {"annotations": {"a": "b"}, "labels": None}
        await world.merge(CONFIGURATION.format("validating"), {"webhooks": webhooks, "metadata": metadata})
        assert (await world.configuration()).get("webhooks") != before["webhooks"]
        await world.clock.sleep(SYNC_SECONDS)
        after = await world.configuration()
        assert after["webhooks"] == before["webhooks"]
        assert after["metadata"]["labels"] == before["metadata"]["labels"]
        assert after["metadata"]["annotations"] == {"a": "b"}  # what is not ours stays


async def test_a_deleted_configuration_is_soon_recreated() -> None:
    world = await a_world()
    replica = world.replica()
    async with running(replica.controller.run):
        await world.clock.sleep(1)
        before = await world.configuration()
        await world.call("DELETE", CONFIGURATION.format("validating"))
        await world.clock.sleep(SYNC_SECONDS)
        assert (await world.configuration())["webhooks"] == before["webhooks"]


async def test_an_older_server_that_drops_what_it_does_not_know_is_not_written_to_again_and_again() -> None:
    world = await a_world()
    replica = world.replica()
    await replica.controller.sync()
    stored = await world.configuration()
    # As a server before 1.27 would have stored it.
    table = world.server.store.table("validatingwebhookconfigurations.admissionregistration.k8s.io")
    pruned = [{k: v for k, v in each.items() if k != "matchConditions"} for each in stored["webhooks"]]
    table.get("", "gracectl")["webhooks"] = pruned  # type: ignore[index]
    before = len(world.transport.executed)
    for _ in range(3):
        assert await replica.controller.sync()
    assert {each.request.method for each in world.transport.executed[before:]} == {"GET"}


async def test_with_a_chart_only_the_authority_is_written_and_only_into_what_is_ours() -> None:
    world = await a_world()
    settings = msgspec.structs.replace(SETTINGS, register=False)
    replica = world.replica(settings)
    assert await replica.controller.sync()
    assert await world.configuration() is None
    ours = {
        "name": WEBHOOKS[1].name,
        "clientConfig": {"service": {"name": "x", "namespace": "infra", "path": "/validate/nodes"}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["nodes"]}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
        "failurePolicy": "Ignore",
    }
    other = {**ours, "name": "of.another.owner"}
    path = CONFIGURATION.format("validating").removesuffix("/gracectl")
    await world.call("POST", path, {"metadata": {"name": "gracectl"}, "webhooks": [other, ours]})
    before = await world.configuration()
    assert await replica.controller.sync()
    theirs, told = (await world.configuration())["webhooks"]
    assert theirs == before["webhooks"][0]
    bundle = b64encode((await world.kept())["ca.crt"]).decode()
    expected = {**before["webhooks"][1], "clientConfig": {**before["webhooks"][1]["clientConfig"], "caBundle": bundle}}
    assert told == expected


async def test_a_ca_bundle_that_we_do_not_know_is_left_to_others() -> None:
    world = await a_world()
    files = CertificateFiles("tls.crt", "tls.key")
    replica = world.replica(msgspec.structs.replace(SETTINGS, certificates=files))
    assert not await replica.controller.sync()  # nothing to show yet
    assert await world.configuration() is None
    issued = issue(SETTINGS.hosts, world.clock.now(), DAY)
    replica.identity.offer(Material(issued.pair))
    assert await replica.controller.sync()
    webhooks = (await world.configuration())["webhooks"]
    assert not any("caBundle" in each["clientConfig"] for each in webhooks)
    injected = b64encode(issued.authority).decode()
    for webhook in webhooks:
        webhook["clientConfig"]["caBundle"] = injected
    webhooks[0]["failurePolicy"] = "Ignore"
    await world.merge(CONFIGURATION.format("validating"), {"webhooks": webhooks})
    assert await replica.controller.sync()
    after = (await world.configuration())["webhooks"]
    assert {each["clientConfig"]["caBundle"] for each in after} == {injected}
    assert after[0]["failurePolicy"] == "Fail"


# -- rotation ----------------------------------------------------------------------------------------------------------


async def test_a_new_pair_is_laid_aside_announced_and_shown_by_all_after_a_minute() -> None:
    world = await a_world()
    leader, follower = world.replica(), world.replica()
    await leader.controller.sync()
    first = await world.kept()
    facts = certificate_info(first["tls.crt"])
    due = facts.begins + (facts.ends - facts.begins) * 2 / 3 - world.clock.now()
    await world.clock.sleep(due - 30)
    async with running(leader.controller.run, leader.shared.run, follower.shared.run):
        while "next.crt" not in (kept := await world.kept()):
            await world.clock.sleep(1)
        laid = world.clock.monotonic()
        assert due <= laid <= due + SYNC_SECONDS + 1
        assert kept["tls.crt"] == first["tls.crt"]
        assert len(authorities_in(kept["ca.crt"])) == 2
        assert await world.bundles() == {kept["ca.crt"]}
        while world.clock.monotonic() < laid + SETTLING_SECONDS - 1:
            assert {shown_by(leader), shown_by(follower)} == {first["tls.crt"]}
            await world.clock.sleep(1)
        while "next.crt" in (after := await world.kept()):
            await world.clock.sleep(1)
        assert world.clock.monotonic() - laid <= SETTLING_SECONDS + SYNC_SECONDS + 1
        assert (after["tls.crt"], after["tls.key"]) == (kept["next.crt"], kept["next.key"])
        await world.clock.sleep(2 * READ_SECONDS)
        assert {shown_by(leader), shown_by(follower)} == {kept["next.crt"]}
    await world.clock.sleep(LIFE_SECONDS / 3 + RETAINED_SECONDS)
    await leader.shared.reload()
    await leader.controller.sync()
    last = await world.kept()
    assert authorities_in(last["ca.crt"]) == issuers_of(last["tls.crt"], authorities_in(kept["ca.crt"]))
    assert await world.bundles() == {last["ca.crt"]}


@pytest.mark.parametrize("written", range(4))
async def test_a_leader_that_dies_between_any_two_writes_is_succeeded_by_one_that_goes_on(written: int) -> None:
    """Of the writes of a rotation (pair aside, two configurations, pair in its place) so many are carried out."""
    world = await a_world()
    first, second = world.replica(), world.replica()
    await first.controller.sync()
    await world.clock.sleep(LIFE_SECONDS * 2 / 3)
    before = await world.kept()
    writes = _writes(world)
    async with running(first.controller.run):
        while _writes(world) - writes < written:
            await world.clock.sleep(0.5)
        first.line.cut()
    async with running(second.controller.run):
        await world.clock.sleep(1)
        kept = await world.kept()
        assert await world.bundles() == {kept["ca.crt"]}
        if written < 4:
            assert (kept["tls.crt"] == before["tls.crt"]) == ("next.crt" in kept)
        await world.clock.sleep(SETTLING_SECONDS + 3 * SYNC_SECONDS)
        after = await world.kept()
        assert "next.crt" not in after
        assert after["tls.crt"] != before["tls.crt"]
        assert issuers_of(after["tls.crt"], authorities_in(kept["ca.crt"]))  # no third pair was made
        assert len(authorities_in(after["ca.crt"])) == 2


def _writes(world: World) -> int:
    return len([each for each in world.transport.executed if each.request.method != "GET"])


async def test_a_removed_authority_counts_anew_from_when_it_is_back() -> None:
    world = await a_world()
    replica = world.replica()
    await replica.controller.sync()
    bundle = (await world.kept())["ca.crt"]
    await world.clock.sleep(100)
    await replica.controller.sync()
    assert replica.registration.trusted_for(bundle) == 100
    webhooks = (await world.configuration())["webhooks"]
    webhooks[1]["clientConfig"]["caBundle"] = ""
    await world.merge(CONFIGURATION.format("validating"), {"webhooks": webhooks})
    await world.clock.sleep(10)
    await replica.controller.sync()
    assert replica.registration.trusted_for(bundle) == 0
    assert await world.bundles() == {bundle}
    assert replica.registration.trusted_for(b"no bundle") == 0


async def test_a_deleted_secret_is_written_again_as_it_was() -> None:
    world = await a_world()
    replica = world.replica()
    await replica.controller.sync()
    before = await world.kept()
    await world.call("DELETE", SECRET)
    await replica.controller.sync()
    assert await world.kept() == before


async def test_a_damaged_secret_is_repaired_and_foreign_keys_stay() -> None:
    world = await a_world()
    leader, follower = world.replica(), world.replica()
    await leader.controller.sync()
    await follower.shared.reload()
    before = await world.kept()
    await world.merge(SECRET, {"data": {"tls.crt": b64encode(b"spoilt").decode(), "mine": "QQ=="}})
    await follower.shared.reload()
    assert shown_by(follower) == before["tls.crt"]
    await leader.controller.sync()
    kept = await world.kept()
    assert kept["mine"] == b"A"
    assert before["ca.crt"] in kept["ca.crt"]
    for replica in (leader, follower):
        # The authority is published first.
        await replica.shared.reload()
        assert shown_by(replica) == before["tls.crt"]
    await world.clock.sleep(SETTLING_SECONDS)
    await follower.shared.reload()
    assert shown_by(follower) == kept["tls.crt"]


async def test_three_replicas_have_one_certificate_even_if_two_believe_to_lead() -> None:
    world = await a_world()
    replicas = [world.replica() for _ in range(3)]
    async with running(replicas[0].controller.run, replicas[1].controller.run, *(each.shared.run for each in replicas)):
        await world.clock.sleep(SYNC_SECONDS + READ_SECONDS)
        kept = await world.kept()
        shown = {shown_by(each) for each in replicas}
        assert shown == {kept["tls.crt"]}
        assert await world.bundles() == {kept["ca.crt"]}


async def test_what_a_server_refuses_is_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    world = World()  # without the namespace
    replica = world.replica()
    async with running(replica.controller.run):
        with caplog.at_level(logging.WARNING):
            await world.clock.sleep(20)
        [message] = caplog.messages
        assert message.startswith("admission: certificate not up to date: ")
        assert message.endswith("; retrying")
        await world.call("POST", "/api/v1/namespaces", {"metadata": {"name": "infra"}})
        await world.clock.sleep(5)
        assert await world.bundles()


@pytest.mark.parametrize("register", [True, False])
async def test_nothing_is_asked_that_the_rights_do_not_name(register: bool) -> None:
    world = await a_world()
    settings = msgspec.structs.replace(SETTINGS, register=register)
    replica = world.replica(settings)
    for _ in range(3):
        await replica.controller.sync()
        await world.clock.sleep(LIFE_SECONDS * 2 / 3)
    granted = {(right.verb, right.plural) for right in admission_permissions(settings)}
    asked = {(each.operation.verb, each.operation.plural) for each in world.transport.executed}
    assert asked <= granted
    assert {name for each in world.transport.executed if (name := each.operation.name)} <= {KEY[1], "gracectl"}


async def test_with_a_foreign_ca_bundle_no_request_is_sent_at_all() -> None:
    world = await a_world()
    settings = msgspec.structs.replace(SETTINGS, register=False, certificates=CertificateFiles("a", "b"))
    replica = world.replica(settings)
    replica.identity.offer(Material(issue(settings.hosts, world.clock.now(), DAY).pair))
    assert await replica.controller.sync()
    assert world.transport.executed == []


@pytest.mark.parametrize("field", ["tls.crt", "tls.key", "ca.crt", "next.crt", "next.key"])
@pytest.mark.parametrize("spoilt", ["", "not base64!", "AAAA", "cut", "other"])
async def test_whatever_is_written_into_the_secret_is_repaired_in_the_end(field: str, spoilt: str) -> None:
    world = await a_world()
    replica = world.replica()
    await replica.controller.sync()
    await world.clock.sleep(LIFE_SECONDS * 2 / 3)
    await replica.controller.sync()
    secret = await world.call("GET", SECRET)
    good = secret["data"][field]
    contents = {
        "cut": b64encode(b64decode(good)[:-40]).decode(),
        "other": b64encode(issue(("elsewhere",), world.clock.now(), DAY).pair.certificate).decode(),
    }
    data = {**secret["data"], field: contents.get(spoilt, spoilt)}
    table = world.server.store.table("secrets")
    table.get(*KEY)["data"] = data  # type: ignore[index]  # past the server's own checks
    for _ in range(4):
        await replica.controller.sync()
        await world.clock.sleep(SETTLING_SECONDS)
    kept = await world.kept()
    assert set(kept) == {"tls.crt", "tls.key", "ca.crt"}
    assert issuers_of(kept["tls.crt"], authorities_in(kept["ca.crt"]))
    assert shown_by(replica) == kept["tls.crt"]


async def test_configurations_are_mended_while_the_secret_cannot_be_read() -> None:
    world = await a_world()
    replica = world.replica()
    await replica.controller.sync()
    before = await world.configuration()
    await world.call("DELETE", CONFIGURATION.format("validating"))
    world.transport.before.add(Rule(fault=Refuse(403), path="/secrets"))
    assert not await replica.controller.sync()
    assert (await world.configuration())["webhooks"] == before["webhooks"]
