"""Metrics of evictions and deletions: pods in PDB queues, responses of servers, lateness of deletions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gracectl.eviction.deleter import DeleterStatistics
from gracectl.eviction.evictor import BUDGET_COUNTS, EvictorStatistics
from gracectl.kube.client.statistics import NO_ANSWER, ClientStatistics
from gracectl.kube.metrics import request_samples
from gracectl.telemetry import metrics
from gracectl.telemetry.metrics import Sample

_OF_ANY: Final = (
    ("404", "NotFound"),
    ("409", "Conflict"),
    ("403", "Forbidden"),
    ("429", "Throttled"),
    ("500", "ServerError"),
    (NO_ANSWER, "RequestTimeout"),
    (NO_ANSWER, "Unreachable"),
)
EVICTION_ANSWERS: Final = (
    ("201", "Evicted"),
    ("429", "BudgetExhausted"),
    ("500", "MultipleBudgets"),
    ("403", "NamespaceTerminating"),
    *_OF_ANY,
)
DELETION_ANSWERS: Final = (("200", "Deleted"), *_OF_ANY)
"""Shown from the beginning; webhooks and proxies have others."""


def eviction_samples(evictor: EvictorStatistics) -> Iterator[Sample]:
    """PDB queues."""
    yield Sample(metrics.PDB_QUEUES, (), evictor.pdb_queues)
    yield Sample(metrics.PDB_QUEUE_DEPTH, (), evictor.longest)
    for budgets in BUDGET_COUNTS:
        yield Sample(metrics.PDB_QUEUE_PODS, (budgets,), evictor.pods[budgets])
        yield Sample(metrics.PDB_QUEUE_OLDEST, (budgets,), evictor.oldest[budgets])
        yield Sample(metrics.PDB_QUEUE_WAIT, (budgets,), evictor.waits[budgets])


def deadline_samples(deleter: DeleterStatistics) -> Iterator[Sample]:
    """Deletions for deadlines."""
    yield Sample(metrics.DEADLINE_LATENESS, (), deleter.late)
    for state, number in (("armed", deleter.armed), ("overdue", deleter.overdue), ("failing", deleter.failing)):
        yield Sample(metrics.DEADLINE_PODS, (state,), number)


def answer_samples(clients: Sequence[ClientStatistics]) -> Iterator[Sample]:
    """Responses to requests to evict or delete pods."""
    yield from request_samples(
        metrics.EVICTION_REQUESTS, clients, ("create", "pods/eviction"), "Evicted", EVICTION_ANSWERS
    )
    yield from request_samples(metrics.DELETION_REQUESTS, clients, ("delete", "pods"), "Deleted", DELETION_ANSWERS)
