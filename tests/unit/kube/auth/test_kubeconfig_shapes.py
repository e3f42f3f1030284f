"""Kubeconfigs of any shape: each is read, or refused in one sentence that names the file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gracectl.kube.auth.credentials import CredentialsError
from gracectl.kube.auth.lookup import load
from gracectl.runtime.clock import LoopClock

WORDS = st.sampled_from(
    ["", "one", "https://one.example", "http://[", "a\0b", "\x1b", "\u00e9", "2026-13-01", "bm8=", "!"]
)
ODD = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | WORDS | st.text(max_size=5)
ANY = st.recursive(
    ODD, lambda each: st.lists(each, max_size=2) | st.dictionaries(WORDS, each, max_size=2), max_leaves=4
)


def mapping(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """These fields, each perhaps, with what they should be or with anything; or something else altogether."""
    return (
        st.fixed_dictionaries({}, optional={name.replace("_", "-"): each | ANY for name, each in fields.items()}) | ANY
    )


NAME = st.just("one")
# Nothing that could be run, or asked for over a network: such plugins and providers are not there.
EXEC = mapping(
    command=st.just("/nonexistent/plugin"), args=st.lists(WORDS, max_size=2),
    env=st.lists(mapping(name=WORDS, value=WORDS), max_size=2), apiVersion=st.just("client.authentication.k8s.io/v1"),
    provideClusterInfo=st.booleans(),
)  # fmt: skip
PROVIDER = mapping(name=st.just("oidc"), config=mapping(**{"id_token": WORDS, "client_id": WORDS}))
USER = mapping(
    token=WORDS, tokenFile=WORDS, username=WORDS, password=WORDS, exec=EXEC, auth_provider=PROVIDER,
    client_certificate=WORDS, client_certificate_data=WORDS, client_key=WORDS, client_key_data=WORDS,
)  # fmt: skip
CLUSTER = mapping(
    server=st.sampled_from(["http://one.example", "https://one.example"]), certificate_authority=WORDS,
    certificate_authority_data=WORDS, insecure_skip_tls_verify=st.booleans(), tls_server_name=WORDS, proxy_url=WORDS,
)  # fmt: skip
CONFIG = mapping(
    current_context=NAME,
    contexts=st.lists(mapping(name=NAME, context=mapping(cluster=NAME, user=NAME)), max_size=2),
    clusters=st.lists(mapping(name=NAME, cluster=CLUSTER), max_size=2),
    users=st.lists(mapping(name=NAME, user=USER), max_size=2),
)


def judged(text: str) -> None:
    """Load it; the only way to fail is to say so."""

    async def attempt(path: Path) -> str:
        try:
            await load(str(path), clock=LoopClock(), environ={}, service_account=Path("/nonexistent"))
        except CredentialsError as error:
            return str(error)
        return str(path)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config")
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        assert folder in anyio.run(attempt, path)


@settings(deadline=None, max_examples=60)
@given(CONFIG)
def test_a_kubeconfig_of_any_shape(config: Any) -> None:
    judged(yaml.safe_dump(config))


@settings(deadline=None, max_examples=100)
@given(CLUSTER, USER)
def test_any_cluster_and_user(cluster: Any, user: Any) -> None:
    context = {"name": "one", "context": {"cluster": "one", "user": "one"}}
    config = {
        "current-context": "one", "contexts": [context], "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "one", "user": user}],
    }  # fmt: skip
    judged(yaml.safe_dump(config))
