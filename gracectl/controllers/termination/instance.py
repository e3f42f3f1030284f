"""Step "instance": terminate the instance; and step "notice", which releases a node whose instance is gone already.

Done only when the provider says that the instance is gone; a provider that fails is asked again with backoff, for ever,
and says so on the node. An instance is never leaked: the finalizer waits for this step. An instance that came later
is not terminated: once the provider has confirmed that an instance is gone, it is not terminated again for this node or
claim, also after a restart. Only memory skips a drain: a kubelet can write the condition on its own node.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import anyio

from gracectl.cloud.provider import (
    TRACEPARENT,
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
)
from gracectl.controllers.cluster.cache import is_finalizing
from gracectl.controllers.termination.context import Answer, Proceed, Release, Step, StepContext, Wait
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.report import set_condition
from gracectl.controllers.termination.state import AnyState, E, NodeState
from gracectl.kube.conditions import ConditionUpdate
from gracectl.model import names
from gracectl.model.claim import only_claim
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of, natural_key
from gracectl.model.node import Node
from gracectl.policy.remedies import remedy
from gracectl.policy.warnings import keeps_running
from gracectl.runtime.fence import FenceClosed
from gracectl.runtime.supervise import is_cancelled

T = TypeVar("T")

logger = logging.getLogger(__name__)

REMIND_SECONDS = 60.0
"""How often to repeat a termination that the provider has accepted while the instance is still there."""

NOTICE_SECONDS = 10.0
"""How often to ask the provider whether the instance of a node that is not Ready is gone."""

NOTICE_PATIENCE_SECONDS = 5.0
"""How long to wait for that answer."""

LONGEST_FAULT = 400
"""Characters of an exception that no provider should raise."""

PATIENCE_SECONDS = 60.0
"""How long to wait for the provider otherwise."""


async def detect_lost_instance(context: StepContext, state: NodeState) -> Answer:
    """Release a node that is not Ready and whose instance is gone: there is nothing left to drain."""
    node, wait, now = state.node, state.instance, context.clock.monotonic()
    if wait.is_gone:
        return Release("its instance is gone")
    if node.ready or not state.provider_id:
        return Proceed()
    if now < wait.next_notice:
        return Proceed(wait.next_notice - now)
    if wait.requested_at is not None and state.plan is not None and state.plan.drained:
        return Proceed()  # the step that terminates it polls it
    wait.turn_to(state.provider_id)
    wait.next_notice = now + NOTICE_SECONDS
    try:
        instance_state = await _state_of_instance(context, state, NOTICE_PATIENCE_SECONDS)
    except ProviderError as error:
        logger.warning("provider %s cannot tell: %s", context.provider.name, error, extra={"node": node.name})
        return Proceed(NOTICE_SECONDS)
    if instance_state is not InstanceState.GONE:
        return Proceed(NOTICE_SECONDS)
    wait.is_gone = True
    logger.info("instance is gone already: nothing is left to drain", extra=state.tracked.log_keys)
    return Release("its instance is gone already")


async def terminate_instance_of_node(context: StepContext, state: NodeState) -> Answer:
    """Terminate the instance of a node, unless another node uses it.

    A machine that registers under another name leaves its old Node behind: the termination of that must not stop the
    pods of the new one, not even at the deadline. Of several nodes that terminate together the first by name waits for
    the others, until its deadline; one that was released without the instance is none of them, so that always one
    terminates it.
    """
    node = state.node
    context.without_instance.pop(node.uid, None)
    found = context.cluster.others_on(node, state.provider_id)
    others = tuple(other for other in found if other.uid not in context.without_instance)
    all_end = all(is_finalizing(other) for other in others)
    if not others or (all_end and state.is_overdue(context.clock)):
        return await terminate_instance(context, state)
    if all_end and all(other.name > node.name for other in others):
        listed = ", ".join(sorted((other.name for other in others), key=natural_key))
        return Wait(math.inf, f"waiting for other nodes of the same instance: {listed}")
    context.without_instance[node.uid] = state
    return leave_instance(context, state, others)


def leave_instance(context: StepContext, state: AnyState, others: Sequence[Node]) -> Proceed:
    """Release a node or claim without its instance, which other nodes use."""
    listed = ", ".join(sorted((other.name for other in others), key=natural_key))
    message = f"instance kept: {listed} uses the same instance"
    if not any(other.ready for other in others):
        message += "; not Ready: if the node is left over, delete it, which terminates the instance"
    emit_event(context, state.objects[:1], names.EventReason.INSTANCE_SHARED, message)
    return Proceed()


async def terminate_instance(context: StepContext, state: AnyState) -> Answer:
    """Terminate the instance: call the provider until it confirms that it is gone."""
    provider_id, wait, now = state.provider_id, state.instance, context.clock.monotonic()
    wait.turn_to(provider_id)
    if is_known_gone(state):
        await record_gone(context, state)
        return Proceed()
    is_recorded = _is_recorded(state)  # on the node alone, where its kubelet can write it
    if now < wait.next_call:
        return Wait(wait.next_call - now, state.waits_for)
    if context.provider.needs_provider_id and not provider_id:
        message = f"{state.missing_provider_id}, so its instance is unknown"
        error = ProviderRefused(message, f"end its machine and take the finalizer {names.FINALIZER} off it")
        return await _failed(context, state, error)
    try:
        found = await (_state_of_instance(context, state, PATIENCE_SECONDS) if is_recorded else _asked(context, state))
        if found is InstanceState.GONE:
            raise InstanceGone(f"instance {provider_id} is gone")
    except InstanceGone as gone:
        if context.provider.needs_provider_id:  # else nothing was terminated, and the machine may still run
            wait.is_gone = True
            emit_event(context, state.objects, names.EventReason.INSTANCE_TERMINATED, str(gone))
            await record_gone(context, state)
        elif message := keeps_running(provider_id):
            reason = names.EventReason.MACHINE_KEEPS_RUNNING
            emit_event(context, state.objects, reason, f"{message}; {remedy(reason)}", "Warning")
        return Proceed()
    except ProviderError as error:
        return await _failed(context, state, error)
    state.observer.recovered("instance", context.clock.now())
    if is_recorded:
        message = f"instance kept: {provider_id} was gone before, and is {found.value} now"
        emit_event(context, state.objects, names.EventReason.INSTANCE_SHARED, message, "Warning")
        return Proceed()
    wait.retry.reset()
    wait.next_call = context.clock.monotonic() + wait.poll.next()
    return Wait(wait.next_call - context.clock.monotonic(), f"instance {provider_id} is ending")


def is_known_gone(state: AnyState) -> bool:
    """Whether the provider has confirmed that the instance is gone, also before a restart.

    The condition of a claim proves it: no kubelet can write a claim.
    """
    return state.instance.is_gone or (not isinstance(state.objects[-1].latest, Node) and _is_recorded(state))


def _is_recorded(state: AnyState) -> bool:
    """Whether the condition of the claim, or of a node without one, says that the instance is gone."""
    shown = condition_of(state.objects[-1].latest.conditions, names.INSTANCE_TERMINATING)
    gone = _gone(state)
    return shown is not None and (shown.reason, shown.message) == (gone.reason, gone.message)


async def record_gone(context: StepContext, state: AnyState) -> None:
    """Write a condition that the instance is gone, for the case of a restart before the finalizer is removed."""
    await set_condition(context, state.objects, _gone(state), is_final=True)


def _gone(state: AnyState) -> ConditionUpdate:
    return ConditionUpdate(
        names.INSTANCE_TERMINATING, names.TRUE, names.INSTANCE_GONE, f"instance {state.provider_id} is gone"
    )


async def _asked(context: StepContext, state: AnyState) -> InstanceState:
    """State of the instance, after a call to terminate it unless another termination has done so."""
    wait = state.instance
    if wait.requested_at is None and state.checks_instance_first:
        instance_state = await _state_of_instance(context, state, PATIENCE_SECONDS)
        if instance_state is InstanceState.ENDING:
            await _accepted(context, state)
        if instance_state in (InstanceState.ENDING, InstanceState.GONE):
            return instance_state
    if wait.requested_at is None or context.clock.monotonic() >= wait.requested_at + REMIND_SECONDS:
        await _answer(state, context.provider.terminate(state.provider_id, _identity(context, state)), PATIENCE_SECONDS)
        await _accepted(context, state)
    return await _state_of_instance(context, state, PATIENCE_SECONDS)


async def _state_of_instance(context: StepContext, state: AnyState, seconds: float) -> InstanceState:
    """State of the instance. A provider that raises InstanceGone, which only `terminate` may, means GONE."""
    try:
        return await _answer(state, context.provider.state(state.provider_id), seconds)
    except InstanceGone:
        return InstanceState.GONE


async def _accepted(context: StepContext, state: AnyState) -> None:
    is_first = state.instance.requested_at is None
    state.instance.requested_at = context.clock.monotonic()
    message = f"instance {state.provider_id}: termination requested"
    if is_first:
        emit_event(context, state.objects, names.EventReason.INSTANCE_TERMINATING, message)
    word = ConditionUpdate(names.INSTANCE_TERMINATING, names.TRUE, "InstanceTerminating", message)
    await set_condition(context, state.objects, word)


async def _failed(context: StepContext, state: AnyState, error: ProviderError) -> Answer:
    wait = state.instance
    state.observer.failed("instance", error, context.clock.now())
    seconds = wait.retry.next()
    wait.next_call = context.clock.monotonic() + seconds
    message = f"provider {context.provider.name}: {error}"
    if state.provider_id:
        message += "; retrying until the instance is gone"
    emit_event(context, state.objects, names.EventReason.INSTANCE_TERMINATION_FAILED, message, "Warning")
    word = ConditionUpdate(names.INSTANCE_TERMINATING, names.FALSE, "ProviderFailed", message)
    await set_condition(context, state.objects, word)
    return Wait(seconds, message)


async def _answer(state: AnyState, call: Awaitable[T], seconds: float) -> T:
    """The provider's answer. Raises ProviderError, also if there is none within `seconds`; or FenceClosed."""
    context = TRACEPARENT.set(state.observer.traceparent)
    try:
        with anyio.fail_after(seconds) as patience:
            return await call
    except (ProviderError, FenceClosed):
        raise
    except (Exception, anyio.get_cancelled_exc_class()) as error:
        if isinstance(error, TimeoutError) and patience.cancelled_caught:
            raise ProviderUnavailable(f"no answer in {seconds:g} s") from error
        if not isinstance(error, Exception) and is_cancelled():
            raise  # this call is cancelled; otherwise the cancellation is none of ours
        # A bug of a plugin is retried like any other failure.
        logger.warning("provider: unexpected exception", exc_info=True)
        told = harmless(f"{type(error).__name__}: {error}", LONGEST_FAULT)
        raise ProviderUnavailable(f"unexpected failure: {told}") from error
    finally:
        TRACEPARENT.reset(context)


