"""Removal of our finalizer from all nodes and claims of a cluster, so that none stays stuck after an uninstall.

What is not being deleted stays. What is, disappears with its last finalizer, and its instance is orphaned: it is
reported with all that is needed to terminate it by hand. Invariants: no other finalizer is touched, and no finalizer of
another controller on what it owns; none of ours is left by the last complete list, made when no process could have
added one any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

import anyio
import msgspec

from gracectl.controllers.cluster.informers import MANY
from gracectl.controllers.cluster.tracked import H
from gracectl.controllers.termination.finalizer import finalizer_removal_patch
from gracectl.kube.cache.reading import is_served, read_all, read_first_served
from gracectl.kube.client import KubeClient
from gracectl.kube.client.retry import is_transient
from gracectl.kube.errors import ApiError, Forbidden
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.requests import ALL, bound_to
from gracectl.kube.resources import NODE_CLAIM_VERSIONS, NODE_POOL_VERSIONS, NODES, PODS, Resource
from gracectl.model import names
from gracectl.model.claim import NodeClaim, finder_of_claims
from gracectl.model.node import Node
from gracectl.policy.finalizers import has_finalizer, our_finalizers
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.owners import other_owner, other_owner_of_claim
from gracectl.policy.pending import is_cordon_recorded
from gracectl.runtime.clock import Clock

CONCURRENCY: Final = 20
PAUSE_SECONDS: Final = 1.0
"""Between two lists."""

SHORTEST_PAUSE_SECONDS: Final = 0.001
"""Timers may expire a hair early: without a minimum, the rest of a wait would be many lists of the whole cluster."""

MAX_FAILED_ROUNDS: Final = 10
"""Rounds without any removal, after which the rest is given up."""

MAX_RETURNS: Final = 3
"""Removals from one object, at a time when no leader can add the finalizer any more, after which it is given up: it is
no late write, but another client that adds it."""

NodeOrClaim = Node | NodeClaim
FINISHED: Final = (names.SUCCEEDED, names.FAILED)


class Inventory(msgspec.Struct, frozen=True):
    """Leftovers of gracectl in a cluster: nodes and claims with our finalizers, and nodes with our cordon.

    `strangers`: UIDs of nodes and claims of other controllers. `claims_resource`: the version of node claims that the
    cluster serves; None: none.
    """

    nodes: tuple[Node, ...]
    claims: tuple[NodeClaim, ...]
    cordoned: tuple[Node, ...]
    """In maintenance, being uncordoned, or cordoned while a termination was pending."""
    claims_resource: Resource[NodeClaim] | None
    strangers: frozenset[str] = frozenset()

    @property
    def deleted(self) -> tuple[NodeOrClaim, ...]:
        """Objects with our finalizer that are being deleted: terminations in progress."""
        things: tuple[NodeOrClaim, ...] = (*self.nodes, *self.claims)
        return tuple(each for each in things if each.deletion_timestamp is not None)


class OrphanedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance without a termination: its node or claim, which is being deleted, loses our finalizer.

    `node`, `claim`: empty if none is being deleted. `pods`: unfinished ones on the node; None: unknown. `held_by`: the
    node's other finalizers.
    """

    node: str = ""
    claim: str = ""
    instance: str = ""
    pods: int | None = None
    held_by: tuple[str, ...] = ()


def _has_our_cordon(node: Node) -> bool:
    """Whether our cordon, or the request for it, is on a node that is not being terminated."""
    return is_in_maintenance(node) or (is_cordon_recorded(node) and node.deletion_timestamp is None)


async def take_inventory(client: KubeClient) -> Inventory:
    """Read what gracectl has left in the cluster. Raises ApiError."""
    nodes = await read_all(client, NODES, keep=lambda node: has_finalizer(node) or _has_our_cordon(node))
    found = await read_first_served(client, NODE_CLAIM_VERSIONS)
    claims = () if found is None else found[1]
    has_karpenter = await is_served(client, NODE_POOL_VERSIONS)
    strangers = _strangers(nodes, claims if has_karpenter else ())
    return Inventory(
        nodes=tuple(node for node in nodes if _removable(node, strangers)),
        claims=tuple(claim for claim in claims if _removable(claim, strangers)),
        cordoned=tuple(filter(_has_our_cordon, nodes)),
        claims_resource=None if found is None else found[0],
        strangers=strangers,
    )


def _strangers(nodes: Iterable[Node], claims: Iterable[NodeClaim]) -> frozenset[str]:
    """UIDs of the nodes and claims that another controller owns."""
    anothers = [claim for claim in claims if other_owner_of_claim(claim) is not None]
    claims_of = finder_of_claims(anothers)
    others = (node.uid for node in nodes if other_owner(node, claims_of(node)) is not None)
    return frozenset((*(claim.uid for claim in anothers), *others))


def _removable(thing: NodeOrClaim, strangers: Collection[str]) -> tuple[str, ...]:
    """The finalizers to remove; of a stranger only the one that no other controller uses."""
    return tuple(each for each in our_finalizers(thing) if thing.uid not in strangers or each == names.OWN_FINALIZER)


