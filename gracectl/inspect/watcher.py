"""What a command sees of a cluster: everything about some nodes, without asking for the pods of all the others.

Nodes, claims, budgets and attachments are seen whole; pods only of the nodes that are chosen, by a field selector for
each node, as long as they are few (`MANY`). Invariant: a chosen node has either all of its pods here or, until they
have been listed, none; it is known which.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import anyio
import msgspec
from anyio.abc import TaskGroup

from gracectl.controllers.cluster.cache import BY_NODE, ClusterCache, empty_cluster_cache
from gracectl.controllers.cluster.informers import MANY, Reflectors, new_informers
from gracectl.kube.cache import CachePartition
from gracectl.kube.client import KubeClient
from gracectl.kube.reading import fill, fill_served
from gracectl.kube.reflector import Reflector, ReflectorSettings
from gracectl.kube.requests import bound_to
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import ungrouped

_AT_ONCE = 10
# Somebody looks at the screen while the server is away: it is asked again every few seconds.
_WATCHED = ReflectorSettings(maximum_pause=5.0)

Choice = Callable[[Node], bool]


async def look(client: KubeClient, chooses: Choice) -> ClusterCache:
    """The cluster as it is now, with the pods of the chosen nodes; all caches are live. Raises ApiError.

    Those of more than MANY nodes are found among all pods, which are read page by page; the others are not kept.
    """
    sources = new_informers()
    observed = empty_cluster_cache()
    await fill(observed.nodes, client, sources.nodes)
    chosen = {node.name for node in observed.nodes.values() if chooses(node)}

    async def read_claims() -> None:
        await fill_served(observed.claims, client, sources.claims)

    async def read_budgets() -> None:
        await fill(observed.budgets, client, sources.budgets)

    async def read_attachments() -> None:
        await fill(observed.attachments, client, sources.attachments)

    async def read_pods() -> None:
        await fill(observed.pods, client, sources.pods, keep=lambda pod: pod.node_name in chosen)

    async def read_pods_of(node: str) -> None:
        await fill(observed.pods.partition(BY_NODE, node), client, sources.pods, bound_to(node))

    pods = [read_pods] if len(chosen) > MANY else [partial(read_pods_of, node) for node in sorted(chosen)]
    await _all_of([read_claims, read_budgets, read_attachments, *pods])
    observed.pods.complete()
    return observed


class ConnectionLoss(msgspec.Struct, frozen=True):
    """The connection fails, in the words of `error`; what is seen is as of `since`.

    `since`: Unix seconds of the last sign of life of what has been without one for longest; None: there was none yet.
    """

    since: float | None
    error: str


class ClusterWatcher:
    """The cluster as it changes, with the pods of the chosen nodes. `run` it once, and look at `observed`.

    `chooses` is asked whenever a node changes: its pods are followed from the first yes until a no or its end, and
    another node of its name is another node. When more than MANY nodes are chosen at once all pods of the cluster are
    followed from then on and kept, those of other nodes too, as the controller does: a node that is chosen later has
    its pods at once, and nothing is listed twice. While they are listed, what was seen of pods stands still.
    """

    def __init__(self, client: KubeClient, chooses: Choice, clock: Clock, *, rng: random.Random | None = None) -> None:
        self.observed = empty_cluster_cache()
        self._chooses = chooses
        self._clock = clock
        self._reflectors = Reflectors(client, self.observed, clock, settings=_WATCHED, rng=rng)
        self._chosen: dict[str, str] = {}  # uid by name
        self._touched: dict[str, None] = {}  # names of nodes that have changed and were not looked at since
        self._stirred = anyio.Event()
        self._followers: dict[str, _Follower] = {}  # by name of the node
        self._of_all: _Follower | None = None
        self._changes = self._changes_seen = 0
        self._bell = anyio.Event()
        self._subscribe()

    async def run(self) -> None:
        """Follow the cluster until cancelled; broken connections are waited out.

        Raises what only a change of configuration can mend (Forbidden, which names the missing right) as long as what
        it concerns has not been listed and watched.
        """
        with ungrouped():
            async with anyio.create_task_group() as group:
                for reflector in self._reflectors.whole:
                    group.start_soon(reflector.run)
                await self._keep_choosing(group)

    async def wait_live(self) -> None:
        """Return when all that is seen whole has been listed, and the pods of all nodes that are chosen by then."""
        for reflector in self._reflectors.whole:
            await reflector.wait_live()
        while not self._has_listed_pods:
            await self._bell.wait()

    async def changed(self, seconds: float) -> bool:
        """Whether anything has changed since the last call; waits for it, so many seconds at most.

        What counts is what concerns the chosen nodes: them and their pods; of budgets, claims and attachments all.
        """
        with anyio.move_on_after(seconds):
            while self._changes == self._changes_seen:
                await self._bell.wait()
        has_changed = self._changes != self._changes_seen
        self._changes_seen = self._changes
        return has_changed

    def has_pods_of(self, node: str) -> bool:
        """Whether the pods of a chosen node have been listed; before that none of them is seen."""
        if node not in self._chosen:
            return False
        follower = self._followers.get(node)
        return (follower is not None and follower.has_listed) or self._has_listed_pods

    def interruption(self) -> ConnectionLoss | None:
        """What is amiss with the connection at this moment, or None."""
        followers = [self._of_all] if self._of_all is not None else list(self._followers.values())
        reflectors = (*self._reflectors.whole, *(follower.reflector for follower in followers))
        failing = [each for each in (reflector.statistics() for reflector in reflectors) if each.failing]
        if not failing:
            return None
        now = self._clock.monotonic()
        silent = max((now - each.last_line for each in failing if each.last_line is not None), default=None)
        return ConnectionLoss(None if silent is None else self._clock.now() - silent, failing[0].last_error)

    # -- whose pods are followed ---------------------------------------------------------------------------------------

    @property
    def _has_listed_pods(self) -> bool:
        """Of all nodes that are chosen now."""
        if self._touched or not self._reflectors.nodes.live:
            return False
        if self._of_all is not None:
            return self._of_all.has_listed
        return all(self._followers[name].has_listed for name in self._chosen)

    async def _keep_choosing(self, group: TaskGroup) -> None:
        await self._reflectors.nodes.wait_live()
        while True:
            self._choose(group)
            await self._stirred.wait()
            self._stirred = anyio.Event()

    def _choose(self, group: TaskGroup) -> None:
        for name in self._touched:
            self._look_at(name)
        self._touched = {}
        if self._of_all is None and len(self._chosen) > MANY:
            self._follow_all(group)
        elif self._of_all is None:
            for name in self._chosen:
                if name not in self._followers:
                    self._follow(name, group)
        self._note_progress()

    def _look_at(self, name: str) -> None:
        """See whether this node, as it is now, is chosen; one that is not, or no more, is not followed any more."""
        node = self.observed.node(name)
        uid = node.uid if node is not None and self._chooses(node) else ""
        before = self._chosen.pop(name, "")
        if uid:
            self._chosen[name] = uid
        if uid != before and (follower := self._followers.pop(name, None)):
            follower.end()
        if uid or before:
            self._changes += 1

    def _follow(self, name: str, group: TaskGroup) -> None:
        part = self.observed.pods.partition(BY_NODE, name)
        # Who was let see the pods of one node may see those of another: a refusal will pass.
        proven = any(follower.has_listed for follower in self._followers.values())
        follower = _Follower(self._reflectors.of_pods(part, node=name, proven=proven), part)
        self._followers[name] = follower
        group.start_soon(follower.run, self._listed)

    def _follow_all(self, group: TaskGroup) -> None:
        for follower in self._followers.values():
            follower.stop()
        self._of_all = _Follower(self._reflectors.of_pods(self.observed.pods))
        group.start_soon(self._of_all.run, self._listed)

    def _listed(self) -> None:
        if self._of_all is not None and self._of_all.has_listed:
            self._followers.clear()
        self._ring()

    # -- what has changed ----------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        observed = self.observed
        observed.nodes.subscribe(self._node_changed)
        observed.pods.subscribe(self._pod_changed)
        observed.budgets.subscribe(self._any_changed)
        observed.attachments.subscribe(self._any_changed)
        observed.claims.subscribe(self._any_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None:
            self._touched[node.name] = None
            self._stirred.set()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and pod.node_name in self._chosen:
            self._ring()

    def _any_changed(self, old: object, new: object) -> None:
        self._ring()

    def _ring(self) -> None:
        self._changes += 1
        self._note_progress()

    def _note_progress(self) -> None:
        if self._has_listed_pods:
            self.observed.pods.complete()
        self._bell.set()
        self._bell = anyio.Event()


class _Follower:
    """Keeps the pods of a node in its part of the cache, or without a part all pods in all of it."""

    def __init__(self, reflector: Reflector[Pod], part: CachePartition[Pod] | None = None) -> None:
        self.reflector = reflector
        self.has_listed = False
        self._part = part
        self._scope = anyio.CancelScope()

    async def run(self, listed: Callable[[], None]) -> None:
        with self._scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self.reflector.run)
                await self.reflector.wait_live()
                self.has_listed = True
                listed()

    def stop(self) -> None:
        """What has been seen stands."""
        self._scope.cancel()

    def end(self) -> None:
        """What has been seen is forgotten."""
        self._scope.cancel()
        if self._part is not None:
            self._part.drop()


async def _all_of(jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Do all of them, some at a time. The first failure ends the others, and is raised as it comes."""
    limit = anyio.CapacityLimiter(_AT_ONCE)

    async def do(job: Callable[[], Awaitable[None]]) -> None:
        async with limit:
            await job()

    with ungrouped():
        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(do, job)
