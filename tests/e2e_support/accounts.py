"""Service accounts of a story, and the tokens that kubelets get for their pods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import yaml
from kubesim.controllers.client import ask
from kubesim.controllers.paths import KINDS, path_of
from kubesim.server.api import JsonObject

from e2e_support.story import Story
from gracectl.kube.rbac import Permission

RBAC = "rbac.authorization.k8s.io"


class Access(NamedTuple):
    """A way into the cluster for a program."""

    kubeconfig: Path


@asynccontextmanager
async def account_with(story: Story, rights: Iterable[Permission]) -> AsyncIterator[str]:
    """A service account of the story's namespace with these rights everywhere; yields its name."""
    name = f"{story.run}-account"
    metadata = {"name": name}
    rules = [
        {
            "apiGroups": [right.group],
            "resources": ["/".join(filter(None, (right.plural, right.subresource)))],
            "verbs": [right.verb],
        }
        for right in rights
    ]
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": story.namespace}
    binding = {"metadata": metadata, "roleRef": role, "subjects": [subject]}
    await ask(story.api, "POST", path_of(KINDS["ServiceAccount"], story.namespace), {"metadata": metadata})
    try:
        await ask(story.api, "POST", path_of(KINDS["ClusterRole"]), {"metadata": metadata, "rules": rules})
        await ask(story.api, "POST", path_of(KINDS["ClusterRoleBinding"]), binding)
        yield name
    finally:
        with anyio.CancelScope(shield=True):
            for kind in ("ClusterRoleBinding", "ClusterRole"):
                await story.api.call("DELETE", path_of(KINDS[kind], name=name))


async def token_of(story: Story, account: str, pod: str = "") -> str:
    """A token of the account; with a pod it is bound to that, as the kubelet gets it for that pod."""
    spec: JsonObject = {}
    if pod:
        uid = story.sees("Pod", pod)["metadata"]["uid"]
        spec = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = path_of(KINDS["ServiceAccount"], story.namespace, account, "token")
    _, answer = await ask(story.api, "POST", path, request)
    token: str = answer["status"]["token"]
    return token


def access_with(story: Story, token: str, name: str) -> Access:
    """A way into the cluster with nothing but this token."""
    config = story.target.config
    for user in config["users"]:
        user["user"] = {"token": token}
    path = story.folder / f"kubeconfig-{name}"
    path.write_text(yaml.safe_dump(config))
    return Access(path)
