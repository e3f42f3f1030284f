"""Concurrency limit of a work queue, shared fairly between groups of keys, with extra slots for slow work.

A group is what tends to hang together: a workload's pods, or a single key. Invariants: a group never holds more slots
than are still free (dynamic thresholds, Choudhury and Hahne 1998), so one that hangs leaves room for all
others; work that lasts longer than SLOW_SECONDS moves to the slow slots as long as there are any, and a group whose
last work was slow starts there until some of its work is quick again.

Mostly not all keys of a group hang. So a key whose last work was slow belongs to a group of its own kind, the `Slow`
one, which never gets a quick slot; and a slow group whose slow slots are taken starts other keys in quick slots, as
long as half of these stay free for quick groups.

Groups may have a parent, as workloads have a namespace. Then a parent never holds more than three times the slots that
are still free, and a group no more than twice what its parent may still start: one group alone has half of the slots
again, one parent three quarters, and whatever hangs leaves room for other groups of its parent, and for other parents.

So a key of a quick group starts immediately next to a group that hangs, and at most SLOW_SECONDS later when many groups
turn slow at the same time, as long as they have fewer keys than there are slots of both kinds.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from gracectl.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)

SLOW_SECONDS: Final = 1.0
"""Work that lasts longer is slow. A request that no webhook delays takes milliseconds."""

REMEMBERED_SECONDS: Final = 600.0
"""A group without slow work for this long counts as quick again."""


_TOLERANCE: Final = 1e-6
"""Tolerance for sums of floats."""


class Slow(msgspec.Struct, frozen=True):
    """Group of the keys of `group` with slow last work."""

    group: Hashable


class _Work(msgspec.Struct, gc=False):
    group: Hashable
    since: float


_PARENT_FACTOR: Final = 3
_GROUP_FACTOR: Final = 2
"""See above. A parent that starts one more thing has one more, and one slot less is free: four less may follow."""


class _Slots(Generic[K]):
    """Slots of one kind: the work in them, oldest first, and the count per group and per parent."""

    def __init__(self, count: int, parent_of: Callable[[Hashable], Hashable] | None) -> None:
        self.count = count
        self.work: dict[K, _Work] = {}
        self.taken_by: defaultdict[Hashable, int] = defaultdict(int)
        self._parent_of = parent_of
        self._taken_by_parent: defaultdict[Hashable, int] = defaultdict(int)

    def admits(self, group: Hashable) -> bool:
        taken = self.taken_by.get(group, 0)
        if self._parent_of is None:
            return taken < self.count - len(self.work)
        return taken * (_PARENT_FACTOR + 1) < self.left_to(self._parent_of(group)) * _GROUP_FACTOR

    def left_to(self, parent: Hashable) -> int:
        """Above 0 if a parent may start anything; (_PARENT_FACTOR + 1) for each."""
        free, taken = self.count - len(self.work), self._taken_by_parent.get(parent, 0)
        if free == 1 and taken:
            return 0  # the last slot is for another parent
        return _PARENT_FACTOR * free - taken

    def take(self, key: K, work: _Work) -> None:
        self.work[key] = work
        self.taken_by[work.group] += 1
        if self._parent_of is not None:
            self._taken_by_parent[self._parent_of(work.group)] += 1

    def free(self, key: K) -> _Work:
        work = self.work.pop(key)
        _decrement(self.taken_by, work.group)
        if self._parent_of is not None:
            _decrement(self._taken_by_parent, self._parent_of(work.group))
        return work


def _decrement(counts: defaultdict[Hashable, int], key: Hashable) -> None:
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]


class Shares(Generic[K]):
    """Concurrency limit of one work queue. One group alone gets at most half of `slots`; as many more slots are for
    slow work, unless `has_slow_slots` is False. `group_of`: the group of a key; None: each key is its own group.
    `parent_of`: the parent of a group; None: groups have none.
    """

    def __init__(
        self,
        clock: Clock,
        slots: int,
        group_of: Callable[[K], Hashable] | None = None,
        parent_of: Callable[[Hashable], Hashable] | None = None,
        *,
        has_slow_slots: bool = True,
    ) -> None:
        self._clock = clock
        self._group_of = group_of
        self._has_slow_slots = has_slow_slots
        parents = None if parent_of is None else self.parent_of
        self._quick: _Slots[K] = _Slots(slots, parents)
        self._slow: _Slots[K] = _Slots(slots if has_slow_slots else 0, parents)
        self._parent_of = parent_of
        self._timed: dict[K, float] = {}  # start of the work in quick slots, oldest first; not while paused
        self._slow_groups: OrderedDict[Hashable, float] = OrderedDict()  # when last seen to be slow
        self._slow_of: dict[Hashable, dict[Hashable, None]] = {}  # the same groups, by parent
        self._slow_keys: OrderedDict[K, float] = OrderedDict()  # when last seen to be slow
        self.changed: Callable[[], None] = lambda: None
        """Called when slots become free. Set by the queue."""

    def resize(self, slots: int) -> None:
        """Change the number of slots. With fewer, nothing starts until enough work has ended."""
        self._quick.count = slots
        self._slow.count = slots if self._has_slow_slots else 0
        self.changed()

    def group_of(self, key: K) -> Hashable:
        """Current group of a key."""
        if self._group_of is None:
            return key
        group = self._group_of(key)
        return Slow(group) if key in self._slow_keys and not isinstance(group, Slow) else group

    def is_slow(self, group: Hashable) -> bool:
        """Whether the last work of this group was slow, or some that is under way is."""
        return group in self._slow_groups

    @property
    def is_full(self) -> bool:
        """Whether no quick group may start anything."""
        return len(self._quick.work) >= self._quick.count

    def admits(self, group: Hashable) -> bool:
        """Whether work of this group may start now."""
        if group not in self._slow_groups:
            return self._quick.admits(group)
        return self._slow.admits(group) or (self._may_try(group) and self._quick.admits(group))

    def parent_of(self, group: Hashable) -> Hashable:
        """Parent of a group; None if groups have none."""
        if self._parent_of is None:
            return None
        return self._parent_of(group.group if isinstance(group, Slow) else group)

    def first(self, groups_by_parent: Mapping[Hashable, Collection[Hashable]]) -> Hashable | None:
        """First of the groups that may start work; None if none may. Groups of a parent that has all that it gets cost
        nothing: there may be thousands of workloads in one namespace."""
        is_slow_full = len(self._slow.work) >= self._slow.count and not self._is_half_free
        if self.is_full and (is_slow_full or not self._slow_groups):
            return None
        for parent, groups in groups_by_parent.items():
            candidates: Iterable[Hashable] = groups
            if self._quick.left_to(parent) <= 0:
                candidates = (group for group in self._slow_of.get(parent, ()) if group in groups)
            for group in candidates:
                if (not is_slow_full or group not in self._slow_groups) and self.admits(group):
                    return group
        return None

    def begin(self, key: K, group: Hashable, now: float) -> None:
        """Record that work on this key starts, after `admits` has said yes."""
        work = _Work(group, now)
        if group in self._slow_groups and self._slow.admits(group):
            self._slow.take(key, work)
        else:
            self._quick.take(key, work)
            self._timed[key] = now

    def is_slow_key(self, key: K) -> bool:
        """Whether the last work on this key was slow."""
        return key in self._slow_keys

    def hand_over(self, key: K, to: K) -> None:
        """The work on a key has become slow and outlives it: from now on it is work on another key, in the same slot,
        and `end` of the first one means nothing."""
        slots = self._quick if key in self._quick.work else self._slow
        work = slots.work[to] = slots.work.pop(key)
        if self._timed.pop(key, None) is not None:
            self._timed[to] = work.since
        self._slow_keys.pop(key, None)
        self._note_slow(to, work.group, self._clock.monotonic())

    def end(self, key: K, now: float) -> None:
        """Record that it has ended."""
        if key not in self._quick.work and key not in self._slow.work:
            return  # handed over
        is_quick = key in self._quick.work
        work = (self._quick if is_quick else self._slow).free(key)
        self._timed.pop(key, None)
        if not self._has_slow_slots:
            return
        if now - work.since > SLOW_SECONDS - _TOLERANCE:
            self._note_slow(key, work.group, now)
            return
        self._slow_keys.pop(key, None)
        if isinstance(work.group, Slow):
            return  # of the group's other keys this says nothing
        if not is_quick and self._slow_groups.get(work.group, math.inf) <= work.since:
            # It started after the last sign of slowness. What still hangs keeps its slot, and is a sign when it ends.
            del self._slow_groups[work.group]
            self._forget_slow(work.group)

    def pause(self, key: K) -> None:
        """Stop the time of this key's work: it waits inside this process, which is no sign of slowness."""
        self._timed.pop(key, None)

    def resume(self, key: K) -> None:
        """Restart the time of this key's work."""
        now = self._clock.monotonic()
        if key in self._quick.work:
            self._quick.work[key].since = self._timed[key] = now
        else:
            self._slow.work[key].since = now

    def move_slow(self, now: float) -> None:
        """Move work that has become slow to the slow slots, as far as there are any."""
        while self._timed and self._has_slow_slots:
            key, since = next(iter(self._timed.items()))
            if since + SLOW_SECONDS - now > _TOLERANCE:
                return
            group = self._quick.work[key].group
            self._note_slow(key, group, now)
            if len(self._slow.work) >= self._slow.count:
                return
            del self._timed[key]
            if self._parent_of is not None and not self._slow.admits(group):
                continue  # its parent has its part of the slow slots; here, too, it leaves room for others
            self._slow.take(key, self._quick.free(key))

    def next_change(self) -> float | None:
        """Monotonic instant at which work becomes slow and may leave its slot; None if there is none."""
        if not self._quick.work or len(self._slow.work) >= self._slow.count:
            return None
        # While all work is paused, none becomes slow earlier.
        return next(iter(self._timed.values()), self._clock.monotonic()) + SLOW_SECONDS

    def taken(self) -> Mapping[str, int]:
        """Number of slots taken, by kind."""
        return {"quick": len(self._quick.work), "slow": len(self._slow.work)}

    @property
    def _is_half_free(self) -> bool:
        return 2 * len(self._quick.work) < self._quick.count

    def _may_try(self, group: Hashable) -> bool:
        """Whether keys of a slow group may be quick, and quick groups have enough slots to let it try."""
        return self._group_of is not None and self._is_half_free and not isinstance(group, Slow)

    def _note_slow(self, key: K, group: Hashable, now: float) -> None:
        if self._group_of is not None:
            self._slow_keys[key] = now
            self._slow_keys.move_to_end(key)
            while next(iter(self._slow_keys.values())) < now - REMEMBERED_SECONDS:
                self._slow_keys.popitem(last=False)
            self._note_slow_group(group if isinstance(group, Slow) else Slow(group), now)
        self._note_slow_group(group, now)
        while next(iter(self._slow_groups.values())) < now - REMEMBERED_SECONDS:
            self._forget_slow(self._slow_groups.popitem(last=False)[0])

    def _note_slow_group(self, group: Hashable, now: float) -> None:
        if group not in self._slow_groups:
            self._slow_of.setdefault(self.parent_of(group), {})[group] = None
        self._slow_groups[group] = now
        self._slow_groups.move_to_end(group)

    def _forget_slow(self, group: Hashable) -> None:
        parent = self.parent_of(group)
        del self._slow_of[parent][group]
        if not self._slow_of[parent]:
            del self._slow_of[parent]
