"""Step "instance": terminate the instance.

Done only when the provider says that the instance is gone. A provider that fails is called again with backoff,
indefinitely, and the node shows that. An instance is never leaked: the finalizer waits for this step. An instance that
came later is not terminated: once the provider has confirmed that an instance is gone, it is not terminated again for
this node or claim, also after a restart. Only memory skips a drain: a kubelet can write the condition on its own node.
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
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.report import emit, set_condition
from gracectl.controllers.termination.state import AnyState, NodeState
from gracectl.kube.conditions import ConditionUpdate
from gracectl.model import names
from gracectl.model.claim import only_claim
from gracectl.model.foreign import harmless
from gracectl.model.meta import condition_of, natural_key
from gracectl.model.node import Node
from gracectl.policy.warnings import keeps_running
from gracectl.runtime.fence import FenceClosed
from gracectl.runtime.supervise import is_cancelled

T = TypeVar("T")

logger = logging.getLogger(__name__)

REMIND_SECONDS = 60.0
"""Seconds after which a termination that the provider has accepted is repeated, while the instance exists."""

LONGEST_FAULT = 400
"""Characters of an exception that no provider should raise."""

CALL_SECONDS = 60.0
"""Timeout of other calls to the provider."""


async def terminate_instance_of_node(context: StepContext, state: NodeState) -> Answer:
    """Terminate the instance of a node, unless another node uses it.

    A machine that registers under another name leaves its old Node behind. The termination of the old Node must not
    stop the pods of the new one, not even at the deadline. Of several nodes that terminate together the first by name
    waits for the others, until its deadline. A node that was released without the instance does not count, so that
    always one node terminates it.
    """
    node = state.node
    context.without_instance.pop(node.uid, None)
    found = context.cluster.others_on(node, state.provider_id)
    others = tuple(other for other in found if other.uid not in context.without_instance)
    all_end = all(is_finalizing(other) for other in others)
    if not others or (all_end and state.is_overdue(context.clock)):
        return await terminate_instance(context, state)
    if all_end and all(other.name > node.name for other in others):
        return Answer(Next.WAIT, math.inf, f"waiting for other nodes of the same instance: {events.names_of(others)}")
    context.without_instance[node.uid] = state
    return leave_instance(state, others)


def leave_instance(state: AnyState, others: Sequence[Node]) -> Answer:
    """Release a node or claim without its instance, which other nodes use."""
    return Answer(Next.PROCEED, events=(events.instance_shared(state.tracked, others),))


async def terminate_instance(context: StepContext, state: AnyState) -> Answer:
    """Terminate the instance: call the provider until it confirms that it is gone."""
    provider_id, memo, now = state.provider_id, state.instance, context.clock.monotonic()
    memo.turn_to(provider_id)
    if is_known_gone(state):
        return _recorded_as_gone(state)
    is_recorded = _is_recorded(state)  # on the node alone, where its kubelet can write it
    if now < memo.next_call:
        return Answer(Next.WAIT, memo.next_call - now, state.waits_for)
    if context.provider.needs_provider_id and not provider_id:
        message = f"{state.noun} {state.tracked.name} has no {state.provider_id_field}, so its instance is unknown"
        error = ProviderRefused(message, f"end its machine and take the {names.OUR_FINALIZER} off it")
        return _failed(context, state, error)
    try:
        call = state_of_instance(context, state) if is_recorded else _terminated(context, state)
        instance_state = await call
        if instance_state is InstanceState.GONE:
            raise InstanceGone(f"instance {provider_id} is gone")
    except InstanceGone as gone:
        if context.provider.needs_provider_id:  # else nothing was terminated, and the machine may still run
            memo.is_gone = True
            return _recorded_as_gone(state, events.instance_terminated(gone))
        message = keeps_running(provider_id)
        return Answer(Next.PROCEED, events=(events.machine_keeps_running(message),) if message else ())
    except ProviderError as error:
        return _failed(context, state, error)
    state.observer.recovered("instance", context.clock.now())
    if is_recorded:
        return Answer(Next.PROCEED, events=(events.instance_returned(provider_id, instance_state.value),))
    memo.retry.reset()
    memo.next_call = context.clock.monotonic() + memo.poll.next()
    return Answer(Next.WAIT, memo.next_call - context.clock.monotonic(), f"instance {provider_id} is ending")


def is_known_gone(state: AnyState) -> bool:
    """Whether the provider has confirmed that the instance is gone, also before a restart.

    The condition of a claim proves it: no kubelet can write a claim.
    """
    return state.instance.is_gone or (not isinstance(state.objects[-1].latest, Node) and _is_recorded(state))


def _is_recorded(state: AnyState) -> bool:
    """Whether the condition of the claim, or of a node without one, says that the instance is gone."""
    shown = condition_of(state.objects[-1].latest.conditions, names.INSTANCE_TERMINATING)
    gone = gone_condition(state)
    return shown is not None and (shown.reason, shown.message) == (gone.reason, gone.message)


def _recorded_as_gone(state: AnyState, *emitted: events.Event) -> Answer:
    """Proceed, with a condition that the instance is gone: a restart may come before the finalizer is removed."""
    return Answer(Next.PROCEED, conditions=(gone_condition(state),), events=emitted, is_final=True)


def gone_condition(state: AnyState) -> ConditionUpdate:
    """The condition that the instance is gone."""
    return ConditionUpdate(
        names.INSTANCE_TERMINATING, names.TRUE, names.INSTANCE_GONE, f"instance {state.provider_id} is gone"
    )


async def _terminated(context: StepContext, state: AnyState) -> InstanceState:
    """State of the instance, after a call to terminate it unless another termination has done so."""
    memo = state.instance
    if memo.requested_at is None and state.checks_instance_first:
        instance_state = await state_of_instance(context, state)
        if instance_state is InstanceState.ENDING:
            await _accepted(context, state)
        if instance_state in (InstanceState.ENDING, InstanceState.GONE):
            return instance_state
    if memo.requested_at is None or context.clock.monotonic() >= memo.requested_at + REMIND_SECONDS:
        call = context.provider.terminate(state.provider_id, _identity(context, state))
        await _respond(state, call, CALL_SECONDS)
        await _accepted(context, state)
    return await state_of_instance(context, state)


async def state_of_instance(context: StepContext, state: AnyState, seconds: float = CALL_SECONDS) -> InstanceState:
    """State of the instance. A provider that raises InstanceGone, which only `terminate` may, means GONE."""
    try:
        return await _respond(state, context.provider.state(state.provider_id), seconds)
    except InstanceGone:
        return InstanceState.GONE


async def _accepted(context: StepContext, state: AnyState) -> None:
    """Report the termination before the provider is polled, which may be slow."""
    is_first = state.instance.requested_at is None
    state.instance.requested_at = context.clock.monotonic()
    event = events.instance_terminating(state.provider_id)
    if is_first:
        emit(context, state.objects, event)
    update = ConditionUpdate(names.INSTANCE_TERMINATING, names.TRUE, "InstanceTerminating", event.message)
    await set_condition(context, state.objects, update)


def _failed(context: StepContext, state: AnyState, error: ProviderError) -> Answer:
    memo = state.instance
    state.observer.failed("instance", error, context.clock.now())
    seconds = memo.retry.next()
    memo.next_call = context.clock.monotonic() + seconds
    event = events.instance_termination_failed(context.provider.name, error, state.provider_id)
    update = ConditionUpdate(names.INSTANCE_TERMINATING, names.FALSE, "ProviderFailed", event.message)
    return Answer(Next.WAIT, seconds, event.message, (update,), (event,))


async def _respond(state: AnyState, call: Awaitable[T], seconds: float) -> T:
    """The provider's response. Raises ProviderError, also if there is none within `seconds`; or FenceClosed."""
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
            raise  # this call is cancelled; otherwise a plugin has let out a cancellation of its own
        # A bug of a plugin is retried like any other failure.
        logger.warning("provider: unexpected exception", exc_info=True)
        fault = harmless(f"{type(error).__name__}: {error}", LONGEST_FAULT)
        raise ProviderUnavailable(f"unexpected failure: {fault}") from error
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
