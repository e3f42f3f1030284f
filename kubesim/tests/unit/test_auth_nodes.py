"""Kubelets on their own node, and service accounts that impersonate theirs; words of Kubernetes 1.37.2."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.accounts import ADMIN, as_admin, grant, rule
from kubesim_support.caller import NODES, PODS, Caller

pytestmark = pytest.mark.anyio

KUBELET = {**ADMIN, "impersonate-user": "system:node:n1", "impersonate-group": "system:nodes"}
TAINTS = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
ACCOUNT = {"kind": "ServiceAccount", "name": "agent", "namespace": "default"}
ON = "impersonate-on:associated-node"
READS = rule(f"{ON}:get {ON}:list {ON}:watch", "nodes pods")
AS = rule("impersonate:associated-node", "nodes", "authentication.k8s.io")


async def a_server() -> ApiServer:
    server = ApiServer(LoopClock(), tokens={"of-the-admin": "admin"})
    for node in ("n1", "n2"):
        await as_admin(server, "POST", NODES, {"metadata": {"name": node}})
        container = {"name": "c", "image": "x"}
        pod = {"metadata": {"name": f"on-{node}"}, "spec": {"nodeName": node, "containers": [container]}}
        await as_admin(server, "POST", PODS, pod)
    return server


async def answer(server: ApiServer, method: str, path: str, headers: Mapping[str, str], **query: str) -> str:
    """The status, and the message of a refusal."""
    merge = {"content-type": "application/merge-patch+json"} if method == "PATCH" else {}
    body = TAINTS if method == "PATCH" else {}
    response = await Caller(server).call(method, path, body, headers={**headers, **merge}, **query)
    return f"{response.status} {response.body['message']}" if response.status >= 400 else str(response.status)


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", f"{NODES}/n1", {}, "200"),
        ("GET", NODES, {"fieldSelector": "metadata.name=n1"}, "200"),
        ("GET", PODS, {"fieldSelector": "spec.nodeName=n1"}, "200"),
        ("GET", f"{PODS}/on-n1", {}, "200"),
        ("DELETE", f"{PODS}/on-n1", {}, "200"),
        (
            "GET",
            f"{NODES}/n2",
            {},
            '403 nodes "n2" is forbidden: User "system:node:n1" cannot get resource "nodes" in API group "" at the '
            "cluster scope: node: node 'n1' cannot read 'n2', only its own Node object",
        ),
        (
            "GET",
            PODS,
            {"fieldSelector": "spec.nodeName=n2"},
            '403 pods is forbidden: User "system:node:n1" cannot list resource "pods" in API group "" in the namespace '
            '"default": node: can only list/watch pods with spec.nodeName field selector',
        ),
        (
            "GET",
            f"{PODS}/on-n2",
            {},
            '403 pods "on-n2" is forbidden: User "system:node:n1" cannot get resource "pods" in API group "" in the '
            "namespace \"default\": node: no relationship found between node 'n1' and this object",
        ),
        (
            "DELETE",
            f"{PODS}/on-n2",
            {},
            '403 pods "on-n2" is forbidden: node "n1" can only delete pods with spec.nodeName set to itself',
        ),
        ("PATCH", f"{NODES}/n1", {}, '403 nodes "n1" is forbidden: node "n1" is not allowed to modify taints'),
    ],
)
async def test_a_kubelet_is_held_to_its_own_node(method: str, path: str, query: dict[str, str], expected: str) -> None:
    assert await answer(await a_server(), method, path, KUBELET, **query) == expected


async def token_on(server: ApiServer, node: str | None) -> dict[str, str]:
    """Headers with a token of the account; `node`: bound to that one."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await as_admin(server, "POST", accounts, {"metadata": {"name": "agent"}})
    bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": node}} if node else {}
    issued = await as_admin(server, "POST", f"{accounts}/agent/token", {"spec": bound})
    return {"authorization": f"Bearer {issued['status']['token']}", "impersonate-user": "system:node:n1"}


OWN_PODS = {"fieldSelector": "spec.nodeName=n1"}


async def test_an_account_reads_as_the_node_of_its_token_with_both_rights() -> None:
    server = await a_server()
    headers = await token_on(server, "n1")
    cannot = '403 pods is forbidden: User "system:serviceaccount:default:agent" cannot impersonate-on:'
    refused = await answer(server, "GET", PODS, headers, **OWN_PODS)
    assert refused.startswith(f"{cannot}associated-node:list resource"), refused
    await grant(server, ACCOUNT, READS, name="on")
    refused = await answer(server, "GET", PODS, headers, **OWN_PODS)
    assert refused.startswith('403 nodes.authentication.k8s.io "*" is forbidden: User'), refused
    await grant(server, ACCOUNT, AS, name="as")
    assert await answer(server, "GET", PODS, headers, **OWN_PODS) == "200"
    assert await answer(server, "GET", f"{NODES}/n1", headers) == "200"
    assert (await answer(server, "GET", PODS, headers)).startswith('403 pods is forbidden: User "system:node:n1"')
    assert (await answer(server, "DELETE", f"{PODS}/on-n1", headers)).startswith("403 ")


async def test_impersonation_of_users_gives_no_group() -> None:
    server = await a_server()
    headers = await token_on(server, "n1")
    await grant(server, ACCOUNT, rule("impersonate", "users"))
    refused = await answer(server, "GET", PODS, headers, **OWN_PODS)
    assert refused.startswith('403 pods is forbidden: User "system:node:n1" cannot list'), refused
