"""Reads what must be known of a workload before one of its pods is replaced, and while it is.

Read on demand, by name or within one namespace, and only where the feature is used: it needs more rights than a drain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from itertools import islice
from typing import Final, TypeVar

import anyio
import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden, NotFound, NotServed, TooLarge
from gracectl.kube.requests import ALL, Key, Selection
from gracectl.kube.resources import NAMESPACES, PODS, ROLLOUTS, VOLUME_CLAIMS, Raw, Resource
from gracectl.model.bounds import Limits, MemoryQuota, OverLimit, size_of
from gracectl.model.decode import PodDecoder
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.model.workloads import (
    NetworkPolicy,
    PendingPod,
    Service,
    Workload,
    decode_labels,
    decode_network_policy,
    decode_pending,
    decode_quota,
    decode_service,
    decode_volume,
    decode_workload,
)
from gracectl.policy.placement import OtherNode
from gracectl.policy.release import LABELS, release_of
from gracectl.policy.replacement import WorkloadFacts, facts_key, may_be_replaced
from gracectl.policy.settings import ReplaceFirst
from gracectl.runtime.clock import Clock, LoopClock
from gracectl.runtime.ratelimit import TokenBucket

T = TypeVar("T")

PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", decode_volume, namespaced=False)


def _decode_service(raw: Raw) -> Service:
    """A service with those of the labels LABELS that it selects by: a page of services may have 32 MB."""
    found = decode_service(raw)
    return msgspec.structs.replace(found, selector={key: "" for key in LABELS if key in found.selector})


def _decode_policy(raw: Raw) -> NetworkPolicy:
    """See `_decode_service`."""
    found = decode_network_policy(raw)
    return msgspec.structs.replace(found, keys=found.keys.intersection(LABELS))


SERVICES = Resource("", "v1", "services", "Service", decode_service)
LABELED_SERVICES = SERVICES.read_by(_decode_service)
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", _decode_policy)
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", decode_quota)
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", decode_workload)
DEPLOYMENTS: Resource[Workload] = msgspec.structs.replace(REPLICA_SETS, plural="deployments", kind="Deployment")
PENDING_PODS: Resource[PendingPod] = Resource("", "v1", "pods", "Pod", decode_pending)
LABELED_NAMESPACES = NAMESPACES.read_by(decode_labels)
CONCURRENCY: Final = 10
LARGEST_FACTS: Final = 4 << 20
"""Bytes of what is read and kept of one workload: with more it is not replaced first."""
LIMITS: Final = Limits(free=0, per_object=LARGEST_FACTS, per_namespace=16 << 20, in_all=64 << 20)
"""Of what is kept of all workloads."""
MOST_CLAIMS: Final = 20
"""Claims of a workload: each costs two requests. With more it is not replaced first."""
MOST_WORKLOADS: Final = 200
"""Workloads that a command reads at most."""
READS_PER_SECOND, READS_AT_ONCE = 1.0, 10
"""Of one workload: tenants change its pods as often as they like, and a read has ten requests."""
REMEMBERED: Final = 10_000
"""Workloads with a limit of their own; then all begin again."""
ABOVE: Final = {each.kind: each for each in (DEPLOYMENTS, ROLLOUTS)}
SHARED_MODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})


class _Unreadable(Exception):
    """What cannot be read, and why, as a message for users."""


class _MissingRight(_Unreadable):
    """The reader may not read it, or the server does not serve it."""


async def read_facts(
    client: KubeClient, pod: Pod, key: Key, settings: ReplaceFirst, *, nodes: Iterable[Node] | None, now: float
) -> WorkloadFacts:
    """Read about the workload of a pod of the ReplicaSet `key`. `nodes`: all others; None: unknown. `now`: monotonic.

    Raises ApiError, except for missing rights, and for objects that are too large or cannot be decoded.
    """
    try:
        return await _read(client, pod, key, settings, nodes, now)
    except _Unreadable as missing:
        return WorkloadFacts(read_at=now, missing=str(missing))


async def _read(
    client: KubeClient, pod: Pod, key: Key, settings: ReplaceFirst, nodes: Iterable[Node] | None, now: float
) -> WorkloadFacts:
    """See `read_facts`. Raises ApiError, _Unreadable."""
    found = await _Reader(client, pod, key).read(settings, nodes, now)
    size = size_of(msgspec.structs.replace(found, others=None))  # those are the nodes of the cache
    _check_size(size)
    return msgspec.structs.replace(found, size=size)


class WorkloadReads:
    """Limits of the workloads that one process knows: their memory, and how often each is read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quota = MemoryQuota(LIMITS)
        self._reads: dict[Key, TokenBucket] = {}
        self._changed: dict[Key, bool] = {}
        """Whether a pod of a workload that is being read has changed."""

    def begin(self, key: Key) -> float:
        """Returns 0.0 if the workload may be read now, else after how many seconds."""
        if len(self._reads) > REMEMBERED:
            self._reads.clear()
        bucket = self._reads.setdefault(key, TokenBucket(self._clock, READS_PER_SECOND, READS_AT_ONCE))
        return 0.0 if bucket.take() else bucket.statistics().next_in

    @contextmanager
    def reading(self, key: Key) -> Iterator[Callable[[], bool]]:
        """Read the workload meanwhile; yields whether one of its pods has changed."""
        self._changed[key] = False
        has_changed = False
        try:
            yield lambda: has_changed
        finally:
            has_changed = self._changed.pop(key, True)

    @property
    def is_reading(self) -> bool:
        """Whether any workload is being read."""
        return bool(self._changed)

    def note_change(self, key: Key) -> None:
        """A pod of the workload has changed."""
        if key in self._changed:
            self._changed[key] = True

    def charged(self, key: Key, facts: WorkloadFacts) -> WorkloadFacts:
        """The facts, charged to their namespace, or why no more may be known of it."""
        try:
            self._quota.charge(facts, key, key[0], facts.size)
        except OverLimit as error:
            return WorkloadFacts(read_at=facts.read_at, missing=f"its workload {error}")
        return facts


