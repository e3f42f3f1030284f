"""Events on objects that cannot be decoded."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import StepContext
from gracectl.controllers.termination.report import record
from gracectl.kube.cache import Cache
from gracectl.kube.events import EventRecorder, Subject
from gracectl.kube.resources import BUDGETS, NODE_BUDGETS, NODE_DRAINS, NODES, PODS, VOLUME_ATTACHMENTS, Resource
from gracectl.model.envelope import UndecodableObject
from gracectl.model.nodedrain import NodeDrain

UNDECODABLE_EVENTS: Final = 50
"""Objects of a kind with an Event *Undecodable*; further ones are in the log and the metric only, as Events share a
queue."""


def report_undecodable(context: StepContext, drains: Cache[NodeDrain]) -> None:
    """Emit an Event on each object that a cache sets aside as undecodable, now and later."""
    cluster = context.cluster
    caches: tuple[tuple[Cache[Any], Resource[Any]], ...] = (
        (cluster.pods, PODS),
        (cluster.nodes, NODES),
        (cluster.claims, context.claim_resource()),
        (cluster.budgets, BUDGETS),
        (cluster.attachments, VOLUME_ATTACHMENTS),
        (context.admitter.budgets, NODE_BUDGETS),
        (drains, NODE_DRAINS),
    )
    for cache, resource in caches:
        cache.subscribe_undecodable(partial(_emit_undecodable, context.recorder, cache, resource))


def _emit_undecodable(
    recorder: EventRecorder, cache: Cache[Any], resource: Resource[Any], undecodable: UndecodableObject
) -> None:
    if undecodable.name and cache.statistics().undecodable <= UNDECODABLE_EVENTS:
        subject = Subject(resource.api_version, resource.kind, undecodable.namespace, undecodable.name, undecodable.uid)
        record(recorder, subject, events.undecodable(resource.kind, undecodable))
