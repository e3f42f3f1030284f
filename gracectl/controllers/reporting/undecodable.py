"""Events on objects that cannot be decoded, one by one as they are set aside by the caches."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from gracectl.controllers.pipeline.steps import StepContext
from gracectl.kube.cache import Cache
from gracectl.kube.events import Subject
from gracectl.kube.resources import BUDGETS, NODE_BUDGETS, NODES, PODS, VOLUME_ATTACHMENTS, Resource
from gracectl.model import names
from gracectl.model.envelope import UndecodableObject

MOST_TOLD: Final = 50
"""Objects of a kind; of more the log names each, and the metric counts them: other Events wait in the same line."""

MEANINGS: Final = {
    PODS.kind: "its node is not drained while the pod is there, unless a deadline ends it",
    BUDGETS.kind: "the server decides about evictions as before; gracectl goes by what it knew of it last",
}


def report_undecodable(context: StepContext) -> None:
    """Emit an Event on each object that is set aside now, and whenever another one is."""
    cluster = context.cluster
    followed: tuple[tuple[Cache[Any], Resource[Any]], ...] = (
        (cluster.pods, PODS),
        (cluster.nodes, NODES),
        (cluster.claims, context.claim_resource()),
        (cluster.budgets, BUDGETS),
        (cluster.attachments, VOLUME_ATTACHMENTS),
        (context.admitter.budgets, NODE_BUDGETS),
    )
    for cache, resource in followed:
        cache.subscribe_undecodable(partial(_tell, context, cache, resource))


def _tell(context: StepContext, cache: Cache[Any], resource: Resource[Any], found: UndecodableObject) -> None:
    if found.name and cache.statistics().undecodable <= MOST_TOLD:
        subject = Subject(resource.api_version, resource.kind, found.namespace, found.name, found.uid)
        then = MEANINGS.get(resource.kind, "gracectl goes by what it knew of it last")
        message = f"cannot be decoded: {found.error}; {then}"
        context.recorder.record(subject, names.EventReason.UNDECODABLE, message, "Warning")