def _check_size(size: int) -> None:
    """Raises _Unreadable."""
    if size > LARGEST_FACTS:
        raise _Unreadable(f"its workload's objects and pods have more than {LARGEST_FACTS} bytes")


async def read_workloads(
    client: KubeClient, cluster: ClusterCache, settings: ReplaceFirst, nodes: Collection[str] | None = None
) -> None:
    """Read the workloads of pods that may be replaced first into the cache, for the plans of a command, and forget
    others.

    Raises no ApiError: the facts say what is missing. `cluster` has all nodes. `nodes`: only pods of nodes of these
    names; None: all pods.
    """
    due: dict[Key, Pod] = {}
    pods = cluster.pods.values() if nodes is None else [pod for name in nodes for pod in cluster.pods_on(name)]
    for pod in pods:
        if (may_be_replaced(pod, settings) or release_of(pod) is not None) and (key := facts_key(pod)) is not None:
            due.setdefault(key, pod)
    limit, reads = anyio.CapacityLimiter(CONCURRENCY), WorkloadReads(LoopClock())

    async def read(key: Key, pod: Pod) -> None:
        async with limit:
            try:
                found = await _read(client, pod, key, settings, all_nodes(cluster), 0.0)
            except (ApiError, _Unreadable) as error:
                # The controller may have the right that the user lacks.
                is_unknown = isinstance(error, ApiError | _MissingRight)
                found = WorkloadFacts(read_at=0.0, missing=str(error), is_unknown=is_unknown)
            cluster.workloads[key] = reads.charged(key, found)

    async with anyio.create_task_group() as group:
        for key, pod in islice(due.items(), MOST_WORKLOADS):
            group.start_soon(read, key, pod)
    for key in cluster.workloads.keys() - due.keys():
        del cluster.workloads[key]


def all_nodes(cluster: ClusterCache) -> Iterable[Node]:
    """Nodes that stay."""
    return (node for node in cluster.nodes.values() if node.deletion_timestamp is None)


