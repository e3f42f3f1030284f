"""Models and yardsticks, each in a process of its own: ready first, then told to go, then asked what it has done.

    python -m benchmarks.contenders.polling KUBECONFIG NAMESPACE NODE…

prints `ready` once it knows the pods; at the first line of its standard input it goes, and prints its Usage when its
work is done; it ends with its standard input.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from benchmarks.contenders.contender import Entry, Tally, Usage
from benchmarks.ground.ground import service
from benchmarks.ground.process import cpu_seconds, peak_memory
from benchmarks.ground.site import Site
from gracectl.kube.auth import lookup
from gracectl.kube.http import HttpTransport
from gracectl.kube.requests import MergePatch, Preconditions, evict_request, list_request, patch_request
from gracectl.kube.resources import NODES, PODS
from gracectl.kube.transport import Request, Response
from gracectl.model.envelope import decode_page
from gracectl.model.pod import Pod
from gracectl.runtime.clock import SystemClock


class Driver:
    """What a model may use: requests, each sent once and counted, and the pods that are to leave."""

    def __init__(self, transport: HttpTransport, namespace: str, nodes: frozenset[str]) -> None:
        self._transport = transport
        self.namespace = namespace
        self.nodes = nodes
        self.tally = Tally()
        self.clock = SystemClock()

    async def send(self, request: Request) -> Response:
        """Its answer, whatever it is."""
        answer = await self._transport.send(request)
        query = "&".join(f"{name}={value}" for name, value in request.query)
        self.tally.add(request.method, f"{request.path}?{query}", answer.status)
        return answer

    async def evict(self, pod: Pod) -> int:
        """Ask once; the HTTP status."""
        return (await self.send(evict_request(pod.key, pod.uid))).status

    async def cordon(self) -> None:
        """All nodes, one after another."""
        cordon = MergePatch({"spec": {"unschedulable": True}})
        for node in sorted(self.nodes):
            await self.send(patch_request(NODES, ("", node), cordon, preconditions=Preconditions()))

    async def pods(self) -> list[Pod]:
        """Those on the nodes, by one list of the namespace."""
        answer = await self.send(list_request(PODS, self.namespace))
        found = (PODS.decode(item) for item in decode_page(answer.body).items)
        return [pod for pod in found if pod.node_name in self.nodes and pod.deletion_timestamp is None]


class Driven:
    """A model as a contender: the module that runs it, and what it is called."""

    def __init__(self, name: str, module: str) -> None:
        self.name = name
        self._module = module

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender."""
        async with service(self._module, str(site.way.kubeconfig), site.name, *old) as process:
            assert process.said == "ready"
            before = cpu_seconds(process.pid)

            async def usage() -> Usage:
                told = msgspec.json.decode(process.said, type=Usage)
                return msgspec.structs.replace(
                    told, cpu=cpu_seconds(process.pid) - before, memory=peak_memory(process.pid)
                )

            yield Entry(process.ask, usage)


def main(drain: Callable[[Driver, list[Pod]], Awaitable[None]]) -> None:
    """The process of a model. `drain` empties the nodes of these pods."""
    anyio.run(_drive, drain, Path(sys.argv[1]), sys.argv[2], frozenset(sys.argv[3:]))


async def _drive(
    drain: Callable[[Driver, list[Pod]], Awaitable[None]], kubeconfig: Path, namespace: str, nodes: frozenset[str]
) -> None:
    clock = SystemClock()
    found = await lookup.load(str(kubeconfig), clock=clock)
    async with HttpTransport(found, clock) as transport:
        driver = Driver(transport, namespace, nodes)
        pods = await driver.pods()
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        await driver.cordon()
        await drain(driver, pods)
        print(msgspec.json.encode(driver.tally.usage(None, None)).decode(), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
