"""Instances of a stage behind the interfaces of providers: Machines, an endpoint, a command."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from aiohttp import web
from kubesim.http import HttpFace
from kubesim.server import api
from kubesim.server.api import JsonObject

from gracectl.cloud.provider import Provider, ProviderSettings, load_provider
from gracectl.cloud.simulated import STATES
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.runtime.supervise import while_running
from support.servers import answering
from support.stage import Stage

# Cluster API beside an embedded cluster: the definition of Machines, cut down, and a stand-in for its controller.

PLACE = "fleet"
MACHINES = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{PLACE}/machines"
HELD_BY = "machine.cluster.x-k8s.io"
_LOOSE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["clusterName"],
            "properties": {"clusterName": {"type": "string"}, "providerID": {"type": "string"}},
        },
        "status": _LOOSE,
    },
}


def machine_definition(*served: str) -> JsonObject:
    """The definition of Machines; these versions of it are served, v1beta2 is stored."""
    versions: list[JsonObject] = [
        {
            "name": name,
            "served": name in served,
            "storage": name == "v1beta2",
            "schema": {"openAPIV3Schema": _SCHEMA},
            "subresources": {"status": {}},
        }
        for name in ("v1beta1", "v1beta2")
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.cluster.x-k8s.io"},
        "spec": {
            "group": "cluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "machines", "singular": "machine", "kind": "Machine", "listKind": "MachineList"},
            "versions": versions,
        },
    }


DEFINITION = machine_definition("v1beta1", "v1beta2")


def marks(machine: str, *, cluster: str = "c1", namespace: str = PLACE, owner_kind: str = "MachineSet") -> JsonObject:
    """The annotations that Cluster API puts on a node."""
    return {
        names.CLUSTER_API_MACHINE: machine,
        names.CLUSTER_API_CLUSTER: cluster,
        names.CLUSTER_API_NAMESPACE: namespace,
        names.CLUSTER_API_OWNER_KIND: owner_kind,
    }


DRAIN_RULES = f"/apis/cluster.x-k8s.io/v1beta2/namespaces/{PLACE}/machinedrainrules"
DRAIN_RULES_DEFINITION: JsonObject = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "machinedrainrules.cluster.x-k8s.io"},
    "spec": {
        "group": "cluster.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "machinedrainrules", "singular": "machinedrainrule", "kind": "MachineDrainRule"},
        "versions": [{"name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": _LOOSE}}],
    },
}


class ClusterApi:
    """Machines of a stage, and what Cluster API does with them: it terminates the instance of one that is deleted, then
    deletes its node, then lets the Machine go. `drained` are the Machines whose nodes it would have drained itself."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.is_working = True
        self.drained: list[str] = []
        self.deleted_nodes: list[str] = []

    async def add(self, node: str, name: str = "", **spec: Any) -> JsonObject:
        """A Machine behind this node (`m-<node>`), which is marked as its."""
        name = name or f"m-{node}"
        node_object = self.stage.node(node)
        assert node_object is not None
        await self.stage.patch_node(node, {"metadata": {"annotations": marks(name)}})
        return await self.add_alone(name, providerID=node_object["spec"]["providerID"], **spec)

    async def add_alone(self, name: str, **spec: Any) -> JsonObject:
        """A Machine; `place` is its namespace, the rest its spec."""
        place = spec.pop("place", PLACE)
        whole: JsonObject = {"clusterName": "c1", **spec}
        await self.stage.cluster.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": place}})
        body = {
            "apiVersion": "cluster.x-k8s.io/v1beta2",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "finalizers": [HELD_BY],
                "labels": {names.CLUSTER_API_CLUSTER: whole["clusterName"]},
            },
            "spec": whole,
        }
        made: JsonObject = await self.stage.call("POST", MACHINES.replace(PLACE, place), body)
        return made

    def machine(self, name: str) -> JsonObject | None:
        """As the server has it."""
        return self.stage.server.store.table("machines.cluster.x-k8s.io").get(PLACE, name)

    async def patch(self, name: str, patch: JsonObject, subresource: str = "") -> None:
        """A merge patch of a Machine by another client."""
        await self.stage.call("PATCH", f"{MACHINES}/{name}{subresource}", patch, "application/merge-patch+json")

    async def drains(self, name: str, node: str, reason: str = "DrainingNode") -> None:
        """What it writes to a deleted Machine when it drains its node, or does something else (`reason`)."""
        status = {
            "nodeRef": {"name": node},
            "deletion": {"nodeDrainStartTime": format_time(self.stage.clock.now())},
            "conditions": [{"type": "Deleting", "status": "True", "reason": reason, "message": ""}],
        }
        await self.patch(name, {"status": status}, "/status")

    async def drop(self, name: str) -> None:
        """The Machine is gone at once, as if it had moved away or had been terminated quickly."""
        await self.stage.call("DELETE", f"{MACHINES}/{name}")
        if self.machine(name) is not None:
            await self.patch(name, {"metadata": {"finalizers": None}})

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Its controller works while the block lasts."""
        async with while_running(self._work):
            yield

    async def _work(self) -> None:
        while True:
            for machine in list(self.stage.server.store.table("machines.cluster.x-k8s.io")):
                meta = machine["metadata"]
                is_paused = names.CLUSTER_API_PAUSED in meta.get("annotations", {})
                if self.is_working and "deletionTimestamp" in meta and not is_paused:
                    await self._end(meta["name"], machine["spec"]["providerID"], meta.get("annotations", {}))
            await self.stage.clock.sleep(0.25)

    async def _end(self, name: str, provider_id: str, annotations: JsonObject) -> None:
        if names.EXCLUDE_NODE_DRAINING not in annotations and name not in self.drained:
            self.drained.append(name)
        path = f"/cloud/v1/instances/{provider_id.rsplit('/', 1)[-1]}"
        answer = await self.stage.cluster.cloud(api.Request(method="GET", path=path))
        if answer.status == 200 and answer.body["state"] != "terminated":
            await self.stage.cluster.cloud(api.Request(method="DELETE", path=path))
            return
        for node in self.stage.nodes():
            if node["spec"].get("providerID") == provider_id:
                await self.stage.call("DELETE", f"/api/v1/nodes/{node['metadata']['name']}")
                self.deleted_nodes.append(node["metadata"]["name"])
        await self.patch(name, {"metadata": {"finalizers": None}})


# An HTTP endpoint that terminates machines, as a user writes one for the provider `webhook`: it checks the signature,
# and answers what the test wants.

SECRET = base64.b64encode(b"a secret of thirty-two bytes ...").decode()


class Call(msgspec.Struct, frozen=True):
    """What came in, and the response's like: header names are lower-case."""

    path: str
    headers: dict[str, str]
    body: Any


