"""Admission reviews, and controllers that serve admission over HTTPS on the real clock."""

from __future__ import annotations

import random
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec
import orjson
from kubesim.admission.services import ANNOTATION
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.server.api import JsonObject, Request, Response
from kubesim_support.patience import PATIENCE

from gracectl.admission.registration import is_complete, register
from gracectl.admission.reviews import AdmissionResponse, Handler, decode_review, encode_review
from gracectl.admission.rotation import CertificateSecret, CertificateState
from gracectl.admission.settings import AdmissionSettings
from gracectl.app.controller import Controller
from gracectl.cli.crds import shipped_definitions
from gracectl.kube.client import KubeClient
from gracectl.model.node import Node
from gracectl.nodebudgets.admitter import Refusal, UnknownNode
from gracectl.runtime.clock import Clock, SystemClock
from support.disruption import NODE_BUDGETS, a_node_budget_manifest
from support.inprocess import InProcessTransport
from support.stage import CloudProvider, the_settings

# Reviews of API servers, and their handlers: for tests of admission.

GROUPS: Mapping[str, tuple[str, str]] = {
    "nodes": ("", "v1"),
    "nodedisruptionbudgets": ("termination.karpenter.sh", "v1alpha2"),
    "nodeclaims": ("karpenter.sh", "v1"),
    "nodedrains": ("gracectl.io", "v1alpha1"),
}


