"""Any running cluster as a target, over HTTP: whatever a kubeconfig names, with its own nodes, controllers, admission.

Invariant: only what a recording itself makes (all of it named rec-…, and custom resources that were not there before)
is touched, and it is cleared away before and after.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web
from conformance.tape import WEBHOOK_NAMES
from conformance.target import WEBHOOK_PORT, Review, Unreachable
from kubesim.clock import SystemClock
from kubesim.server.api import EventStream, Json, JsonObject, Request, Response, StreamEvent
from kubesim_support.kubeconfig import Access, access_of

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/{}"
MERGE = "application/merge-patch+json"
NO_FINALIZERS = {"metadata": {"finalizers": None}}
HERE = ("127.0.0.1", "localhost", "::1")
RECORDER = {"username": "admin", "uid": "admin", "groups": ["system:masters", "system:authenticated"]}
"""The user name of the recorder; here the user of the kubeconfig."""

OWN_ANNOTATION = "node.alpha.kubernetes.io/ttl"
OWN: Mapping[str, tuple[str, str]] = {
    "taints": ("key", "node.kubernetes.io/"),
    "annotations": ("", OWN_ANNOTATION),
    "volumes": ("name", "kube-api-access-"),
    "volumeMounts": ("name", "kube-api-access-"),
}
"""What the cluster adds to lists (and maps) of these names: by which field it is known, and how that begins."""

CLEARED_SECONDS = 60.0
NEW_NODE_SECONDS, NODE_SECONDS = 0.6, 0.25
"""How long a node stays as it is before it counts as settled. (Controllers of a busy cluster may be slower.)"""


class LiveTarget:
    """A cluster that is there already."""

    kind: Literal["embedded", "live"] = "live"
    traits: frozenset[str] = frozenset()

    def __init__(self, session: aiohttp.ClientSession, access: Access) -> None:
        self.clock = SystemClock()
        self._session = session
        self._access = access
        self._nobody = ssl.create_default_context()
        self._nobody.check_hostname, self._nobody.verify_mode = False, ssl.CERT_NONE

    async def look_around(self) -> None:
        """Find out what is special here."""
        probe = json.dumps({"metadata": {"name": "rec-probe"}}).encode()
        answer = await self.handle(
            Request(
                method="POST",
                path="/api/v1/nodes",
                query={"dryRun": "All"},
                headers={"content-type": "application/json"},
                body=probe,
            )
        )
        if isinstance(answer.body, dict) and "taints" in answer.body.get("spec", {}):
            self.traits = frozenset(("taints nodes",))

    async def handle(self, request: Request) -> Response:
        """See Target."""
        tls, headers = self._access.tls, {**self._access.headers, **request.headers}
        if "authorization" in request.headers:
            tls = self._nobody if tls is not None else None
            headers = {key: value for key, value in request.headers.items() if value}
        is_watch = request.query.get("watch") in ("1", "true") or "/watch/" in request.path
        reply = await self._session.request(
            request.method,
            self._access.url + request.path,
            params=request.query,
            data=request.body or None,
            headers=headers,
            ssl=tls if tls is not None else True,
            timeout=aiohttp.ClientTimeout(total=None if is_watch else 60),
        )
        lowered = {key.lower(): value for key, value in reply.headers.items()}
        if is_watch and reply.status == 200 and reply.headers.get("Transfer-Encoding") == "chunked":
            return Response(status=200, headers=lowered, stream=LineStream(reply))
        async with reply:
            response = Response(status=reply.status, headers=lowered, body=_read(await reply.read()))
        if response.status == 201 and request.path == "/api/v1/namespaces":
            await self._until_service_account(response.body["metadata"]["name"])
        is_written = request.method in ("POST", "PUT", "PATCH") and response.status < 300
        if is_written and request.path.startswith("/api/v1/nodes") and "dryRun" not in request.query:
            response = msgspec.structs.replace(response, body=await self._settled(response))
        return response

    async def _until_service_account(self, namespace: str) -> None:
        """Pods are refused until the namespace has its service account; some clusters give it none."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        end = self.clock.monotonic() + 5
        while (await self._call("GET", path))[0] != 200 and self.clock.monotonic() < end:
            await self.clock.sleep(0.05)

    async def _settled(self, response: Response) -> Json:
        """A node that was written, once the cluster's controllers have let it be: they annotate and taint nodes."""
        written: JsonObject = response.body
        metadata, clock = written.get("metadata", {}), self.clock
        last, since = metadata.get("resourceVersion"), clock.monotonic()
        patience = NEW_NODE_SECONDS if response.status == 201 else NODE_SECONDS
        node = written
        while clock.monotonic() < since + patience:
            await clock.sleep(0.05)
            status, answer = await self._call("GET", f"/api/v1/nodes/{metadata.get('name')}")
            if status != 200 or answer["metadata"]["uid"] != metadata.get("uid"):
                return written  # Gone: the answer was its last word.
            if answer["metadata"]["resourceVersion"] != last:
                node, last, since = answer, answer["metadata"]["resourceVersion"], clock.monotonic()
                patience = NODE_SECONDS
        return node

    async def pause(self) -> None:
        """See Target: the network is slow enough."""

    def without_own(self, body: Json) -> Json:
        """See Target: the service account of pods, what node controllers write on every node."""
        if isinstance(body, list):
            return [self.without_own(each) for each in body]
        if not isinstance(body, dict):
            return body
        kept = {key: self.without_own(value) for key, value in body.items()}
        for key, (field, prefix) in OWN.items():
            if isinstance(kept.get(key), list | dict) and kept[key]:
                kept[key] = _without(kept[key], field, prefix)
                if not kept[key]:
                    del kept[key]
        if "containers" in kept:
            for key in ("serviceAccount", "serviceAccountName"):
                kept.pop(key, None)
        if "userInfo" in kept:
            kept["userInfo"] = RECORDER
        return kept

    @asynccontextmanager
    async def webhook(self, review: Review) -> AsyncIterator[str]:
        """See Target."""
        if urlsplit(self._access.url).hostname not in HERE:
            raise Unreachable("the API server is not on this machine and cannot reach the suite's webhook")
        if shutil.which("openssl") is None:
            raise Unreachable("there is no openssl to make the webhook's certificate with")

        async def answer(request: web.Request) -> web.Response:
            return web.json_response(await review(await request.json()))

        app = web.Application()
        app.router.add_post("/", answer)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        context, authority = _certificate()
        try:
            await web.TCPSite(runner, "127.0.0.1", WEBHOOK_PORT, ssl_context=context).start()
            yield authority
        finally:
            await runner.cleanup()

    def compact(self) -> None:
        """See Target."""
        raise Unreachable("history is etcd's to compact")

    @asynccontextmanager
    async def stage(self, made: Sequence[str]) -> AsyncIterator[None]:
        """See Target."""
        for path in made:
            if path.startswith(CRDS) and (await self._call("GET", path))[0] == 200:
                raise Unreachable(f"{path.rpartition('/')[2]} is there already: not ours to remove")
        await self._clear(made)
        try:
            yield
        finally:
            await self._clear(made)

    async def _clear(self, made: Sequence[str]) -> None:
        for kind in ("mutating", "validating"):
            for name in WEBHOOK_NAMES:
                await self._call("DELETE", WEBHOOKS.format(kind, name))
        # What holds others goes last.
        for path in sorted(made, key=lambda path: path.startswith((CRDS, "/api/v1/namespaces/"))):
            if path.startswith(CRDS):
                await self._clear_definition(path)
            elif path.startswith("/api/v1/namespaces/"):
                await self._clear_namespace(path)
            else:
                await self._remove(path)

    async def _remove(self, path: str) -> None:
        await self._call("PATCH", path, NO_FINALIZERS)
        await self._call("DELETE", path, {"gracePeriodSeconds": 0})

    async def _clear_definition(self, path: str) -> None:
        status, definition = await self._call("GET", path)
        if status != 200:
            return
        spec = definition["spec"]
        collection = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        await self._call("DELETE", path)
        await self._until_gone(path, collection)

    async def _clear_namespace(self, path: str) -> None:
        if (await self._call("DELETE", path))[0] == 404:
            return
        for apps in ("deployments", "replicasets"):
            await self._call("DELETE", f"{path.replace('/api/v1/', '/apis/apps/v1/')}/{apps}")
        leases = path.replace("/api/v1/", "/apis/coordination.k8s.io/v1/") + "/leases"
        await self._until_gone(path, f"{path}/pods", leases, f"{path}/persistentvolumeclaims")

    async def _until_gone(self, path: str, *collections: str) -> None:
        """Take the finalizers off whatever holds it."""
        end = self.clock.monotonic() + CLEARED_SECONDS
        while (await self._call("GET", path))[0] != 404:
            for collection in collections:
                _, listed = await self._call("GET", collection)
                for item in listed.get("items", ()) if isinstance(listed, dict) else ():
                    await self._remove(f"{collection}/{item['metadata']['name']}")
            if self.clock.monotonic() > end:
                raise TimeoutError(f"{path} stays")
            await self.clock.sleep(0.1)

    async def _call(self, method: str, path: str, body: Json = None) -> tuple[int, Json]:
        headers = {"content-type": MERGE if method == "PATCH" else "application/json"}
        raw = None if body is None else json.dumps(body).encode()
        response = await self.handle(Request(method=method, path=path, headers=headers, body=raw))
        return response.status, response.body


