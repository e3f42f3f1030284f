"""Who we are, as kubectl would say it; and one clear sentence for everything that can be wrong."""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from support.servers import answering
from support.virtual import HandClock

from gracectl.kube.auth.credentials import Credentials, CredentialsError
from gracectl.kube.auth.lookup import load
from gracectl.model.times import format_time
from gracectl.runtime.clock import SystemClock

# Exec plugins are processes, which virtual time does not know.
pytestmark = pytest.mark.real_time

CERTIFICATES = Path(__file__).parents[1] / "certificates"
NOWHERE = Path("/nonexistent")
# What the library uses for identity providers.
DEPRECATED = "ignore::DeprecationWarning"


def a_config(
    user: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None, name: str = "one"
) -> dict[str, Any]:
    """A kubeconfig with one context; no user section at all where `user` is None."""
    config: dict[str, Any] = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": f"c-{name}"}}],
        "clusters": [{"name": f"c-{name}", "cluster": {"server": f"http://{name}.example", **(cluster or {})}}],
    }
    if user is not None:
        config["contexts"][0]["context"]["user"] = f"u-{name}"
        config["users"] = [{"name": f"u-{name}", "user": dict(user)}]
    return config


def written(folder: Path, config: Any, name: str = "config") -> str:
    """The path of a kubeconfig with this content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
    return str(path)


async def loaded(path: str, context: str | None = None, clock: HandClock | None = None) -> Credentials:
    return await load(path, context, clock=clock or HandClock(), environ={}, service_account=NOWHERE)


async def authorization(credentials: Credentials) -> str | None:
    return (await credentials.identity()).headers.get("Authorization")


@pytest.mark.parametrize(("user", "header"), [
    (None, None), ({}, None), ({"token": "secret"}, "Bearer secret"), ({"token": "secret\n"}, "Bearer secret"),
    ({"username": "ann", "password": "pw"}, "Basic " + base64.b64encode(b"ann:pw").decode()),
], ids=["no user", "empty user", "token", "token with a newline", "basic"])  # fmt: skip
async def test_simple_users(tmp_path: Path, user: dict[str, str] | None, header: str | None) -> None:
    credentials = await loaded(written(tmp_path, a_config(user)))
    assert credentials.url == "http://one.example"
    assert await authorization(credentials) == header


async def test_auth_providers_of_the_library(tmp_path: Path) -> None:
    provider = {"name": "gcp", "config": {"access-token": "theirs"}}
    credentials = await loaded(written(tmp_path, a_config({"auth-provider": provider})))
    assert await authorization(credentials) == "Bearer theirs"


class IdentityProvider:
    """An OpenID provider over TLS. Its tokens are good for `lifetime` seconds; it keeps the refresh token."""

    def __init__(self, lifetime: float) -> None:
        self.lifetime = lifetime
        self.refreshes: list[dict[str, str]] = []
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[dict[str, str]]:
        """Serve while the block runs; yields the config of an auth provider."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
        async with answering(self._answer, context) as port:
            self.address = f"https://127.0.0.1:{port}"
            yield {"client-id": "gracectl", "idp-issuer-url": self.address, "refresh-token": "again"}

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"token_endpoint": f"{self.address}/token"})
        assert (request.method, request.path) == ("POST", "/token")
        self.refreshes.append({name: str(value) for name, value in (await request.post()).items()})
        return web.json_response({"id_token": self.token(len(self.refreshes))})

    def token(self, number: int) -> str:
        """The token of that refresh."""
        payload = json.dumps({"exp": int(SystemClock().now() + self.lifetime), "number": number}).encode()
        return ".".join(("e30", base64.urlsafe_b64encode(payload).decode().rstrip("="), "sig"))


