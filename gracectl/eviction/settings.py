"""How fast pods are asked to leave, and how patiently a refused lane waits. Defaults are pinned by a test."""

from __future__ import annotations

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(ge=1)]


PLACES_PER_NAMESPACE = 2
"""A namespace gets no more places than are free beside it: of so many times `max_in_flight` one alone gets just that.
"""


class EvictionSettings(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`qps` 0 means no limit. `qps`, `burst` bound pods without a budget; a lane is bounded by its budget.

    `max_in_flight` bounds what is under way in one namespace, in both crowds, each for itself, so that a storm of
    unbudgeted pods cannot hold up a lane; all namespaces together have twice as much, and as much again for those whose
    requests are slow (runtime.shares).
    """

    qps: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 100.0
    burst: Count = 100
    max_in_flight: Count = 50
    backoff_initial_seconds: Seconds = 0.1
    backoff_maximum_seconds: Seconds = 10.0
    misconfigured_retry_seconds: Seconds = 60.0
    """Between two tries of a pod that several budgets select: only a person (or a deadline) can help it."""
    probe_seconds: Seconds = 60.0
    """A lane whose budget is spent according to the watch asks all the same after this long without news."""
