"""A node that is drained for maintenance and stays: it is asked for, cordoned, drained, rests, and is given back.

The steps of a termination, as far as pods are concerned, and then none: nobody is deleted, there is no deadline, and
neither instance nor finalizer nor claim is touched (ADR 0014). Invariant: the record of what was put on the node goes
last, so whoever takes over from us at any moment knows what is still to be taken off.
"""

from __future__ import annotations

import anyio

from gracectl.controllers.node.cordon import forgotten, superfluous
from gracectl.controllers.node.drain import withdraw
from gracectl.controllers.pipeline.node_state import KEPT, Termination
from gracectl.controllers.pipeline.state import InstanceWait
from gracectl.controllers.pipeline.steps import Answer, Proceed, Release, Tools, Wait
from gracectl.controllers.reporting.conditions import drop_conditions
from gracectl.controllers.reporting.events import announce
from gracectl.kube.amend import amend
from gracectl.kube.requests import JsonPatch, MergePatch
from gracectl.model import names
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.policy.cordon import SPELT, marks_on
from gracectl.policy.health import ailments_of
from gracectl.policy.kept import is_given_back, is_in_maintenance, is_kept, is_uncordoned, kept_since

REST_SECONDS = 60.0
"""Whatever a node that rests has to be woken for is an event; in case a condition could not be written, it is looked at
this often."""

OURS = (names.DRAINED, names.VOLUMES_DETACHED)
"""The conditions that a kept node has from us."""


def request(node: Node, now: float) -> MergePatch | None:
    """The patch that asks to drain a node and to keep it so (`now`: Unix seconds); None when that is asked for already,
    or when the node is being deleted."""
    if node.deletion_timestamp is not None or is_kept(node):
        return None
    asked = {"metadata": {"annotations": {names.KEEP_DRAINED: format_time(now)}}}
    # Somebody has uncordoned it, and nobody has taken note of that yet: this request must not go with the last one.
    return MergePatch({**asked, "spec": {"unschedulable": True}} if is_uncordoned(node) else asked)


def withdrawal(node: Node) -> MergePatch | None:
    """The patch that gives a node back: the request is taken off, and the node is schedulable, as after `kubectl
    uncordon`. None when it is so already, or when the node is being deleted, which nobody can take back."""
    patch: dict[str, dict[str, object]] = {}
    if node.deletion_timestamp is None and names.KEEP_DRAINED in node.annotations:
        patch["metadata"] = {"annotations": {names.KEEP_DRAINED: None}}
    if node.deletion_timestamp is None and node.unschedulable:
        patch["spec"] = {"unschedulable": None}
    return MergePatch(patch) if patch else None


class KeptDrain(Termination):
    """The memory of a node that is kept drained, until nothing of that is left on it."""

    kind = "kept"
    is_kept = True
    fate = "is drained for maintenance"
    outcome = "is no longer drained for maintenance"

    def __init__(self, node: Node, instance: InstanceWait, now: float) -> None:
        super().__init__(node, instance, now)
        drained = condition_of(node.conditions, names.DRAINED)
        self.started = kept_since(node, now)
        self.is_resumed = drained is not None
        self.is_resting = drained is not None and drained.status == names.TRUE
        self.is_returned = False
        """Its return was begun; a state that asks for it may be from before that."""
        self.scope: anyio.CancelScope | None = None  # of the walk that is under way, or was last

    @property
    def emptied(self) -> tuple[str, str]:
        """See Termination."""
        return KEPT, (
            "all pods are gone but those that stay with the node; it is kept so until somebody gives it back: "
            f"gracectl uncordon {self.node.name}, or kubectl uncordon {self.node.name}"
        )

    def is_of(self, node: Node) -> bool:
        """See Termination."""
        return node.uid == self.uid and is_in_maintenance(node)

    def begin_anew(self, now: float) -> None:
        """It was given back, and is asked for once more: that is another drain."""
        self.plan = self.guards = self.cordoned_at = self.still_since = None
        self.next_cordon = 0.0
        self.recordon.reset()
        self.misspelt = {}
        self.is_resumed = self.is_resting = self.is_returned = False
        self.started = kept_since(self.node, now)
        self.forget_steps(now)


async def rest(tools: Tools, kept: KeptDrain) -> Answer:
    """Nothing is left to be done until somebody gives the node back, or a late pod comes."""
    _, message = kept.emptied
    if not kept.is_resting:
        kept.is_resting = True
        announce(tools, kept.objects, names.EventReason.DRAINED, message)
    return Wait(REST_SECONDS, message)


async def uncordon(tools: Tools, kept: KeptDrain) -> Answer:
    """Take off in one write what the cordon has put on the node, and the request; nobody is asked to leave any more."""
    withdraw(tools, kept.node.name)
    kept.is_returned = True
    before = kept.node

    def needed(node: Node) -> JsonPatch | None:
        is_ill = bool(ailments_of(node, tools.settings.policy.health))
        return superfluous(node, format_time(tools.clock.now()) if is_ill else None)

    if needed(before):
        after = await amend(tools.client, kept.held.abandonable, before, needed)
        if after is None:
            return Release("the node is gone")
        kept.held.wrote(after)
        if not is_given_back(after):
            return Wait(0.0, "nobody asks for its return any more")
        announce(tools, kept.objects, names.EventReason.UNCORDONED, _words(before, after))
    return Proceed()


def _words(before: Node, after: Node) -> str:
    """What people are told of a node that was given back: why, and what keeps pods or traffic from it all the same."""
    is_by_hand = names.KEEP_DRAINED in before.annotations
    why = "somebody has uncordoned it" if is_by_hand else f"annotation {names.KEEP_DRAINED} was taken off"
    left = " and ".join(SPELT[mark] for mark in marks_on(after))
    return f"is no longer kept drained: {why}{f'; it keeps {left}, which gracectl has not put there' if left else ''}"


async def clean_up(tools: Tools, kept: KeptDrain) -> Answer:
    """Our conditions come off, and then the record: as long as it stands, a successor of ours would do all this."""
    await drop_conditions(tools, kept.held, OURS)
    after = await amend(tools.client, kept.held.abandonable, kept.node, forgotten)
    if after is not None:
        kept.held.wrote(after)
    return Proceed()