async def orphaned_instances(client: KubeClient, inventory: Inventory) -> tuple[OrphanedInstance, ...]:
    """The instances that the removal of the finalizers orphans. Raises ApiError; without leave to list pods their
    number is unknown."""
    nodes = [node for node in inventory.nodes if node.deletion_timestamp is not None]
    claims = [claim for claim in inventory.claims if claim.deletion_timestamp is not None]
    pods = await _count_pods(client, {node.name for node in nodes})
    by_instance = {claim.provider_id: claim.name for claim in claims if claim.provider_id}
    by_node = {claim.node_name: claim.name for claim in claims if claim.node_name}
    found = [
        OrphanedInstance(
            node=node.name,
            claim=by_instance.get(node.provider_id) or by_node.get(node.name, ""),
            instance=node.provider_id,
            pods=None if pods is None else pods[node.name],
            held_by=tuple(each for each in node.finalizers if each not in _removable(node, inventory.strangers)),
        )
        for node in nodes
    ]
    listed = {each.claim for each in found}
    found += [
        OrphanedInstance(claim=claim.name, instance=claim.provider_id) for claim in claims if claim.name not in listed
    ]
    return tuple(found)


async def _count_pods(client: KubeClient, nodes: set[str]) -> Counter[str] | None:
    """Unfinished pods by node; None if listing them is forbidden."""
    selections = [ALL] if len(nodes) > MANY else [bound_to(name) for name in sorted(nodes)]
    count: Counter[str] = Counter()
    try:
        for selection in selections:
            pods = await read_all(client, PODS, selection, keep=lambda pod: pod.phase not in FINISHED)
            count.update(pod.node_name for pod in pods if pod.node_name in nodes)
    except Forbidden:
        return None
    return count


class FinalizerCleanup:
    """Remover of our finalizer. `removed` and `failed` are keyed by (kind, name), the latter with the reason."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._returns: Counter[str] = Counter()  # by UID, removals at a time when no leader can add it
        self._successes = 0
        self._given_up: set[str] = set()
        self.removed: dict[tuple[str, str], None] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.orphaned: dict[tuple[str, str], OrphanedInstance] = {}
        """Orphaned instances by node and claim."""

    async def run(self, quiet_at: Callable[[], float]) -> Inventory:
        """Remove the finalizer until a list has none that was made at or after the monotonic instant `quiet_at()`.

        Returns that list; objects in `failed` may have it still. Raises ApiError if the cluster cannot be read.
        """
        failed_rounds = 0
        while True:
            began = self._clock.monotonic()
            try:
                inventory = await take_inventory(self._client)
                left = self._left(inventory)
                for orphan in await orphaned_instances(self._client, _only(inventory, left)):
                    self.orphaned.setdefault((orphan.node, orphan.claim), orphan)
            except ApiError as error:
                failed_rounds += 1
                if not is_transient(error) or failed_rounds >= MAX_FAILED_ROUNDS:
                    raise
                await self._clock.sleep(PAUSE_SECONDS)
                continue
            if not left and began >= quiet_at():
                return inventory
            if left:
                is_quiet = began >= quiet_at()
                is_removed = await self._remove_all(_only(inventory, left), is_quiet=is_quiet)
                failed_rounds = 0 if is_removed else failed_rounds + 1
                if failed_rounds >= MAX_FAILED_ROUNDS:
                    return inventory
            rest = quiet_at() - self._clock.monotonic()
            await self._clock.sleep(PAUSE_SECONDS if left else max(rest, SHORTEST_PAUSE_SECONDS))

    def _left(self, inventory: Inventory) -> set[str]:
        """UIDs of the objects that have the finalizer and are not given up."""
        for kind, things in (("Node", inventory.nodes), ("NodeClaim", inventory.claims)):
            for thing in things:
                if self._returns[thing.uid] >= MAX_RETURNS:
                    self._give_up(
                        kind,
                        thing,
                        "another client adds the finalizer again; stop it (a gracectl that runs without leader "
                        "election), and run this command again",
                    )
        uids = {node.uid for node in inventory.nodes} | {claim.uid for claim in inventory.claims}
        return uids - self._given_up

    async def _remove_all(self, inventory: Inventory, *, is_quiet: bool) -> bool:
        """Remove the finalizer; returns whether any was removed. `is_quiet`: no leader can add it."""
        before = self._successes
        limit = anyio.CapacityLimiter(CONCURRENCY)
        nodes = msgspec.structs.replace(NODES, cancellable=True)
        async with anyio.create_task_group() as group:
            for node in inventory.nodes:
                group.start_soon(self._remove, nodes, node, _removable(node, inventory.strangers), limit, is_quiet)
            if inventory.claims_resource is not None:
                claims = msgspec.structs.replace(inventory.claims_resource, cancellable=True)
                for claim in inventory.claims:
                    wanted = _removable(claim, inventory.strangers)
                    group.start_soon(self._remove, claims, claim, wanted, limit, is_quiet)
        return self._successes > before

    async def _remove(
        self, resource: Resource[H], thing: H, finalizers: Collection[str], limit: anyio.CapacityLimiter, is_quiet: bool
    ) -> None:
        key = (resource.kind, thing.name)
        async with limit:
            try:
                patch = partial(finalizer_removal_patch, finalizers=finalizers)
                await patch_with_retry(self._client, resource, thing, patch)
            except Forbidden as error:
                self._give_up(resource.kind, thing, str(error))
            except ApiError as error:
                self.failed[key] = str(error)
            else:
                self._successes += 1
                self._returns[thing.uid] += is_quiet
                self.removed[key] = None
                self.failed.pop(key, None)

    def _give_up(self, kind: str, thing: NodeOrClaim, reason: str) -> None:
        self._given_up.add(thing.uid)
        self.removed.pop((kind, thing.name), None)
        self.failed[kind, thing.name] = reason


def _only(inventory: Inventory, uids: set[str]) -> Inventory:
    def those(things: Sequence[H]) -> tuple[H, ...]:
        return tuple(each for each in things if each.uid in uids)

    return msgspec.structs.replace(inventory, nodes=those(inventory.nodes), claims=those(inventory.claims))
