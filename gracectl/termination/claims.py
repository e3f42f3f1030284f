"""The node claim controller: a deleted claim is held until its nodes, and then its instance, are gone.

The nodes do the work: each is deleted, and its own termination cordons, drains and ends it. What is left for the claim
is to wait, and to end an instance that has no node (yet, or any more). Level-based like node terminations: a key is a
claim's name, a reconcile walks the steps from the first one.

Invariant: the claim's finalizer goes when the provider has said that the instance is gone, or nobody ever launched one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from gracectl.kube.errors import ApiError, Conflict, NotFound
from gracectl.kube.events import Subject
from gracectl.kube.resources import NODES, Resource
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import condition_of
from gracectl.model.node import Node
from gracectl.policy.deadlines import Deadline, deadline_of, tightest, written
from gracectl.policy.ownership import belongs
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.queue import QueueStatistics, WorkQueue
from gracectl.runtime.workers import Requeue, run_workers
from gracectl.termination.announce import announce
from gracectl.termination.conditions import Word, set_condition
from gracectl.termination.deadline import publish
from gracectl.termination.finalizer import addition, let_go
from gracectl.termination.held import AnyHeld, Held
from gracectl.termination.instance import end_instance, leave_instance
from gracectl.termination.observed import is_held
from gracectl.termination.steps import Answer, Proceed, Release, Step, Tools, Wait
from gracectl.termination.termination import Ending, InstanceWait
from gracectl.termination.writes import amend

logger = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 0.05, 60.0
"""Seconds before a claim whose step has failed is looked at again; doubled with each failure."""

NODE_RETRY_SECONDS = 10.0
"""A node that could not be deleted is tried again this often."""

UNSEEN_SECONDS = 1.0
"""A node that the server has and the watch has not shown yet is looked for again after this time."""

NODES_SECONDS = 60.0
"""Nodes that are ending tell so themselves; in case that is missed, a claim looks for them this often."""

OURS = (names.DRAINED, names.VOLUMES_DETACHED, names.INSTANCE_TERMINATING)
"""Conditions that say that the end of a claim was begun while its node was a managed one."""

REMEMBERED = 1000
"""Finished claims that are kept for `status`."""


class ClaimProgress(msgspec.Struct, frozen=True):
    """A snapshot for people: where a claim's end stands. Times are Unix seconds, `seconds` durations by step."""

    claim: str
    uid: str
    nodes: tuple[str, ...]
    """Those that are waited for; their own terminations say more. Without any the claim has its own way to go."""
    step: str
    started: float
    step_since: float
    seconds: Mapping[str, float]
    waits_for: str
    deadline: float | None = None
    finished: float | None = None


class ClaimTermination(Ending):
    """The memory of one claim's end; identified by the claim's UID, as a namesake is another claim."""

    looks_first = True

    def __init__(self, resource: Resource[NodeClaim], claim: NodeClaim, instance: InstanceWait, now: float) -> None:
        super().__init__(instance, now)
        self.held = Held(resource, claim)
        self.uid = claim.uid
        self.started = now if claim.deletion_timestamp is None else claim.deletion_timestamp
        self.nodes: tuple[Node, ...] = ()
        self.deleted: set[str] = set()  # the UIDs of nodes of which the server has taken the deletion
        self.next_deletion = 0.0  # before this instant (monotonic) a node that could not be deleted is let be
        self.has_seen_node = False  # the one that its status names; or the server has said that it is not there
        self._provider_id = ""

    @property
    def claim(self) -> NodeClaim:
        """The claim as fresh as we know it."""
        return self.held.state

    @property
    def lack(self) -> str:
        """See Ending."""
        return f"node claim {self.claim.name} has no status.providerID"

    @property
    def provider_id(self) -> str:
        """Which instance: the claim's, else that of the node that was last seen; empty when none was launched."""
        return self.claim.provider_id or self._provider_id

    @property
    def holders(self) -> tuple[AnyHeld, ...]:
        """The claim alone: the nodes tell people themselves."""
        return (self.held,)

    def see(self, nodes: tuple[Node, ...]) -> None:
        """These nodes are to end before the claim does."""
        self.nodes = nodes
        self.has_seen_node |= any(node.name == self.claim.node_name for node in nodes)
        self._provider_id = next((node.provider_id for node in nodes if node.provider_id), self._provider_id)

    def progress(self, now: float, *, is_finished: bool = False) -> ClaimProgress:
        """Where it stands at `now`."""
        running = {self._step: self._seconds[self._step] + now - self._step_since} if self._step else {}
        return ClaimProgress(
            claim=self.claim.name,
            uid=self.uid,
            nodes=tuple(sorted(node.name for node in self.nodes)),
            step=self._step,
            started=self.started,
            step_since=self._step_since,
            seconds={**self._seconds, **running},
            waits_for=self.waits_for,
            deadline=self.deadline.at if self.deadline else None,
            finished=now if is_finished else None,
        )


