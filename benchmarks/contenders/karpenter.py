"""Karpenter itself, with its kwok provider, in a process of its own: it drains the nodes that are deleted.

The nodes are made here, and given to it as its own: each gets what a launch by Karpenter would have left, a NodeClaim
that is registered, a provider ID, the label of its node class and the finalizer. There is no NodePool: it launches
nothing, and disrupts nothing by itself.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import yaml

from benchmarks.contenders.contender import Entry, Usage
from benchmarks.ground.ground import KarpenterFiles
from benchmarks.ground.nodes import delete, together
from benchmarks.ground.process import cpu_seconds, free_port, last_words, metrics_at, peak_memory, started
from benchmarks.ground.site import Site
from benchmarks.ground.waiting import Stalled, Waiting
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import AlreadyExists, NotFound
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES, Resource, verbatim
from gracectl.model.times import format_time, parse_time

FINALIZER = "karpenter.sh/termination"
DEADLINE = "karpenter.sh/nodeclaim-termination-timestamp"
NODE_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
CONDITIONS = ("Launched", "Registered", "Initialized", "Ready")

DEFINITIONS: Resource[bytes] = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", verbatim, namespaced=False
)
CLAIMS: Resource[bytes] = Resource("karpenter.sh", "v1", "nodeclaims", "NodeClaim", verbatim, namespaced=False)


class Karpenter:
    """`grace`: seconds after the deletion of a node at which nothing may keep it."""

    def __init__(self, files: KarpenterFiles, grace: float | None = None) -> None:
        self.name = "Karpenter (kwok provider)"
        self._program = files.program
        self._definitions = definitions_in(files.definitions)
        self._grace = grace

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender: it is ready when it has put its finalizer on every NodeClaim."""
        async with self._defined(site), self._owned(site, old), self._running(site, old) as (pid, url):
            before, cpu = await _counted(url), cpu_seconds(pid)

            async def go() -> None:
                await delete(site.client, old)

            async def usage() -> Usage:
                now = await _counted(url)
                requests, codes = (Counter(after) - Counter(then) for after, then in zip(now, before, strict=True))
                return Usage(
                    requests=dict(requests),
                    refused=codes["429"],
                    failed=sum(n for code, n in codes.items() if code >= "400" and code not in ("404", "429")),
                    cpu=cpu_seconds(pid) - cpu,
                    memory=peak_memory(pid),
                )

            yield Entry(go, usage, goes_on=True)

    async def deadline(self, site: Site, node: str) -> float:
        """What it has written on the NodeClaim of a deleted node."""
        waiting = Waiting(f"{node}: waiting for the deadline of its NodeClaim", lambda: "none", clock=site.clock)
        while True:
            found: bytes = await site.client.get(CLAIMS, ("", node))
            if at := msgspec.json.decode(found)["metadata"].get("annotations", {}).get(DEADLINE):
                return parse_time(at)
            if waiting.has_stalled:
                raise waiting.stalled(f"no annotation {DEADLINE}")
            await site.clock.sleep(0.1)

    @asynccontextmanager
    async def _defined(self, site: Site) -> AsyncIterator[None]:
        """Its definitions while the block runs; those that the cluster has already stay, as they are."""
        ours = []
        try:
            for definition in self._definitions:
                with suppress(AlreadyExists):
                    await site.client.create(DEFINITIONS, "", definition)
                    ours.append(definition["metadata"]["name"])
            waiting = Waiting(f"{site.name}: waiting for NodeClaims to be served", lambda: "not yet", clock=site.clock)
            while not await site.client.serves(CLAIMS):
                if waiting.has_stalled:
                    raise waiting.stalled("is there a definition of them in the folder of --karpenter-crds?")
                await site.clock.sleep(0.2)
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for name in ours:
                    await _removed(site.client, DEFINITIONS, name)

    @asynccontextmanager
    async def _owned(self, site: Site, nodes: Sequence[str]) -> AsyncIterator[None]:
        """The nodes as Karpenter's own while the block runs."""
        try:
            await together([partial(self._own, site, name) for name in nodes])
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await together([partial(_removed, site.client, CLAIMS, name) for name in nodes])

    async def _own(self, site: Site, name: str) -> None:
        await site.client.create(CLAIMS, "", claim_of(name, self._grace))
        status = MergePatch({"status": launched(name, site.clock.now())})
        await site.client.patch(CLAIMS, ("", name), status, subresource="status")
        label = f"{NODE_CLASS['group']}/{NODE_CLASS['kind'].lower()}"
        node = {
            "metadata": {"labels": {label: NODE_CLASS["name"]}, "finalizers": [FINALIZER]},
            "spec": {"providerID": provider_id(name)},
        }
        await site.client.patch(NODES, ("", name), MergePatch(node))

    @asynccontextmanager
    async def _running(self, site: Site, nodes: Sequence[str]) -> AsyncIterator[tuple[int, str]]:
        """Its process id and the address of its metrics, once it has taken the nodes over."""
        port, log = free_port(), site.ground.folder / f"karpenter-{site.name}.log"
        options = ("--disable-leader-election=true", f"--metrics-port={port}", f"--health-probe-port={free_port()}")
        environment = {**os.environ, "KUBECONFIG": str(site.way.kubeconfig), "SYSTEM_NAMESPACE": site.name}
        async with started((str(self._program), *options), environment, log) as process:
            taken = 0
            waiting = Waiting(
                f"{site.name}: waiting for Karpenter", lambda: f"{taken} of {len(nodes)} NodeClaims", clock=site.clock
            )
            for name in nodes:
                while FINALIZER.encode() not in await site.client.get(CLAIMS, ("", name)):
                    if process.returncode is not None:
                        raise Stalled(f"{self._program}: it has ended; it said: {last_words(log)}")
                    if waiting.has_stalled:
                        raise waiting.stalled(f"it said: {last_words(log)}")
                    await site.clock.sleep(0.2)
                taken += 1
                waiting.moved()
            url = f"http://127.0.0.1:{port}/metrics"
            build = (await metrics_at(url)).get("karpenter_build_info", [])
            self.name = " ".join(["Karpenter", *(labels["version"] for labels, _ in build), "(kwok provider)"])
            yield process.pid, url


