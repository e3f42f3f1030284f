"""The leader among the controllers, as its Lease shows it.

Without the permission to read Leases, or without leader election, it is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.controllers.settings import AssistSettings, TerminationSettings
from gracectl.inspect.status import IS_IT_RUNNING, NodePhase, NodeStatus, held_by_warning
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden, NotFound
from gracectl.kube.leader.leases import LONGEST_HELD_SECONDS, counted_seconds
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE, LeaderElectionSettings
from gracectl.kube.requests import Selection
from gracectl.kube.resources import LEASES
from gracectl.model.meta import Lease
from gracectl.model.times import format_time
from gracectl.policy.remedies import remedy
from gracectl.policy.warnings import PlanWarning, WarningKind, by_importance
from gracectl.runtime.clock import Clock

SLACK_SECONDS: Final = 5.0
"""Tolerance for different clocks of leader and reader, and for a handover."""


class LeaderState(StrEnum):
    """Whether a controller leads."""

    ACTIVE = "active"
    NONE = "none"
    UNKNOWN = "unknown"


class Leadership(msgspec.Struct, frozen=True):
    """State of the Lease `lease` (`namespace/name`).

    `holder`: the leader, or the last one; "" if it has released the Lease. `renewed`: when (Unix seconds) the Lease was
    last renewed or released. `is_absent`: there is no Lease in any namespace.
    """

    state: LeaderState
    lease: str = ""
    holder: str = ""
    renewed: float | None = None
    is_absent: bool = False

    @property
    def reason(self) -> str:
        """Why there is no leader."""
        if self.renewed is None:
            return f"Lease {self.lease} has no holder"
        at = format_time(self.renewed)
        if self.holder:
            return f"{self.holder} last renewed Lease {self.lease} at {at}"
        return f"Lease {self.lease} was released at {at}"


def may_drain(leadership: Leadership, *, is_installed: bool) -> bool:
    """Whether a controller may be there to drain nodes, by what can be seen.

    `is_installed`: its settings are in the cluster. A Lease that has just been released is about to be taken. Without
    leader election, or without permission to read Leases, the settings decide.
    """
    if leadership.state is not LeaderState.UNKNOWN:
        return leadership.state is LeaderState.ACTIVE
    return bool(leadership.lease) or (is_installed and not leadership.is_absent)


def as_led(settings: TerminationSettings, leadership: Leadership) -> TerminationSettings:
    """The settings as far as they are in force: without a leader no owner is assisted."""
    if leadership.state is LeaderState.NONE or leadership.is_absent:
        return msgspec.structs.replace(settings, assist=AssistSettings(karpenter=False, cluster_autoscaler=False))
    return settings


UNKNOWN_LEADERSHIP: Final = Leadership(LeaderState.UNKNOWN)


async def read_leadership(client: KubeClient, settings: LeaderElectionSettings, clock: Clock) -> Leadership:
    """The leader; unknown where the Lease cannot be read."""
    if not settings.enabled:
        return UNKNOWN_LEADERSHIP
    try:
        return leadership_of(await read_leases(client, settings), clock.now())
    except ApiError:
        return UNKNOWN_LEADERSHIP


async def read_leases(client: KubeClient, settings: LeaderElectionSettings) -> Sequence[Lease]:
    """The Leases of that name. Raises ApiError."""
    if settings.namespace:
        try:
            return [await client.get(LEASES, (settings.namespace, settings.name))]
        except NotFound:
            return []
    try:
        # The namespace of the controller's pod is known only to itself.
        return await read_all(client, LEASES, Selection(fields=f"metadata.name={settings.name}"))
    except Forbidden:
        return [await client.get(LEASES, (DEFAULT_NAMESPACE, settings.name))]


def leadership_of(leases: Sequence[Lease], now: float) -> Leadership:
    """State of the Leases of this name at `now`; one fresh Lease is enough."""
    if not leases:
        return Leadership(LeaderState.UNKNOWN, is_absent=True)  # a controller may lead without a Lease
    newest = max(leases, key=lambda lease: lease.renew_time or 0.0)
    left = (newest.renew_time or 0.0) + (counted_seconds(newest) if newest.holder else 0.0) + SLACK_SECONDS - now
    if (newest.renew_time or 0.0) > now + LONGEST_HELD_SECONDS:  # the future proves nothing
        return Leadership(LeaderState.UNKNOWN, "/".join(newest.key), newest.holder, newest.renew_time)
    fresh = LeaderState.ACTIVE if newest.holder else LeaderState.UNKNOWN
    return Leadership(fresh if left >= 0 else LeaderState.NONE, "/".join(newest.key), newest.holder, newest.renew_time)


def with_leadership(found: Sequence[NodeStatus], leadership: Leadership) -> tuple[NodeStatus, ...]:
    """Add warnings to the nodes if no controller leads, or if the leader does nothing."""
    return tuple(_with_leadership(status, leadership) for status in found)


def _with_leadership(status: NodeStatus, leadership: Leadership) -> NodeStatus:
    inactive = [each for each in status.warnings if each.kind is WarningKind.NO_CONTROLLER]
    others = [each for each in status.warnings if each.kind is not WarningKind.NO_CONTROLLER]
    if leadership.state is LeaderState.ACTIVE and inactive:
        hint = f"; {leadership.holder} leads: check its nodeSelector and its log"
        new = [msgspec.structs.replace(each, message=each.message.replace(IS_IT_RUNNING, hint)) for each in inactive]
    elif leadership.state is LeaderState.NONE and _needs_controller(status):
        message = f"no controller leads: {leadership.reason}"
        new = [PlanWarning(WarningKind.NO_CONTROLLER, message, remedy=remedy(WarningKind.NO_CONTROLLER))]
    else:
        return status
    return held_by_warning(msgspec.structs.replace(status, warnings=by_importance([*new, *others])))


def _needs_controller(status: NodeStatus) -> bool:
    """Whether its next step is a controller's."""
    is_managed = all(each.kind is not WarningKind.NOT_MANAGED for each in status.warnings)
    is_ours = status.owner is None or status.is_assisted
    return status.state is not NodePhase.IDLE and is_managed and is_ours and not status.is_done