@pytest.mark.filterwarnings(DEPRECATED)
@pytest.mark.parametrize("is_data", [True, False], ids=["data", "file"])
async def test_a_token_of_an_identity_provider_is_renewed_before_it_expires(tmp_path: Path, is_data: bool) -> None:
    clock = HandClock()
    provider = IdentityProvider(lifetime=200.0)  # to the library, what expires within five minutes has expired
    async with provider.running() as config:
        if is_data:
            config["idp-certificate-authority-data"] = data((CERTIFICATES / "ca.pem").read_bytes())
        else:
            config["idp-certificate-authority"] = str(CERTIFICATES / "ca.pem")
        path = written(tmp_path, a_config({"auth-provider": {"name": "oidc", "config": config}}))
        credentials = await loaded(path, clock=clock)
        first = await authorization(credentials)
        clock.seconds += 59
        assert await authorization(credentials) == first
        provider.lifetime = 3600.0
        clock.seconds += 1
        second = await authorization(credentials)
        assert second != first
        clock.seconds += 600
        assert await authorization(credentials) == second
    assert provider.refreshes == [{"grant_type": "refresh_token", "refresh_token": "again"}] * 2


@pytest.mark.filterwarnings(DEPRECATED)
async def test_a_token_that_cannot_be_renewed_is_used_until_the_server_refuses_it(tmp_path: Path) -> None:
    clock = HandClock()
    provider = IdentityProvider(lifetime=200.0)
    async with provider.running() as config:
        config["idp-certificate-authority"] = str(CERTIFICATES / "ca.pem")
        path = written(tmp_path, a_config({"auth-provider": {"name": "oidc", "config": config}}))
        credentials = await loaded(path, clock=clock)
        identity = await credentials.identity()
    clock.seconds += 60
    assert await credentials.identity() == identity
    with pytest.raises(CredentialsError, match=r"users\[u-one\].auth-provider: .* obtains no token: Cannot connect"):
        await credentials.renew(identity)


@pytest.mark.filterwarnings(DEPRECATED)
async def test_an_identity_provider_that_cannot_be_verified_gets_no_refresh_token(tmp_path: Path) -> None:
    provider = IdentityProvider(lifetime=200.0)
    async with provider.running() as config:
        path = written(tmp_path, a_config({"auth-provider": {"name": "oidc", "config": config}}))
        with pytest.raises(CredentialsError, match="certificate verify failed"):
            await loaded(path)
    assert provider.refreshes == []


async def test_keys_of_the_kubeconfig_stay_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    user = {"client-certificate-data": data((CERTIFICATES / "client.pem").read_bytes())}
    user["client-key-data"] = data((CERTIFICATES / "client.key").read_bytes())
    credentials = await loaded(written(tmp_path, a_config(user, {"server": "https://localhost"})))
    assert not await credentials.renew(await credentials.identity())
    assert (await credentials.identity()).tls is not None
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_a_context_without_a_user_over_https(tmp_path: Path) -> None:
    credentials = await loaded(written(tmp_path, a_config(None, {"server": "https://one.example/base/"})))
    assert credentials.url == "https://one.example/base"


async def test_a_token_file_is_read_again_after_a_minute_and_beats_a_token(tmp_path: Path) -> None:
    clock = HandClock()
    (tmp_path / "token").write_text("first\n")
    path = written(tmp_path, a_config({"tokenFile": "token", "token": "old"}))
    credentials = await loaded(path, clock=clock)
    assert await authorization(credentials) == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    clock.seconds += 59
    assert await authorization(credentials) == "Bearer first"
    clock.seconds += 1
    assert await authorization(credentials) == "Bearer second"


async def test_a_refused_token_file_is_read_at_once_and_a_lost_one_keeps_its_last_word(tmp_path: Path) -> None:
    clock = HandClock()
    token = tmp_path / "token"
    token.write_text("first")
    credentials = await loaded(written(tmp_path, a_config({"tokenFile": "token"})), clock=clock)
    refused = await credentials.identity()
    assert not await credentials.renew(refused)
    token.write_text("second")
    assert await credentials.renew(refused)
    # Another request that was refused with the first token need not renew anything.
    assert await credentials.renew(refused)
    token.unlink()
    clock.seconds += 120
    assert await authorization(credentials) == "Bearer second"


