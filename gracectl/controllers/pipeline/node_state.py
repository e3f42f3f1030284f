"""The end of one node while it is under way (see Ending): its claim, its cordon, its plan, how much time there is."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from gracectl.controllers.cluster.cache import is_held
from gracectl.controllers.cluster.tracked import AnyHeld, Held
from gracectl.controllers.pipeline.state import Ending, InstanceWait, Progress
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.plan import Plan
from gracectl.policy.protected_pods import Guard
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import Clock

LAST_WORD_SECONDS = 1.0
"""At the deadline the instance ends; a server that does not answer has this long for everything that comes before."""

PATIENCE_SECONDS = 5.0
"""A server that does not answer holds up an instance whose end was asked for by no more than this, step by step."""

RECORDON_SECONDS = (0.002, 60.0)
"""Between two cordons of a node on which they are undone: the first wait and the longest, doubled each time."""

TOLD_OF_STANDSTILL = math.inf
"""As the instant since when nobody leaves: people were told of it."""

KEPT = "Kept"
"""Reason of the condition Drained of a node that is drained and stays."""


class Termination(Ending[Node]):
    """The memory of one node's end, or (KeptDrain) of its drain alone."""

    is_kept = False
    """Whether the node stays when it is drained."""

    def __init__(self, node: Node, instance: InstanceWait, now: float) -> None:
        super().__init__(Held(NODES, node), instance, now)
        drained = condition_of(node.conditions, names.DRAINED)
        if drained is not None and drained.reason == KEPT:
            self.is_resumed = False  # what people know of is the drain of a node that was to stay
        self.claim: Held[NodeClaim] | None = None
        self.next_claim = 0.0  # before this instant (monotonic) a claim that could not be deleted is let be
        self.cordoned_at: float | None = None
        self.next_cordon = 0.0  # before this instant (monotonic) a cordon that was undone is let be
        self.recordon = Backoff(*RECORDON_SECONDS, jitter=0.0)
        self.plan: Plan | None = None
        self.guards: Mapping[str, Guard] | None = None  # by uid, the protected pods that are waited for; None before
        self.misspelt: Mapping[str, str] = {}  # by uid, the values of which people were told that nobody understands
        self.looked_at = -math.inf  # when (monotonic) the drain was last planned
        self.left_behind = ""  # once the deadline has passed: what was left then, for people
        # Since when (monotonic) nobody leaves though somebody should.
        self.still_since: float | None = None
        self._hurries_since: float | None = None  # since when (monotonic) the deadline was seen to have passed

    @property
    def node(self) -> Node:
        """The node as fresh as we know it."""
        return self.held.state

    @property
    def lack(self) -> str:
        """See Ending."""
        return f"node {self.node.name} has no spec.providerID"

    @property
    def provider_id(self) -> str:
        """Which instance: the node's, else its claim's; empty when nobody knows."""
        return self.node.provider_id or (self.claim.state.provider_id if self.claim else "")

    @property
    def source(self) -> Node | None:
        """See Ending."""
        return self.node

    @property
    def objects(self) -> tuple[AnyHeld, ...]:
        """The node, and its claim if it has one."""
        return (self.held, self.claim) if self.claim else (self.held,)

    @property
    def emptied(self) -> tuple[str, str]:
        """Reason and message of the condition Drained when no pod is left that is waited for."""
        return "Drained", "all pods are gone"

    def is_of(self, node: Node) -> bool:
        """Whether this state of a node is one that has this end."""
        return node.uid == self.uid and is_held(node)

    def time_left(self, clock: Clock) -> float:
        """The seconds that what comes before the end of the instance may take from now on; inf without a deadline.

        That is until the deadline; from then on LAST_WORD_SECONDS for everything, counted from the first look; and when
        the provider has been asked, PATIENCE_SECONDS for each thing, so that it is asked again in time.
        """
        if self.deadline is None:
            return math.inf
        left = self.deadline.at - clock.now()
        if left > 0:
            return left
        if self.instance.was_tried:
            return PATIENCE_SECONDS
        now = clock.monotonic()
        if self._hurries_since is None:
            self._hurries_since = now
        return max(self._hurries_since + LAST_WORD_SECONDS - now, 0.0)

    def progress(self, now: float) -> Progress:
        """Where it stands at `now`."""
        left = 0 if self.plan is None else len(self.plan.left)
        is_still = self.still_since == TOLD_OF_STANDSTILL
        return msgspec.structs.replace(super().progress(now), pods_left=left, is_at_standstill=is_still)
