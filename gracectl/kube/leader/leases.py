"""Lease as contenders read and write it: one record, changed only in the version that was read last.

The record and its rules are client-go's (https://github.com/kubernetes/client-go/tree/v0.31.0/tools/leaderelection).
Its times are informative: a lease counts from when it was *seen* to change, for as long as its record says; so clocks
need not agree, only run at about the same pace.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotFound
from gracectl.kube.requests import Key
from gracectl.kube.resources import LEASES, Raw, untyped
from gracectl.model.decode import decode_lease
from gracectl.model.meta import Lease
from gracectl.model.times import format_micro_time
from gracectl.runtime.clock import Clock

ROUNDING_SECONDS: Final = 1e-6
"""A shorter wait is none."""

RELEASED_SECONDS: Final = 1
"""Duration of a released lease: contenders that ignore the empty holder need not wait either."""


LONGEST_HELD_SECONDS: Final = 600
"""Maximum time for which one state of a Lease counts, regardless of its record. `uninstall` leaves a Lease for that
long, and settings allow no longer duration."""


class LeaseObject(msgspec.Struct, frozen=True):
    """A Lease with the whole object of the server, so that a replacement keeps the fields of others."""

    lease: Lease
    body: dict[str, Any]


def _decode(raw: Raw) -> LeaseObject:
    return LeaseObject(decode_lease(raw), untyped(raw))


# After an abandoned renewal the version shows its outcome.
LEASE_OBJECTS = msgspec.structs.replace(LEASES.read_by(_decode), cancellable=True)


class LeaseLock:
    """One Lease as `identity` sees and writes it. Before the first read it has no holder."""

    def __init__(self, client: KubeClient, clock: Clock, key: Key, identity: str, duration: int) -> None:
        self._client = client
        self._clock = clock
        self._key = key
        self._identity = identity
        self._duration = duration
        self._seen: LeaseObject | None = None
        self._known: tuple[object, ...] | None = None  # the record in its newest state, read, written or watched
        self._changed = -math.inf
        self.is_outcome_unknown = False
        """Whether a write had no response and was not followed by a read: the lease may be another's or ours."""

    @property
    def holder(self) -> str:
        """The holder at the last read; "" for none."""
        return self._seen.lease.holder if self._seen else ""

    @property
    def uid(self) -> str:
        """The UID at the last read; "" before."""
        return self._seen.lease.uid if self._seen else ""

    @property
    def is_ours(self) -> bool:
        """Whether that was `identity`."""
        return self.holder == self._identity

    @property
    def transitions(self) -> int:
        """How often it has changed hands."""
        return self._seen.lease.transitions if self._seen else 0

    @property
    def acquired(self) -> float | None:
        """Since when its holder has held it, by the holder's clock."""
        return self._seen.lease.acquire_time if self._seen else None

    @property
    def renewed(self) -> float | None:
        """When its holder has last renewed it, by the holder's clock (Unix seconds)."""
        return self._seen.lease.renew_time if self._seen else None

    def held_for(self) -> float:
        """Seconds for which it still counts; 0 when it may be taken."""
        if self._seen is None or not self.holder:
            return 0.0
        left = self._changed + counted_seconds(self._seen.lease) - self._clock.monotonic()
        return left if left > ROUNDING_SECONDS else 0.0

    async def look(self) -> bool:
        """Read it; False when there is none. Raises ApiError."""
        try:
            whole = await self._client.get(LEASE_OBJECTS, self._key)
        except NotFound:
            return False
        self.is_outcome_unknown = False
        self.saw(whole.lease)
        self._seen = whole
        return True

    def saw(self, lease: Lease) -> bool:
        """Take note of a state that a watch shows; whether it is another one. It counts from now on, as one that is
        read does: what a watch shows may be old, and the lease then counts for longer than it has to."""
        record = record_of(lease)
        if record == self._known:
            return False
        self._known, self._changed = record, self._clock.monotonic()
        return True

    async def create(self) -> None:
        """Create it, as ours. Raises ApiError."""
        namespace, name = self._key
        now = format_micro_time(self._clock.now())
        body = {
            "metadata": {"name": name, "namespace": namespace},
            "spec": self._spec(now, acquired=now, transitions=0),
        }
        self.is_outcome_unknown = True
        self._wrote(await self._client.create(LEASE_OBJECTS, namespace, body))

    async def take(self) -> None:
        """Take it, or renew it if it is ours. Raises ApiError: Conflict if it has changed since it was read."""
        now = format_micro_time(self._clock.now())
        acquired, transitions = now, self.transitions
        if self.is_ours:
            acquired = self._spec_seen.get("acquireTime") or now
        else:
            transitions += 1
        await self._replace(self._spec(now, acquired, transitions))

    async def release(self) -> None:
        """Release it, so that others need not wait. Raises ApiError: Conflict if it has changed since it was read."""
        now = format_micro_time(self._clock.now())
        spec = self._spec(now, acquired=now, transitions=self.transitions)
        await self._replace(spec | {"holderIdentity": "", "leaseDurationSeconds": RELEASED_SECONDS})

    def _spec(self, now: str, acquired: str, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._duration,
            "acquireTime": acquired,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    @property
    def _spec_seen(self) -> dict[str, Any]:
        return (self._seen.body.get("spec") if self._seen else None) or {}

    async def _replace(self, spec: dict[str, Any]) -> None:
        assert self._seen is not None, "nothing can be replaced that was not seen"
        body = {**self._seen.body, "spec": {**self._spec_seen, **spec}}
        self.is_outcome_unknown = True
        self._wrote(await self._client.update(LEASE_OBJECTS, self._key, body))

    def _wrote(self, whole: LeaseObject) -> None:
        self.is_outcome_unknown = False
        self._seen, self._known = whole, record_of(whole.lease)
        self._changed = self._clock.monotonic()


def counted_seconds(lease: Lease) -> float:
    """How long a state of this Lease counts: as long as its record says, within bounds. A client that may write a Lease
    may write any number."""
    return min(max(lease.duration_seconds, 0), LONGEST_HELD_SECONDS)


def record_of(lease: Lease) -> tuple[object, ...]:
    """Fields that renew a lease when they change; labels, for example, do not."""
    return (lease.uid, lease.holder, lease.duration_seconds, lease.acquire_time, lease.renew_time, lease.transitions)