async def test_several_files_are_merged_as_kubectl_does(tmp_path: Path) -> None:
    first = a_config({"token": "one"})
    second = a_config({"token": "two"}, name="two")
    # The same names again: of two values the first wins, and so does the first current-context.
    second["clusters"].append({"name": "c-one", "cluster": {"server": "http://impostor.example"}})
    paths = [written(tmp_path, "", "empty"), written(tmp_path, first, "a"), str(tmp_path / "missing")]
    paths.append(written(tmp_path, second, "b"))
    environ = {"KUBECONFIG": os.pathsep.join(paths)}
    credentials = await load(None, None, clock=HandClock(), environ=environ, service_account=NOWHERE)
    assert (credentials.url, await authorization(credentials)) == ("http://one.example", "Bearer one")
    other = await load(None, "two", clock=HandClock(), environ=environ, service_account=NOWHERE)
    assert (other.url, await authorization(other)) == ("http://two.example", "Bearer two")


async def test_paths_are_relative_to_the_file_they_stand_in(tmp_path: Path) -> None:
    """A client certificate is beside the file of its user."""
    users = a_config({"client-certificate": "client.pem", "client-key": "client.key"})
    del users["clusters"]
    cluster = {"server": "https://localhost", "certificate-authority": "ca.pem"}
    clusters = {"clusters": a_config(None, cluster)["clusters"]}
    for folder, files in (("users", ("client.pem", "client.key")), ("clusters", ("ca.pem",))):
        (tmp_path / folder).mkdir()
        for file in files:
            (tmp_path / folder / file).write_bytes((CERTIFICATES / file).read_bytes())
    paths = [written(tmp_path / "users", users), written(tmp_path / "clusters", clusters)]
    environ = {"KUBECONFIG": os.pathsep.join(paths)}
    credentials = await load(None, None, clock=HandClock(), environ=environ, service_account=NOWHERE)
    assert (await credentials.identity()).tls is not None


async def test_a_renewed_client_certificate_is_used_once_the_old_one_is_refused(tmp_path: Path) -> None:
    """As a kubelet renews its own."""
    for file in ("client.pem", "client.key"):
        (tmp_path / file).write_bytes((CERTIFICATES / file).read_bytes())
    user = {"client-certificate": "client.pem", "client-key": "client.key"}
    credentials = await loaded(written(tmp_path, a_config(user, {"server": "https://localhost"})))
    refused = await credentials.identity()
    assert not await credentials.renew(refused)
    for file in ("client.pem", "client.key"):
        (tmp_path / file).write_bytes((CERTIFICATES / file.replace("client", "server")).read_bytes())
    assert await credentials.renew(refused)
    assert (await credentials.identity()).tls is not refused.tls
    (tmp_path / "client.pem").unlink()
    assert not await credentials.renew(await credentials.identity())


