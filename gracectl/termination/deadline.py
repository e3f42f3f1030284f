"""The second step: when everything must be over is written where everybody, and our successor, can read it.

Invariant: while a termination is under way its deadline is never moved to a later instant, whoever writes what.
"""

from __future__ import annotations

import logging

import anyio
import msgspec

from gracectl.kube.errors import ApiError
from gracectl.kube.requests import MergePatch
from gracectl.model import names
from gracectl.model.durations import NANOSECONDS_PER_SECOND, format_duration
from gracectl.model.times import format_time
from gracectl.policy.deadlines import Deadline, deadline_of, tightest, unreadable, written
from gracectl.termination.announce import announce
from gracectl.termination.held import H, Held
from gracectl.termination.steps import Answer, Proceed, Tools
from gracectl.termination.termination import LAST_WORD_SECONDS, Ending, Termination
from gracectl.termination.writes import amend

logger = logging.getLogger(__name__)


async def set_deadline(tools: Tools, termination: Termination) -> Answer:
    """Find out the deadline, write it to node and claim, and tell people what will happen then."""
    claim = termination.claim.state if termination.claim else None
    await publish(tools, termination, deadline_of(termination.node, claim, tools.settings.policy))
    return Proceed()


async def publish(tools: Tools, ending: Ending, found: Deadline | None) -> None:
    """Take over the deadline that was found just now, unless a tighter one is known; tell people when it is news, and
    write it to all holders of a node's or claim's end.

    What counts is known before anything is written: a server that does not answer moves no deadline.
    """
    before = ending.deadline
    ending.deadline = tightest(before, found)
    for held in ending.holders:
        _warn_of_unreadable(tools, ending, held)
    if ending.deadline is None:
        return
    if before is None or before.at != ending.deadline.at:
        reason = names.EventReason.TERMINATION_GRACE_PERIOD_EXPIRING
        announce(tools, ending.holders, reason, words(ending.deadline))
    with anyio.move_on_after(max(ending.deadline.at - tools.clock.now(), LAST_WORD_SECONDS)):
        first, *others = ending.holders
        await _write(tools, first, ending.deadline.at)
        for held in others:
            try:
                await _write(tools, held, ending.deadline.at)
            except ApiError as error:  # what the node itself says is enough: its claim must not hold it up
                logger.warning("the deadline could not be written: %s", error, extra=held.log_keys)


def words(deadline: Deadline) -> str:
    """What people are told: when, why then, and what it means for the pods."""
    cause = f"annotation {names.TERMINATION_TIMESTAMP}"
    if deadline.grace_period is not None:
        cause = f"termination grace period {format_duration(round(deadline.grace_period) * NANOSECONDS_PER_SECOND)}"
    return (
        f"ends by {format_time(deadline.at)} ({cause}): pods leave as budgets and protection allow; each that is still "
        "there is deleted, whatever holds it, early enough to have its own grace before then, or at once with what is "
        "left of it"
    )


def _warn_of_unreadable(tools: Tools, ending: Ending, held: Held[H]) -> None:
    text = unreadable(held.state)
    if text is None or (held.uid, text) in ending.complained:
        return
    ending.complained.add((held.uid, text))
    then = "there is no deadline"
    if ending.deadline is not None:
        then = f"{format_time(ending.deadline.at)} is written instead"
    message = (
        f'annotation {names.TERMINATION_TIMESTAMP} is "{text[:100]}", which is no instant such as '
        f"2026-01-01T00:00:00Z: {then}"
    )
    announce(tools, (held,), names.EventReason.INVALID_TERMINATION_TIMESTAMP, message, "Warning")


async def _write(tools: Tools, held: Held[H], deadline: float) -> None:
    text = format_time(deadline)

    def tightened(thing: H) -> MergePatch | None:
        shown = written(thing)
        if shown is not None and shown <= deadline:
            return None
        return MergePatch({"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: text}}})

    # A write that was abandoned at the deadline is not missed, and one that is repeated changes nothing.
    resource = msgspec.structs.replace(held.resource, abandonable=True)
    after = await amend(tools.client, resource, held.state, tightened)
    if after is not None:
        held.wrote(after)
