"""The real kubectl about rights: auth can-i and whoami, --as, tokens, and what `create` makes of roles."""

from __future__ import annotations

import json

import pytest
from kubesim_support.kubectl import Kubectl, needs_kubectl

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, needs_kubectl]

LOGGED_OUT = "You must be logged in to the server"


@pytest.fixture
def kubectl(admins_kubectl: Kubectl) -> Kubectl:
    return admins_kubectl


async def test_who_and_what(kubectl: Kubectl) -> None:
    me = await kubectl.json("auth", "whoami")
    assert me["status"]["userInfo"] == {"username": "admin", "groups": ["system:masters", "system:authenticated"]}
    assert await kubectl("auth", "can-i", "delete", "nodes") == "yes\n"
    refused = await kubectl.run("auth", "can-i", "delete", "nodes", "--as=jane")
    assert (refused.code, refused.out) == (1, "no\n")
    listed = await kubectl("auth", "can-i", "--list", "--as=jane")
    assert "selfsubjectaccessreviews.authorization.k8s.io" in listed
    assert "pods" not in listed
    jane = await kubectl.json("auth", "whoami", "--as=jane", "--as-group=a", "--as-group=b", "--as-uid=7")
    assert jane["status"]["userInfo"] == {"username": "jane", "uid": "7", "groups": ["a", "b", "system:authenticated"]}
    assert LOGGED_OUT in (await kubectl.run("get", "pods", "--token=unknown")).err


async def test_an_accounts_token_and_its_role(kubectl: Kubectl) -> None:
    await kubectl("create", "serviceaccount", "robot")
    token = f"--token={await kubectl('create', 'token', 'robot', '--duration=20m')}"
    assert (await kubectl.json("auth", "whoami", token))["status"]["userInfo"]["username"] == (
        "system:serviceaccount:default:robot"
    )
    refused = await kubectl.run("get", "pods", token)
    assert 'User "system:serviceaccount:default:robot" cannot list resource "pods"' in refused.err
    await kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods,deployments.apps,pods/log")
    await kubectl("create", "rolebinding", "robot", "--role=reader", "--serviceaccount=default:robot", "--group=devs")
    assert "No resources found" in (await kubectl.run("get", "pods,deployments", token)).err
    assert "No resources found" in (await kubectl.run("get", "pods", "--token=of-joe")).err
    assert await kubectl("auth", "can-i", "get", "pods", "--subresource=log", token) == "yes\n"
    assert (await kubectl.run("get", "pods", "-A", token)).code == 1
    columns = (await kubectl("get", "rolebindings", "-o", "wide")).splitlines()
    assert columns[0].split() == ["NAME", "ROLE", "AGE", "USERS", "GROUPS", "SERVICEACCOUNTS"]
    assert columns[1].split()[:2] == ["robot", "Role/reader"]
    assert columns[1].split()[3:] == ["devs", "default/robot"]
    await kubectl("delete", "serviceaccount", "robot")
    assert LOGGED_OUT in (await kubectl.run("get", "pods", token)).err


async def test_cluster_roles(kubectl: Kubectl) -> None:
    await kubectl("create", "clusterrole", "cordoner", "--verb=get,patch", "--resource=nodes", "--resource-name=n1")
    await kubectl("create", "clusterrole", "scraper", "--verb=get", "--non-resource-url=/metrics")
    await kubectl("create", "clusterrolebinding", "c", "--clusterrole=cordoner", "--user=joe")
    await kubectl("create", "clusterrolebinding", "s", "--clusterrole=scraper", "--user=joe")
    assert await kubectl("auth", "can-i", "patch", "nodes/n1", "--as=joe") == "yes\n"
    assert (await kubectl.run("auth", "can-i", "patch", "nodes/n2", "--as=joe")).out == "no\n"
    assert await kubectl("auth", "can-i", "get", "/metrics", "--as=joe") == "yes\n"
    described = await kubectl("describe", "clusterrole", "view")
    assert "poddisruptionbudgets.policy/status" in described
    gaining = ("create", "clusterrolebinding", "x", "--clusterrole=cluster-admin", "--user=joe", "--as=joe")
    await kubectl("create", "clusterrole", "binder", "--verb=create", "--resource=clusterrolebindings")
    await kubectl("create", "clusterrolebinding", "b", "--clusterrole=binder", "--user=joe")
    assert "is attempting to grant RBAC permissions not currently held" in (await kubectl.run(*gaining)).err


async def test_reconcile_and_apply(kubectl: Kubectl) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": "default"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
    }
    await kubectl("auth", "reconcile", "-f", "-", stdin=json.dumps(role))
    assert (await kubectl.json("get", "role", "r"))["rules"] == role["rules"]
    wider = {**role, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]}
    await kubectl.apply(wider)
    assert (await kubectl.json("get", "role", "r"))["rules"] == wider["rules"]
