"""How a node is walked that is kept drained, or given back: its steps in their order, as long as it asks for them.

Invariant: whoever gives the node back, or deletes it, waits for nothing that its drain has begun, and from then on
nobody is asked to leave for it.
"""

from __future__ import annotations

import anyio

from gracectl.controllers.node.cordon import cordon
from gracectl.controllers.node.drain import drain
from gracectl.controllers.node.maintenance import KeptDrain, clean_up, rest, uncordon
from gracectl.controllers.node.volumes import detach
from gracectl.controllers.pipeline.runner import walk
from gracectl.controllers.pipeline.steps import Answer, Step, Tools, Wait
from gracectl.controllers.reporting.step_failures import report_step_failure
from gracectl.kube.errors import NotFound
from gracectl.kube.resources import NODES
from gracectl.model.node import Node
from gracectl.policy.kept import is_given_back, is_kept
from gracectl.runtime.workers import Requeue

Steps = tuple[Step[KeptDrain], ...]

KEEPING: Steps = (Step("cordon", cordon), Step("drain", drain), Step("volumes", detach), Step("kept", rest))
GIVING_BACK: Steps = (Step("uncordon", uncordon), Step("conditions", clean_up))


def steps_of(node: Node) -> Steps:
    """What a node asks for."""
    if is_kept(node):
        return KEEPING
    return GIVING_BACK if is_given_back(node) else ()


class KeptWalk:
    """Walks the steps of all such nodes."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def go(self, kept: KeptDrain) -> Requeue | None:
        """Bring the node as far as it comes now; when to look at it again. Raises ApiError."""
        with anyio.CancelScope() as kept.scope:
            if kept.is_returned and is_kept(kept.node) and not await self._is_asked_for_again(kept):
                return None  # the watch will show what is
            answer = await walk(steps_of(kept.node), kept, self._take, self._tools, report_step_failure)
            return Requeue(answer.seconds) if isinstance(answer, Wait) else None
        return None  # broken off by a change that has put the node on the queue, too

    def heed(self, kept: KeptDrain, node: Node) -> None:
        """Break off the walk that is under way if this newer state of the node does not ask for it."""
        if kept.scope is not None and (node.uid != kept.uid or steps_of(node) is not steps_of(kept.node)):
            kept.scope.cancel()

    async def _is_asked_for_again(self, kept: KeptDrain) -> bool:
        """Or is the watch late, and shows a node that was given back as it was before? Pods would be evicted from one
        that takes them again, so the server itself is asked."""
        try:
            node = await self._tools.client.get(NODES, kept.node.key)
        except NotFound:
            return False
        if node.uid != kept.uid:
            return False
        kept.held.wrote(node)
        if is_kept(node):
            kept.begin_anew(self._tools.clock.now())
        return is_kept(node)

    async def _take(self, step: Step[KeptDrain], kept: KeptDrain) -> Answer:
        """Run a step, unless the node asks for others by now: an answer to a write of ours may tell that first."""
        assert kept.scope is not None
        if kept.scope.cancel_called or step not in steps_of(kept.node):
            return Wait(0.0, "somebody wants something else of it")
        answer = await step.run(self._tools, kept)
        if kept.plan is not None and kept.plan.left:
            kept.is_resting = False  # a late pod
        return answer
