"""Decision about a voluntary termination: due triggers, and what blocks it.

The disruption controller acts on it, and `gracectl status` prints it. Sources: ADR 0011, ADR 0035.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gracectl.policy.health import UnhealthyNodes
from gracectl.policy.settings import PolicySettings
from gracectl.policy.voluntary import Cause, Trigger, VoluntaryBlocker, explain_blockers


class HoldReason(StrEnum):
    """Why a termination waits; the reason of its condition."""

    PROTECTION = "Protected"
    BUDGET = "PodDisruptionBudget"
    NODE_BUDGET = "NodeDisruptionBudget"
    PACE = "Pace"
    CIRCUIT_BREAKER = "CircuitBreaker"
    SEVERAL_CLAIMS = "SeveralNodeClaims"
    REFUSED = "DeletionRefused"
    PROVIDER_NONE = "ProviderNone"
    FROZEN = "Frozen"
    OUTSIDE_WINDOW = "OutsideWindow"
    PAUSED = "Paused"


PREDICATES: Final = {
    HoldReason.PACE: "waiting for its turn",
    HoldReason.REFUSED: "its deletion was refused",
    HoldReason.OUTSIDE_WINDOW: "waiting",
}
"""Predicates in messages; with other reasons a termination is blocked."""


class Hold(msgspec.Struct, frozen=True):
    """Blocker of a termination. `text`: `pod shop/job is protected by …; next step`.

    `until`: the instant (Unix seconds) at which a freeze or a closed window ends by itself.
    """

    reason: HoldReason
    text: str
    until: float | None = None

    def or_earlier(self, other: Hold) -> Hold:
        """This hold, until the earlier of both instants: then one of two nodes may begin."""
        instants = [each.until for each in (self, other) if each.until is not None]
        return msgspec.structs.replace(self, until=min(instants, default=None))


class PendingTermination(msgspec.Struct, frozen=True):
    """Termination that is due and waits. `since`: Unix seconds."""

    due: tuple[Trigger, ...]
    hold: Hold
    since: float

    @property
    def reason(self) -> HoldReason:
        """Reason of its hold."""
        return self.hold.reason

    @property
    def is_scheduled(self) -> bool:
        """Whether it waits for a window or the end of a freeze, as people want it."""
        return self.reason in (HoldReason.FROZEN, HoldReason.OUTSIDE_WINDOW)

    @property
    def cause(self) -> Cause:
        """The first cause, by which it is counted."""
        return self.due[0].cause

    @property
    def message(self) -> str:
        """Message: cause, blocker, and next step."""
        return explain_hold(self.due, self.hold)


class DueTermination(msgspec.Struct, frozen=True, kw_only=True):
    """Due triggers of a candidate at an instant."""

    due: tuple[Trigger, ...]
    """Triggers that are due, without `suspended`."""
    suspended: tuple[Trigger, ...] = ()
    """Health triggers while the circuit breaker is open, or without a provider that replaces the machine."""
    hold: Hold | None = None
    """Blocker of the suspended triggers."""
    next_trigger: float | None
    """The earliest instant (Unix seconds) of the others."""
    is_forced: bool = False
    """Unhealthy, with health.force: pods and deadlines do not count."""
    is_urgent: bool = False
    """Its machine goes soon: pods, pace and node disruption budgets do not count."""


def due_at(
    now: float, triggers: Sequence[Trigger], count: Callable[[float], UnhealthyNodes], settings: PolicySettings
) -> DueTermination:
    """Find the due triggers at `now`; `count` counts the unhealthy nodes if needed."""
    due = tuple(trigger for trigger in triggers if trigger.at <= now)
    sick = tuple(trigger for trigger in due if trigger.cause is Cause.UNHEALTHY)
    hold = _hold_of_health(count(now), settings) if sick else None
    return DueTermination(
        due=due if hold is None else tuple(trigger for trigger in due if trigger not in sick),
        suspended=() if hold is None else sick,
        hold=hold,
        next_trigger=min(
            (at for trigger in triggers for at in (trigger.at, trigger.urgent_at) if now < at < math.inf), default=None
        ),
        is_forced=settings.health.force and bool(sick) and hold is None,
        is_urgent=any(trigger.urgent_at <= now for trigger in due),
    )


def _hold_of_health(counts: UnhealthyNodes, settings: PolicySettings) -> Hold | None:
    if counts.excess:
        action = "terminated" if settings.terminates_unhealthy else "cordoned"
        text = f"{counts} (health.maximumUnhealthy); {action} when fewer nodes are unhealthy, or delete it"
        return Hold(HoldReason.CIRCUIT_BREAKER, text)
    if not settings.terminates_unhealthy:
        text = (
            "provider none terminates no machine, and with it no unhealthy node; repair the machine, delete the node, "
            "or set provider.name or health.enabled: true"
        )
        return Hold(HoldReason.PROVIDER_NONE, text)
    return None


def hold_of_pods(blockers: tuple[VoluntaryBlocker, ...]) -> Hold:
    """Hold for pods (at least one) that are protected or blocked by budgets."""
    is_protected = any(blocker.protection is not None for blocker in blockers)
    reason = HoldReason.PROTECTION if is_protected else HoldReason.BUDGET
    return Hold(reason, explain_blockers(blockers))


def hold_of_claims() -> Hold:
    """Hold by several claims that match one node."""
    return Hold(HoldReason.SEVERAL_CLAIMS, "several node claims match its node; delete all but one")


def hold_of_pace(pace: str, settings: PolicySettings) -> Hold:
    """Hold by terminations in progress; `pace`: how many may be."""
    wait = ", and the pods of each are Ready elsewhere before the next one"
    replaced = wait if settings.voluntary.wait_for_replacement else ""
    return Hold(HoldReason.PACE, f"{pace}{replaced}; delete it to terminate it now")


def hold_of_node_budget(refusal: str) -> Hold:
    """Hold by a node disruption budget, with its reason and remedy."""
    return Hold(HoldReason.NODE_BUDGET, refusal)


def hold_of_refusal(error: str) -> Hold:
    """Hold by the API server, or a webhook of another project, that refuses the DELETE."""
    return Hold(HoldReason.REFUSED, f"{error}; retrying")


def explain_due(due: Sequence[Trigger]) -> str:
    """`termination due (node n1 has the label …)`."""
    return f"termination due ({due[0].message})"


def explain_hold(due: Sequence[Trigger], hold: Hold) -> str:
    """`termination due (…) but blocked: …; next step`."""
    return f"{explain_due(due)} but {PREDICATES.get(hold.reason, 'blocked')}: {hold.text}"