class LineStream:
    """The events of a watch over HTTP."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self._reply = reply
        self._rest = b""

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> StreamEvent:
        while b"\n" not in self._rest:
            chunk = await self._reply.content.readany()
            if not chunk:
                raise StopAsyncIteration
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        event: JsonObject = json.loads(line)
        return StreamEvent(event["type"], event["object"])

    async def aclose(self) -> None:
        """See EventStream."""
        self._reply.close()

    def interrupt(self) -> None:
        """See EventStream."""
        self._reply.close()


@asynccontextmanager
async def live(kubeconfig: str) -> AsyncIterator[LiveTarget]:
    """The cluster of a kubeconfig."""
    access = access_of(Path(kubeconfig))
    async with aiohttp.ClientSession(trust_env=False) as session:
        target = LiveTarget(session, access)
        await target.look_around()
        yield target


def _without(items: Json, field: str, prefix: str) -> Json:
    if isinstance(items, dict):
        return {key: value for key, value in items.items() if field or not key.startswith(prefix)}
    return [each for each in items if not (isinstance(each, dict) and str(each.get(field)).startswith(prefix))]


def _certificate() -> tuple[ssl.SSLContext, str]:
    """A certificate for 127.0.0.1 and its own authority, as a caBundle."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = Path(folder, "key"), Path(folder, "certificate")
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=rec"]
        files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*command, *files], check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        return context, b64encode(certificate.read_bytes()).decode()


def _read(raw: bytes) -> Any:
    text = raw.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
