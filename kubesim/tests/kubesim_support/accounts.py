"""Users of an embedded API server that may do what a test says, and no more."""

from __future__ import annotations

from typing import Any

from kubesim.apiserver import ApiServer
from kubesim.clock import Clock
from kubesim.server.api import Json, Request, Response
from kubesim.server.calls import User

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMIN = {"authorization": "Bearer of-the-admin"}


def rule(verbs: str, resources: str, *groups: str) -> dict[str, Any]:
    """A rule of a role; words with blanks between. No group is the core one."""
    return {"verbs": verbs.split(), "resources": resources.split(), "apiGroups": list(groups) or [""]}


async def guarded(clock: Clock, user: str, *rules: dict[str, Any]) -> ApiServer:
    """A server that knows the token `t`, whose user may do what the rules say."""
    server = ApiServer(clock, tokens={"t": User(user), "of-the-admin": "admin"})
    await grant(server, {"kind": "User", "name": user}, *rules)
    return server


async def grant(server: ApiServer, subject: dict[str, str], *rules: dict[str, Any], name: str = "granted") -> None:
    """Bind a subject to a ClusterRole of these rules."""
    await as_admin(server, "POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": list(rules)})
    role = {"kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    await as_admin(server, "POST", f"{RBAC}/clusterrolebindings", binding)


async def as_admin(server: ApiServer, method: str, path: str, body: Json = None) -> Any:
    """Ask as a superuser what must succeed; returns the body."""
    response: Response = await server.handle(Request(method=method, path=path, headers=ADMIN, body=body))
    assert response.status < 300, response.body
    return response.body


async def account_token(server: ApiServer, name: str, namespace: str = "default") -> str:
    """Make a ServiceAccount; returns a token for it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await as_admin(server, "POST", accounts, {"metadata": {"name": name}})
    answer = await as_admin(server, "POST", f"{accounts}/{name}/token", {"spec": {}})
    token: str = answer["status"]["token"]
    return token