def _identity(context: StepContext, state: AnyState) -> NodeIdentity | None:
    node = state.source
    if node is None:
        return None
    claim = only_claim(context.cluster.claims_of(node))
    others = {other.name for other in context.cluster.others_on(node, state.provider_id)}
    conflicts = tuple(sorted(others, key=natural_key))
    return NodeIdentity(node.name, node.addresses, "" if claim is None else claim.name, conflicts)


LATER_SECONDS = 5.0
"""When to try again if all slots are taken."""


class ProviderSlots:
    """Limit of concurrent calls to the provider: three quarters of the `workers`; urgent calls may exceed it.

    A provider that does not answer blocks each call for up to a minute; without a limit it would block all workers, and
    no node could be cordoned or drained.
    """

    def __init__(self, workers: int) -> None:
        self._count = max(workers * 3 // 4, 1)
        self._taken = 0

    async def run(self, step: Step[E], context: StepContext, state: E, *, is_urgent: bool = False) -> Answer:
        """Run a step that calls the provider, or wait for a slot."""
        if self._taken >= self._count and not (is_urgent and not state.instance.was_tried):
            return Wait(LATER_SECONDS, state.waits_for or "waiting for a free provider slot")
        self._taken += 1
        try:
            return await step.run(context, state)
        finally:
            self._taken -= 1
