"""Progress of a drain that was requested: which nodes are not there yet, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gracectl.cli.drains.followed import FollowedDrain, hints, is_finished, states_of
from gracectl.cli.drains.view import state_of, why
from gracectl.cli.output import command
from gracectl.cli.status import messages
from gracectl.cli.status.follow import StatusFrame, TerminatedNode
from gracectl.inspect.leadership import UNKNOWN_LEADERSHIP, LeaderState
from gracectl.inspect.progress import Progress
from gracectl.inspect.status import NodePhase, NodeStatus
from gracectl.model.node import Node
from gracectl.policy.answers import Total, Unknown
from gracectl.policy.explain import listed
from gracectl.policy.remedies import remedy
from gracectl.policy.warnings import WarningKind


class DrainProgress:
    """Nodes that a command waits for. `expected`: UIDs of the nodes by name; `has_failed`: a node will not finish.

    `for_maintenance`: the nodes stay. `requested_at`: time of the request (Unix seconds), for nodes that were not
    deleted before. `ignore_stuck`: a node with only stuck pods left counts as drained. `waits_for_stuck`: wait for
    stuck pods too, as they may still stop. `has_stuck`: a node that is no longer waited for has stuck pods. `here`:
    names of nodes that this process drains. `unrequested`: UIDs of nodes that are not begun yet. `skips_stuck`: nodes
    that would never drain are not waited for, and `skipped`, by name. `to_delete`: nodes, by UID, that were drained
    from here to be deleted. `campaign`: the NodeDrain that requests them; None: the command does.
    `waits_for_campaign`: until it is finished, too.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        requested_at: float,
        *,
        for_maintenance: bool,
        ignore_stuck: bool = False,
        waits_for_stuck: bool = False,
    ) -> None:
        self.for_maintenance = for_maintenance
        self.has_stuck = False
        self.here: frozenset[str] = frozenset()
        self.unrequested: set[str] = set()
        self.skips_stuck = False
        self.skipped: list[str] = []
        self.to_delete: dict[str, Node] = {}
        self.campaign: FollowedDrain | None = None
        self.waits_for_campaign = False
        self._campaign_text = ""
        self._is_settling = False
        self._ignore_stuck = ignore_stuck
        self._waits_for_stuck = waits_for_stuck
        self._stuck: dict[str, str] = {}  # by UID, the last message about stuck pods
        self.expected = {node.name: node.uid for node in nodes}
        self.has_failed = False
        self._left = {uid: name for name, uid in self.expected.items()}
        self._began = {
            node.uid: requested_at if node.deletion_timestamp is None else node.deletion_timestamp for node in nodes
        }
        self._last: dict[str, NodeStatus] = {}  # by uid
        self._leadership = UNKNOWN_LEADERSHIP
        self._deleted: set[str] = set()  # UIDs of nodes that were deleted although they should stay

    @property
    def left(self) -> tuple[str, ...]:
        """The names of nodes that are still waited for."""
        return tuple(self._left.values())

    @property
    def is_over(self) -> bool:
        """Whether nothing is waited for."""
        return not self._left and not self._is_recording()

    def _is_recording(self) -> bool:
        drain = self.campaign.latest if self.campaign is not None else None
        return self.waits_for_campaign and drain is not None and not is_finished(drain)

    @property
    def left_uids(self) -> frozenset[str]:
        """Their UIDs."""
        return frozenset(self._left)

    def give_up(self, uid: str) -> None:
        """Wait for this node no longer; it has failed."""
        self._left.pop(uid, None)
        self.unrequested.discard(uid)
        self.has_failed = True

    def has(self, node: Node) -> bool:
        """Whether the command requested it; a new node with the same name does not count."""
        return self.expected.get(node.name) == node.uid

    def update(self, frame: StatusFrame) -> Iterator[str]:
        """Take note of a frame, and return the lines to print about it."""
        self._leadership = frame.leadership
        for terminated in frame.terminated:
            if self._left.pop(terminated.uid, None):
                self.has_failed = self.has_failed or self.for_maintenance
                yield from self._deletion(terminated.uid, terminated.name)
                yield messages.terminated_text(self._timed(terminated, frame.at))
        for node in frame.nodes:
            if node.uid in self._left and node.uid not in self.unrequested:
                self._last[node.uid] = node
                if self.skips_stuck and node.is_never_drained:
                    self.give_up(node.uid)
                    self.skipped.append(node.name)
                    yield f"{node.name}: skipped: {messages.waits_for(node)}"
                    continue
                if node.is_done and not self.for_maintenance and node.name in self.here:
                    self.to_delete.setdefault(node.uid, node.node)
                if self.for_maintenance or (node.name in self.here and not node.is_done):
                    yield from self._maintenance(node)
                elif node.state is NodePhase.TERMINATING:
                    yield from self._deletion(node.uid, node.name)
        if self.campaign is not None:
            yield from self._by_campaign(self.campaign)
            if not self._left and self._is_recording() and not self._is_settling:
                self._is_settling = True
                yield f"NodeDrain {self.campaign.name}: all nodes are done; waits until their pods are Ready elsewhere"

    def _deletion(self, uid: str, name: str) -> Iterator[str]:
        """Say that a NodeDrain has deleted a node; a very fast termination is not seen while it is in progress."""
        if self.campaign is not None and uid not in self._deleted:
            self._deleted.add(uid)
            yield f"{name}: deletion requested"

    def _by_campaign(self, followed: FollowedDrain) -> Iterator[str]:
        """Take over what the NodeDrain records, and the nodes do not show: not begun, skipped, failed, canceled."""
        drain = followed.latest
        if drain is None and not followed.is_gone:
            return
        state = "" if drain is None else state_of(drain)
        reason = why(drain) if drain is not None and state in ("blocked", "waiting", "failed") else ""
        text = f"{state}: {reason}" if reason else state
        if state in ("blocked", "waiting", "paused", "canceling", "failed") and text != self._campaign_text:
            yield f"NodeDrain {followed.name}: {text}"
        self._campaign_text = text
        states = {} if drain is None else dict(states_of(drain))
        texts = {} if drain is None else {node.uid: node.message for node in drain.nodes}
        has_ended = drain is None or is_finished(drain)
        for uid, name in tuple(self._left.items()):
            state = states.get(uid, "pending")
            if state in ("pending", "skipped"):
                self.unrequested.add(uid)
            else:
                self.unrequested.discard(uid)
            if not has_ended and state not in ("failed", "canceled"):
                continue
            text = f": {texts[uid]}" if texts.get(uid) else ""
            if state in ("drained", "terminated"):
                del self._left[uid]
                yield f"{name}: {state}"
                continue
            self.give_up(uid)
            if state == "skipped":
                self.skipped.append(name)
            what = state if state in ("failed", "canceled", "skipped") else f"not {self._goal}: {followed.end_text}"
            yield f"{name}: {what}{text}"

    @property
    def _goal(self) -> str:
        return "drained" if self.for_maintenance else "terminated"

    def _timed(self, terminated: TerminatedNode, at: float) -> TerminatedNode:
        # A very fast termination is not seen while it is in progress.
        if terminated.after_seconds is not None:
            return terminated
        return msgspec.structs.replace(terminated, after_seconds=max(at - self._began[terminated.uid], 0.0))

    def rest_of(self, frame: StatusFrame) -> StatusFrame:
        """The frame without the nodes that were already reported; its progress is that of all nodes, begun or not."""
        left = tuple(node for node in frame.nodes if node.uid in self._left and node.uid not in self.unrequested)
        return msgspec.structs.replace(frame, nodes=left, terminated=(), progress=self._of_all(frame.progress))

    def _of_all(self, progress: Progress | None) -> Progress | None:
        if progress is None or not self.unrequested:
            return progress
        total, pending = progress.total, tuple(name for uid, name in self._left.items() if uid in self.unrequested)
        begins = Unknown(tuple(f"when {name} begins" for name in pending))
        total = Total(total.nodes + len(pending), begins, (*total.unknown, *pending), total.never)
        return msgspec.structs.replace(progress, nodes=max(progress.nodes, len(self.expected)), total=total)

    def _maintenance(self, node: NodeStatus) -> Iterator[str]:
        if node.is_done:
            del self._left[node.uid]
            yield f"{node.name}: drained for maintenance; {_undo(node)}"
        elif node.stuck:
            yield from self._with_stuck_pods(node)
        elif node.state is NodePhase.TERMINATING and node.uid not in self._deleted:
            self._deleted.add(node.uid)
            yield f"{node.name}: deleted meanwhile; waiting for its termination"
        elif node.state in (NodePhase.UNCORDONING, NodePhase.PENDING, NodePhase.IDLE) and self.campaign is None:
            del self._left[node.uid]
            self.has_failed = True
            yield f"{node.name}: uncordoned meanwhile, before it was drained"

    def _with_stuck_pods(self, node: NodeStatus) -> Iterator[str]:
        if self._ignore_stuck:
            del self._left[node.uid]
            yield f"{node.name}: drained for maintenance, but {node.stuck}; {_undo(node)}"
        elif not self._waits_for_stuck:
            del self._left[node.uid]
            self.has_stuck = True
            waits = "" if node.name in self.here else "the controller continues to wait for it; "
            yield f"{node.name}: not drained: {node.stuck}; {waits}{_undo(node)}"
        elif self._stuck.get(node.uid) != node.stuck:
            yield f"{node.name}: not drained yet: {node.stuck}"
        self._stuck[node.uid] = node.stuck

    def unfinished(self, after: str) -> str:
        """Message after a timeout: unfinished nodes, what each waits for, and the next step."""
        number, of = len(self._left), len(self.expected)
        nodes = "the node is" if of == 1 else f"{number} of {of} nodes {'is' if number == 1 else 'are'}"
        waiting = [f"{name}{self._reason(uid)}" for uid, name in self._left.items()]
        return f"{nodes} not {self._goal} after {after}: {listed(waiting)}; {self._continuation()}; {self._watch()}"

    def _watch(self) -> str:
        if self.campaign is not None:
            return f"NodeDrain {self.campaign.name}: {hints(self.campaign.name)}"
        return f"to watch: {command('status', '-w', *self.left)}"

    def _reason(self, uid: str) -> str:
        reason = messages.waits_for(self._last[uid]) if uid in self._last else ""
        return f" ({reason})" if reason else ""

    def _continuation(self, what: str = "") -> str:
        """Say what happens without this command: only a leader continues. `what`: ` to drain worker-1`."""
        if here := [name for name in self.left if name in self.here]:
            resume = command("drain" if self.for_maintenance else "terminate", *here)
            return f"nothing continues{what} until you run it again: {resume}"
        match self._leadership.state:
            case LeaderState.ACTIVE:
                return f"the controller continues{what}"
            case LeaderState.UNKNOWN:
                return f"unknown whether a controller runs and continues{what}"
        return f"nothing continues{what} until a controller leads; {remedy(WarningKind.NO_CONTROLLER)}"

    def unwatched(self) -> str:
        """Say what continues after an interrupt, how to watch it, and whether it can be undone."""
        if not self._left:
            return "interrupted"
        watch = self._watch()
        if self.campaign is not None:
            return f"interrupted; {self._continuation()}; {watch}"
        names = ", ".join(self.left)
        if self.for_maintenance or self.here:
            undo = f"to undo: {command('uncordon', *self.left)}"
            verb = "drain" if self.for_maintenance else "terminate"
            return f"interrupted; {self._continuation(f' to {verb} {names}')}; {watch}; {undo}"
        return f"interrupted; {self._continuation(f' to terminate {names}')}; the deletion cannot be undone; {watch}"


def _undo(node: NodeStatus) -> str:
    return f"to undo: {command('uncordon', node.name)}"