class _Reader:
    def __init__(self, client: KubeClient, pod: Pod, key: Key) -> None:
        self._client = client
        self._pod = pod
        self._release = release_of(pod)
        self._namespace, self._name = key

    async def read(self, settings: ReplaceFirst, nodes: Iterable[Node] | None, now: float) -> WorkloadFacts:
        replica_set: Workload | None = await self._get(REPLICA_SETS, self._name)
        above = await self._above(replica_set)
        found = WorkloadFacts(read_at=now, replica_set=replica_set, above=above)
        pods = await self._pods(above or replica_set)
        newest = max((pod for pod in pods if not pod.node_name), key=lambda each: each.created, default=None)
        reason = "" if newest is None else await self._pending_reason(newest)
        found = msgspec.structs.replace(found, pods=pods, pending=reason)
        if self._release is not None or replica_set is None:
            return found
        labels = await self._namespace_labels() if settings.namespaces else {}
        return msgspec.structs.replace(
            found,
            selected_by=await self._selected_by(),
            unshared=await self._unshared(replica_set),
            quotas=tuple(await self._list(QUOTAS)),
            namespace_labels=labels,
            others=None if nodes is None or not replica_set.uses_host else tuple(map(OtherNode, nodes)),
        )

    async def _pending_reason(self, pod: Pod) -> str:
        found = await self._get(PENDING_PODS, pod.name)
        return "" if found is None else found.reason

    async def _namespace_labels(self) -> Mapping[str, str]:
        return await self._get(LABELED_NAMESPACES, self._namespace) or {}

    async def _above(self, replica_set: Workload | None) -> Workload | None:
        kind, name = ("", "") if self._release is None else (self._release.kind, self._release.workload)
        if replica_set is not None:
            kind, name = replica_set.rollout.kind_above, replica_set.workload
        if (resource := ABOVE.get(kind)) is None:
            return None
        return await self._get(resource, name)

    async def _pods(self, workload: Workload | None) -> tuple[Pod, ...]:
        """Pods of the workload, released or not."""
        if workload is None or workload.selector is None:
            return ()
        labels = ",".join(f"{key}={value}" for key, value in workload.selector.items() if key not in LABELS)
        pods = PODS.read_by(PodDecoder())  # the labels that they share count once
        return tuple(await self._list(pods, Selection(labels=labels))) if labels else ()

    async def _selected_by(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for service in await self._list(LABELED_SERVICES):
            found.update(dict.fromkeys(service.selector, f"service {service.full_name}"))
        for policy in await self._list(NETWORK_POLICIES):
            found.update(dict.fromkeys(policy.keys, f"network policy {policy.full_name}"))
        return {label: found[label] for label in LABELS if label in found}

    async def _unshared(self, replica_set: Workload) -> dict[str, str]:
        found: dict[str, str] = {}
        if len(replica_set.claims) > MOST_CLAIMS:
            raise _Unreadable(f"its workload has more than {MOST_CLAIMS} volume claims")
        for name in replica_set.claims:
            claim = await self._get(VOLUME_CLAIMS, name)
            if claim is None:
                continue
            if not SHARED_MODES.intersection(claim.access_modes):
                found[name] = f"is {' and '.join(claim.access_modes) or 'of an unknown access mode'}"
            elif claim.volume_name:
                volume = await self._get(PERSISTENT_VOLUMES, claim.volume_name)
                if volume is not None and volume.is_on_disk:
                    found[name] = "is on a disk of its node"
        return found

    async def _get(self, resource: Resource[T], name: str) -> T | None:
        try:
            return await self._client.get(resource, (self._namespace if resource.namespaced else "", name))
        except NotFound:
            return None
        except ApiError as error:
            raise _unreadable("get", resource, error) or error from error

    async def _list(self, resource: Resource[T], selection: Selection = ALL) -> list[T]:
        objects: list[T] = []
        bounded = _bounded(resource)
        try:
            async with aclosing(self._client.list(bounded, namespace=self._namespace, selection=selection)) as pages:
                async for page in pages:
                    if page.undecodable:
                        raise _Unreadable(page.undecodable[0].error)
                    objects += page.items
        except ApiError as error:
            raise _unreadable("list", resource, error) or error from error
        return objects


def _bounded(resource: Resource[T]) -> Resource[T]:
    """The resource with a decoder that decodes nothing more when the objects of a list exceed the limit."""
    size = 0

    def decode(raw: Raw) -> T:
        nonlocal size
        try:
            _check_size(size)
            found = resource.decode(raw)
            size += size_of(found)
            _check_size(size)
        except _Unreadable as error:
            raise OverLimit(str(error)) from None
        except msgspec.DecodeError as error:
            raise msgspec.ValidationError(f"a {resource.kind} of its namespace cannot be decoded: {error}") from error
        return found

    return resource.read_by(decode)


def _unreadable(verb: str, resource: Resource[T], error: ApiError) -> _Unreadable | None:
    """None for an error that a repeat may heal."""
    if isinstance(error, (Forbidden, NotServed)):
        return _MissingRight(f"missing permission: {verb} {resource.qualified}")
    if isinstance(error, TooLarge) or isinstance(error.__cause__, msgspec.DecodeError):
        return _Unreadable(str(error))
    return None