def data(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def test_certificates_may_be_part_of_the_kubeconfig(tmp_path: Path) -> None:
    authority = "# of the Türktrust\n".encode() + (CERTIFICATES / "ca.pem").read_bytes()
    user = {
        f"client-{part}-data": data((CERTIFICATES / f"client.{end}").read_bytes())
        for part, end in (("certificate", "pem"), ("key", "key"))
    }
    cluster = {"server": "https://localhost", "certificate-authority-data": data(authority)}
    # Data come before files, which need not be there.
    path = written(tmp_path, a_config(user | {"client-key": "none"}, cluster | {"certificate-authority": "none"}))
    tls = (await (await loaded(path)).identity()).tls
    assert tls is not None
    assert [each["subject"] for each in tls.get_ca_certs()] == [((("commonName", "gracectl ca"),),)]


async def test_authorities_that_are_none_do_not_make_those_of_the_system_trusted(tmp_path: Path) -> None:
    cluster = {"server": "https://localhost", "certificate-authority-data": data(b"\xff")}
    with pytest.raises(CredentialsError, match="the TLS certificates cannot be used"):
        await loaded(written(tmp_path, a_config({}, cluster)))


async def test_the_home_directory_comes_last(tmp_path: Path) -> None:
    written(tmp_path / ".kube", a_config({"token": "home"}))
    credentials = await load(None, None, clock=HandClock(), environ={"HOME": str(tmp_path)}, service_account=NOWHERE)
    assert await authorization(credentials) == "Bearer home"


async def test_cluster_fields_that_the_connection_needs(tmp_path: Path) -> None:
    cluster = {
        "server": "https://10.0.0.1:6443", "tls-server-name": "kubernetes.example", "insecure-skip-tls-verify": True,
        "proxy-url": "http://proxy.example:3128",
    }  # fmt: skip
    credentials = await loaded(written(tmp_path, a_config({}, cluster)))
    assert (credentials.server_name, credentials.proxy) == ("kubernetes.example", "http://proxy.example:3128")
    tls = (await credentials.identity()).tls
    assert tls is not None
    assert not tls.check_hostname


def a_service_account(folder: Path) -> dict[str, str]:
    """The environment of a pod whose service account is mounted at `folder`."""
    folder.mkdir()
    (folder / "token").write_text("pod-token")
    (folder / "ca.crt").write_bytes((CERTIFICATES / "ca.pem").read_bytes())
    return {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_in_a_pod_the_service_account_is_used_and_its_token_renewed(tmp_path: Path) -> None:
    clock = HandClock()
    folder = tmp_path / "account"
    environ = a_service_account(folder)
    credentials = await load(None, None, clock=clock, environ=environ, service_account=folder)
    assert (credentials.url, await authorization(credentials)) == ("https://[fd00::1]:443", "Bearer pod-token")
    (folder / "token").write_text("rotated")
    clock.seconds += 60
    assert await authorization(credentials) == "Bearer rotated"


async def test_a_kubeconfig_that_was_named_beats_the_service_account(tmp_path: Path) -> None:
    environ = a_service_account(tmp_path / "account")
    path = written(tmp_path, a_config({"token": "mine"}))
    for kubeconfig, variables in ((path, environ), (None, environ | {"KUBECONFIG": path})):
        credentials = await load(
            kubeconfig, None, clock=HandClock(), environ=variables, service_account=tmp_path / "account"
        )
        assert await authorization(credentials) == "Bearer mine"


async def test_a_service_account_without_an_address_says_so(tmp_path: Path) -> None:
    a_service_account(tmp_path / "account")
    with pytest.raises(CredentialsError, match=r"host/port is not set.*name a kubeconfig"):
        await load(None, None, clock=HandClock(), environ={}, service_account=tmp_path / "account")


def without(config: dict[str, Any], field: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name != field}


TWO = {**a_config({}), "contexts": [*a_config({})["contexts"], {"name": "another", "context": {"cluster": "lost"}}]}


@pytest.mark.parametrize(("config", "context", "said"), [
    ("a: [", None, "is not YAML: .* [(]line 1[)]"),
    ("just words", None, "is YAML, but not a kubeconfig"),
    ("contexts: 7", None, "contexts: is not a list"),
    ({"clusters": [{"cluster": {}}]}, None, r"clusters\[0\]: has no name"),
    ({"users": [{"name": "u", "user": 7}]}, None, r"users\[u\].user: is not a mapping"),
    ("", None, "current-context: no context is selected; name one; it has no contexts"),
    (without(TWO, "current-context"), None, "no context is selected; name one; the contexts are: another, one"),
    (TWO, "three", "contexts: there is no context 'three'; the contexts are: another, one"),
    ({**TWO, "current-context": "x"}, None, "current-context: there is no context 'x'"),
    (TWO, "another", r"contexts\[another\].cluster: there is no cluster 'lost'; the clusters are: c-one"),
    (without(a_config({}), "users"), None, r"contexts\[one\].user: there is no user 'u-one'; the users are: none"),
    (a_config({}, {"server": None}), None, r"clusters\[c-one\].server: the cluster has no address"),
    (a_config({"client-certificate": "no.pem", "client-key": "no.key"}), None,
     r"users\[u-one\].client-certificate: .*/no.pem cannot be read: No such file"),
    (a_config({}, {"certificate-authority": "no.pem"}), None,
     r"clusters\[c-one\].certificate-authority: .*/no.pem cannot be read: No such file"),
    (a_config({}, {"server": "https://x", "certificate-authority-data": "b"}), None,
     r"clusters\[c-one\].certificate-authority-data: is not base64: .*; encode the PEM text, or give"),
    (a_config({}, {"server": "https://x", "certificate-authority-data": base64.b64encode(b"junk").decode()}), None,
     "the TLS certificates cannot be used"),
    (a_config({"tokenFile": "none"}), None, "none: the token cannot be read"),
    (a_config({"exec": {"command": "x"}}), None, r"users\[u-one\].exec: .*apiVersion"),
    (a_config({"exec": {"apiVersion": "x"}}), None, r"users\[u-one\].exec: .*command"),
    (a_config({"tokenFile": 5}), None,
     r"users\[u-one\].tokenFile: expected `str \| null`, got `int`; correct or quote"),
    (a_config({"token": 5}), None, r"users\[u-one\].token: expected"),
    (a_config({"token": "a\0b"}), None, r"users\[u-one\].token: has characters that are not allowed in a header"),
    (a_config({"tokenFile": "a\0b"}), None, "the token cannot be read: embedded null byte"),
    (a_config({"exec": {"command": "x", "args": 3}}), None, r"users\[u-one\].exec.args: expected `array \| null`"),
    (a_config({"exec": {"command": ["x"]}}), None, r"users\[u-one\].exec.command: expected"),
    (a_config({"exec": {"env": [{"name": 1}]}}), None, r"users\[u-one\].exec.env\[0\].name: expected `str`"),
    (a_config({"exec": {"command": "a\0b", "apiVersion": "v1"}}), None, "exec: .* cannot be started: embedded null"),
    (a_config({"auth-provider": {"name": "gcp", "config": 1}}), None, r"users\[u-one\].auth-provider.config: "),
    (a_config({}, {"server": 5}), None, r"clusters\[c-one\].server: expected `str"),
    (a_config({}, {"server": "one:6443"}), None, r"clusters\[c-one\].server: 'one:6443' is no URL; give its URL"),
    (a_config({}, {"server": "https://["}), None, r"clusters\[c-one\].server: 'https://\[' is no URL"),
    (a_config({}, {"insecure-skip-tls-verify": "yes"}), None, r"clusters\[c-one\].insecure-skip-tls-verify: "),
    (a_config({}, {"certificate-authority": "a\0b"}), None, "certificate-authority: .* cannot be read: embedded null"),
    ("current-context: 2026-13-01", None, "current-context: there is no context '2026-13-01'; it has no contexts"),
    ("current-context: [a]", None, "current-context: is not a text; quote the name"),
    ("current-context: !!timestamp 2026-13-01", None, "is not YAML: month must be in 1..12"),
    ("a: !!bool often", None, "is not YAML"), ("[" * 5000, None, "is not YAML"),
])  # fmt: skip
async def test_errors_are_one_sentence(tmp_path: Path, config: Any, context: str | None, said: str) -> None:
    path = written(tmp_path, config)
    with pytest.raises(CredentialsError, match=said) as caught:
        await loaded(path, context)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="/none: there is no such file; name a kubeconfig with --kubeconfig"):
        await loaded(str(tmp_path / "none"))
    environ = {"KUBECONFIG": "/nonexistent/a:/nonexistent/b"}
    with pytest.raises(CredentialsError, match="/nonexistent/a, /nonexistent/b: there is no such file"):
        await load(None, None, clock=HandClock(), environ=environ, service_account=NOWHERE)
    with pytest.raises(CredentialsError, match=r"\.kube/config: there is no such file"):
        await load(None, None, clock=HandClock(), environ={"HOME": str(tmp_path)}, service_account=NOWHERE)


async def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="cannot be read: Is a directory"):
        await loaded(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CredentialsError, match="cannot be read: it is not text"):
        await loaded(str(tmp_path / "binary"))