async def yield_to_rivals(tools: Tools, termination: ClaimTermination) -> Answer:
    """Of several claims for one instance, all but the last one go without it."""
    rivals = tools.observed.rivals_of(termination.claim)
    if not rivals:
        return Proceed()
    listed = ", ".join(sorted(each.name for each in rivals))
    message = f"another node claim stands for the same instance ({listed}): this one goes, node and instance stay"
    announce(tools, termination.holders, names.EventReason.SEVERAL_CLAIMS, message, "Warning")
    return Release(message)


async def set_claim_deadline(tools: Tools, termination: ClaimTermination) -> Answer:
    """The earliest deadline of the claim's nodes; of one that never had a node, its own."""
    claim = termination.claim
    nodes = tools.observed.nodes_of(claim)
    if not nodes and (at := written(claim)) is not None:
        # Its nodes are gone, and the group of their labels with them: what they have left counts.
        termination.deadline = tightest(termination.deadline, Deadline(at))
        return Proceed()
    found = [deadline_of(node, claim, tools.settings.policy) for node in nodes or (None,)]
    known = [deadline for deadline in found if deadline is not None]
    earliest = min(known, key=lambda deadline: deadline.at, default=None)
    if nodes and all(is_held(node) for node in nodes):
        # Their own terminations write it, here too: two that write the same would be in each other's way.
        termination.deadline = tightest(termination.deadline, earliest)
    else:
        await publish(tools, termination, earliest)
    return Proceed()


async def end_nodes(tools: Tools, termination: ClaimTermination) -> Answer:
    """Delete all nodes of the claim, and wait until they are gone.

    The node of a claim that has not registered runs no pods worth a drain: it is not deleted, but not hurried either if
    somebody else deletes it.
    """
    nodes = tools.observed.nodes_of(termination.claim)
    if not has_registered(termination.claim):
        nodes = tuple(node for node in nodes if node.deletion_timestamp is not None)
    termination.see(nodes)
    if not nodes:
        return await _check_that_none_is_left(tools, termination)
    if tools.clock.monotonic() < termination.next_deletion:
        return Wait(termination.next_deletion - tools.clock.monotonic(), termination.waits_for)
    refusals = await _delete_nodes(tools, termination)
    if refusals:
        termination.next_deletion = tools.clock.monotonic() + NODE_RETRY_SECONDS
        message = "; ".join(f"node {name} cannot be deleted: {error}" for name, error in refusals.items())
        announce(tools, termination.holders, names.EventReason.NODE_DELETION_FAILED, message, "Warning")
        word = Word(names.DRAINED, names.FALSE, "NodeDeletionFailed", message)
        await set_condition(tools, termination.holders, word)
        return Wait(NODE_RETRY_SECONDS, message)
    listed = ", ".join(sorted(node.name for node in nodes))
    return Wait(NODES_SECONDS, f"its nodes are ending: {listed}")


def has_registered(claim: NodeClaim) -> bool:
    """Whether the claim may have a node with pods; only its own word says that it has not."""
    registered = condition_of(claim.conditions, names.REGISTERED)
    return registered is None or registered.status == names.TRUE


