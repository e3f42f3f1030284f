"""The part of a cluster that a command needs: everything about some nodes, without the pods of all others.

Nodes, claims, budgets and attachments are read whole; pods only of the selected nodes, by a field selector for each,
as long as they are few (`MANY`). Where the nodes are known by name (`names`), nothing is read whole: each node, its
pods, and the budgets of their namespaces, which needs no more rights than kubectl drain. Invariant: of a selected node
either all pods are in the cache or, until they have been listed, none; it is known which.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup

from gracectl.controllers.cluster.cache import BY_NAME, BY_NAMESPACE, BY_NODE, ClusterCache, empty_cluster_cache
from gracectl.controllers.cluster.informers import MANY, Reflectors, new_informers
from gracectl.controllers.cluster.volumes import read_volumes
from gracectl.inspect.unbound import read_unbound
from gracectl.kube.cache import CachePartition
from gracectl.kube.cache.reading import fill, fill_served, is_served, read_served
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden
from gracectl.kube.requests import Selection as Selected
from gracectl.kube.requests import bound_to
from gracectl.kube.resources import NODE_BUDGETS, NODE_POOL_VERSIONS
from gracectl.model.budget import NodeDisruptionBudget, PodDisruptionBudget
from gracectl.model.node import Node
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.evictability import may_stay
from gracectl.policy.volumes import unread_claims
from gracectl.runtime.clock import Clock
from gracectl.runtime.notifier import Wakeup
from gracectl.runtime.supervise import ungrouped

_CONCURRENCY = 10
# A person waits in front of the screen: an unreachable server is retried every few seconds.
_WATCHED = ReflectorSettings(maximum_pause=5.0)

Selection = Callable[[Node], bool]


def no_others(cluster: ClusterCache) -> frozenset[str]:
    """See `snapshot`: no further nodes."""
    return frozenset()


async def snapshot(
    client: KubeClient, selects: Selection, others: Callable[[ClusterCache], Collection[str]] = no_others
) -> ClusterCache:
    """Read the cluster once, with the pods of the selected nodes; all caches are live. Raises ApiError.

    `others`: names of further nodes to select, by the nodes and claims of the cluster. For more than MANY nodes all
    pods are read, page by page, and the others dropped.
    """
    informers = new_informers()
    cluster = empty_cluster_cache()
    await fill(cluster.nodes, client, informers.nodes)
    await fill_served(cluster.claims, client, informers.claims)
    if len(cluster.claims):
        await _look_for_karpenter(client, cluster)
    selected = {*(node.name for node in cluster.nodes.values() if selects(node)), *others(cluster)}

    async def read_budgets() -> None:
        await fill(cluster.budgets, client, informers.budgets)

    async def read_attachments() -> None:
        await fill(cluster.attachments, client, informers.attachments)

    async def read_pods() -> None:
        await fill(cluster.pods, client, informers.pods, keep=lambda pod: pod.node_name in selected)

    async def read_pods_of(node: str) -> None:
        await fill(cluster.pods.partition(BY_NODE, node), client, informers.pods, bound_to(node))

    pods = [read_pods] if len(selected) > MANY else [partial(read_pods_of, node) for node in sorted(selected)]
    await _all_of([read_budgets, read_attachments, *pods])
    cluster.pods.complete()
    await read_volumes(client, cluster, _unread_claims(cluster, selected))
    await read_unbound(client, cluster)
    return cluster


class Reading(msgspec.Struct, frozen=True):
    """Nodes that are read by name, with their pods of these labels ("": all), and the budgets of the pods' namespaces
    if `with_budgets`. No names: the whole cluster is read.
    """

    names: tuple[str, ...] = ()
    pod_labels: str = ""
    with_budgets: bool = True

    def pods_of(self, node: str) -> Selected:
        """Selection of the pods of a node."""
        return msgspec.structs.replace(bound_to(node), labels=self.pod_labels)


WHOLE: Final = Reading()


async def snapshot_of(client: KubeClient, nodes: Iterable[Node], reading: Reading) -> ClusterCache:
    """Read the pods of these nodes, and the budgets of their namespaces; nothing else. Raises ApiError."""
    informers, cluster = new_informers(), empty_cluster_cache()
    cluster.nodes.replace(nodes)
    cluster.claims.complete()
    cluster.attachments.complete()
    await _all_of(
        partial(fill, cluster.pods.partition(BY_NODE, node.name), client, informers.pods, reading.pods_of(node.name))
        for node in cluster.nodes.values()
    )
    cluster.pods.complete()
    await _all_of(
        partial(fill, cluster.budgets.partition(BY_NAMESPACE, each), client, informers.budgets, namespace=each)
        for each in sorted({pod.namespace for pod in cluster.pods.values()} if reading.with_budgets else ())
    )
    cluster.budgets.complete()
    await read_unbound(client, cluster)
    return cluster


async def _look_for_karpenter(client: KubeClient, cluster: ClusterCache) -> None:
    """Note whether Karpenter is installed; while that is unknown, claims may be Karpenter's."""
    with suppress(ApiError):
        cluster.presence.has_karpenter = await is_served(client, NODE_POOL_VERSIONS)


