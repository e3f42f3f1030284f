"""How long an API server waits for our webhooks: reviews of whole nodes, over HTTP without TLS, with 5,000 nodes known.

What the API server itself would take for the write of a budget is left out: it answers at once. Client, server and
that API server share one process, so each figure is a little more than what a webhook takes of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from statistics import median, quantiles
from typing import Any

import anyio
import orjson

from benchmarks.ground.wire import Connection, connected
from benchmarks.report import Figure, Outcome
from gracectl.admission.nodebudgets import NodeBudgetValidator
from gracectl.admission.nodeclaims import NodeClaimValidator
from gracectl.admission.nodes import NodeDeletionValidator, NodeFinalizerInjector
from gracectl.admission.reviews import Handler
from gracectl.admission.server import LIMITS, WebhookServer
from gracectl.admission.webhooks import (
    NODE_BUDGET_WEBHOOK,
    NODE_CLAIM_WEBHOOK,
    NODE_CREATE_WEBHOOK,
    NODE_DELETE_WEBHOOK,
    Webhook,
)
from gracectl.kube.cache import Cache
from gracectl.kube.client import KubeClient
from gracectl.kube.transport import Request, Response, Stream
from gracectl.model.decode import decode_node, decode_node_budget
from gracectl.model.selectors import LabelSelector
from gracectl.nodebudgets.admitter import Admitter
from gracectl.policy.owners import ManagedNodes
from gracectl.runtime.clock import SystemClock
from gracectl.telemetry.server import Endpoint, Servers

NODES, POOLS = 5_000, 10
QUESTIONS = 2_000
LONGEST = 5.0
"""Milliseconds."""

clock = SystemClock()


class InstantServer:
    """An API server that has budgets and nothing else, and takes no time."""

    def __init__(self, budgets: list[dict[str, Any]]) -> None:
        self._budgets = {budget["metadata"]["name"]: budget for budget in budgets}

    async def send(self, request: Request) -> Response:
        """GET, and the merge patches of a gate."""
        budget = self._budgets[request.path.split("/")[5]]
        if request.method == "PATCH":
            patch = orjson.loads(request.body or b"")
            meta = budget["metadata"]
            if patch["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                return Response(status=409, body=b"{}")
            meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
            nodes = {**budget["status"]["disruptedNodes"], **patch["status"].pop("disruptedNodes", {})}
            budget["status"] = {**budget["status"], **patch["status"], "disruptedNodes": nodes}
        return Response(status=200, body=orjson.dumps(budget))

    def stream(self, request: Request) -> Any:
        """No watch is served."""
        raise NotImplementedError(Stream)


async def run() -> Outcome:
    """Ask each webhook again and again, one question after another."""
    nodes = [a_node(number) for number in range(NODES)]
    sizes = [len(orjson.dumps(node)) for node in nodes[:100]]
    budgets = [a_budget(f"pool-{number}") for number in range(POOLS)]
    claim = {"metadata": {"name": "c", "uid": "c"}, "spec": {"terminationGracePeriod": "15m", "expireAfter": "720h"}}
    figures: list[Figure] = []
    async with served(nodes, budgets) as connection:
        for webhook, ask in (
            (NODE_CREATE_WEBHOOK, lambda number: review("CREATE", nodes[number % NODES], None)),
            (NODE_DELETE_WEBHOOK, lambda number: review("DELETE", None, nodes[number % NODES])),
            (NODE_BUDGET_WEBHOOK, lambda number: review("CREATE", budgets[number % POOLS], None)),
            (NODE_CLAIM_WEBHOOK, lambda number: review("UPDATE", claim, claim)),
        ):
            figures += await measured(connection, webhook, ask)
    return Outcome(
        scenario="admission",
        about="what API servers wait for when nodes come and go, and budgets and claims are written",
        figures=tuple(figures),
        parameters={"nodes": NODES, "budgets": POOLS, "questions": QUESTIONS, "bytes of a node": int(median(sizes))},
    )


async def measured(connection: Connection, webhook: Webhook, ask: Callable[[int], Any]) -> list[Figure]:
    """Median and 99th percentile of a webhook's answers."""
    taken = []
    for number in range(QUESTIONS):
        question = ask(number)
        began = time.perf_counter()
        status, body = await connection.ask("POST", f"{webhook.path}?timeout=10s", question)
        taken.append((time.perf_counter() - began) * 1000)
        assert status == 200, body
        assert orjson.loads(body)["response"]["allowed"], body
    return [
        Figure(f"{webhook.short}: median", median(taken), " ms"),
        Figure(f"{webhook.short}: 99 % within", quantiles(taken, n=100)[-1], " ms", at_most=LONGEST),
    ]


