"""A Karpenter next to the controller: the real one with its kwok provider, or a model of it in the tests' own process.

KARPENTER names the binary, KARPENTER_CRDS the folders with the definitions of its resources (see benchmarks). The
stories do not know which one it is: its nodes are made for it, as a launch by Karpenter would have left them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup
from kubesim.clock import SystemClock as KubesimClock
from kubesim.controllers import karpenter as model
from kubesim.controllers.client import ask
from kubesim.controllers.pace import Pace
from kubesim.controllers.paths import DEFINITIONS, path_of
from kubesim.server.api import JsonObject

from benchmarks.contenders.karpenter import claim_of, definitions_in, launched, provider_id
from benchmarks.ground.hollow import connected
from benchmarks.ground.process import free_port, started
from e2e_support.definition import CLAIMS, until_served
from e2e_support.names import LABEL
from e2e_support.story import Story
from e2e_support.target import Target

PROGRAM: Final = "KARPENTER"
FOLDERS: Final = "KARPENTER_CRDS"


def is_real() -> bool:
    """Whether the environment names a Karpenter."""
    return bool(os.environ.get(PROGRAM))


@contextmanager
def karpenters_kinds(target: Target) -> Iterator[None]:
    """While the block lasts, the cluster serves what the real Karpenter needs."""
    folders = [Path(each) for each in os.environ[FOLDERS].split(os.pathsep)]
    definitions = [dict(each) for each in definitions_in(folders)]
    made = anyio.run(_define, target, definitions)
    try:
        yield
    finally:
        anyio.run(_remove, target, made)


async def _define(target: Target, definitions: list[JsonObject]) -> list[str]:
    async with connected(target.kubeconfig) as api:
        statuses = [(await ask(api, "POST", DEFINITIONS, each, allow=(409,)))[0] for each in definitions]
        await until_served(api, CLAIMS)
    made = zip(definitions, statuses, strict=True)
    return [each["metadata"]["name"] for each, status in made if status == 201]


async def _remove(target: Target, names: list[str]) -> None:
    async with connected(target.kubeconfig) as api:
        for name in names:
            await ask(api, "DELETE", path_of(DEFINITIONS, name=name), allow=(404,))


class KarpenterProcess:
    """A Karpenter that can be killed, and started again."""

    def __init__(self, story: Story, group: TaskGroup) -> None:
        self._story = story
        self._group = group
        self._life = AsyncExitStack()
        self._scope = anyio.CancelScope()

    async def start(self) -> None:
        """Begin, or begin again after a kill."""
        if not is_real():
            self._scope = anyio.CancelScope()
            self._group.start_soon(self._model, self._scope)
            return
        folder, story = self._story.folder, self._story
        log = folder / f"karpenter-{len(list(folder.glob('karpenter-*.log')))}.log"
        options = (
            f"--leader-election-namespace={story.namespace}",
            f"--metrics-port={free_port()}",
            f"--health-probe-port={free_port()}",
        )
        environment = {**os.environ, "KUBECONFIG": str(story.target.kubeconfig), "SYSTEM_NAMESPACE": story.namespace}
        self._process = await self._life.enter_async_context(started((os.environ[PROGRAM], *options), environment, log))

    async def _model(self, scope: anyio.CancelScope) -> None:
        with scope:
            karpenter = model.Karpenter(self._story.api, Pace(KubesimClock()), namespace=self._story.namespace)
            await karpenter.run()

    async def kill(self) -> None:
        """By SIGKILL: its Lease has to run out before another one leads."""
        if is_real():
            self._process.kill()
            await self._process.wait()
        self._scope.cancel()

    async def lose_lease(self) -> None:
        """Another client takes its Lease away, and releases it."""
        path = path_of("/apis/coordination.k8s.io/v1/leases", self._story.namespace, model.LEASE)
        taken = {"spec": {"holderIdentity": "another-client", "renewTime": "2099-01-01T00:00:00.000000Z"}}
        for change in (taken, {"spec": {"holderIdentity": ""}}):
            merge = "application/merge-patch+json"
            await ask(self._story.api, "PATCH", path, change, content_type=merge, allow=(404,))
            await anyio.sleep(0.1)

    async def end(self) -> None:
        """End it, if it still runs."""
        self._scope.cancel()
        await self._life.aclose()


@asynccontextmanager
async def a_karpenter(story: Story) -> AsyncIterator[KarpenterProcess]:
    """A Karpenter that runs while the block lasts."""
    async with anyio.create_task_group() as group:
        one = KarpenterProcess(story, group)
        await one.start()
        try:
            yield one
        finally:
            with anyio.CancelScope(shield=True):
                await one.end()
            group.cancel_scope.cancel()


async def pooled(story: Story, *suffixes: str, grace: float | None = None) -> list[str]:
    """Nodes that Karpenter manages, Ready and held by it. `grace`: terminationGracePeriod of their claims (seconds)."""
    names = await story.nodes(*suffixes, managed=False)
    # Before their claims: Karpenter collects claims without an instance as garbage.
    for name in names:
        # The controller's selector matches it, and it is left alone all the same.
        labels = {model.CLASS_LABEL: "default", f"{LABEL}-managed": "true"}
        metadata = {"labels": labels, "finalizers": [model.FINALIZER]}
        await story.patch("Node", name, {"metadata": metadata, "spec": {"providerID": provider_id(name)}})
    for name in names:
        manifest = claim_of(name, grace)
        manifest["metadata"]["labels"] = {LABEL: story.run, f"{LABEL}-managed": "true"}
        story.adopt_claim(name)
        await story.create({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", **manifest})
        await story.patch("NodeClaim", name, {"status": launched(name, story.clock.now())}, status=True)
    await story.sight.until(f"Karpenter holds {names}", lambda: all(story.is_held(name, "NodeClaim") for name in names))
    return names


def writers(story: Story, *kinds: str) -> set[str]:
    """The field managers of all states of these kinds that were seen."""
    states = (seen.object["metadata"] for seen in story.sight.journal if seen.kind in kinds)
    return _managers(states)


def writers_of(story: Story, *nodes: str) -> set[str]:
    """The field managers of all states of these nodes, and of their claims, that have the same names."""
    seen = (each for each in story.sight.journal if each.kind in ("Node", "NodeClaim"))
    return _managers(each.object["metadata"] for each in seen if each.object["metadata"]["name"] in nodes)


def _managers(states: Iterable[JsonObject]) -> set[str]:
    return {entry["manager"] for metadata in states for entry in metadata.get("managedFields", ())}
