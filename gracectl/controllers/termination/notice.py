"""Step "notice": release a node that is not Ready and has no instance; nothing is left to drain."""

from __future__ import annotations

import logging

from gracectl.cloud.provider import InstanceState, ProviderError
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.drain import cancel_drain
from gracectl.controllers.termination.instance import gone_condition, state_of_instance
from gracectl.controllers.termination.state import NodeState

logger = logging.getLogger(__name__)

NOTICE_SECONDS = 10.0
"""Seconds between two questions to the provider whether the instance of a node that is not Ready is gone."""

NOTICE_CALL_SECONDS = 5.0
"""Timeout of these questions."""


async def detect_lost_instance(context: StepContext, state: NodeState) -> Answer:
    """Release a node that is not Ready and has no instance: there is nothing left to drain."""
    node, memo, now = state.node, state.instance, context.clock.monotonic()
    if memo.is_gone:
        return _lost(context, state)
    if node.ready or not state.provider_id:
        return Answer(Next.PROCEED)
    if now < memo.next_notice:
        return Answer(Next.PROCEED, memo.next_notice - now)
    if memo.requested_at is not None and state.drain.plan is not None and state.drain.plan.drained:
        return Answer(Next.PROCEED)  # the step that terminates it polls it
    memo.turn_to(state.provider_id)
    memo.next_notice = now + NOTICE_SECONDS
    try:
        instance_state = await state_of_instance(context, state, NOTICE_CALL_SECONDS)
    except ProviderError as error:
        logger.warning("provider %s: state unknown: %s", context.provider.name, error, extra={"node": node.name})
        return Answer(Next.PROCEED, NOTICE_SECONDS)
    if instance_state is not InstanceState.GONE:
        return Answer(Next.PROCEED, NOTICE_SECONDS)
    memo.is_gone = True
    logger.info("instance is gone already: nothing is left to drain", extra=state.tracked.log_keys)
    return _lost(context, state)


def _lost(context: StepContext, state: NodeState) -> Answer:
    cancel_drain(context, state.node.name)
    return Answer(Next.RELEASE, reason="its instance is gone", conditions=(gone_condition(state),), is_final=True)
