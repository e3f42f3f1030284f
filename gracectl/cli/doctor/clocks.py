"""Whether clocks agree: of the controller by its Events, of this machine by the answers to this command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gracectl.cli.doctor.report import CheckState, Finding
from gracectl.inspect.leadership import read_leases
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.leader.settings import LeaderElectionSettings
from gracectl.kube.requests import Selection
from gracectl.kube.resources import Resource
from gracectl.kube.transport.skew import SkewEstimate
from gracectl.model.foreign import harmless
from gracectl.model.names import EVENT_COMPONENT, EventReason
from gracectl.model.times import format_time
from gracectl.model.untrusted import Decoder
from gracectl.model.wire import Instant, Object
from gracectl.runtime.clock import Clock

CLOCKS: Final = "clocks"

FRESH_SECONDS: Final = 660.0
"""Repeats of an Event are written every five minutes."""

REMEDY: Final = "set right the clock that is wrong, then restart the controller (docs/high-availability.md)"


class _Source(Object):
    component: str | None = None


class _Write(Object):
    time: Instant | None = None


class _Meta(Object):
    creation_timestamp: Instant | None = None
    managed_fields: tuple[_Write, ...] | None = None


class _Event(Object):
    metadata: _Meta
    message: str | None = None
    source: _Source | None = None

    @property
    def is_ours(self) -> bool:
        return self.source is not None and self.source.component == EVENT_COMPONENT

    @property
    def written(self) -> float:
        """When it was last written, by the server's clock: the controller's is in dispute."""
        meta = self.metadata
        times = (meta.creation_timestamp, *(each.time for each in meta.managed_fields or ()))
        return max((time.timestamp() for time in times if time is not None), default=0.0)


_EVENTS = Resource("", "v1", "events", "Event", Decoder(_Event).decode)


async def check_clocks(
    client: KubeClient, clock: Clock, settings: LeaderElectionSettings, skew: SkewEstimate | None
) -> Sequence[Finding]:
    """Whether a controller has reported a dispute lately, and whether this machine is in one."""
    leases = await read_leases(client, settings) if settings.enabled else ()
    fields = f"reason={EventReason.CLOCKS_DISAGREE},involvedObject.kind=Lease,involvedObject.name={settings.name}"
    for namespace in dict.fromkeys(lease.key[0] for lease in leases):
        for event in await read_all(client, _EVENTS, Selection(fields=fields), namespace=namespace):
            if event.is_ours and event.written > clock.now() - FRESH_SECONDS:
                message = f"a controller has reported at {format_time(event.written)}: {harmless(event.message or '')}"
                return (Finding(CLOCKS, CheckState.FAILED, message, REMEDY),)
    own = skew.statistics().disputed if skew is not None else None
    if own is not None:
        message = f"the API server's Date is {own:.0f} s ahead of this machine's clock"
        return (Finding(CLOCKS, CheckState.WARNING, message, "set right the clock that is wrong"),)
    if not leases:
        return (Finding(CLOCKS, CheckState.OK, "this machine's agrees with the API server's"),)
    return (Finding(CLOCKS, CheckState.OK, "no controller has reported that clocks contradict each other"),)
