"""Clusters for tests: in this process, or over HTTP in a thread of its own. The pytest fixtures hand these out.

In this process a cluster runs on the time of the caller's event loop, which may be virtual; over HTTP on real time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.from_thread

from kubesim.clock import Clock, LoopClock, SystemClock
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.nodeclaims import NODE_CLAIM
from kubesim.scenarios.library import scenario_named
from kubesim.scenarios.parser import read_file
from kubesim.scenarios.scenario import Scenario
from kubesim.scenarios.simulation import Simulation
from kubesim.server.api import JsonObject
from kubesim.serving import listening

T = TypeVar("T")


@asynccontextmanager
async def running(
    *,
    nodes: int = 1,
    scenario: str | Path | Scenario = "",
    definitions: Sequence[JsonObject] = (NODE_CLAIM,),
    clock: Clock | None = None,
    **options: Any,
) -> AsyncIterator[EmbeddedCluster]:
    """A running cluster with that many nodes (`node-1`, …) or a ready `scenario` (name, file, Scenario). `definitions`:
    served CustomResourceDefinitions. `clock`: default is the event loop's. `options`: fields of ClusterOptions."""
    time = clock or LoopClock()
    async with anyio.create_task_group() as group:
        if scenario:
            simulation = Simulation(time, _read(scenario), definitions=definitions)
            cluster = simulation.cluster
            await group.start(simulation.run)
        else:
            cluster = EmbeddedCluster(time, ClusterOptions(definitions=tuple(definitions), **options))
            await group.start(cluster.run)
            for number in range(nodes):
                await cluster.add_node(NodeSpec(name=f"node-{number + 1}"))
        failure: BaseException | None = None
        try:
            yield cluster
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # raised again outside the task group, which would wrap it
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Event loop on virtual time, which begins at 0 and jumps to the next timer when everything waits. Sockets and
    threads are polled between timers only; code that depends on them needs an ordinary loop."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_VirtualSelector(self._advance))

    def time(self) -> float:
        """The seconds that have passed."""
        return self._now

    def _advance(self, seconds: float) -> None:
        self._now += seconds


class _VirtualSelector(selectors.DefaultSelector):
    """Instead of waiting it moves the time."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self._advance(timeout)
        return ready


class HttpCluster:
    """A cluster over HTTP, for any client. It runs in a thread of its own: reach into it by `run` only."""

    def __init__(
        self, cluster: EmbeddedCluster, url: str, kubeconfig: Path, portal: anyio.from_thread.BlockingPortal
    ) -> None:
        self.url = url
        self.kubeconfig = kubeconfig
        self._cluster = cluster
        self._portal = portal

    def run(self, work: Callable[[EmbeddedCluster], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function with the cluster, in its thread: `http.run(EmbeddedCluster.until_ready)`."""
        result: T = self._portal.call(work, self._cluster)
        return result


@contextmanager
def served(folder: Path, **arguments: Any) -> Iterator[HttpCluster]:
    """A cluster over HTTP while the block runs; its kubeconfig is written into `folder`. `arguments`: see `running`."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[tuple[EmbeddedCluster, str]]:
        async with (
            running(clock=SystemClock(), **arguments) as cluster,
            listening(cluster, folder / "kubeconfig") as url,
        ):
            yield cluster, url

    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve()) as (cluster, url),
    ):
        yield HttpCluster(cluster, url, folder / "kubeconfig", portal)


def _read(scenario: str | Path | Scenario) -> Scenario:
    if isinstance(scenario, Scenario):
        return scenario
    return read_file(scenario) if isinstance(scenario, Path) else scenario_named(scenario)
