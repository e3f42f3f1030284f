"""How soon a notice is acted on: from its message in a queue of SQS (moto's server) to cordon and first eviction.

One spot notice at a time, at instants that no loop keeps. Next to gracectl runs a labeled model of the queue processor
of aws-node-termination-handler.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from statistics import quantiles
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from benchmarks.contenders.gracectl import running, settings_of
from benchmarks.ground.ground import Ground, Pace, service
from benchmarks.ground.nodes import until_held
from benchmarks.ground.queue import ACCOUNT, CREDENTIALS, REGION, client
from benchmarks.ground.site import NEW, OLD, App, Site, site
from benchmarks.ground.waiting import Stalled
from benchmarks.report import Figure, Outcome
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.times import format_time

NODES_OF_A_ROUND = 60
PAUSE = (0.2, 1.2)
"""Seconds between two notices, at least and at most: longer than what is measured, and no multiple of any loop."""
PATIENCE = 60.0
MOST = 0.25
"""Seconds, of the design."""


class Latencies(msgspec.Struct):
    """Seconds from each message to the cordon, and to the first eviction, as a watch shows them."""

    cordons: list[float]
    evictions: list[float]

    def figures(self, name: str, at_most: float | None = None) -> tuple[Figure, ...]:
        """Medians and the 99th percentile."""
        found = (("cordon", self.cordons), ("first eviction", self.evictions))
        named = [(f"{name}: to the {what}", each) for what, each in found]
        medians = (Figure(f"{label}, median", _share(each, 50), " s") for label, each in named)
        tails = (Figure(f"{label}, p99", _share(each, 99), " s", at_most) for label, each in named)
        return (*medians, *tails)


class _Seen:
    """The instant at which a watch showed what one node was waited for."""

    def __init__(self, one: Site, node: str) -> None:
        self._one, self._node, self.event, self.at = one, node, anyio.Event(), 0.0

    def node(self, _: Node | None, new: Node | None) -> None:
        """Take a version of a node: it is cordoned."""
        if new is not None and new.name == self._node and new.unschedulable:
            self._set()

    def pod(self, _: Pod | None, new: Pod | None) -> None:
        """Take a version of a pod: it is being deleted."""
        if new is not None and new.node_name == self._node and new.deletion_timestamp is not None:
            self._set()

    def _set(self) -> None:
        if not self.event.is_set():
            self.at = self._one.clock.monotonic()
            self.event.set()


async def run(ground: Ground) -> Outcome:
    """gracectl, then the model."""
    ours = await _round(ground, "interruption-gracectl", _gracectl)
    model = await _round(ground, "interruption-model", _model)
    return Outcome(
        scenario="interruption",
        about=f"{NODES_OF_A_ROUND} spot notices, one after the other, in a queue of SQS on moto's server",
        figures=(*ours.figures("gracectl", MOST), *model.figures("model of NTH")),
        parameters={"notices": NODES_OF_A_ROUND, "pause": f"{PAUSE[0]:g} to {PAUSE[1]:g} s", "pods of a node": 1},
        notes=(
            "The model has the loops of aws-node-termination-handler (2 s, 1 s), which only runs inside a cluster.",
        ),
    )


def _share(found: list[float], percent: int) -> float:
    return quantiles(found, n=100, method="inclusive")[percent - 1]


async def _round(ground: Ground, name: str, contender: Callable[..., Any]) -> Latencies:
    async with service("benchmarks.ground.queue") as queue, site(ground, name) as one:
        old = await one.add_nodes(OLD, NODES_OF_A_ROUND, pods=3)
        await one.deploy(App("free", NODES_OF_A_ROUND), pace=Pace(stop=0.1))
        await one.add_nodes(NEW, NODES_OF_A_ROUND // 20, pods=100)
        for number, node in enumerate(old):
            await one.client.patch(NODES, ("", node), MergePatch({"spec": {"providerID": _provider_id(number)}}))
        async with contender(one, old, queue.said):
            return await _measured(one, old, queue.said)


async def _measured(one: Site, old: tuple[str, ...], queue: str) -> Latencies:
    nodes: Cache[Node] = Cache("nodes")
    chance, found = random.Random(1), Latencies([], [])
    sqs = client(queue)
    async with anyio.create_task_group() as group:
        group.start_soon(Reflector(one.client, NODES, nodes, one.clock).run)
        await nodes.wait_live()
        for number, name in enumerate(old):
            await one.clock.sleep(chance.uniform(*PAUSE))
            cordon, eviction = _Seen(one, name), _Seen(one, name)
            has_pods = any(pod.node_name == name for pod in one.pods.values())
            with nodes.scoped_subscriptions(), one.pods.scoped_subscriptions():
                nodes.subscribe(cordon.node)
                one.pods.subscribe(eviction.pod)
                sent = one.clock.monotonic()
                await anyio.to_thread.run_sync(partial(_send, sqs, queue, number, name, one.clock.now()))
                with anyio.move_on_after(PATIENCE) as scope:
                    await cordon.event.wait()
                    if has_pods:
                        await eviction.event.wait()
                if scope.cancelled_caught:
                    raise Stalled(f"{one.name}: node {name}: nothing followed its notice within {PATIENCE:g} s")
            found.cordons.append(cordon.at - sent)
            if has_pods:
                found.evictions.append(eviction.at - sent)
        group.cancel_scope.cancel()
    return found


def _send(sqs: Any, queue: str, number: int, node: str, now: float) -> None:
    body = {
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "source": "aws.ec2",
        "account": ACCOUNT,
        "region": REGION,
        "time": format_time(now),
        "resources": [node],
        "detail": {"instance-id": _provider_id(number).rpartition("/")[2], "instance-action": "terminate"},
    }
    sqs.send_message(QueueUrl=queue, MessageBody=msgspec.json.encode(body).decode())


def _provider_id(number: int) -> str:
    return f"aws:///{REGION}a/i-{number:017x}"


@asynccontextmanager
async def _gracectl(one: Site, old: tuple[str, ...], queue: str) -> AsyncIterator[None]:
    options = {"queueUrl": queue, "region": REGION, "endpointUrl": "/".join(queue.split("/")[:3])}
    settings = {**settings_of(one), "interruption": {"sources": [{"name": "aws", "options": options}]}}
    async with running(one.way.kubeconfig, settings, one.ground.folder, CREDENTIALS) as program:
        await until_held(one.client, old, program.last_words)
        yield


@asynccontextmanager
async def _model(one: Site, old: tuple[str, ...], queue: str) -> AsyncIterator[None]:
    async with service("benchmarks.contenders.queue_loops", str(one.way.kubeconfig), one.name, queue, *old):
        yield
