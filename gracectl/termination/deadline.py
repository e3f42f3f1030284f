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
from gracectl.termination.termination import Termination
from gracectl.termination.writes import amend


async def set_deadline(tools: Tools, termination: Termination) -> Answer:
    """Find out the deadline, write it to node and claim, and tell people what will happen then."""
    claim = termination.claim.state if termination.claim else None
    deadline = deadline_of(termination.node, claim, tools.settings.policy)
    if deadline is None:
        termination.deadline = None
        return Proceed()
    # The annotation has whole seconds: what everybody reads there is what counts.
    deadline = msgspec.structs.replace(deadline, at=parse_time(format_time(deadline.at)))
    is_news = termination.deadline is None or termination.deadline.at != deadline.at
    termination.deadline = deadline
    if is_news:
        announce(tools, termination.holders, names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRING, words(deadline))
    await _write(tools, termination.held, deadline.at)
    if termination.claim is not None:
        await _write(tools, termination.claim, deadline.at)
    return Proceed()


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