async def _check_that_none_is_left(tools: Tools, termination: ClaimTermination) -> Answer:
    """Nodes and claims are watched apart: the node that a claim names may be there, and not shown yet."""
    claim = termination.claim
    if termination.has_seen_node or not claim.node_name or not has_registered(claim):
        return Proceed()
    try:
        node = await tools.client.get(NODES, ("", claim.node_name))
    except NotFound:
        node = None
    if node is not None and belongs(node, claim):
        return Wait(UNSEEN_SECONDS, f"node {node.name} is there, and the watch has not shown it yet")
    termination.has_seen_node = True
    return Proceed()


async def _delete_nodes(tools: Tools, termination: ClaimTermination) -> dict[str, ApiError]:
    """Delete the nodes that nobody has deleted; returns why it was not possible, by name."""
    refusals: dict[str, ApiError] = {}
    for node in termination.nodes:
        if node.deletion_timestamp is None and node.uid not in termination.deleted:
            try:
                await delete_node(tools, node)
                termination.deleted.add(node.uid)
            except ApiError as error:
                refusals[node.name] = error
    return refusals


async def delete_node(tools: Tools, node: Node) -> None:
    """Delete a node that our finalizer holds, so that its pods are asked before it goes.

    One that is not managed gets no finalizer: nobody here would take it off again.
    """
    kept: Node | None = node
    if tools.settings.node_selector.matches(node.labels):
        kept = await amend(tools.client, NODES, node, addition)
    if kept is None or kept.deletion_timestamp is not None:
        return
    try:
        await tools.client.delete(NODES, node.key, uid=node.uid)
    except NotFound:
        return
    except Conflict as conflict:
        if not conflict.uid_mismatch:
            raise


async def end_claims_instance(tools: Tools, termination: ClaimTermination) -> Answer:
    """End what the claim's node has not ended; of a claim that was never launched there is nothing.

    A claim that does not know its instance itself knows it from its node. That may have gone without it, as another
    node stands for it: then so does the claim.
    """
    if not termination.provider_id:
        return Proceed()
    others = tools.observed.strangers_on(termination.provider_id, termination.claim)
    return leave_instance(tools, termination, others) if others else await end_instance(tools, termination)


async def release_claim(tools: Tools, termination: ClaimTermination) -> Answer:
    """Let the claim go; the API server removes it when nobody else holds it."""
    await let_go(tools, termination.held)
    return Proceed()


RELEASE: Step[ClaimTermination] = Step("finalizer", release_claim)
STEPS: tuple[Step[ClaimTermination], ...] = (
    Step("rivals", yield_to_rivals),
    Step("deadline", set_claim_deadline),
    Step("nodes", end_nodes),
    Step("instance", end_claims_instance),
    RELEASE,
)


