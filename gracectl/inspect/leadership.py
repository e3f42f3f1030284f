"""Whether a controller lives, as its Lease shows it to somebody who looks from outside.

Who may not read Leases, or does not know where the controller's is, knows nothing and says nothing: then what is done
(or not) must speak, as it must where the controller leads without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.inspect.status import IS_IT_RUNNING, NodeStatus, State
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, Forbidden
from gracectl.kube.reading import read_all
from gracectl.kube.requests import Selection
from gracectl.kube.resources import LEASES
from gracectl.kube.settings import DEFAULT_NAMESPACE, LeaderElectionSettings
from gracectl.model.lease import Lease
from gracectl.model.times import format_time
from gracectl.policy.warnings import PlanWarning, WarningKind, by_importance
from gracectl.runtime.clock import Clock

SLACK_SECONDS: Final = 5.0
"""By so much the clocks of the leader and of whoever looks may differ; and so long a handover may take."""


class Lead(StrEnum):
    """Whether somebody leads."""

    LEADS = "leads"
    NOBODY = "nobody"
    UNKNOWN = "unknown"


class Leadership(msgspec.Struct, frozen=True):
    """What the Lease `lease` (`namespace/name`) says. `holder`: who leads, or has led; "" if he has released it.
    `renewed`: when (Unix seconds) it was renewed or released last."""

    state: Lead
    lease: str = ""
    holder: str = ""
    renewed: float | None = None

    @property
    def words(self) -> str:
        """Why nobody leads."""
        if self.renewed is None:
            return f"nobody holds the Lease {self.lease}"
        at = format_time(self.renewed)
        if self.holder:
            return f"{self.holder} has the Lease {self.lease}, and has renewed it last at {at}"
        return f"the Lease {self.lease} was released at {at}, and nobody has taken it"


NOTHING_KNOWN: Final = Leadership(Lead.UNKNOWN)


async def read_leadership(client: KubeClient, settings: LeaderElectionSettings, clock: Clock) -> Leadership:
    """Who leads now; nothing known where that cannot be read."""
    if not settings.enabled:
        return NOTHING_KNOWN
    try:
        return judged(await _leases(client, settings), clock.now())
    except ApiError:
        return NOTHING_KNOWN


async def _leases(client: KubeClient, settings: LeaderElectionSettings) -> Sequence[Lease]:
    if settings.namespace:
        return [await client.get(LEASES, (settings.namespace, settings.name))]
    try:
        # Which namespace the controller's pod is in, only it knows.
        return await read_all(client, LEASES, Selection(fields=f"metadata.name={settings.name}"))
    except Forbidden:
        return [await client.get(LEASES, (DEFAULT_NAMESPACE, settings.name))]


def judged(leases: Sequence[Lease], now: float) -> Leadership:
    """What these leases of one name say at `now`: somebody leads if any of them is fresh."""
    if not leases:
        return NOTHING_KNOWN  # there may be one that leads without a Lease
    newest = max(leases, key=lambda lease: lease.renew_time or 0.0)
    left = (newest.renew_time or 0.0) + (newest.duration_seconds if newest.holder else 0.0) + SLACK_SECONDS - now
    fresh = Lead.LEADS if newest.holder else Lead.UNKNOWN
    return Leadership(fresh if left >= 0 else Lead.NOBODY, "/".join(newest.key), newest.holder, newest.renew_time)


def with_leadership(found: Sequence[NodeStatus], leadership: Leadership) -> tuple[NodeStatus, ...]:
    """The same nodes: where nobody leads, nobody acts, and that is said at once; where somebody leads and does not act,
    people are sent to him."""
    return tuple(_told(standing, leadership) for standing in found)


def _told(standing: NodeStatus, leadership: Leadership) -> NodeStatus:
    idle = [each for each in standing.obstacles if each.kind is WarningKind.NO_CONTROLLER]
    others = [each for each in standing.obstacles if each.kind is not WarningKind.NO_CONTROLLER]
    if leadership.state is Lead.LEADS:
        question = f"; {leadership.holder} leads: does its nodeSelector match the node, and what does its log say?"
        told = [msgspec.structs.replace(each, message=each.message.replace(IS_IT_RUNNING, question)) for each in idle]
    elif leadership.state is Lead.NOBODY and _waits_for_a_controller(standing):
        told = [PlanWarning(WarningKind.NO_CONTROLLER, f"no controller leads: {leadership.words}")]
    else:
        return standing
    return msgspec.structs.replace(standing, obstacles=by_importance([*told, *others]))


def _waits_for_a_controller(standing: NodeStatus) -> bool:
    """It is under way, and its next step is a controller's."""
    is_managed = all(each.kind is not WarningKind.NOT_MANAGED for each in standing.obstacles)
    return standing.state is not State.IDLE and is_managed and not standing.is_done
