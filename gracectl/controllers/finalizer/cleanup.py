"""Takes our finalizer off every node and claim of a cluster, so that none stays stuck when nobody is left to do that.

What is not being deleted stays as it is. What is, vanishes with its last finalizer, and its instance with nobody: so
each of those is told, with all that somebody needs to end it by hand. Invariants: no other finalizer is touched; none
of ours is left by the last complete list, made when nobody could have put one on any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import msgspec

from gracectl.controllers.cluster.informers import MANY
from gracectl.controllers.cluster.tracked import H
from gracectl.controllers.node.finalizer import removal
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden
from gracectl.kube.patching import patch_with_retry
from gracectl.kube.reading import read_all, read_first_served
from gracectl.kube.requests import ALL, bound_to
from gracectl.kube.resources import NODE_CLAIM_VERSIONS, NODES, PODS, Resource
from gracectl.kube.retry import is_transient
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_in_maintenance
from gracectl.policy.pending import is_cordon_recorded
from gracectl.runtime.clock import Clock

AT_ONCE: Final = 20
PAUSE_SECONDS: Final = 1.0
"""Between two lists."""

IN_VAIN: Final = 10
"""So many rounds without any success, and what is left is given up."""

RETURNS: Final = 3
"""Who finds our finalizer on one object again so often, when nobody who has led can put it there any more, is not late:
somebody else puts it back."""

Thing = Node | NodeClaim
FINISHED: Final = (names.SUCCEEDED, names.FAILED)


class Survey(msgspec.Struct, frozen=True):
    """What of ours there is at one moment: nodes and claims with our finalizer, and nodes that are kept drained, are
    being given back, or were cordoned while they waited to end.

    `claims_resource`: where claims are written to; None: the cluster has none.
    """

    nodes: tuple[Node, ...]
    claims: tuple[NodeClaim, ...]
    cordoned: tuple[Node, ...]
    claims_resource: Resource[NodeClaim] | None

    @property
    def deleted(self) -> tuple[Thing, ...]:
        """Those of them that are being deleted: terminations under way."""
        things: tuple[Thing, ...] = (*self.nodes, *self.claims)
        return tuple(each for each in things if each.deletion_timestamp is not None)


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """An instance whose node, or claim, goes without it. `node`, `claim`: "" for none that is being deleted. `pods`:
    how many had not finished there; None: nobody knows. `held_by`: other finalizers, for which the node stays."""

    node: str = ""
    claim: str = ""
    instance: str = ""
    pods: int | None = None
    held_by: tuple[str, ...] = ()


def _is_cordoned(node: Node) -> bool:
    """Whether a cordon of ours, or the request for it, is on it and no termination comes of it."""
    return is_in_maintenance(node) or (is_cordon_recorded(node) and node.deletion_timestamp is None)


async def survey(client: KubeClient) -> Survey:
    """What of ours there is now. Raises ApiError."""
    nodes = await read_all(client, NODES, keep=lambda node: _has_ours(node) or _is_cordoned(node))
    found = await read_first_served(client, NODE_CLAIM_VERSIONS)
    return Survey(
        nodes=tuple(filter(_has_ours, nodes)),
        claims=() if found is None else tuple(filter(_has_ours, found[1])),
        cordoned=tuple(filter(_is_cordoned, nodes)),
        claims_resource=None if found is None else found[0],
    )


async def endings(client: KubeClient, seen: Survey) -> tuple[Ending, ...]:
    """What is under way, as it is now. Raises ApiError; who may not list pods does not know how many there are."""
    nodes = [node for node in seen.nodes if node.deletion_timestamp is not None]
    claims = [claim for claim in seen.claims if claim.deletion_timestamp is not None]
    pods = await _pods_on(client, {node.name for node in nodes})
    by_instance = {claim.provider_id: claim.name for claim in claims if claim.provider_id}
    by_node = {claim.node_name: claim.name for claim in claims if claim.node_name}
    found = [
        Ending(
            node=node.name,
            claim=by_instance.get(node.provider_id) or by_node.get(node.name, ""),
            instance=node.provider_id,
            pods=None if pods is None else pods[node.name],
            held_by=tuple(each for each in node.finalizers if each != names.FINALIZER),
        )
        for node in nodes
    ]
    told = {state.claim for state in found}
    found += [Ending(claim=claim.name, instance=claim.provider_id) for claim in claims if claim.name not in told]
    return tuple(found)


async def _pods_on(client: KubeClient, nodes: set[str]) -> Counter[str] | None:
    """How many pods have not finished, by node."""
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
    """See the module. `removed` and `failed` have (kind, name), the latter with the reason; `endings` what went."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._times: Counter[str] = Counter()  # removals from when all is to be quiet, by uid
        self._successes = 0
        self._given_up: set[str] = set()
        self.removed: dict[tuple[str, str], None] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.endings: dict[tuple[str, str], Ending] = {}

    async def run(self, quiet_at: Callable[[], float]) -> Survey:
        """Take it off all, until none has it in a list made at or after the monotonic instant `quiet_at()`, except for
        those in `failed`; returns what was seen last. Raises ApiError when it cannot even be listed."""
        in_vain = 0
        while True:
            began = self._clock.monotonic()
            try:
                seen = await survey(self._client)
                left = self._left(seen)
                for state in await endings(self._client, _only(seen, left)):
                    self.endings.setdefault((state.node, state.claim), state)
            except ApiError as error:
                in_vain += 1
                if not is_transient(error) or in_vain >= IN_VAIN:
                    raise
                await self._clock.sleep(PAUSE_SECONDS)
                continue
            if not left and began >= quiet_at():
                return seen
            if left:
                is_quiet = began >= quiet_at()
                in_vain = 0 if await self._take_off(_only(seen, left), is_quiet=is_quiet) else in_vain + 1
                if in_vain >= IN_VAIN:
                    return seen
            await self._clock.sleep(PAUSE_SECONDS if left else max(quiet_at() - self._clock.monotonic(), 0.0))

    def _left(self, seen: Survey) -> set[str]:
        """The uids of those from which it is still to be taken."""
        for kind, things in (("Node", seen.nodes), ("NodeClaim", seen.claims)):
            for thing in things:
                if self._times[thing.uid] >= RETURNS:
                    self._give_up(
                        kind,
                        thing,
                        "somebody puts the finalizer back again and again; stop whoever does (a gracectl that runs "
                        "without leader election, or a Karpenter whose Lease is elsewhere), and run this once more",
                    )
        uids = {node.uid for node in seen.nodes} | {claim.uid for claim in seen.claims}
        return uids - self._given_up

    async def _take_off(self, seen: Survey, *, is_quiet: bool) -> bool:
        """Whether it came off any. `is_quiet`: whoever puts it back from now on is none of those who have led."""
        before = self._successes
        limit = anyio.CapacityLimiter(AT_ONCE)
        nodes = msgspec.structs.replace(NODES, abandonable=True)
        async with anyio.create_task_group() as group:
            for node in seen.nodes:
                group.start_soon(self._let_go, nodes, node, limit, is_quiet)
            if seen.claims_resource is not None:
                claims = msgspec.structs.replace(seen.claims_resource, abandonable=True)
                for claim in seen.claims:
                    group.start_soon(self._let_go, claims, claim, limit, is_quiet)
        return self._successes > before

    async def _let_go(self, resource: Resource[H], thing: H, limit: anyio.CapacityLimiter, is_quiet: bool) -> None:
        key = (resource.kind, thing.name)
        async with limit:
            try:
                await patch_with_retry(self._client, resource, thing, removal)
            except Forbidden as refusal:
                self._give_up(resource.kind, thing, str(refusal))
            except ApiError as error:
                self.failed[key] = str(error)
            else:
                self._successes += 1
                self._times[thing.uid] += is_quiet
                self.removed[key] = None
                self.failed.pop(key, None)

    def _give_up(self, kind: str, thing: Thing, why: str) -> None:
        self._given_up.add(thing.uid)
        self.removed.pop((kind, thing.name), None)
        self.failed[kind, thing.name] = why


def _has_ours(thing: Thing) -> bool:
    return names.FINALIZER in thing.finalizers


def _only(seen: Survey, uids: set[str]) -> Survey:
    def those(things: Sequence[H]) -> tuple[H, ...]:
        return tuple(each for each in things if each.uid in uids)

    return msgspec.structs.replace(seen, nodes=those(seen.nodes), claims=those(seen.claims))