def definitions_in(folders: Sequence[Path]) -> list[Mapping[str, Any]]:
    """The definitions of custom resources in these folders."""
    files = [file for folder in folders for file in sorted(folder.glob("*.yaml"))]
    found = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return [each for each in found if each and each.get("kind") == "CustomResourceDefinition"]


def claim_of(name: str, grace: float | None) -> dict[str, Any]:
    """A NodeClaim as Karpenter makes it; `grace`: its terminationGracePeriod in seconds."""
    os_of = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
    spec = {"nodeClassRef": NODE_CLASS, "requirements": [os_of], "expireAfter": "Never"}
    until = {} if grace is None else {"terminationGracePeriod": f"{grace:g}s"}
    return {"metadata": {"name": name}, "spec": {**spec, **until}}


def launched(name: str, now: float) -> dict[str, Any]:
    """The status of a NodeClaim whose node is there, and takes pods."""
    since = {"status": "True", "lastTransitionTime": format_time(now), "message": "", "observedGeneration": 1}
    conditions = [{"type": kind, "reason": kind, **since} for kind in CONDITIONS]
    return {"nodeName": name, "providerID": provider_id(name), "conditions": conditions}


def provider_id(name: str) -> str:
    """Of the instance of a node, which has its name."""
    return f"kwok://{name}"


async def _removed(client: KubeClient, resource: Resource[bytes], name: str) -> None:
    """Remove an object and wait until it is gone; no finalizer holds it."""
    with suppress(NotFound):
        await client.delete(resource, ("", name))
        if resource is CLAIMS:
            await client.patch(resource, ("", name), MergePatch({"metadata": {"finalizers": None}}))
        while True:
            await client.get(resource, ("", name))
            await anyio.sleep(0.1)


async def _counted(url: str) -> tuple[Counter[str], Counter[str]]:
    """Its requests so far: by verb and resource, and by HTTP status."""
    metrics = await metrics_at(url)
    requests, codes = Counter[str](), Counter[str]()
    for labels, value in metrics.get("client_go_request_duration_seconds_count", ()):
        parts = filter(None, (labels["kind"], labels["subresource"]))
        requests[f"{labels['verb'].lower()} {'/'.join(parts)}"] += int(value)
    for labels, value in metrics.get("client_go_request_total", ()):
        codes[labels["code"]] += int(value)
    return requests, codes
