"""The second step: when everything must be over is written where everybody, and our successor, can read it.

Invariant: what is written is never moved to a later instant.
"""

from __future__ import annotations

import msgspec

from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.times import format_time, parse_time
from gracectl.policy.deadlines import Deadline, deadline_of, written
from gracectl.termination.announce import announce
from gracectl.termination.held import H, Held
from gracectl.termination.steps import Answer, Proceed, Tools
from gracectl.termination.termination import Ending, Termination
from gracectl.termination.writes import amend


async def set_deadline(tools: Tools, termination: Termination) -> Answer:
    """Find out the deadline, write it to node and claim, and tell people what will happen then."""
    claim = termination.claim.state if termination.claim else None
    await publish(tools, termination, deadline_of(termination.node, claim, tools.settings.policy))
    return Proceed()


async def publish(tools: Tools, ending: Ending, deadline: Deadline | None) -> None:
    """Write a deadline to all holders of a node's or claim's end, and tell people when it is news."""
    if deadline is None:
        ending.deadline = None
        return
    # The annotation has whole seconds: what everybody reads there is what counts.
    deadline = msgspec.structs.replace(deadline, at=parse_time(format_time(deadline.at)))
    is_news = ending.deadline is None or ending.deadline.at != deadline.at
    ending.deadline = deadline
    if is_news:
        announce(tools, ending.holders, names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRING, words(deadline))
    for held in ending.holders:
        await _write(tools, held, deadline.at)


def words(deadline: Deadline) -> str:
    """What people are told: when, since when, and what it means for the pods."""
    cause = "deadline set by hand"
    if deadline.grace_period is not None:
        cause = f"termination grace period {deadline.grace_period:g} s"
    return (
        f"ends by {format_time(deadline.at)} ({cause}); until then pods leave as budgets and protection allow, but "
        "each is deleted, whatever holds it, early enough to have its own grace before that"
    )


async def _write(tools: Tools, held: Held[H], deadline: float) -> None:
    text = format_time(deadline)

    def tightened(thing: H) -> MergePatch | None:
        shown = written(thing)
        if shown is not None and shown <= deadline:
            return None
        return MergePatch({"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: text}}})

    after = await amend(tools.client, held.resource, held.state, tightened)
    if after is not None:
        held.wrote(after)