class PluginFolder:
    """A plugin that counts its runs; what it prints can be changed between two of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "plugin.sh"
        self.runs = folder / "runs"
        self.does("exit 0")

    def does(self, action: str) -> None:
        """What it does after having counted."""
        self.script.write_text(f"#!/bin/sh\necho run >> '{self.runs}'\n{action}\n")
        self.script.chmod(0o755)

    def gives(self, expires: float | None = None, version: str = "v1", **status: str) -> None:
        """It prints an ExecCredential of this status."""
        if expires is not None:
            status["expirationTimestamp"] = format_time(expires)
        fields = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential", "status": status}
        self.does(f"cat <<'END'\n{json.dumps(fields)}\nEND")

    @property
    def count(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0

    def kubeconfig(self, server: str = "http://one.example", **more: Any) -> str:
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin.sh", **more}
        return written(self.folder, a_config({"exec": plugin}, {"server": server}))


@pytest.fixture
def plugin(tmp_path: Path) -> PluginFolder:
    return PluginFolder(tmp_path)


async def test_a_plugin_runs_once_until_its_token_expires(plugin: PluginFolder) -> None:
    clock = HandClock()
    plugin.gives(token="first", expires=clock.now() + 600)
    credentials = await loaded(plugin.kubeconfig(), clock=clock)
    assert [await authorization(credentials) for _ in range(3)] == ["Bearer first"] * 3
    plugin.gives(token="second", expires=clock.now() + 1200)
    clock.seconds += 589
    assert await authorization(credentials) == "Bearer first"
    clock.seconds += 1
    assert await authorization(credentials) == "Bearer second"
    assert plugin.count == 2


async def test_a_refused_token_makes_the_plugin_run_again_but_not_all_the_time(plugin: PluginFolder) -> None:
    clock = HandClock()
    plugin.gives(token="first")
    credentials = await loaded(plugin.kubeconfig(), clock=clock)
    refused = await credentials.identity()
    plugin.gives(token="second")
    assert not await credentials.renew(refused)
    clock.seconds += 10
    assert await credentials.renew(refused)
    assert await authorization(credentials) == "Bearer second"
    clock.seconds += 10
    assert not await credentials.renew(await credentials.identity())
    assert plugin.count == 3


async def test_a_certificate_from_a_plugin_is_renewed_with_a_new_tls_context(plugin: PluginFolder) -> None:
    clock = HandClock()
    pair = {
        "clientCertificateData": (CERTIFICATES / "client.pem").read_text(),
        "clientKeyData": (CERTIFICATES / "client.key").read_text(),
    }
    plugin.gives(expires=clock.now() + 600, **pair)
    credentials = await loaded(plugin.kubeconfig("https://localhost"), clock=clock)
    first = await credentials.identity()
    other = {name: (CERTIFICATES / f"server.{end}").read_text() for name, end in zip(pair, ("pem", "key"), strict=True)}
    plugin.gives(expires=clock.now() + 1200, **other)
    clock.seconds += 600
    second = await credentials.identity()
    assert (first.headers, second.headers) == ({}, {})
    assert first.tls is not None
    assert second.tls is not None
    assert first.tls is not second.tls
    assert await credentials.renew(first)


async def test_a_plugin_is_told_about_the_cluster_if_it_asks(plugin: PluginFolder) -> None:
    plugin.does(
        """printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' """
        """"$(echo "$KUBERNETES_EXEC_INFO$GREETING" | tr -d '"{} ')" """
    )
    path = plugin.kubeconfig(provideClusterInfo=True, env=[{"name": "GREETING", "value": "hello"}])
    header = await authorization(await loaded(path)) or ""
    assert "cluster:server:http://one.example" in header
    assert "interactive:false" in header
    assert header.endswith("hello")