def a_review(
    operation: str, resource: str, new: Any = None, old: Any = None, /, *, uid: str = "u1", **more: Any
) -> dict[str, Any]:
    """A review of version v1, of the object of that resource as it would be and as it is."""
    group, version = GROUPS[resource]
    request = {
        "uid": uid,
        "kind": {"group": group, "version": version, "kind": "K"},
        "resource": {"group": group, "version": version, "resource": resource},
        "name": ((new or old or {}).get("metadata") or {}).get("name", ""),
        "operation": operation,
        "userInfo": {"username": "jane"},
        "object": new,
        "oldObject": old,
        "dryRun": False,
        "options": {},
        **more,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


async def ask(handler: Handler, review: dict[str, Any]) -> AdmissionResponse:
    """The answer to a review."""
    return await handler(decode_review(msgspec.json.encode(review)))


def patch_of(answer: AdmissionResponse) -> Any:
    """The JSON patch as an API server finds it in the answer; None without one."""
    response = msgspec.json.decode(encode_review("u1", answer))["response"]
    return msgspec.json.decode(b64decode(response["patch"])) if "patch" in response else None


def status_in(answer: AdmissionResponse) -> Any:
    """The Status of a denial as an API server finds it."""
    return msgspec.json.decode(encode_review("u1", answer))["response"].get("status")


class StandInGate:
    """Answers as configured, and records its requests: (node, dry run)."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self.refusal = refusal
        self.error: Exception | None = None
        self.has = True
        self.is_asked_too_often = False
        self.asked: list[tuple[str, bool]] = []
        self.forced: list[bool] = []

    async def known(self, node: Node) -> Node | None:
        """See Gate."""
        if self.is_asked_too_often:
            raise UnknownNode
        return node if self.has else None

    async def admit(self, node: Node, *, dry_run: bool = False, is_forced: bool = False) -> Refusal | None:
        """See Gate."""
        self.asked.append((node.name, dry_run))
        self.forced.append(is_forced)
        if self.error is not None:
            raise self.error
        return self.refusal


def a_node_object(name: str = "n1", *, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    """A node as the server has it."""
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z", **metadata},
        "spec": {},
        "status": {"conditions": conditions if ready else None},
    }


# Controllers that serve admission over HTTPS, for a simulated cluster that calls them: on the real clock.

NODES = "/api/v1/nodes"
SECRET = "/api/v1/namespaces/infra/secrets/gracectl-webhook-tls"
SERVICE = {"name": "gracectl", "namespace": "infra"}
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/gracectl"


class Hosted:
    """An embedded cluster, and controllers at it; the Service `gracectl` of namespace `infra` leads to those that run,
    as its slice names them."""

    def __init__(self) -> None:
        self.clock: Clock = SystemClock()
        self.cluster = EmbeddedCluster(self.clock, ClusterOptions(definitions=shipped_definitions()))
        self.server = self.cluster.server
        self.transport = InProcessTransport(self.server, self.clock)
        self.admission = AdmissionSettings()
        """Of the last controller."""
        self._lives = 0

    async def ask(self, method: str, path: str, body: Any = None, **query: str) -> Response:
        """Any client's request, whatever the answer."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = Request(method=method, path=path, query=query, headers={"content-type": kind}, body=body)
        return await self.server.handle(request)

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """One that must succeed."""
        response = await self.ask(method, path, body)
        assert response.status < 300, response.body
        return response.body

    async def add_nodes(self, *names: str, **labels: str) -> None:
        """Nodes, Ready."""
        for name in names:
            await self.cluster.add_node(NodeSpec(name=name, labels=labels))
        await self.until(lambda: all(_is_ready(self.node(name)) for name in names))

    async def create_budget(self, **bound: Any) -> None:
        """A budget `pool-a` over `pool: a`, whose status is up to date when this returns."""
        await self.call("POST", NODE_BUDGETS, a_node_budget_manifest(**bound))
        table = self.server.store.table("nodedisruptionbudgets.termination.karpenter.sh")
        await self.until(lambda: "observedGeneration" in ((table.get("", "pool-a") or {}).get("status") or {}))

    def node(self, name: str) -> JsonObject | None:
        """A node as the server has it."""
        return self.server.store.table("nodes").get("", name)

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until a condition holds."""
        with anyio.fail_after(seconds):
            while not condition():
                await self.clock.sleep(0.01)

    async def routed(self, *ports: int) -> None:
        """Let the Service lead to the first of these ports of 127.0.0.1."""
        path = "/api/v1/namespaces/infra/services/gracectl"
        annotations = {ANNOTATION: f"https://127.0.0.1:{ports[0]}"}
        await self.call("PATCH", path, {"metadata": {"annotations": annotations}})

    @asynccontextmanager
    async def controller(self, *, port: int = 0, **fields: Any) -> AsyncIterator[tuple[Controller, anyio.Event]]:
        """A controller that runs; `fields` are settings, those of admission over the usual ones."""
        admission = {"listen": f"127.0.0.1:{port}", "service": SERVICE, **fields.pop("admission", {})}
        settings = the_settings(admission=admission, **fields)
        self.admission = settings.admission
        self._lives += 1
        rng = random.Random(f"hosted/{self._lives}")
        controller = Controller(
            settings, self.transport.line(), self.clock, CloudProvider(self.cluster.cloud, self.clock), rng=rng
        )
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(controller.run, stop)
            yield controller, stop
            stop.set()

    async def register(self) -> None:
        """Write the webhook configurations as `gracectl webhooks --apply` does, once a controller has written its
        Secret."""
        settings = self.admission
        client = KubeClient(self.transport.line(), self.clock)
        secret = CertificateSecret(client, (settings.namespace, settings.secret))

        async def state() -> CertificateState:
            stored = await secret.read()
            return stored.state if stored else CertificateState()

        with anyio.fail_after(PATIENCE):
            while not is_complete(await state(), settings):
                await self.clock.sleep(0.01)
        await register(client, settings, await state())

    def is_registered(self) -> bool:
        """Whether both webhook configurations are there."""
        kinds = ("mutating", "validating")
        tables = (f"{kind}webhookconfigurations.admissionregistration.k8s.io" for kind in kinds)
        return all(self.server.store.table(table).get("", "gracectl") is not None for table in tables)


@asynccontextmanager
async def hosted() -> AsyncIterator[Hosted]:
    """A cluster that lives, with the Service and no nodes."""
    place = Hosted()
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        await group.start(place.cluster.run)
        await place.call("POST", "/api/v1/namespaces", {"metadata": {"name": "infra"}})
        ports = {"ports": [{"port": 443, "targetPort": 8443}]}
        service = {"metadata": {"name": "gracectl"}, "spec": ports}
        await place.call("POST", "/api/v1/namespaces/infra/services", service)
        yield place


async def post(
    port: int, path: str, body: Any, authority: bytes, host: str = "gracectl.infra.svc"
) -> tuple[int, bytes]:
    """POST over a connection of its own, checked as an API server does; the status and the body of the answer. Raises
    OSError (ssl.SSLError among them)."""
    context = ssl.create_default_context(cadata=authority.decode())
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    stream = await anyio.connect_tcp("127.0.0.1", port, ssl_context=context, tls_hostname=host)
    async with stream:
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        await stream.send(head.encode() + data)
        answer = b""
        try:
            while True:
                answer += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            pass
    head_, _, rest = answer.partition(b"\r\n\r\n")
    return int(head_[9:12]), rest


def is_late(status: int, answer: Any) -> bool:
    """Whether a webhook had no time to decide, as on a busy machine."""
    words = ("context deadline exceeded", "no decision within")
    return status == 500 and any(each in answer["message"] for each in words)


def _is_ready(node: JsonObject | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
