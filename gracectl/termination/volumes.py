"""The third step: wait until the volumes of the pods that have left are detached, so that no disk is written by two.

Volumes of pods that stay (static ones, those that tolerate the taint) cannot detach before the instance ends, and are
not waited for.
"""

from __future__ import annotations

import msgspec

from gracectl.kube.errors import NotFound
from gracectl.kube.resources import VOLUME_CLAIMS
from gracectl.model import names
from gracectl.model.volume import VolumeAttachment
from gracectl.policy.evictability import ignored
from gracectl.policy.plan import plan
from gracectl.termination.announce import announce
from gracectl.termination.conditions import Word, set_condition
from gracectl.termination.drain import view_of
from gracectl.termination.steps import Answer, Proceed, Tools, Wait
from gracectl.termination.termination import Termination


async def detach(tools: Tools, termination: Termination) -> Answer:
    """Done when no volume of a drained pod is attached to the node."""
    attachments = tools.observed.attachments_on(termination.node.name)
    waited_for: tuple[VolumeAttachment, ...] = ()
    if attachments:
        view = msgspec.structs.replace(
            view_of(tools, termination),
            attachments=attachments,
            staying_volumes=await staying_volumes(tools, termination),
        )
        waited_for = plan(view, tools.clock.now()).detaching
    if not waited_for:
        word = Word(names.VOLUMES_DETACHED, names.TRUE, "VolumesDetached", "none is attached")
        await set_condition(tools, termination.holders, word)
        return Proceed()
    message = "attached: " + ", ".join(sorted(a.volume_name or a.name for a in waited_for))
    if message != termination.waits_for:
        announce(tools, termination.holders, names.EventReason.AWAITING_VOLUME_DETACHMENT, message)
    word = Word(names.VOLUMES_DETACHED, names.FALSE, "AwaitingDetachment", message)
    await set_condition(tools, termination.holders, word)
    return Wait(tools.settings.status_interval_seconds, message)


async def staying_volumes(tools: Tools, termination: Termination) -> frozenset[str]:
    """The PersistentVolumes of the pods that stay; they are few, so their claims are asked for one by one."""
    now = tools.clock.now()
    claims = {
        (pod.namespace, claim)
        for pod in tools.observed.pods_on(termination.node.name)
        if (verdict := ignored(pod, now)) and verdict.stays
        for claim in pod.claims
    }
    volumes = set()
    for key in sorted(claims):
        try:
            volumes.add((await tools.client.get(VOLUME_CLAIMS, key)).volume_name)
        except NotFound:
            continue
    return frozenset(volumes - {""})
