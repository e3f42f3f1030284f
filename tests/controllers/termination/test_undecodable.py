"""A pod that cannot be decoded blocks its own node, a budget its namespace: both are reported, nothing else waits."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from kubesim.server.api import JsonObject
from support.stage import NAMESPACE, Stage, a_pod_manifest, staged
from support.stories import START, asked_to_end, delete_at_start, draining, told, until, with_grace_period

from gracectl.app.controller import Controller
from gracectl.inspect.watcher import snapshot
from gracectl.kube.client import KubeClient
from gracectl.kube.transport import Request, Response, Stream
from gracectl.model import names

SPOILT = re.compile(rb'"terminationGracePeriodSeconds":4242\b')
REASON = (
    "cannot decide: unknown pod, its object cannot be decoded (Expected `int | null`, got `str` - at "
    "`$.spec.terminationGracePeriodSeconds`)"
)
# Nested beyond what Python's recursion allows, as the server would pass it on.
DEEP = b'"managedFields":[{"fieldsV1":' + b'{"f:a":' * 9_990 + b"1" + b"}" * 9_990 + b'}],"name":"deep'


class SpoilingStream:
    """A watch in whose lines such objects cannot be decoded."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.status, self.headers, self.read = stream.status, stream.headers, stream.read

    async def lines(self) -> AsyncGenerator[bytes, None]:
        async for line in self._stream.lines():
            yield spoilt(line)


def spoilt(body: bytes) -> bytes:
    return SPOILT.sub(b'"terminationGracePeriodSeconds":"4242"', body).replace(b'"name":"deep', DEEP)


def spoil(stage: Stage) -> None:
    """From now on a pod with a grace of 4242 s cannot be decoded, and one called deep-… is nested deeply."""
    send, stream = stage.transport.send, stage.transport.stream

    async def spoiling_send(request: Request) -> Response:
        response = await send(request)
        return msgspec.structs.replace(response, body=spoilt(response.body))

    @asynccontextmanager
    async def spoiling_stream(request: Request) -> AsyncIterator[Stream]:
        async with stream(request) as opened:
            yield SpoilingStream(opened)

    stage.transport.send = spoiling_send  # type: ignore[method-assign]
    stage.transport.stream = spoiling_stream  # type: ignore[method-assign]


def bad(name: str = "bad", **more: str) -> JsonObject:
    return a_pod_manifest(name, "n1", terminationGracePeriodSeconds=4242, **more)


def undecodable(controller: Controller) -> dict[str, int]:
    return {cache.name: cache.undecodable for cache in controller.statistics().caches}


@pytest.mark.parametrize("is_there_at_start", [True, False])
async def test_its_node_waits_for_it_and_nothing_else_does(is_there_at_start: bool) -> None:
    async with staged("n1", "n2") as stage:
        spoil(stage)
        pods = [a_pod_manifest("deep-1", "n1"), a_pod_manifest("deep-2", "n2")]
        await stage.create(*pods, *([bad()] if is_there_at_start else []))
        async with stage.settled() as controller:
            if not is_there_at_start:
                await stage.create(bad())
            await delete_at_start(stage, "n1", "n2")
            await until(stage, 600.0)
            assert stage.node("n2") is None
            assert [pod["metadata"]["name"] for pod in stage.pods_on("n1")] == ["bad"]
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            assert (condition["status"], condition["message"]) == ("False", f"1 pod left: shop/bad ({REASON})")
            (blocked,) = await told(stage, "n1", "DrainBlocked")
            assert REASON in blocked
            (message,) = await told(stage, "bad", "Undecodable")
            assert message.startswith("cannot be decoded: Expected `int | null`, got `str` - at `$.spec.termination")
            assert undecodable(controller)["pods"] == 1
            assert sorted(stage.agreed().values()) == [1, 1]
            await stage.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/bad", {"gracePeriodSeconds": 1})
            assert await stage.until_gone("n1") < START + 610
            assert undecodable(controller)["pods"] == 0


