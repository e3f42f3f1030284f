"""Conditions on the node: what `kubectl describe node` answers to "why is it stuck"."""

from __future__ import annotations

import logging

import anyio
import msgspec

from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.requests import StrategicPatch
from gracectl.kube.resources import NODES
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.termination.steps import Tools
from gracectl.termination.termination import Termination, Told

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""A server that is slow to write a condition must not hold up the termination that it is about."""

NODE_STATUS = msgspec.structs.replace(NODES, abandonable=True)


async def set_condition(
    tools: Tools, termination: Termination, type_: str, status: str, reason: str, message: str
) -> None:
    """Write a condition if it says something new; a mere change of message at most every `status_interval_seconds`.

    A condition is for people: when it cannot be written, that is logged, and the termination goes on.
    """
    now = tools.clock.now()
    shown = condition_of(termination.node.conditions, type_)
    if shown is not None and (shown.status, shown.reason, shown.message) == (status, reason, message):
        return
    # What we wrote last counts even if the watch, or a write of somebody else, shows an older state.
    told = termination.told.get(type_)
    if told is not None and told.status == status and now < told.at + tools.settings.status_interval_seconds:
        return
    turned = now
    if told is not None and told.status == status:
        turned = told.turned
    elif told is None and shown is not None and shown.status == status and shown.last_transition is not None:
        turned = shown.last_transition
    termination.told[type_] = Told(status, at=now, turned=turned)
    condition = {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": format_time(now),
        "lastTransitionTime": format_time(turned),
    }
    # A strategic merge changes the entry of this type and leaves the kubelet's own alone.
    patch = StrategicPatch({"status": {"conditions": [condition]}})
    node: Node | None = None
    try:
        # Shielded: told to stop, we still say what we have begun to say.
        with anyio.move_on_after(PATIENCE_SECONDS, shield=True):
            key, uid = termination.node.key, termination.uid
            node = await tools.client.patch(NODE_STATUS, key, patch, subresource="status", uid=uid)
    except NotFound:
        return
    except ApiError as error:
        logger.warning("condition %s could not be written: %s", type_, error, extra={"node": termination.node.name})
        return
    if node is None:
        logger.warning(
            "condition %s: no answer in %g s", type_, PATIENCE_SECONDS, extra={"node": termination.node.name}
        )
        return
    termination.wrote(node)
