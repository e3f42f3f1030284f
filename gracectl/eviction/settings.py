"""Settings of evictions and deletions."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1)]

PLACES_PER_NAMESPACE = 2
"""A workload gets at most as many places as remain free: of twice `max_in_flight`, one alone gets half."""


class EvictionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of evictions: `qps` (0: no limit) and `burst` bound pods without a budget, a PDB queue its budget.

    `max_in_flight` bounds the requests in flight for one workload, with and without budgets each for itself, so that
    a storm of unbudgeted pods cannot hold up a PDB queue; a namespace has half as much again, all namespaces together
    twice as much, and as much again for requests that are slow (runtime.shares).
    """

    qps: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 100.0
    burst: Count = 100
    max_in_flight: Count = 50
    backoff_initial_seconds: Seconds = 0.1
    backoff_maximum_seconds: Seconds = 10.0
    misconfigured_retry_seconds: Seconds = 60.0
    """Between two tries of a pod that several budgets select: only a change of the budgets (or a deadline) can help
    it.
    """
    probe_seconds: Seconds = 60.0
    """Time after which an exhausted PDB queue is retried without any change."""
    settle_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 60.0
    """Delay of a pod that has lost its budget by a change of labels or selector."""
