"""A webhook that never answers, for the first DELETE of each pod of one namespace: it takes connections, and is silent.

The API server waits for it as long as its configuration says, and then goes on without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from benchmarks.ground.ground import LABEL
from benchmarks.ground.site import Site, make_namespace, remove_namespace
from gracectl.kube.resources import Resource, verbatim

SECONDS = 10
"""For which the API server waits: the default of Kubernetes."""
CONFIGURATIONS: Resource[bytes] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    verbatim,
    namespaced=False,
)


class Hanging:
    """The `namespace`; `asked`: how many connections were taken so far."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.asked = 0

    async def serve(self, stream: anyio.abc.SocketStream) -> None:
        """Take one connection, and say nothing until its other end gives up."""
        self.asked += 1
        async with stream:
            async for _ in stream:
                pass


@asynccontextmanager
async def hanging(site: Site) -> AsyncIterator[Hanging]:
    """A namespace beside that of a site, with such a webhook, while the block runs."""
    one = Hanging(f"{site.name}-hanging")
    await make_namespace(site.client, one.namespace, site.clock)
    try:
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listener.serve, one.serve)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            await site.client.create(CONFIGURATIONS, "", _configuration(one.namespace, port))
            try:
                yield one
            finally:
                with anyio.CancelScope(shield=True):
                    await site.client.delete(CONFIGURATIONS, ("", one.namespace))
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await remove_namespace(site.client, one.namespace, site.clock)


def _configuration(namespace: str, port: int) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
    webhook = {
        "name": "hanging.bench.gracectl.dev",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "timeoutSeconds": SECONDS,
        "failurePolicy": "Ignore",
        "namespaceSelector": {"matchLabels": {LABEL: namespace}},
        # Not the last one, of the kubelet, which has other pods to look after as well.
        "matchConditions": [{"name": "first", "expression": "!has(oldObject.metadata.deletionTimestamp)"}],
        "rules": [rule],
    }
    return {"metadata": {"name": namespace}, "webhooks": [webhook]}
