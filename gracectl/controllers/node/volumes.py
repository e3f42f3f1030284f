"""Step "volumes": wait until the volumes of drained pods are detached, so that no disk has two writers.

Volumes of pods that stay (static ones, those that tolerate the taint) are not waited for: they cannot detach before the
instance is gone.
"""

from __future__ import annotations

import msgspec

from gracectl.controllers.node.drain import view_without_budgets
from gracectl.controllers.pipeline.state import NodeState
from gracectl.controllers.pipeline.steps import Answer, Proceed, StepContext, Wait
from gracectl.controllers.reporting.conditions import set_condition
from gracectl.controllers.reporting.events import emit_event
from gracectl.kube.conditions import ConditionUpdate
from gracectl.kube.errors import NotFound
from gracectl.kube.resources import VOLUME_CLAIMS
from gracectl.model import names
from gracectl.model.meta import natural_key
from gracectl.model.pod import VolumeAttachment
from gracectl.policy.plan import plan


async def await_volume_detachment(context: StepContext, state: NodeState) -> Answer:
    """Done when no volume of a drained pod is attached to the node, or the deadline has passed."""
    is_overdue = state.is_overdue(context.clock.now())
    if is_overdue and not state.instance.was_tried:
        return Proceed()  # the instance first, the report of what is still attached later
    attached = await _attached(context, state)
    patience = state.time_left(context.clock)
    if not attached:
        word = ConditionUpdate(names.VOLUMES_DETACHED, names.TRUE, "VolumesDetached", "none is attached")
        return Proceed(await set_condition(context, state.objects, word, seconds=patience))
    if is_overdue:
        message = f"the deadline has passed; still attached: {_listed(attached)}"
        word = ConditionUpdate(names.VOLUMES_DETACHED, names.FALSE, "DeadlinePassed", message)
        await set_condition(context, state.objects, word)
        return Proceed()
    message = f"waiting for volumes of drained pods to detach: {_listed(attached)}"
    if message != state.waits_for:
        emit_event(context, state.objects, names.EventReason.AWAITING_VOLUME_DETACHMENT, message)
    word = ConditionUpdate(names.VOLUMES_DETACHED, names.FALSE, "AwaitingDetachment", message)
    return Wait(await set_condition(context, state.objects, word, seconds=patience), message)


async def _attached(context: StepContext, state: NodeState) -> tuple[VolumeAttachment, ...]:
    """Volumes of drained pods that are still attached, also after the deadline."""
    attachments = context.cluster.attachments_on(state.node.name)
    if not attachments:
        return ()
    staying = await staying_volumes(context, state)
    view = view_without_budgets(context, state, None)
    view = msgspec.structs.replace(view, attachments=attachments, staying_volumes=staying)
    return plan(view, context.clock.now()).detaching


def _listed(attachments: tuple[VolumeAttachment, ...]) -> str:
    return ", ".join(sorted((each.volume_name or each.name for each in attachments), key=natural_key))


async def staying_volumes(context: StepContext, state: NodeState) -> frozenset[str]:
    """PersistentVolumes of the pods that stay; they are few, so their claims are read one by one, once bound once."""
    entries = plan(view_without_budgets(context, state, state.deadline), context.clock.now()).pods
    claims = {(entry.pod.namespace, claim) for entry in entries if entry.stays for claim in entry.pod.claims}
    known = state.volume_of_claim
    for key in sorted(claims - known.keys()):
        try:
            volume = (await context.client.get(VOLUME_CLAIMS, key)).volume_name
        except NotFound:
            continue
        if volume:
            known[key] = volume  # a claim that is bound stays so, and no pod that has it can lose it
    return frozenset(known[key] for key in claims & known.keys())