@pytest.mark.parametrize(("action", "said"), [
    ("echo 'please log in' >&2; exit 3", "plugin.sh failed with code 3: please log in"),
    ("exit 4", "plugin.sh failed with code 4"),
    ("echo hello", "something else than an ExecCredential"),
    ("""echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{}}'""",
     "it has no token and no certificate with its key"),
    ("""echo '{"apiVersion":"client.authentication.k8s.io/v1beta1","status":{"token":"x"}}'""",
     "its apiVersion is client.authentication.k8s.io/v1beta1, expected client.authentication.k8s.io/v1"),
    # A library that reads one pipe after the other would wait for ever.
    ("head -c 300000 /dev/zero | tr '\\0' x >&2; exit 5", "plugin.sh failed with code 5"),
])  # fmt: skip
async def test_a_plugin_that_fails_is_quoted(plugin: PluginFolder, action: str, said: str) -> None:
    plugin.does(action)
    with pytest.raises(CredentialsError, match=said) as caught:
        await loaded(plugin.kubeconfig())
    assert caught.value.field == "exec"
    assert caught.value.source == str(plugin.folder / "config")


async def test_a_plugin_that_is_not_installed_comes_with_its_hint(plugin: PluginFolder) -> None:
    plugin.script.unlink()
    with pytest.raises(CredentialsError, match=r"plugin.sh cannot be started: No such file.*; apt install it"):
        await loaded(plugin.kubeconfig(installHint="apt install it"))