def _unread_claims(cluster: ClusterCache, nodes: Iterable[str]) -> tuple[tuple[Pod, str], ...]:
    """Claims of pods that may stay on these nodes, where volumes are attached."""
    pods = (pod for node in nodes if cluster.attachments_on(node) for pod in cluster.pods_on(node))
    return unread_claims((pod for pod in pods if pod.claims and may_stay(pod)), cluster.volumes)


async def read_node_budgets(client: KubeClient) -> tuple[NodeDisruptionBudget, ...]:
    """All budgets of nodes; none where they may not be listed. Raises ApiError."""
    try:
        return tuple(await read_served(client, (NODE_BUDGETS,)))
    except Forbidden:
        return ()


class ConnectionLoss(msgspec.Struct, frozen=True):
    """The connection is lost because of `error`; the cache is that of `since` (Unix seconds; None: never read).

    `latest`: the instant of the newest part of the cache; None: never read, or a part of it is still current.
    """

    since: float | None
    error: str
    latest: float | None = None


class ClusterWatcher:
    """The cluster as it changes, with the pods of the selected nodes: `run` it once, and read `cluster`.

    `selects` is called whenever a node changes: its pods are watched while it is selected and exists; another node of
    its name is another node. When more than MANY nodes are selected at once, all pods are watched from then on, as the
    controller does: nothing is listed twice. While they are listed, pods in the cache do not change. `with_all_pods`:
    they are from the beginning. `only`: only its nodes, if it names any, however many; claims and attachments are
    not read.
    """

    def __init__(
        self,
        client: KubeClient,
        selects: Selection,
        clock: Clock,
        *,
        with_all_pods: bool = False,
        only: Reading = WHOLE,
        rng: random.Random | None = None,
    ) -> None:
        self.cluster = empty_cluster_cache(by_name=bool(only.names))
        self._only, self._names = only, only.names
        self._selects = selects
        self._with_all_pods = with_all_pods
        self._clock = clock
        self._reflectors = reflectors = Reflectors(client, self.cluster, clock, settings=_WATCHED, rng=rng)
        nodes = self.cluster.nodes
        self._always: tuple[Reflector[Any], ...] = reflectors.whole
        if only.names:
            self._always = tuple(reflectors.of_node(nodes.partition(BY_NAME, name), name) for name in self._names)
        self._budgets: dict[str, Reflector[PodDisruptionBudget]] = {}  # by namespace, with `names`
        self._selected: dict[str, str] = {}  # uid by name
        self._others: frozenset[str] = frozenset()  # names of additionally selected nodes
        self._changed_nodes: dict[str, None] = {}  # names of nodes to be checked again
        self._nodes_changed = Wakeup()
        self._node_pods: dict[str, _PodWatch] = {}  # by name of the node
        self._all_pods: _PodWatch | None = None
        self._changes = self._changes_seen = 0
        self._wakeup = anyio.Event()
        self._client = client
        self._volumes_changed: set[str] = set()  # names of nodes with other attachments, or pods with claims
        self._tried_claims: set[tuple[str, str]] = set()
        self._has_looked = bool(only.names)  # for Karpenter; claims, which it may own, are not read by names
        self._subscribe()

    def compare_clusters(self) -> None:
        """List everything again if a lost connection led to another cluster (see `kube.cache.identity`)."""
        self._reflectors.identity.is_compared = True

    async def run(self) -> None:
        """Follow the cluster until cancelled; broken connections are waited out.

        Raises what only a change of configuration can repair (Forbidden, which names the missing right) until the
        resource concerned has been listed and watched.
        """
        with ungrouped():
            async with anyio.create_task_group() as group:
                for reflector in self._always:
                    group.start_soon(reflector.run)
                if self._names:
                    group.start_soon(self._keep_reading_budgets, group)
                else:
                    group.start_soon(self._read_volumes)
                    group.start_soon(self._look)
                await self._keep_selecting(group)

    async def wait_live(self) -> None:
        """Return when everything has been listed, including the pods of the nodes that are selected by then."""
        for reflector in self._always:
            await reflector.wait_live()
        while not (self._has_looked and self._has_listed_pods and self.cluster.budgets.live):
            await self._wakeup.wait()

    async def _look(self) -> None:
        await _look_for_karpenter(self._client, self.cluster)
        self._has_looked = True
        self._note_progress()

    async def changed(self, seconds: float) -> bool:
        """Whether anything has changed since the last call; waits for a change, at most this number of seconds.

        Relevant are the selected nodes, their pods, and all budgets, claims and attachments.
        """
        with anyio.move_on_after(seconds):
            while self._changes == self._changes_seen:
                await self._wakeup.wait()
        has_changed = self._changes != self._changes_seen
        self._changes_seen = self._changes
        return has_changed

    def select_others(self, names: frozenset[str]) -> None:
        """Also select these nodes, instead of the nodes of the previous call."""
        if changed := names ^ self._others:
            self._others = names
            self._changed_nodes.update(dict.fromkeys(changed))
            self._nodes_changed.set()

    def has_pods_of(self, node: str) -> bool:
        """Whether the pods of a selected node have been listed; before that the cache has none."""
        if node not in self._selected:
            return False
        watch = self._node_pods.get(node)
        return (watch is not None and watch.has_listed) or self._has_listed_pods

    @property
    def has_all_pods(self) -> bool:
        """Whether all pods are watched, on any node or none."""
        return self._all_pods is not None and self._all_pods.has_listed

    def connection_loss(self) -> ConnectionLoss | None:
        """The loss of the connection, or None."""
        watchs = [self._all_pods] if self._all_pods is not None else list(self._node_pods.values())
        reflectors = (*self._always, *self._budgets.values(), *(watch.reflector for watch in watchs))
        statistics = [reflector.statistics() for reflector in reflectors]
        failing = [each for each in statistics if each.failing]
        if not failing:
            return None
        offset = self._clock.now() - self._clock.monotonic()
        current_until = [each.last_line + offset for each in failing if each.last_line is not None]
        is_total = len(failing) == len(statistics)
        return ConnectionLoss(
            since=min(current_until, default=None),
            error=failing[0].last_error,
            latest=max(current_until, default=None) if is_total else None,
        )

    # -- watches of pods -----------------------------------------------------------------------------------------------

    @property
    def _has_listed_pods(self) -> bool:
        """Whether the pods of all selected nodes have been listed."""
        if self._changed_nodes or not self.cluster.nodes.live:
            return False
        if self._all_pods is not None:
            return self._all_pods.has_listed
        return all(self._node_pods[name].has_listed for name in self._selected)

    async def _keep_selecting(self, group: TaskGroup) -> None:
        if self._names:
            for reflector in self._always:
                await reflector.wait_live()
            for cache in (self.cluster.nodes, self.cluster.claims, self.cluster.attachments):
                cache.complete()
        await self.cluster.nodes.wait_live()
        while True:
            self._select(group)
            await self._nodes_changed.wait()

    def _select(self, group: TaskGroup) -> None:
        for name in self._changed_nodes:
            self._check(name)
        self._changed_nodes = {}
        is_many = len(self._selected) > MANY and not self._names
        if self._all_pods is None and (self._with_all_pods or is_many):
            self._follow_all(group)
        elif self._all_pods is None:
            for name in self._selected:
                if name not in self._node_pods:
                    self._follow(name, group)
        self._note_progress()

    def _check(self, name: str) -> None:
        """Check whether this node is selected now; the watch of one that is not is stopped."""
        node = self.cluster.node(name)
        is_selected = node is not None and (name in self._others or self._selects(node))
        uid = node.uid if node is not None and is_selected else ""
        before = self._selected.pop(name, "")
        if uid:
            self._selected[name] = uid
        if uid != before and (watch := self._node_pods.pop(name, None)):
            watch.end()
        if uid or before:
            self._changes += 1

    def _follow(self, name: str, group: TaskGroup) -> None:
        part = self.cluster.pods.partition(BY_NODE, name)
        # With the right to the pods of one node, a refusal for another is transient.
        proven = any(watch.has_listed for watch in self._node_pods.values())
        # With the server's cache, which has an index of nodes: etcd would read all pods for each node.
        selection, is_cached = self._only.pods_of(name), bool(self._names)
        watch = _PodWatch(self._reflectors.of_pods(part, selection, proven=proven, cached=is_cached), part)
        self._node_pods[name] = watch
        group.start_soon(watch.run, self._listed)

    def _follow_all(self, group: TaskGroup) -> None:
        for watch in self._node_pods.values():
            watch.stop()
        self._all_pods = _PodWatch(self._reflectors.of_pods(self.cluster.pods))
        group.start_soon(self._all_pods.run, self._listed)

    async def _keep_reading_budgets(self, group: TaskGroup) -> None:
        """Follow the budgets of each namespace that pods in the cache are in; complete once all of these are listed."""
        while True:
            wakeup = self._wakeup
            if self._has_listed_pods:
                found = {pod.namespace for pod in self.cluster.pods.values()} if self._only.with_budgets else set()
                new = sorted(found - self._budgets.keys())
                for each in new:
                    self._budgets[each] = self._reflectors.of_budgets(
                        self.cluster.budgets.partition(BY_NAMESPACE, each), each
                    )
                    group.start_soon(self._budgets[each].run)
                for each in new:
                    await self._budgets[each].wait_live()
                if not self.cluster.budgets.live:
                    self.cluster.budgets.complete()
                    self._notify()
                    continue
            await wakeup.wait()

    def _listed(self) -> None:
        if self._all_pods is not None and self._all_pods.has_listed:
            self._node_pods.clear()
        self._notify()

    # -- changes -------------------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        cluster = self.cluster
        cluster.nodes.subscribe(self._node_changed)
        cluster.pods.subscribe(self._pod_changed)
        cluster.budgets.subscribe(self._any_changed)
        cluster.attachments.subscribe(self._attachment_changed)
        cluster.claims.subscribe(self._any_changed)

    async def _read_volumes(self) -> None:
        """Read claims of pods that may stay, once each."""
        while True:
            wakeup, nodes = self._wakeup, self._volumes_changed & self._selected.keys()
            self._volumes_changed -= nodes
            found = _unread_claims(self.cluster, nodes)
            claims = [each for each in found if (each[0].uid, each[1]) not in self._tried_claims]
            if not claims:
                await wakeup.wait()
                continue
            self._tried_claims.update((pod.uid, claim) for pod, claim in claims)
            await read_volumes(self._client, self.cluster, claims)
            self._notify()

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        if node is not None:
            self._changed_nodes[node.name] = None
            self._nodes_changed.set()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and pod.claims:
            self._volumes_changed.add(pod.node_name)
        if pod is not None and (self._with_all_pods or pod.node_name in self._selected):
            self._notify()

    def _attachment_changed(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        self._volumes_changed.update(each.node_name for each in (old, new) if each is not None)
        self._notify()

    def _any_changed(self, old: object, new: object) -> None:
        self._notify()

    def _notify(self) -> None:
        self._changes += 1
        self._note_progress()

    def _note_progress(self) -> None:
        if self._has_listed_pods:
            self.cluster.pods.complete()
        self._wakeup.set()
        self._wakeup = anyio.Event()


class _PodWatch:
    """Watch of the pods of one node, into its partition of the cache; without a partition, of all pods."""

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
        """The cache keeps its pods."""
        self._scope.cancel()

    def end(self) -> None:
        """The cache drops its pods."""
        self._scope.cancel()
        if self._part is not None:
            self._part.drop()


async def _all_of(jobs: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run all jobs, some at a time. The first failure cancels the others, and is raised."""
    limit = anyio.CapacityLimiter(_CONCURRENCY)

    async def do(job: Callable[[], Awaitable[None]]) -> None:
        async with limit:
            await job()

    with ungrouped():
        async with anyio.create_task_group() as group:
            for job in jobs:
                group.start_soon(do, job)