class NodeClaimTermination:
    """Reconciles held claims; owns what is remembered of each."""

    def __init__(self, tools: Tools, backoff: Callable[[float, float], Backoff]) -> None:
        self._tools = tools
        self._backoff = backoff
        self._queue: WorkQueue[str] = WorkQueue(tools.clock, lambda: backoff(FIRST_RETRY, LAST_RETRY))
        self._under_way: dict[str, ClaimTermination] = {}
        self._left_alone: dict[str, str] = {}  # by name, the UIDs of unmanaged claims that people were told of
        self._finished: deque[ClaimProgress] = deque(maxlen=REMEMBERED)
        tools.observed.claims.subscribe(self._claim_changed)
        tools.observed.nodes.subscribe(self._node_changed)

    async def run(self) -> None:
        """End claims until cancelled. Nothing is decided before all caches are live."""
        await self._tools.observed.wait_live()
        await run_workers(self._queue, self.reconcile, self._tools.settings.workers, expected=(ApiError,))

    def under_way(self) -> tuple[ClaimProgress, ...]:
        """Where each claim stands now, oldest first."""
        now = self._tools.clock.now()
        return tuple(sorted((t.progress(now) for t in self._under_way.values()), key=lambda p: (p.started, p.claim)))

    def finished(self) -> tuple[ClaimProgress, ...]:
        """The last claims that have come to their end, in that order."""
        return tuple(self._finished)

    def statistics(self) -> QueueStatistics:
        """The work queue's."""
        return self._queue.statistics()

    async def reconcile(self, name: str) -> Requeue | None:
        """Bring the end of the claim called `name` one step further, if it is ours to end."""
        claim = self._tools.observed.claim(name)
        termination = self._under_way.get(name)
        if termination is not None and (claim is None or claim.uid != termination.uid or not is_held(claim)):
            self._close(termination)
            termination = None
        if claim is None or not is_held(claim):
            return None
        if not self._is_ours(claim, termination):
            self._leave_alone(claim)
            return None
        self._left_alone.pop(name, None)
        if termination is None:
            termination = self._open(claim)
        termination.held.resource = self._tools.claim_resource()
        termination.held.refresh(claim)
        # Taken off by ourselves, and not shown by the watch yet: there is nothing left to do.
        return await self._walk(termination) if is_held(termination.claim) else None

    async def _walk(self, termination: ClaimTermination) -> Requeue | None:
        for step in STEPS:
            termination.pass_through(step.name, self._tools.clock.now())
            match await step.run(self._tools, termination):
                case Wait(seconds=seconds, reason=reason):
                    termination.rest_at(step.name, self._tools.clock.now(), reason)
                    return Requeue(seconds)
                case Release():
                    termination.pass_through(RELEASE.name, self._tools.clock.now())
                    await release_claim(self._tools, termination)
                    return None
                case Proceed():
                    pass
        return None

    def _is_ours(self, claim: NodeClaim, termination: ClaimTermination | None) -> bool:
        """Its nodes decide; when they are gone, the claim is still that of managed nodes."""
        observed = self._tools.observed
        if observed.is_managed(claim, self._tools.settings.node_selector):
            return True
        was_ours = termination is not None or any(condition_of(claim.conditions, type_) for type_ in OURS)
        return was_ours and not observed.nodes_of(claim)

    def _open(self, claim: NodeClaim) -> ClaimTermination:
        settings, now = self._tools.settings.instance, self._tools.clock.now()
        wait = InstanceWait(
            poll=self._backoff(settings.poll_initial_seconds, settings.poll_maximum_seconds),
            retry=self._backoff(settings.retry_initial_seconds, settings.retry_maximum_seconds),
        )
        termination = ClaimTermination(self._tools.claim_resource(), claim, wait, now)
        self._under_way[claim.name] = termination
        logger.info("node claim is being terminated", extra={"nodeclaim": claim.name, "uid": claim.uid})
        return termination

    def _close(self, termination: ClaimTermination) -> None:
        name = termination.claim.name
        del self._under_way[name]
        progress = termination.progress(self._tools.clock.now(), is_finished=True)
        self._finished.append(progress)
        seconds = {step: round(spent, 3) for step, spent in progress.seconds.items()}
        logger.info("node claim is terminated", extra={"nodeclaim": name, "uid": progress.uid, "seconds": seconds})

    def _leave_alone(self, claim: NodeClaim) -> None:
        """Held, but not managed (any more): its node and its instance stay, and somebody is told once."""
        self._under_way.pop(claim.name, None)
        if self._left_alone.get(claim.name) == claim.uid:
            return
        self._left_alone[claim.name] = claim.uid
        message = (
            f"finalizer {names.FINALIZER} holds this claim, but nodeSelector matches neither its node nor its own "
            "labels, so nobody ends it; change nodeSelector or the labels, or take the finalizer off by hand"
        )
        logger.warning("unmanaged node claim is held: %s", message, extra={"nodeclaim": claim.name})
        subject = Subject.of(self._tools.claim_resource(), claim)
        self._tools.recorder.record(subject, names.EventReason.UNMANAGED_CLAIM_HELD, message, "Warning")

    # What makes a claim worth another look.

    def _claim_changed(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        claim = new or old
        if old is not None and new is None:
            self._left_alone.pop(old.name, None)
        if claim is not None and (claim.name in self._under_way or is_held(claim)):
            self._queue.add(claim.name)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        for node in (old, new):
            if node is not None:
                for claim in self._tools.observed.claims_of(node):
                    if is_held(claim):
                        self._queue.add(claim.name)
