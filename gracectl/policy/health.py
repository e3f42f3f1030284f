"""Health of nodes: whether a node is unhealthy, since when, and how many may be so before none is terminated for it.

A node is not terminated for its condition, which is neither diagnosed nor repaired here, but because another one can
take its place, which is true only while few are unhealthy. Many at once are a symptom of something else (a network
partition, an API server that cannot be reached), and terminating them would make it an outage.

An outage is not over with the first node that recovers: nodes that have been healthy for only a short time still
count as unhealthy, or the last of them would be terminated as soon as enough are back. Sources: Karpenter's graceful
termination design ("unable to become ready for 15 minutes") and node repair.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import scaled_value
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_in_maintenance, maintenance_ended_at
from gracectl.policy.settings import ConditionPolicy, HealthSettings

RECOVERY_SECONDS: Final = 300.0
"""A node counts as unhealthy until it has been healthy for so long."""


class UnhealthyCondition(msgspec.Struct, frozen=True):
    """Bad condition of a node. `since`: an instant, None if absent; `toleration`: seconds."""

    type: str
    status: str
    since: float | None
    toleration: float

    @property
    def tolerated_until(self) -> float:
        """The instant from which on the node is to be terminated; infinity without a `since`: no node is
        terminated on a guess.
        """
        return math.inf if self.since is None else self.since + self.toleration


def unhealthy_conditions(node: Node, settings: HealthSettings) -> tuple[UnhealthyCondition, ...]:
    """The bad conditions of a node, tolerated or not.

    Each counts from its own last transition: one that goes from False to Unknown counts anew, as nothing in the
    object tells since when it has been neither. What was never reported counts from the node's creation. What was bad
    during maintenance counts from its end.
    """
    if settings.enabled is False:
        return ()
    found = (_unhealthy_condition(node, policy) for policy in settings.conditions)
    return tuple(each for each in found if each is not None)


def unhealthy_until(node: Node, settings: HealthSettings) -> float:
    """Until when a node counts as unhealthy: infinity while it has a bad condition, tolerated or not; negative
    infinity if it has had none for long, or is in maintenance.

    A new node becomes Ready for the first time, which is no recovery: only one that was older than what is tolerated
    can have been unhealthy before.
    """
    if settings.enabled is False or is_in_maintenance(node):
        return -math.inf
    if unhealthy_conditions(node, settings):
        return math.inf
    turns = [
        (condition.last_transition, policy.toleration_seconds)
        for policy in settings.conditions
        if (condition := condition_of(node.conditions, policy.type)) is not None
    ]
    recoveries = (at for at, tolerated in turns if at is not None and at > node.created + tolerated)
    return max((at + RECOVERY_SECONDS for at in recoveries), default=-math.inf)


def first_untolerated(conditions: tuple[UnhealthyCondition, ...]) -> UnhealthyCondition | None:
    """The one that is first tolerated no longer."""
    return min(conditions, key=lambda condition: condition.tolerated_until, default=None)


def _unhealthy_condition(node: Node, policy: ConditionPolicy) -> UnhealthyCondition | None:
    condition = condition_of(node.conditions, policy.type)
    if condition is None:
        # Kubernetes, too, sets Unknown where no kubelet has reported, but only a minute later.
        if (policy.type, policy.status) != (names.READY, names.UNKNOWN):
            return None
        since: float | None = node.created
    elif condition.status != policy.status:
        return None
    else:
        since = node.created if condition.reason == names.NEVER_REPORTED else condition.last_transition
    ended = maintenance_ended_at(node)
    if since is not None and ended is not None:
        since = max(since, ended)
    return UnhealthyCondition(policy.type, policy.status, since, policy.toleration_seconds)


class UnhealthyNodes(msgspec.Struct, frozen=True, kw_only=True):
    """Number of managed nodes, of unhealthy ones, and of those that recovered just now; `maximum` of both: a number,
    or a share of all such as "20%".

    All managed nodes count on both sides, those that are being deleted too. If an unhealthy node ceased to count when
    it is terminated, terminating the first fifth would make room for the next, and an outage that spreads would take
    the cluster fifth by fifth. So it does not matter either how many are terminated in one instant.
    """

    unhealthy: int
    managed: int
    maximum: int | str
    recovering: int = 0

    @property
    def allowed(self) -> int:
        """How many may be unhealthy; a share is rounded up, as Kubernetes does for what may be unavailable."""
        return scaled_value(self.maximum, self.managed, round_up=True)

    @property
    def excess(self) -> int:
        """How many are too many; none is terminated for its health while there are any."""
        return max(0, self.unhealthy + self.recovering - self.allowed)

    def validate(self) -> None:
        """ValueError if `maximum` is neither a number nor a share, negative, or a share of more than all."""
        of_hundred = scaled_value(self.maximum, 100, round_up=True)
        if of_hundred < 0:
            raise ValueError(f"{self.maximum!r} is negative")
        if isinstance(self.maximum, str) and of_hundred > 100:
            raise ValueError(
                f"{self.maximum!r} is more than 100%; to end unhealthy nodes however many there are, say 100%"
            )

    def __str__(self) -> str:
        """`3 of 10 managed nodes are unhealthy, and 1 was until a short while ago; 2 (20%) may be`."""
        nodes = "1 managed node is" if self.managed == 1 else f"{self.managed} managed nodes are"
        recovering = f", and {self.recovering} {'was' if self.recovering == 1 else 'were'} until a short while ago"
        share = f"{self.allowed} ({self.maximum})" if isinstance(self.maximum, str) else str(self.allowed)
        return f"{self.unhealthy} of {nodes} unhealthy{recovering if self.recovering else ''}; {share} may be"
