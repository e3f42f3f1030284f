"""gracectl that ends in the middle of its work, and is followed by another one: how soon does that one act?"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from benchmarks.contenders.contender import Entry, Usage
from benchmarks.contenders.gracectl import NOTHING, running, settings_of
from benchmarks.contenders.leadership import leadership
from benchmarks.ground.nodes import delete, until_held
from benchmarks.ground.site import Site
from gracectl.model.pod import Pod

LATE = 0.3
"""Seconds after the signal in which the watch may still show what the first one has done: less is not seen."""


class Restarted:
    """`number`: what the first one is ended with, when half of the pods have been told to leave. The second one is
    started when the first has ended; or, if it `has_standby`, runs beside it from the beginning.
    """

    def __init__(self, number: signal.Signals, *, has_standby: bool = False) -> None:
        self.name = f"{number.name}, {'beside a standby' if has_standby else 'started again'}"
        self._number = number
        self._has_standby = has_standby
        self.gap = 0.0
        """Seconds from the signal until the second one has told a pod to leave."""
        self.since_start = 0.0
        """Seconds of these since the second one's process began; of a standby, since the signal."""
        self.since_free = 0.0
        """Seconds of these since the lease was free."""

    @asynccontextmanager
    async def entered(self, site: Site, old: tuple[str, ...]) -> AsyncIterator[Entry]:
        """See Contender. What the first one did between its last reading and its end, some milliseconds, is not
        counted."""
        told, usages = _told(site), list[Usage]()
        pods = sum(pod.node_name in old for pod in site.pods.values())
        async with AsyncExitStack() as stack:
            led = await stack.enter_async_context(leadership(site.client, site.clock, site.name))
            begin = partial(running, site.way.kubeconfig, settings_of(site), site.ground.folder)
            first = await stack.enter_async_context(begin())
            await until_held(site.client, old, first.last_words)
            before = await first.reading()
            standby = await stack.enter_async_context(begin()) if self._has_standby else None
            second = standby or first

            async def go() -> None:
                nonlocal second
                await delete(site.client, old)
                await site.until(lambda: 2 * len(told) >= pods, "half of the pods to be told to leave")
                usages.append((await first.reading()).since(before))
                first.send(self._number)
                signalled = began = site.clock.monotonic()
                if standby is None:
                    await first.ended()
                    began = site.clock.monotonic()
                    second = await stack.enter_async_context(begin())
                await site.until(lambda: told[-1] > signalled + LATE, "the next controller to act")
                at = next(each for each in told if each > signalled + LATE)
                self.gap, self.since_start = at - signalled, at - began
                assert led.free_since is not None
                self.since_free = at - led.free_since

            async def usage() -> Usage:
                return usages[0].and_then((await second.reading()).since(NOTHING))

            yield Entry(go, usage, goes_on=True)


def _told(site: Site) -> list[float]:
    """The monotonic instants, as they come, at which the watch shows that a pod has been told to leave."""
    instants: list[float] = []

    def saw(before: Pod | None, after: Pod | None) -> None:
        is_told = after is not None and after.deletion_timestamp is not None
        if is_told and (before is None or before.deletion_timestamp is None):
            instants.append(site.clock.monotonic())

    site.pods.subscribe(saw)
    return instants
