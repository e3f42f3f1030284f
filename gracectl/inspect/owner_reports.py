"""What Karpenter says of its nodes itself: its Events about node and claim, and disruption budgets of their NodePools.

Anyone who may create Events can forge one: they are quoted, and nothing is decided by them. Invariant: what may not be
read is left out; nothing fails for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

import anyio
import msgspec

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.inspect.status import NodeStatus
from gracectl.kube.cache.reading import read_all, read_served
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError
from gracectl.kube.requests import Selection
from gracectl.kube.resources import EVENTS, NODE_POOL_VERSIONS, Raw
from gracectl.model import names, wire
from gracectl.model.foreign import harmless
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.model.untrusted import Decoder
from gracectl.policy.owners import DrainOwner
from gracectl.policy.remedies import POOL_HOLD, remedy
from gracectl.policy.warnings import PlanWarning, WarningKind, by_importance
from gracectl.runtime.supervise import ungrouped

KARPENTER: Final = "karpenter"
"""Component of its Events."""

REASONS: Final = frozenset(
    (
        *("FailedDraining", "AwaitingVolumeDetachment", "TerminationGracePeriodExpiring", "FailedTermination"),
        *("DisruptionBlocked", "NodeRepairBlocked"),
    )
)
"""Reasons of Events that say what a termination, or its beginning, waits for. Source: Karpenter 1.15 `pkg/events`."""

MOST_NODES: Final = 20
"""Nodes whose Events are read."""

LONGEST: Final = 300
NOTHING: Final = ("0", "0%")


class OwnerEvent(msgspec.Struct, frozen=True):
    """An Event of Karpenter. `at`: when it was last seen (Unix seconds); `uid`: of its object."""

    uid: str
    component: str
    reason: str
    message: str
    at: float


_EVENT: Final = Decoder(wire.Event)


def decode_owner_event(raw: Raw) -> OwnerEvent:
    """The Event in this JSON object."""
    read = _EVENT.decode(raw)
    about, source = read.involved_object or wire.Reference(), read.source or wire.EventSource()
    component = read.reporting_component or source.component or ""
    message = harmless(read.message or "", LONGEST)
    return OwnerEvent(about.uid or "", component, harmless(read.reason or "", LONGEST), message, read.at)


OWNER_EVENTS: Final = EVENTS.read_by(decode_owner_event)

Reports = Mapping[str, tuple[PlanWarning, ...]]
"""What is reported, by the name of the node."""


async def read_owner_reports(client: KubeClient, cluster: ClusterCache, chosen: Collection[str]) -> Reports:
    """What Karpenter says of these nodes, by name. Raises no ApiError."""
    nodes = [node for name in chosen if (node := cluster.node(name)) is not None and _is_karpenters(cluster, node)]
    found: dict[str, tuple[PlanWarning, ...]] = {}

    async def read(node: Node, pools: Mapping[str, str]) -> None:
        pool = pools.get(node.labels.get(names.NODE_POOL, ""), "")
        holds = [_pool_hold(node.labels[names.NODE_POOL], pool)] if pool and node.deletion_timestamp is None else []
        found[node.name] = (*holds, *await _events(client, cluster, node))

    if not nodes:
        return {}
    pools = await _blocking_pools(client)
    with ungrouped():
        async with anyio.create_task_group() as group:
            for node in nodes[:MOST_NODES]:
                group.start_soon(read, node, pools)
    return found


def with_reports(statuses: Iterable[NodeStatus], reports: Reports) -> tuple[NodeStatus, ...]:
    """Add to each status what its owner says."""

    def with_report(status: NodeStatus) -> NodeStatus:
        if not (found := reports.get(status.name)):
            return status
        return msgspec.structs.replace(status, warnings=by_importance([*status.warnings, *found]))

    return tuple(map(with_report, statuses))


def _is_karpenters(cluster: ClusterCache, node: Node) -> bool:
    owner = cluster.owner_of(node)
    return owner is not None and owner.owner is DrainOwner.KARPENTER


async def _events(client: KubeClient, cluster: ClusterCache, node: Node) -> list[PlanWarning]:
    """The newest Event of each reason about a node and its claims, since it was deleted if it was."""
    newest: dict[str, tuple[OwnerEvent, str, str]] = {}
    things = [("node", node.name, node.uid), *(("nodeclaim", each.name, each.uid) for each in cluster.claims_of(node))]
    for kind, name, uid in things:
        selection = Selection(fields=f"involvedObject.name={name},involvedObject.uid={uid}")
        with suppress(ApiError):
            for event in await read_all(client, OWNER_EVENTS, selection, namespace="default"):
                is_said = event.component == KARPENTER and event.reason in REASONS
                is_current = node.deletion_timestamp is None or event.at >= node.deletion_timestamp
                if is_said and is_current and (known := newest.get(event.reason, (event,))[0]).at <= event.at:
                    newest[known.reason] = event, kind, name
    in_order = sorted(newest.values(), key=lambda each: -each[0].at)
    return [
        PlanWarning(
            WarningKind.OWNER_REPORTS,
            f"Karpenter reported at {format_time(event.at)}: {event.reason}: {event.message}",
            remedy=remedy(WarningKind.OWNER_REPORTS, kind=kind, name=name),
        )
        for event, kind, name in in_order
    ]


async def _blocking_pools(client: KubeClient) -> Mapping[str, str]:
    """NodePools that allow no voluntary disruption at any time, and the budget that says so, by name."""
    with suppress(ApiError):
        pools = await read_served(client, NODE_POOL_VERSIONS)
        return {name: nodes for pool in pools for name, nodes in _blocked(pool)}
    return {}


def _blocked(pool: object) -> Iterable[tuple[str, str]]:
    try:
        read = msgspec.convert(pool, _Pool)
    except msgspec.ValidationError:
        return
    for budget in read.spec.disruption.budgets if read.spec.disruption else ():
        if budget.nodes in NOTHING and not budget.schedule and not budget.reasons:
            yield read.metadata.name, budget.nodes


class _Budget(wire.Object):
    nodes: str = ""
    schedule: str | None = None
    reasons: tuple[str, ...] | None = None


class _Disruption(wire.Object):
    budgets: tuple[_Budget, ...] = ()


class _PoolSpec(wire.Object):
    disruption: _Disruption | None = None


class _Pool(wire.Object):
    metadata: wire.Meta
    spec: _PoolSpec = msgspec.field(default_factory=_PoolSpec)


def _pool_hold(pool: str, nodes: str) -> PlanWarning:
    message = (
        f'Karpenter disrupts no node of NodePool {harmless(pool)} by itself: disruption budget nodes "{nodes}"; '
        "a deletion still drains it"
    )
    return PlanWarning(WarningKind.OWNER_HOLDS, message, remedy=remedy(POOL_HOLD, pool=pool))
