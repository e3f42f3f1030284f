"""Step "volumes": wait until the volumes of drained pods are detached, so that no disk has two writers.

Volumes of pods that stay (static pods, pods that tolerate the taint) do not count: they cannot detach before the
instance is gone. The drain waits for volumes, too, before the DaemonSet pods leave that may have to unstage them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from gracectl.controllers.cluster.volumes import fair_share, read_volumes
from gracectl.controllers.termination import events
from gracectl.controllers.termination.context import Answer, Next, StepContext
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.kube.resources import VOLUME_CLAIMS
from gracectl.model import names
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.plan import Blocker, Plan
from gracectl.policy.planner import plan
from gracectl.policy.remedies import attachment_remedy
from gracectl.policy.volumes import SHOWN, STILL_ATTACHED_SECONDS, has_volumes, listed_attachments

READ_AGAIN_SECONDS = 60.0
"""Claims that could not be read are read again after this time."""

PAUSE_SECONDS = 5.0
"""Pause before further claims are read, after a look at which none could be."""

MANY_VOLUME_CLAIMS = 20
"""Claims of drained pods that are read at most, to name the pods of volumes."""


async def await_volume_detachment(context: StepContext, state: NodeState) -> Answer:
    """Done when no volume of a drained pod is attached to the node, or the deadline has passed."""
    if state.must_hurry(context.clock):
        return Answer(Next.PROCEED)
    is_overdue, deadline = state.is_overdue(context.clock), state.counted_deadline(context.clock)
    view = context.cluster.view_without_budgets(state.node, context.settings.policy, deadline)
    attached = plan(view, context.clock.now()).attached
    if not attached:
        state.volumes.attached_since, state.volumes.is_reported = None, False
        return Answer(Next.PROCEED, conditions=(_condition(names.TRUE, "VolumesDetached", "none is attached"),))
    if is_overdue:
        message = f"the deadline has passed; still attached: {listed_attachments(attached)}"
        return Answer(Next.PROCEED, conditions=(_condition(names.FALSE, "DeadlinePassed", message),))
    return await wait_for_detachment(context, state, attached)


def _condition(status: str, reason: str, message: str) -> ConditionUpdate:
    return ConditionUpdate(names.VOLUMES_DETACHED, status, reason, message)


def note_volume_claims(state: NodeState, decision: Plan) -> None:
    """Note the claims of the pods that leave, to name the pods when only their volumes are left."""
    if decision.attached:
        for pod in (entry.pod for entry in decision.left if has_volumes(entry.pod)):
            state.volumes.volume_claims_of_pods.update(((pod.namespace, claim), pod.full_name) for claim in pod.claims)


def waits_for_volumes_only(decision: Plan) -> bool:
    """Whether only volumes delay the end of the drain, or the eviction of its DaemonSet pods."""
    waits = (Blocker.VOLUME, Blocker.WAVE)
    return bool(decision.attached) and all(entry.blocker in waits for entry in decision.left)


async def read_staying_volume_claims(
    context: StepContext, state: NodeState, claims: Sequence[tuple[Pod, str]]
) -> float:
    """Read claims of pods that stay with unknown volumes, a bounded number at a time.

    Returns after how many seconds to call again: 0.0 if a volume is known now that was not, inf if all have been tried.
    """
    now, memo = context.clock.monotonic(), state.volumes
    since = now - memo.volume_claims_read_at
    if since >= READ_AGAIN_SECONDS:
        memo.unreadable_volume_claims.clear()
    untried = [each for each in claims if _full_name(each) not in memo.unreadable_volume_claims]
    if not untried:
        return math.inf
    if memo.are_volume_claims_missing and since < PAUSE_SECONDS:
        return PAUSE_SECONDS - since
    memo.volume_claims_read_at = now
    share = fair_share(untried)
    failures = await read_volumes(context.client, context.cluster, share)
    memo.unreadable_volume_claims |= failures
    memo.are_volume_claims_missing = len(failures) == len({*map(_full_name, share)})
    if not memo.are_volume_claims_missing:
        return 0.0
    return PAUSE_SECONDS if len(share) < len(untried) else math.inf


def _full_name(claim: tuple[Pod, str]) -> str:
    return f"{claim[0].namespace}/{claim[1]}"


async def wait_for_detachment(context: StepContext, state: NodeState, attached: Sequence[VolumeAttachment]) -> Answer:
    """Wait for these volumes: with a condition and an Event, and after a minute again with a remedy."""
    now, memo = context.clock.monotonic(), state.volumes
    is_new = memo.attached_since is None
    since = memo.attached_since = now if memo.attached_since is None else memo.attached_since
    left = since + STILL_ATTACHED_SECONDS - now
    pods = {} if left > 0 else await _pods_of_volumes(context, state)
    message = f"waiting for volumes of drained pods to detach: {listed_attachments(attached, pods)}"
    emitted = (events.awaiting_detachment(message),) if is_new else ()
    reason, again = "AwaitingDetachment", left
    if left <= 0:
        reason, again = names.STILL_ATTACHED, READ_AGAIN_SECONDS if memo.unreadable_volume_claims else math.inf
        shown = islice(memo.unreadable_volume_claims.items(), SHOWN)
        unreadable = "".join(f"; cannot read claim {claim}: {why}" for claim, why in shown)
        message = f"{message}{unreadable}; {attachment_remedy(attached, state.node)}"
        if not memo.is_reported:
            memo.is_reported = True
            emitted = (*emitted, events.still_attached(message))
    return Answer(Next.WAIT, again, message, (_condition(names.FALSE, reason, message),), emitted)


async def _pods_of_volumes(context: StepContext, state: NodeState) -> dict[str, str]:
    """The drained pods by their PersistentVolumes, as far as their claims can be read: once, for messages."""
    memo = state.volumes
    for key in sorted(memo.volume_claims_of_pods)[:MANY_VOLUME_CLAIMS]:
        try:
            volume = (await context.client.get(VOLUME_CLAIMS, key)).volume_name
        except NotLeading:
            raise
        except ApiError:
            continue
        memo.pods_of_volumes[volume] = memo.volume_claims_of_pods[key]
    memo.volume_claims_of_pods.clear()
    return memo.pods_of_volumes
