"""When a node is unhealthy, since when, and how many may be so before none is ended for it any more.

A node is not ended for what it suffers from: we can neither diagnose nor mend it. It is ended because its place can be
taken by another one, which is true only while few are unhealthy. Many at once are a symptom of something else (a
network that is cut, an API server that hears nobody), and to end them would make an outage out of it.
Source: the termination seed ("unable to become ready for 15 minutes"), DESIGN 3.1, Karpenter's node repair.
"""

from __future__ import annotations

import math

import msgspec

from gracectl.model import names
from gracectl.model.intorpercent import scaled_value
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.settings import ConditionPolicy, HealthSettings


class Ailment(msgspec.Struct, frozen=True):
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


def ailments_of(node: Node, settings: HealthSettings) -> tuple[Ailment, ...]:
    """What is bad about a node, tolerated or not.

    Each condition counts from its own last transition: one that goes from False to Unknown counts anew, as nothing in
    the object tells since when it has been neither. What was never reported counts from the node's creation.
    """
    if not settings.enabled:
        return ()
    found = (_ailment(node, policy) for policy in settings.conditions)
    return tuple(ailment for ailment in found if ailment is not None)


def is_unhealthy(node: Node, settings: HealthSettings) -> bool:
    """Whether anything is bad about the node, tolerated or not."""
    return bool(ailments_of(node, settings))


def first_to_end(ailments: tuple[Ailment, ...]) -> Ailment | None:
    """The one that is tolerated no longer first."""
    return min(ailments, key=lambda ailment: ailment.tolerated_until, default=None)


def _ailment(node: Node, policy: ConditionPolicy) -> Ailment | None:
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
    return Ailment(policy.type, policy.status, since, policy.toleration_seconds)


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes there are and how many of them are unhealthy; `maximum`: a number, or a share such as "20%".

    All managed nodes count on both sides, those that are being deleted too. An unhealthy node that has been told to end
    is still one that does not work: if it ceased to count, ending the first fifth would make room for the next, and
    an outage that spreads would take the cluster fifth by fifth. So however many are ended in one instant, or by how
    many of us, they are among those counted, and no more than `maximum` in all until the first are gone and replaced.
    """

    unhealthy: int
    managed: int
    maximum: int | str

    @property
    def allowed(self) -> int:
        """How many may be unhealthy; a share is rounded up, as Kubernetes does for what may be unavailable."""
        return scaled_value(self.maximum, self.managed, round_up=True)

    @property
    def is_too_many(self) -> bool:
        """No node is to be ended for its health."""
        return self.unhealthy > self.allowed

    def validate(self) -> None:
        """ValueError if `maximum` is neither a number nor a share, or negative."""
        if scaled_value(self.maximum, 100, round_up=True) < 0:
            raise ValueError(f"{self.maximum!r} is negative")

    def __str__(self) -> str:
        """`3 of 10 managed nodes are unhealthy, 2 (20%) may be`: for people."""
        nodes = "1 managed node is" if self.managed == 1 else f"{self.managed} managed nodes are"
        share = f"{self.allowed} ({self.maximum})" if isinstance(self.maximum, str) else str(self.allowed)
        return f"{self.unhealthy} of {nodes} unhealthy, {share} may be"
