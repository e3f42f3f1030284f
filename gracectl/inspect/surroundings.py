"""Objects around the pods of some nodes, read once for warnings, with the permissions of the user.

Only kinds that a warning is about are read, and of each only what the pods name: volumes by name, workloads and
services of their namespaces. Invariant: what cannot be read costs its warnings and is reported; nothing fails for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final, TypeVar

import anyio
import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.cluster.workloads import PENDING_PODS, PERSISTENT_VOLUMES, REPLICA_SETS, SERVICES
from gracectl.inspect.unbound import MANY_NAMESPACES, UNBOUND
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden, NotFound, NotServed
from gracectl.kube.requests import ALL, Key, Selection
from gracectl.kube.resources import VOLUME_CLAIMS, Resource
from gracectl.model.pod import Pod
from gracectl.model.workloads import (
    NodeRoom,
    PendingPod,
    PersistentVolume,
    Service,
    Workload,
    decode_room,
)
from gracectl.policy.placement import OtherNode
from gracectl.policy.surroundings import Surroundings
from gracectl.runtime.supervise import ungrouped

MANY_CLAIMS: Final = 50
"""More claims than these, and their volumes, are listed, not read by name."""

MANY_NODES: Final = 500
"""Number of nodes above which the free capacity of nodes is not read."""

_CONCURRENCY: Final = 10

STATEFUL_SETS: Resource[Workload] = msgspec.structs.replace(REPLICA_SETS, plural="statefulsets", kind="StatefulSet")
ROOMS = Resource("", "v1", "nodes", "Node", decode_room, namespaced=False)

Place = tuple[str, Selection]
"""What is listed of a namespace; "" is all of them."""

EVERYWHERE: Final = [("", ALL)]

T = TypeVar("T")
P = TypeVar("P")


async def read_surroundings(
    client: KubeClient, cluster: ClusterCache, chosen: Collection[str], *, has_others: bool = True
) -> Surroundings:
    """Read the objects around the pods of the `chosen` nodes. Raises no ApiError.

    `has_others`: the cluster has all other nodes; otherwise nothing is said about them.
    """
    pods = [pod for name in chosen for pod in cluster.pods_on(name)]
    around = await _Reader(client, cluster, frozenset(chosen), pods, has_others=has_others).read()
    return around if has_others else msgspec.structs.replace(around, others=None)


class _Reader:
    """One read. All kinds are read at the same time."""

    def __init__(
        self, client: KubeClient, cluster: ClusterCache, chosen: frozenset[str], pods: list[Pod], *, has_others: bool
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._chosen = chosen
        self._pods = pods
        self._has_others = has_others
        self._limit = anyio.CapacityLimiter(_CONCURRENCY)
        self._missing: dict[str, None] = {}
        self._failed: dict[str, str] = {}
        namespaces = sorted({pod.namespace for pod in pods})
        is_bounded = len(namespaces) <= MANY_NAMESPACES or not has_others
        self._places = [(namespace, ALL) for namespace in namespaces] if is_bounded else EVERYWHERE

    async def read(self) -> Surroundings:
        """Read everything."""
        volumes: dict[Key, PersistentVolume] = {}
        workloads: dict[str, Workload] = {}
        services: list[Service] = []
        pending: list[PendingPod] = []
        rooms: dict[str, NodeRoom] = {}
        owners = {(pod.namespace, pod.controller) for pod in self._pods if pod.controller is not None}
        uids = {owner.uid for _, owner in owners}

        async def read_workloads(resource: Resource[Workload]) -> None:
            places: Iterable[Place] = self._places
            if not self._has_others:  # a large cluster has many old ReplicaSets
                named = {(namespace, owner.name) for namespace, owner in owners if owner.kind == resource.kind}
                places = [(namespace, Selection(fields=f"metadata.name={name}")) for namespace, name in sorted(named)]
            found = await self._all(resource, places, keep=lambda each: each.uid in uids)
            workloads.update((each.uid, each) for each in found)

        async def read_services() -> None:
            services.extend(await self._all(SERVICES, self._places, keep=lambda each: each.is_local))

        async def read_pending() -> None:
            places = [(namespace, UNBOUND) for namespace, _ in self._places]
            pending.extend(await self._all(PENDING_PODS, places, keep=lambda each: bool(each.reason)))

        async def read_rooms() -> None:
            if self._has_others and self._pods and len(self._cluster.nodes) <= MANY_NODES:
                rooms.update((each.name, each) for each in await self._all(ROOMS, EVERYWHERE))

        with ungrouped():
            async with anyio.create_task_group() as group:
                group.start_soon(self._read_volumes, volumes)
                group.start_soon(read_workloads, REPLICA_SETS)
                group.start_soon(read_workloads, STATEFUL_SETS)
                group.start_soon(read_services)
                group.start_soon(read_pending)
                group.start_soon(read_rooms)
        return Surroundings(
            volumes=volumes,
            workloads=workloads,
            services=tuple(services),
            pending=tuple(pending),
            others=tuple(self._others(rooms)),
            missing=tuple(sorted(self._missing)),
            failed=tuple(self._failed[operation] for operation in sorted(self._failed)),
        )

    def _others(self, rooms: dict[str, NodeRoom]) -> Iterable[OtherNode]:
        for node in self._cluster.nodes.values():
            if node.name not in self._chosen and node.deletion_timestamp is None:
                room = rooms.get(node.name)
                yield OtherNode(node, room.allocatable if room is not None and room.uid == node.uid else None)

    async def _read_volumes(self, found: dict[Key, PersistentVolume]) -> None:
        keys = {(pod.namespace, claim) for pod in self._pods for claim in pod.claims}

        async def read(key: Key) -> None:
            claim = await self._get(VOLUME_CLAIMS, key)
            if claim is None or not claim.volume_name:
                return
            volume = await self._get(PERSISTENT_VOLUMES, ("", claim.volume_name))
            if volume is not None:
                found[key] = volume

        if len(keys) > MANY_CLAIMS:
            claims = await self._all(VOLUME_CLAIMS, self._places, keep=lambda each: each.key in keys)
            names = {each.volume_name: each.key for each in claims if each.volume_name}
            volumes = await self._all(PERSISTENT_VOLUMES, EVERYWHERE, keep=lambda each: each.name in names)
            found.update((names[each.name], each) for each in volumes)
            return
        async with anyio.create_task_group() as group:
            for key in keys:
                group.start_soon(self._limited, read, key)

    async def _limited(self, read: Callable[[P], Awaitable[None]], what: P) -> None:
        async with self._limit:
            await read(what)

    async def _get(self, resource: Resource[T], key: Key) -> T | None:
        """One object; None if it does not exist, or cannot be read."""
        try:
            return await self._client.get(resource, key)
        except (NotFound, NotServed):
            return None
        except ApiError as error:
            self._note(f"get {resource.qualified}", error)
            return None

    async def _all(
        self,
        resource: Resource[T],
        places: Iterable[Place],
        *,
        keep: Callable[[T], bool] = lambda _: True,
    ) -> list[T]:
        """The objects there; none if they cannot be listed."""
        found: list[T] = []

        async def read(place: Place) -> None:
            namespace, selection = place
            found.extend(await read_all(self._client, resource, selection, namespace=namespace, keep=keep))

        try:
            with ungrouped():
                async with anyio.create_task_group() as group:
                    for place in places:
                        group.start_soon(self._limited, read, place)
        except NotServed:
            return []
        except ApiError as error:
            self._note(f"list {resource.qualified}", error)
            return []
        return found

    def _note(self, operation: str, error: ApiError) -> None:
        if isinstance(error, Forbidden):
            self._missing[operation] = None
        else:
            self._failed[operation] = str(error)