Answering = Callable[[Call], Awaitable[web.StreamResponse]]


def says(status: int, body: Any = None, **headers: str) -> web.Response:
    """An answer; a text is sent as it is, all else as JSON; `retry_after` is a header."""
    text = body if isinstance(body, str) else "" if body is None else msgspec.json.encode(body).decode()
    return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})


def is_signed(call_headers: dict[str, str], raw: bytes, secret: str = SECRET) -> bool:
    """As https://www.standardwebhooks.com has it, written anew from there."""
    signed = f"{call_headers['webhook-id']}.{call_headers['webhook-timestamp']}.".encode() + raw
    wanted = base64.b64encode(hmac.new(base64.b64decode(secret), signed, hashlib.sha256).digest()).decode()
    return f"v1,{wanted}" in call_headers["webhook-signature"].split(" ")


class Endpoint:
    """`answers` are given one by one, then `otherwise` is asked."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: deque[web.StreamResponse] = deque()
        self.secret = SECRET
        self.url = ""
        self.otherwise: Answering = self._running

    async def _running(self, call: Call) -> web.StreamResponse:
        return says(200, {"state": "running"})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        call = Call(request.path_qs, headers, msgspec.json.decode(raw) if raw else None)
        self.calls.append(call)
        if not is_signed(headers, raw, self.secret):
            return says(401, {"message": "the signature does not fit"})
        return self.answers.popleft() if self.answers else await self.otherwise(call)


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """An endpoint on a port of its own while the block lasts."""
    endpoint = Endpoint()
    async with answering(endpoint.answer, tls) as port:
        endpoint.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/machines"
        yield endpoint


# The instances of a stage behind the interfaces of providers: Machines, an endpoint, a command.

COMMAND = """
import json, os, sys, urllib.error, urllib.request
method = {"state": "GET", "terminate": "DELETE"}[os.environ["GRACECTL_ACTION"]]
url = sys.argv[1] + "/cloud/v1/instances/" + os.environ["GRACECTL_PROVIDER_ID"].rpartition("/")[2]
words = {"running": "running", "shutting-down": "ending", "terminated": "gone"}
try:
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        print(json.dumps({"state": words[json.load(answer)["state"]]}))
except urllib.error.HTTPError as error:
    if error.code != 404:
        raise
    print(json.dumps({"state": "gone"}))
"""


@asynccontextmanager
async def machines(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """Cluster API in the cluster itself."""
    capi = ClusterApi(stage)
    for node in stage.instances:
        await capi.add(node)
    async with capi.working():
        yield load_provider(ProviderSettings("clusterapi"))


@asynccontextmanager
async def machines_elsewhere(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """Cluster API where a kubeconfig leads to (that is the same cluster, by another way)."""
    async with machines(stage, folder), over_http(stage) as url:
        file = folder / "kubeconfig"
        file.write_text(kubeconfig(url))
        yield load_provider(ProviderSettings("clusterapi", {"kubeconfig": str(file)}))


@asynccontextmanager
async def endpoint(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """An HTTP endpoint in front of the cloud."""

    async def ask(call: Call) -> web.StreamResponse:
        path = f"/cloud/v1/instances/{call.body['providerID'].rpartition('/')[2]}"
        method = {"state": "GET", "terminate": "DELETE"}[call.body["action"]]
        answer = await stage.cluster.cloud(api.Request(method=method, path=path))
        return says(200, {"state": "gone" if answer.status == 404 else STATES[answer.body["state"]]})

    async with serving() as there:
        there.otherwise = ask
        file = folder / "secret"
        file.write_text(SECRET)
        yield load_provider(ProviderSettings("webhook", {"url": there.url, "secretFile": str(file)}))


@asynccontextmanager
async def command(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """A program in front of the cloud."""
    async with over_http(stage) as url:
        yield load_provider(ProviderSettings("exec", {"command": [sys.executable, "-S", "-c", COMMAND, url]}))


@asynccontextmanager
async def over_http(stage: Stage) -> AsyncIterator[str]:
    """The address of the stage's server, and of its cloud, while the block lasts."""
    face = HttpFace(stage.server)
    try:
        yield await face.start()
    finally:
        await face.stop()


def kubeconfig(url: str) -> str:
    """A kubeconfig of a server without authentication."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "there",
        }
    )
