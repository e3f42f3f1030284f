"""When a node is unhealthy, since when, and how many may be so before none is ended for it any more.

A node is not ended for what it suffers from: we can neither diagnose nor mend it. It is ended because its place can be
taken by another one, which is true only while few are unhealthy. Many at once are a symptom of something else (a
network that is cut, an API server that hears nobody), and to end them would make an outage out of it.

An outage is not over with the first node that recovers. Those that have been well for only a short time still count as
unhealthy: else, as soon as enough are back, the rest would be ended for being the last.
Source: the termination seed ("unable to become ready for 15 minutes"), DESIGN 3.1, Karpenter's node repair.
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
"""A node counts as unhealthy until it has been well for so long."""


class UnhealthyCondition(msgspec.Struct, frozen=True):
    """A condition of a node that is bad. `since`: an instant, None where nobody wrote one; `toleration`: seconds."""

    type: str
    status: str
    since: float | None
    toleration: float

    @property
    def tolerated_until(self) -> float:
        """The instant from which on the node is to be ended; infinity if nobody knows since when it has been bad: no
        node is ended on a guess."""
        return math.inf if self.since is None else self.since + self.toleration


def unhealthy_conditions(node: Node, settings: HealthSettings) -> tuple[UnhealthyCondition, ...]:
    """What is bad about a node, tolerated or not.

    Each condition counts from its own last transition: one that goes from False to Unknown counts anew, as nothing in
    the object tells since when it has been neither. What was never reported counts from the node's creation. What was
    bad while the node was kept drained counts from when it was given back.
    """
    if not settings.enabled:
        return ()
    found = (_ailment(node, policy) for policy in settings.conditions)
    return tuple(ailment for ailment in found if ailment is not None)


def unhealthy_until(node: Node, settings: HealthSettings) -> float:
    """Until when a node counts as unhealthy: infinity as long as anything is bad about it, tolerated or not; negative
    infinity if nothing has been for long, or somebody works on it, and it is as he wants it.

    A node that is new becomes Ready for the first time, which is no recovery: only one that was older than what is
    tolerated can have been ill before.
    """
    if not settings.enabled or is_in_maintenance(node):
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


def first_untolerated(ailments: tuple[UnhealthyCondition, ...]) -> UnhealthyCondition | None:
    """The one that is tolerated no longer first."""
    return min(ailments, key=lambda ailment: ailment.tolerated_until, default=None)


def _ailment(node: Node, policy: ConditionPolicy) -> UnhealthyCondition | None:
    condition = condition_of(node.conditions, policy.type)
    if condition is None:
        # Kubernetes, too, calls Unknown what no kubelet has spoken of, but only a minute later.
        if (policy.type, policy.status) != (names.READY, names.UNKNOWN):
            return None
        since: float | None = node.created
    elif condition.status != policy.status:
        return None
    else:
        since = node.created if condition.reason == names.NEVER_REPORTED else condition.last_transition
    given_back = maintenance_ended_at(node)
    if since is not None and given_back is not None:
        since = max(since, given_back)
    return UnhealthyCondition(policy.type, policy.status, since, policy.toleration_seconds)


class UnhealthyNodes(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes there are, how many of them are unhealthy, and how many have recovered from that just now;
    `maximum` of both: a number, or a share of all such as "20%".

    All managed nodes count on both sides, those that are being deleted too. An unhealthy node that has been told to end
    is still one that does not work: if it ceased to count, ending the first fifth would make room for the next, and
    an outage that spreads would take the cluster fifth by fifth. And so it does not matter how many are ended in one
    instant, or by how many of us: they are among those counted.
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
        """How many are too many; none is ended for its health as long as there are any."""
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
        """`3 of 10 managed nodes are unhealthy, and 1 was until a short while ago; 2 (20%) may be`: for people."""
        nodes = "1 managed node is" if self.managed == 1 else f"{self.managed} managed nodes are"
        recovering = f", and {self.recovering} {'was' if self.recovering == 1 else 'were'} until a short while ago"
        share = f"{self.allowed} ({self.maximum})" if isinstance(self.maximum, str) else str(self.allowed)
        return f"{self.unhealthy} of {nodes} unhealthy{recovering if self.recovering else ''}; {share} may be"
