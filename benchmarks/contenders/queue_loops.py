"""A model of the queue processor of aws-node-termination-handler.

One loop of 2 s asks the queue, one of 1 s begins what was heard, and ten workers cordon and evict.

    python -m benchmarks.contenders.queue_loops KUBECONFIG NAMESPACE QUEUE NODE...

It is a model, not the program, which reads its cluster only from inside a pod (`rest.InClusterConfig`). Modelled is
when it asks and begins; it knows the node of a notice, which the program asks of EC2, and evicts each pod once. Source:
its `cmd/node-termination-handler.go` and `pkg/monitor/sqsevent/sqs-monitor.go` of July 2026.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from benchmarks.contenders.driven import Driver
from benchmarks.ground.queue import client
from gracectl.kube.auth import lookup
from gracectl.kube.http import HttpTransport
from gracectl.kube.requests import MergePatch, Preconditions, patch_request
from gracectl.kube.resources import NODES
from gracectl.runtime.clock import SystemClock

MONITOR_SECONDS, BEGIN_SECONDS = 2.0, 1.0
WORKERS = 10
LONG_POLL_SECONDS = 20


async def _monitor(queue: str, heard: list[str]) -> None:
    sqs = client(queue)
    receive = partial(sqs.receive_message, QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=LONG_POLL_SECONDS)
    while True:
        await anyio.sleep(MONITOR_SECONDS)
        found = await anyio.to_thread.run_sync(receive, abandon_on_cancel=True)
        for message in found.get("Messages", ()):
            body = msgspec.json.decode(message["Body"])
            heard.append(body["resources"][0])
            delete = partial(sqs.delete_message, QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            await anyio.to_thread.run_sync(delete)


async def _begin(driver: Driver, heard: list[str]) -> None:
    workers = anyio.CapacityLimiter(WORKERS)

    async def work(node: str) -> None:
        async with workers:
            cordon = MergePatch({"spec": {"unschedulable": True}})
            await driver.send(patch_request(NODES, ("", node), cordon, preconditions=Preconditions()))
            for pod in await driver.pods():
                if pod.node_name == node:
                    await driver.evict(pod)

    async with anyio.create_task_group() as group:
        while True:
            await anyio.sleep(BEGIN_SECONDS)
            while heard:
                group.start_soon(work, heard.pop(0))


async def _run(kubeconfig: Path, namespace: str, queue: str, nodes: frozenset[str]) -> None:
    clock = SystemClock()
    heard: list[str] = []
    async with HttpTransport(await lookup.load(str(kubeconfig), clock=clock), clock) as transport:
        driver = Driver(transport, namespace, nodes)
        async with anyio.create_task_group() as group:
            group.start_soon(_monitor, queue, heard)
            group.start_soon(_begin, driver, heard)
            print("ready", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.read)
            group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(_run, Path(sys.argv[1]), sys.argv[2], sys.argv[3], frozenset(sys.argv[4:]))
