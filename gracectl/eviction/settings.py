"""Settings of evictions: their rate, their concurrency and the backoff of a refused PDB queue. Defaults are pinned by
a test.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1)]


PLACES_PER_NAMESPACE = 2
"""A namespace gets no more places than are free beside it: of twice `max_in_flight` one alone gets just that."""


class EvictionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`qps` 0 means no limit. `qps`, `burst` bound pods without a budget; a PDB queue is bounded by its budget.

    `max_in_flight` bounds the requests in flight in one namespace, with and without budgets each for itself, so that
    a storm of unbudgeted pods cannot hold up a PDB queue; all namespaces together have twice as much, and as much
    again for those whose requests are slow (runtime.shares).
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
    """An exhausted PDB queue without changes is tried all the same after this long."""