@asynccontextmanager
async def served(nodes: list[dict[str, Any]], budgets: list[dict[str, Any]]) -> AsyncIterator[Connection]:
    """The webhooks, and a connection to them."""
    known, counted = Cache("nodes"), Cache("node-budgets")  # type: ignore[var-annotated]
    client = KubeClient(InstantServer(budgets), clock)
    gate = Admitter(client, known, counted, clock, rng=random.Random(1))
    counted.replace(decode_node_budget(orjson.dumps(budget)) for budget in budgets)
    known.replace(decode_node(orjson.dumps(node)) for node in nodes)
    handlers: dict[Webhook, Handler] = {
        NODE_CREATE_WEBHOOK: NodeFinalizerInjector(ManagedNodes(LabelSelector())),
        NODE_DELETE_WEBHOOK: NodeDeletionValidator(gate, lambda: True),
        NODE_BUDGET_WEBHOOK: NodeBudgetValidator(known),
        NODE_CLAIM_WEBHOOK: NodeClaimValidator(),
    }
    reception = WebhookServer(handlers, clock, 10.0)
    servers = Servers(
        [Endpoint("benchmark", "127.0.0.1:0", reception.http_handlers, method="POST", limits=LIMITS)], clock
    )
    urls = await servers.open()
    async with anyio.create_task_group() as group:
        group.start_soon(servers.run)
        async with connected(urls[NODE_DELETE_WEBHOOK.path]) as connection:
            yield connection
        group.cancel_scope.cancel()


def review(operation: str, new: Any, old: Any) -> dict[str, Any]:
    """As an API server asks."""
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": "nodes"},
        "name": (new or old)["metadata"]["name"],
        "userInfo": {"username": "admin", "groups": ["system:masters", "system:authenticated"]},
        "object": new,
        "oldObject": old,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def a_node(number: int) -> dict[str, Any]:
    """As large as those of clouds: many images, managed fields, labels and annotations."""
    name = f"node-{number}"
    conditions = [
        {"type": type_, "status": "True" if type_ == "Ready" else "False", "reason": "r" * 20, "message": "m" * 60}
        for type_ in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [
        {"names": [f"registry.example.com/team/image-{each}@sha256:{'0' * 64}", f"image-{each}:v1.2.3"]}
        for each in range(50)
    ]
    fields: dict[str, dict[str, str]] = {f"f:label-{each}.example.com/some-key": {} for each in range(80)}
    labels = {f"label-{each}.example.com/some-key": f"value-{each}" for each in range(20)}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {**labels, "pool": f"pool-{number % POOLS}"},
            "annotations": {f"annotation-{each}.example.com/key": "v" * 40 for each in range(10)},
            "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {"f:labels": fields}}}],
        },
        "spec": {"providerID": f"aws:///zone-a/{name}"},
        "status": {"conditions": conditions, "images": images},
    }


def a_budget(pool: str) -> dict[str, Any]:
    """One that lets all nodes of a pool end, one after the other."""
    share = NODES // POOLS
    return {
        "metadata": {"name": pool, "uid": pool, "resourceVersion": "1", "generation": 1},
        "spec": {"selector": {"matchLabels": {"pool": pool}}, "maxUnavailable": "100%"},
        "status": {
            "observedGeneration": 1,
            "expectedNodes": share,
            "currentAvailable": share,
            "desiredAvailable": 0,
            "disruptionsAllowed": share,
            "disruptedNodes": {},
        },
    }
