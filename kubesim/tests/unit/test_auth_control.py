"""Who may do what: tokens, impersonation, roles and bindings (beyond what recording auth shows)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.accounts import RBAC, grant, guarded, rule
from kubesim_support.caller import LEASES, NODES, PODS, Caller

pytestmark = pytest.mark.anyio

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
T = {"authorization": "Bearer t"}
ADMIN = {"authorization": "Bearer of-the-admin"}


async def status_of(server: ApiServer, method: str, path: str, headers: Mapping[str, str], **query: str) -> int:
    return (await Caller(server).call(method, path, {}, headers=headers, **query)).status


async def test_rights_follow_every_change_of_roles_and_bindings() -> None:
    server = await guarded(LoopClock(), "robot", rule("list", "nodes"))
    assert await status_of(server, "GET", NODES, T) == 200
    body = {"rules": [rule("list", "pods")]}
    await admin(server, "PATCH", f"{RBAC}/clusterroles/granted", body)
    assert await status_of(server, "GET", NODES, T) == 403
    assert await status_of(server, "GET", PODS, T) == 200
    await admin(server, "DELETE", f"{RBAC}/clusterrolebindings/granted")
    assert await status_of(server, "GET", PODS, T) == 403


async def test_the_right_to_watch_is_no_right_to_write_by_the_old_paths_of_watches() -> None:
    server = await guarded(LoopClock(), "robot", rule("watch", "nodes pods pods/eviction"))
    await Caller(server).call("POST", NODES, {"metadata": {"name": "n1"}}, headers=ADMIN)
    old = "/api/v1/watch"
    for method, path in (
        ("POST", f"{old}/nodes"),
        ("DELETE", f"{old}/nodes/n1"),
        ("DELETE", f"{old}/nodes"),
        ("PUT", f"{old}/nodes/n1"),
        ("PATCH", f"{old}/nodes/n1"),
        ("POST", f"{old}/namespaces/default/pods/p/eviction"),
    ):
        assert await status_of(server, method, path, T) in (404, 405), (method, path)
    assert await status_of(server, "GET", f"{NODES}/n1", ADMIN) == 200
    assert await status_of(server, "GET", f"{old}/nodes/n1", T) == 200


async def test_creating_by_put_or_apply_needs_the_permission_to_create() -> None:
    server = await guarded(LoopClock(), "robot", rule("patch update", "configmaps leases", "", "coordination.k8s.io"))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm"}}
    apply = {**T, "content-type": "application/apply-patch+yaml"}
    caller = Caller(server)
    refused = await caller.call("PATCH", f"{CONFIGMAPS}/cm", body, headers=apply, fieldManager="m")
    assert refused.status == 403
    assert "cannot create resource" in refused.body["message"]
    lease = {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 1}}
    assert (await caller.call("PUT", f"{LEASES}/l", lease, headers=T)).status == 403
    assert (await caller.call("POST", CONFIGMAPS, body, headers=ADMIN)).status == 201
    assert (await caller.call("PATCH", f"{CONFIGMAPS}/cm", body, headers=apply, fieldManager="m")).status == 200


async def test_a_role_that_is_not_there_is_told_where_it_might_have_helped() -> None:
    server = await guarded(LoopClock(), "guest")
    await admin(server, "POST", f"{RBAC}/namespaces/default/rolebindings", binding("gone", user("guest")))
    refused = await Caller(server).call("GET", PODS, headers=T)
    assert refused.body["message"] == (
        'pods is forbidden: User "guest" cannot list resource "pods" in API group "" in the namespace "default": '
        'RBAC: role.rbac.authorization.k8s.io "gone" not found'
    )


async def test_impersonation_is_a_permission_of_its_own() -> None:
    server = await guarded(LoopClock(), "robot", rule("list", "nodes"))
    refused = await Caller(server).call("GET", NODES, headers={**T, "impersonate-user": "jane"})
    assert refused.body["message"] == (
        'users "jane" is forbidden: User "robot" cannot impersonate resource "users" in API group "" at the cluster '
        "scope"
    )
    account = "system:serviceaccount:a:b"
    refused = await Caller(server).call("GET", NODES, headers={**T, "impersonate-user": account})
    assert refused.body["message"] == (
        'serviceaccounts "b" is forbidden: User "robot" cannot impersonate resource "serviceaccounts" in API group "" '
        'in the namespace "a"'
    )
    await grant(server, user("robot"), rule("impersonate", "users"), name="as")
    assert await status_of(server, "GET", NODES, {**T, "impersonate-user": "jane"}) == 403
    headers = {**T, "impersonate-user": "robot", "impersonate-group": "system:masters"}
    assert await status_of(server, "GET", NODES, headers) == 403
    await grant(server, user("robot"), rule("impersonate", "groups"), name="of")
    assert await status_of(server, "GET", NODES, headers) == 200


async def test_impersonating_a_group_without_a_user_is_refused() -> None:
    caller = Caller(ApiServer(LoopClock()))
    assert (await caller.call("GET", NODES, headers={"impersonate-group": "devs"})).status == 500


async def admin(server: ApiServer, method: str, path: str, body: Any = None) -> None:
    headers = {**ADMIN, "content-type": "application/merge-patch+json"} if method == "PATCH" else ADMIN
    response = await Caller(server).call(method, path, body, headers=headers)
    assert response.status < 300, response.body


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name}


def binding(name: str, subject: dict[str, str], *, kind: str = "Role", role: str = "") -> dict[str, Any]:
    role_ref = {"kind": kind, "name": role or name}
    return {"metadata": {"name": name}, "roleRef": role_ref, "subjects": [subject]}
