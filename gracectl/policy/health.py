"""Health of nodes: unhealthy conditions, their start, and the circuit breaker.

Replacing an unhealthy node helps only while few nodes are unhealthy. Many unhealthy nodes are a symptom of something
else (a network partition, an unreachable API server), and terminating them would cause an outage.

Nodes that recovered a short time ago still count as unhealthy; otherwise the last unhealthy nodes would be terminated
as soon as enough others are back. Sources: Karpenter's graceful
termination design ("unable to become ready for 15 minutes") and node repair.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.budget import scaled_value
from gracectl.model.meta import Condition, condition_of
from gracectl.model.node import Node
from gracectl.policy.maintenance import is_in_maintenance, maintenance_ended_at
from gracectl.policy.settings import ConditionPolicy, HealthSettings

RECOVERY_SECONDS: Final = 300.0
"""Time for which a node must be healthy before it counts as healthy."""


class UnhealthyCondition(msgspec.Struct, frozen=True):
    """Bad condition of a node. `since`: an instant, None if absent; `toleration`: seconds."""

    type: str
    status: str
    since: float | None
    toleration: float

    @property
    def tolerated_until(self) -> float:
        """Instant from which the node may be terminated; infinity without a `since`, since a guess is not enough."""
        return math.inf if self.since is None else self.since + self.toleration


def unhealthy_conditions(node: Node, settings: HealthSettings) -> tuple[UnhealthyCondition, ...]:
    """The bad conditions of a node, tolerated or not.

    Each counts from its own last transition, also from False to Unknown: the object does not show when the condition
    was last good. A condition that was never reported counts from the node's creation, a condition that was bad during
    maintenance from the end of the maintenance.
    """
    if settings.enabled is False:
        return ()
    found = [
        _unhealthy_condition(node, policy, condition_of(node.conditions, policy.type)) for policy in settings.conditions
    ]
    return tuple([each for each in found if each is not None])


def unhealthy_until(node: Node, settings: HealthSettings) -> float:
    """Until when a node counts as unhealthy: infinity while it has a bad condition, tolerated or not; negative
    infinity if it has had none for long, or is in maintenance.

    A new node that becomes Ready for the first time has not recovered: only one that was older than the toleration
    can have been unhealthy before.
    """
    if settings.enabled is False or is_in_maintenance(node):
        return -math.inf
    until = -math.inf
    for policy in settings.conditions:
        condition = condition_of(node.conditions, policy.type)
        if _unhealthy_condition(node, policy, condition) is not None:
            return math.inf
        at = None if condition is None else condition.last_transition
        if at is not None and at > node.created + policy.toleration_seconds:
            until = max(until, at + RECOVERY_SECONDS)
    return until


def first_untolerated(conditions: tuple[UnhealthyCondition, ...]) -> UnhealthyCondition | None:
    """The one that is first tolerated no longer."""
    return min(conditions, key=lambda condition: condition.tolerated_until, default=None)


def _unhealthy_condition(node: Node, policy: ConditionPolicy, condition: Condition | None) -> UnhealthyCondition | None:
    """`condition`: of the type of the policy."""
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
    """Counts of managed, unhealthy and just recovered nodes; `maximum` of the latter two: a number, or a share such as
    "20%".

    Nodes that are being deleted count, too. Otherwise terminating the first fifth would make room for the next, and a
    spreading outage would take the whole cluster, fifth by fifth.
    """

    unhealthy: int
    managed: int
    maximum: int | str
    recovering: int = 0

    @property
    def allowed(self) -> int:
        """Maximum number of unhealthy nodes; a share is rounded up, as Kubernetes does for maxUnavailable."""
        return scaled_value(self.maximum, self.managed, round_up=True)

    @property
    def excess(self) -> int:
        """Unhealthy nodes above the maximum; while there are any, no node is terminated for its health."""
        return max(0, self.unhealthy + self.recovering - self.allowed)

    def validate(self) -> None:
        """Raise ValueError if `maximum` is not a number from 0 or a share up to 100%."""
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
