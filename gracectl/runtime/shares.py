"""Concurrency limit of a work queue, shared fairly between groups of keys, with places of their own for slow ones.

A group is whatever hangs together: a namespace, or a single key. Invariants: a group never has more places than are
still free beside it (dynamic thresholds, Choudhury and Hahne 1998), so one that hangs leaves room for all others; work
that lasts longer than SLOW_SECONDS moves to the slow places as long as there are any, and a group whose last work was
slow begins there until some of its work is quick again.

So a key of a quick group begins at once beside any group that hangs, and SLOW_SECONDS later at most when many do that
were quick until now, as long as they have fewer keys than there are places of both kinds.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from gracectl.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)

SLOW_SECONDS: Final = 1.0
"""Work that lasts longer is slow. A request that no webhook holds up takes milliseconds."""

REMEMBERED_SECONDS: Final = 600.0
"""A group that had no slow work for so long counts as quick again."""


_HAIR: Final = 1e-6
"""An instant is a sum of floats."""


class _Work(msgspec.Struct, gc=False):
    group: Hashable
    since: float


class _Places(Generic[K]):
    """Places of one kind: the work in them, oldest first, and how many each group has."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.work: dict[K, _Work] = {}
        self.taken_by: defaultdict[Hashable, int] = defaultdict(int)

    def admits(self, group: Hashable) -> bool:
        return self.taken_by.get(group, 0) < self.count - len(self.work)

    def take(self, key: K, work: _Work) -> None:
        self.work[key] = work
        self.taken_by[work.group] += 1

    def free(self, key: K) -> _Work:
        work = self.work.pop(key)
        left = self.taken_by[work.group] - 1
        if left:
            self.taken_by[work.group] = left
        else:
            del self.taken_by[work.group]
        return work


class Shares(Generic[K]):
    """See the module. Of `places` one group gets at most half while it is alone; as many more are for slow work, unless
    `has_slow_places` is False. `group_of`: the group of a key; None: each key is one of its own.
    """

    def __init__(
        self,
        clock: Clock,
        places: int,
        group_of: Callable[[K], Hashable] | None = None,
        *,
        has_slow_places: bool = True,
    ) -> None:
        self._clock = clock
        self._group_of = group_of
        self._has_slow_places = has_slow_places
        self._quick: _Places[K] = _Places(places)
        self._slow: _Places[K] = _Places(places if has_slow_places else 0)
        self._timed: dict[K, float] = {}  # of the work in quick places: since when, oldest first; not while it pauses
        self._slow_groups: OrderedDict[Hashable, float] = OrderedDict()  # when they were last seen to be slow
        self.changed: Callable[[], None] = lambda: None
        """Called when there is more room. Set by the queue."""

    def resize(self, places: int) -> None:
        """From now on so many. What is under way goes on; with less room nothing begins until so much has ended."""
        self._quick.count = places
        self._slow.count = places if self._has_slow_places else 0
        self.changed()

    def group_of(self, key: K) -> Hashable:
        """The group that a key belongs to now."""
        return key if self._group_of is None else self._group_of(key)

    def is_slow(self, group: Hashable) -> bool:
        """Whether the last work of this group was slow, or some that is under way is."""
        return group in self._slow_groups

    @property
    def is_full(self) -> bool:
        """Whether no quick group may begin anything."""
        return len(self._quick.work) >= self._quick.count

    def admits(self, group: Hashable) -> bool:
        """Whether work of this group may begin now."""
        return (self._slow if group in self._slow_groups else self._quick).admits(group)

    def first(self, groups: Iterable[Hashable]) -> Hashable | None:
        """The first of the groups that may begin something; None if none may."""
        is_slow_full = len(self._slow.work) >= self._slow.count
        if is_slow_full and self.is_full:
            return None
        for group in groups:
            if (not is_slow_full or group not in self._slow_groups) and self.admits(group):
                return group
        return None

    def begin(self, key: K, group: Hashable, now: float) -> None:
        """Work on this key begins; `admits` has been asked."""
        work = _Work(group, now)
        if group in self._slow_groups:
            self._slow.take(key, work)
        else:
            self._quick.take(key, work)
            self._timed[key] = now

    def end(self, key: K, now: float) -> None:
        """It has ended."""
        is_quick = key in self._quick.work
        work = (self._quick if is_quick else self._slow).free(key)
        self._timed.pop(key, None)
        if not self._has_slow_places:
            return
        if now - work.since > SLOW_SECONDS - _HAIR:
            self._note_slow(work.group, now)
        elif not is_quick and self._slow_groups.get(work.group, math.inf) <= work.since:
            # It began after the last sign of slowness. What still hangs keeps its place, and is a sign when it ends.
            del self._slow_groups[work.group]

    def pause(self, key: K) -> None:
        """The work on this key waits for something of ours, which is no sign of slowness."""
        self._timed.pop(key, None)

    def resume(self, key: K) -> None:
        """It goes on, and its time counts from now."""
        now = self._clock.monotonic()
        if key in self._quick.work:
            self._quick.work[key].since = self._timed[key] = now
        else:
            self._slow.work[key].since = now

    def sort(self, now: float) -> None:
        """Move the work that has become slow to the slow places, as far as there are any."""
        while self._timed and self._has_slow_places:
            key, since = next(iter(self._timed.items()))
            if since + SLOW_SECONDS - now > _HAIR:
                return
            self._note_slow(self._quick.work[key].group, now)
            if len(self._slow.work) >= self._slow.count:
                return
            del self._timed[key]
            self._slow.take(key, self._quick.free(key))

    def next_change(self) -> float | None:
        """The monotonic instant at which work becomes slow and may leave its place; None if there is none."""
        if not self._quick.work or len(self._slow.work) >= self._slow.count:
            return None
        # Where all of it pauses, none is slow any sooner.
        return next(iter(self._timed.values()), self._clock.monotonic()) + SLOW_SECONDS

    def taken(self) -> Mapping[str, int]:
        """How many places of each kind are taken."""
        return {"quick": len(self._quick.work), "slow": len(self._slow.work)}

    def _note_slow(self, group: Hashable, now: float) -> None:
        self._slow_groups[group] = now
        self._slow_groups.move_to_end(group)
        while next(iter(self._slow_groups.values())) < now - REMEMBERED_SECONDS:
            self._slow_groups.popitem(last=False)
