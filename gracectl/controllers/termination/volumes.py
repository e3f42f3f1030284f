"""Step "volumes": wait until the volumes of drained pods are detached, so that no disk has two writers.

Volumes of pods that stay (static ones, those that tolerate the taint) are not waited for: they cannot detach before the
instance is gone. The drain waits for volumes, too, before the DaemonSet pods leave that may have to unstage them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from gracectl.controllers.cluster.volumes import fair_share, read_volumes
from gracectl.controllers.termination.context import Answer, Proceed, StepContext, Wait
from gracectl.controllers.termination.events import emit_event
from gracectl.controllers.termination.report import set_condition
from gracectl.controllers.termination.state import NodeState
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import ApiError, NotLeading
from gracectl.kube.resources import VOLUME_CLAIMS
from gracectl.model import names
from gracectl.model.pod import Pod, VolumeAttachment
from gracectl.policy.plan import Blocker, Plan, plan
from gracectl.policy.remedies import attachment_remedy
from gracectl.policy.volumes import SHOWN, STILL_ATTACHED_SECONDS, has_volumes, listed_attachments

READ_AGAIN_SECONDS = 60.0
"""Claims that could not be read are read again after this time."""

PAUSE_SECONDS = 5.0
"""Pause before further claims are read, after a look at which none could be."""

MANY_CLAIMS = 20
"""Claims of drained pods that are read at most, to name the pods of volumes."""


async def await_volume_detachment(context: StepContext, state: NodeState) -> Answer:
    """Done when no volume of a drained pod is attached to the node, or the deadline has passed."""
    is_overdue = state.is_overdue(context.clock)
    if is_overdue and not state.instance.was_tried:
        return Proceed()  # the instance first, the report of what is still attached later
    deadline = state.counted_deadline(context.clock)
    view = context.cluster.view_without_budgets(state.node, context.settings.policy, deadline)
    attached = plan(view, context.clock.now()).attached
    if not attached:
        state.attached_since, state.is_attachment_reported = None, False
        word = ConditionUpdate(names.VOLUMES_DETACHED, names.TRUE, "VolumesDetached", "none is attached")
        return Proceed(await set_condition(context, state.objects, word, seconds=state.time_left(context.clock)))
    if is_overdue:
        message = f"the deadline has passed; still attached: {listed_attachments(attached)}"
        word = ConditionUpdate(names.VOLUMES_DETACHED, names.FALSE, "DeadlinePassed", message)
        await set_condition(context, state.objects, word)
        return Proceed()
    seconds, waits_for = await report_attached(context, state, attached)
    return Wait(seconds, waits_for)


def note_claims(state: NodeState, decision: Plan) -> None:
    """Note the claims of the pods that leave, to name the pods when only their volumes are left."""
    if decision.attached:
        for pod in (entry.pod for entry in decision.left if has_volumes(entry.pod)):
            state.claims_of_pods.update(((pod.namespace, claim), pod.full_name) for claim in pod.claims)


def waits_for_volumes_only(decision: Plan) -> bool:
    """Whether nothing but volumes keeps the drain from its end, or from its DaemonSet pods."""
    waits = (Blocker.VOLUME, Blocker.WAVE)
    return bool(decision.attached) and all(entry.blocker in waits for entry in decision.left)


async def read_staying_claims(context: StepContext, state: NodeState, claims: Sequence[tuple[Pod, str]]) -> float:
    """Read claims of pods that stay with unknown volumes, a bounded number at a time.

    Returns after how many seconds to call again: 0.0 if a volume is known now that was not, inf if all have been tried.
    """
    now = context.clock.monotonic()
    since = now - state.claims_read_at
    failures = state.unreadable_claims
    if since >= READ_AGAIN_SECONDS:
        failures.clear()
    untried = [each for each in claims if _full_name(each) not in failures]
    if not untried:
        return math.inf
    if state.are_claims_missing and since < PAUSE_SECONDS:
        return PAUSE_SECONDS - since
    state.claims_read_at = now
    share = fair_share(untried)
    found = await read_volumes(context.client, context.cluster, share)
    failures |= found
    state.are_claims_missing = len(found) == len({*map(_full_name, share)})
    if not state.are_claims_missing:
        return 0.0
    return PAUSE_SECONDS if len(share) < len(untried) else math.inf


def _full_name(claim: tuple[Pod, str]) -> str:
    return f"{claim[0].namespace}/{claim[1]}"


async def report_attached(
    context: StepContext, state: NodeState, attached: Sequence[VolumeAttachment]
) -> tuple[float, str]:
    """Report the volumes that a node waits for: in its condition and an Event, and again with a remedy after a minute.

    Returns after how many seconds to call again, and what the node waits for.
    """
    now = context.clock.monotonic()
    is_new = state.attached_since is None
    since = state.attached_since = now if state.attached_since is None else state.attached_since
    left = since + STILL_ATTACHED_SECONDS - now
    pods = {} if left > 0 else await _pods_of_volumes(context, state)
    message = f"waiting for volumes of drained pods to detach: {listed_attachments(attached, pods)}"
    if is_new:
        emit_event(context, state.objects, names.EventReason.AWAITING_VOLUME_DETACHMENT, message)
    reason = "AwaitingDetachment"
    if left <= 0:
        reason = names.STILL_ATTACHED
        shown = islice(state.unreadable_claims.items(), SHOWN)
        unreadable = "".join(f"; cannot read claim {claim}: {why}" for claim, why in shown)
        message = f"{message}{unreadable}; {attachment_remedy(attached, state.node)}"
        if not state.is_attachment_reported:
            state.is_attachment_reported = True
            emit_event(context, state.objects, names.EventReason.VOLUMES_STILL_ATTACHED, message, "Warning")
    word = ConditionUpdate(names.VOLUMES_DETACHED, names.FALSE, reason, message)
    seconds = await set_condition(context, state.objects, word, seconds=state.time_left(context.clock))
    again = left if left > 0 else READ_AGAIN_SECONDS if state.unreadable_claims else math.inf
    return min(seconds, again), message


async def _pods_of_volumes(context: StepContext, state: NodeState) -> dict[str, str]:
    """The drained pods by their PersistentVolumes, as far as their claims can be read: once, for messages."""
    for key in sorted(state.claims_of_pods)[:MANY_CLAIMS]:
        try:
            volume = (await context.client.get(VOLUME_CLAIMS, key)).volume_name
        except NotLeading:
            raise
        except ApiError:
            continue
        state.pods_of_volumes[volume] = state.claims_of_pods[key]
    state.claims_of_pods.clear()
    return state.pods_of_volumes
