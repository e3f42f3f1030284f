"""Tokens of ServiceAccounts: asked for, shown, run out, and gone with what they are bound to."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.accounts import account_token, as_admin, grant, guarded, rule
from kubesim_support.caller import NODES, PODS, Caller

pytestmark = pytest.mark.anyio

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
SUBJECT = {"kind": "ServiceAccount", "name": "robot", "namespace": "default"}


async def status_with(server: ApiServer, token: str, path: str = NODES) -> int:
    return (await Caller(server).call("GET", path, headers={"authorization": f"Bearer {token}"})).status


async def ask(server: ApiServer, spec: dict[str, Any], name: str = "robot") -> Any:
    return await as_admin(server, "POST", f"{ACCOUNTS}/{name}/token", {"spec": spec})


async def a_server() -> ApiServer:
    """A server with the account `robot`, which may list nodes."""
    server = await guarded(LoopClock(), "guest")
    await as_admin(server, "POST", ACCOUNTS, {"metadata": {"name": "robot"}})
    await grant(server, SUBJECT, rule("list", "nodes"), name="robot")
    return server


async def test_a_token_is_good_until_it_expires() -> None:
    server = await a_server()
    token = (await ask(server, {"expirationSeconds": 600}))["status"]["token"]
    assert await status_with(server, token) == 200
    assert await status_with(server, token, PODS) == 403
    await server.clock.sleep(600)
    assert await status_with(server, token) == 200
    await server.clock.sleep(1)
    assert await status_with(server, token) == 401
    assert await status_with(server, token, "/healthz") == 401


async def test_a_token_ends_with_its_account_even_if_another_takes_the_name() -> None:
    server = await a_server()
    token = (await ask(server, {}))["status"]["token"]
    await as_admin(server, "DELETE", f"{ACCOUNTS}/robot")
    assert await status_with(server, token) == 401
    await as_admin(server, "POST", ACCOUNTS, {"metadata": {"name": "robot"}})
    assert await status_with(server, token) == 401


async def test_a_token_ends_with_the_pod_it_is_bound_to() -> None:
    server = await a_server()
    pod = {
        "metadata": {"name": "p"},
        "spec": {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]},
    }
    await as_admin(server, "POST", PODS, pod)
    token = (await ask(server, {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}))["status"]["token"]
    assert await status_with(server, token) == 200
    await as_admin(server, "DELETE", f"{PODS}/p")
    assert await status_with(server, token) == 401


async def test_a_token_for_another_audience_is_refused() -> None:
    server = await a_server()
    token = (await ask(server, {"audiences": ["vault"]}))["status"]["token"]
    assert await status_with(server, token) == 401


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (
            {"spec": {"expirationSeconds": 10}},
            422,
            'TokenRequest.authentication.k8s.io "" is invalid: spec.expirationSeconds: Invalid value: 10: may not '
            "specify a duration less than 10 minutes",
        ),
        (
            {"metadata": {"name": "other"}, "spec": {}},
            422,
            'TokenRequest.authentication.k8s.io "robot" is invalid: metadata.name: Invalid value: "other": must match '
            "the service account name if specified",
        ),
        (
            {"spec": {"boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": "nope"}}},
            404,
            'secrets "nope" not found',
        ),
        (
            {"spec": {"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "nope"}}},
            400,
            "cannot bind token to object of type /v1, Kind=ConfigMap",
        ),
        (
            {"apiVersion": "v1", "kind": "Pod"},
            400,
            'Pod in version "v1" cannot be handled as a TokenRequest: converting (v1.Pod) to '
            "(authentication.TokenRequest): unknown conversion",
        ),
    ],
)
async def test_refused_requests(body: dict[str, Any], code: int, message: str) -> None:
    server = ApiServer(LoopClock())
    await account_token(server, "robot")
    answer = await Caller(server).call("POST", f"{ACCOUNTS}/robot/token", body)
    assert (answer.status, answer.body["message"]) == (code, message)


async def test_a_bound_object_must_be_the_one_that_is_meant() -> None:
    server = ApiServer(LoopClock())
    await account_token(server, "robot")
    await as_admin(server, "POST", "/api/v1/namespaces/default/secrets", {"metadata": {"name": "s"}})
    reference = {"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": "wrong"}
    answer = await Caller(server).call("POST", f"{ACCOUNTS}/robot/token", {"spec": {"boundObjectRef": reference}})
    assert answer.status == 409
    assert answer.body["message"].startswith('Operation cannot be fulfilled on Pod "s"'.replace("Pod", "Secret"))


async def test_an_account_that_is_not_there_and_another_method() -> None:
    caller = Caller(ApiServer(LoopClock()))
    assert (await caller.call("POST", f"{ACCOUNTS}/missing/token", {"spec": {}})).status == 404
    assert (await caller.call("GET", f"{ACCOUNTS}/missing/token")).status == 405


async def test_pods_get_the_default_account_and_must_name_one_that_is_there() -> None:
    caller = Caller(ApiServer(LoopClock(), service_accounts=True))
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    refused = await caller.call("POST", PODS, body)
    assert refused.status == 403
    assert refused.body["message"] == (
        'pods "p" is forbidden: error looking up service account default/default: serviceaccount "default" not found'
    )
    await caller.create(ACCOUNTS, {"metadata": {"name": "default"}})
    spec = (await caller.create(PODS, body))["spec"]
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    mirror = {**body, "metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "x"}}}
    assert "serviceAccountName" not in (await caller.create(PODS, mirror))["spec"]