async def test_at_the_deadline_the_instance_is_terminated_as_ever() -> None:
    async with staged("n1", settings=with_grace_period("15m")) as stage:
        spoil(stage)
        await stage.create(bad())
        async with draining(stage, "n1"):
            await until(stage, 899.0)
            assert asked_to_end(stage) == []
            assert await stage.until_gone("n1") == START + 900
            assert asked_to_end(stage) == [900.0]


async def test_a_single_look_shows_that_it_is_there_and_that_nothing_is_known(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1") as stage:
        spoil(stage)
        await stage.create(bad(), a_pod_manifest("deep-1", "n1"))
        cluster = await snapshot(KubeClient(stage.transport, stage.clock), lambda node: True)
        assert [(found.key, found.node_name) for found in cluster.pods.undecodable] == [(("shop", "bad"), "n1")]
        assert len(cluster.pods_on("n1")) == 2
        assert "pods shop/bad: cannot be decoded, and is set aside" in caplog.text


LARGE = re.compile(rb'"matchLabels":\{"large":"true"\}')
VALUES = b",".join(b'"%06d"' % number for number in range(140_000))


def a_large_budget(namespace: str = NAMESPACE) -> JsonObject:
    """A budget that selects no pod; in what the controller receives its selector has 1.2 MB."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "large", "namespace": namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"large": "true"}}},
    }


def a_budget_over_web() -> JsonObject:
    """A budget that lets its pod go."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "also", "namespace": NAMESPACE},
        "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }


@pytest.mark.parametrize("is_there_at_start", [True, False])
async def test_a_budget_that_is_too_large_blocks_its_namespace_and_says_so(is_there_at_start: bool) -> None:
    async with staged("n1") as stage:
        enlarge(stage)
        await stage.create(a_pod_manifest("web", "n1"), a_budget_over_web())
        if is_there_at_start:
            await stage.create(a_large_budget())
        async with stage.settled() as controller:
            if not is_there_at_start:
                await stage.create(a_large_budget())
            await delete_at_start(stage, "n1")
            await until(stage, 600.0)
            assert [pod["metadata"]["name"] for pod in stage.pods_on("n1")] == ["web"]
            condition = stage.condition("n1", names.DRAINED)
            assert condition is not None
            reason = "budget shop/large may select it, and is set aside: its selector has "
            assert f"1 pod left: shop/web ({reason}" in condition["message"]
            [message] = await told(stage, "large", "Undecodable")
            assert "its selector has " in message
            assert "it blocks every pod of its namespace" in message
            assert undecodable(controller)["budgets"] == 1
            assert await told(stage, "web", "MultipleBudgets") == []
            assert stage.agreed() == {}
            await stage.call("DELETE", f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/large")
            assert await stage.until_gone("n1") >= START + 600
            assert undecodable(controller)["budgets"] == 0


async def test_a_budget_that_is_too_large_blocks_no_other_namespace() -> None:
    async with staged("n1") as stage:
        enlarge(stage)
        await stage.create(a_pod_manifest("web", "n1"), a_large_budget("elsewhere"))
        async with draining(stage, "n1"):
            assert await stage.until_gone("n1") < START + 60


def enlarge(stage: Stage) -> None:
    """From now on budgets over `large: true` arrive with a large selector."""
    send, stream = stage.transport.send, stage.transport.stream
    expression = b'"matchExpressions":[{"key":"a","operator":"In","values":[' + VALUES + b"]}]"

    class Enlarged(SpoilingStream):
        async def lines(self) -> AsyncGenerator[bytes, None]:
            async for line in self._stream.lines():
                yield LARGE.sub(expression, line)

    async def enlarged_send(request: Request) -> Response:
        response = await send(request)
        return msgspec.structs.replace(response, body=LARGE.sub(expression, response.body))

    @asynccontextmanager
    async def enlarged_stream(request: Request) -> AsyncIterator[Stream]:
        async with stream(request) as opened:
            yield Enlarged(opened)

    stage.transport.send = enlarged_send  # type: ignore[method-assign]
    stage.transport.stream = enlarged_stream  # type: ignore[method-assign]
