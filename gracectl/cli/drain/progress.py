"""Nodes that a command has asked to end, or to be drained and kept so: which of them are not there yet, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from gracectl.cli.output import command
from gracectl.cli.status import messages as words
from gracectl.cli.status.follow import Gone, Scene
from gracectl.inspect.status import NodeStatus, State
from gracectl.model.node import Node
from gracectl.policy.explain import listed


class Awaited:
    """`keeps`: they are to stay. `expected`: the uids of all of them by name. `has_failed`: one of them has not become
    what was asked for, and will not. `asked_at` (Unix seconds): when, of those that nobody had deleted before."""

    def __init__(self, nodes: Sequence[Node], asked_at: float, *, keeps: bool) -> None:
        self.keeps = keeps
        self.expected = {node.name: node.uid for node in nodes}
        self.has_failed = False
        self._left = {uid: name for name, uid in self.expected.items()}
        self._began = {
            node.uid: asked_at if node.deletion_timestamp is None else node.deletion_timestamp for node in nodes
        }
        self._seen: dict[str, NodeStatus] = {}  # by uid, as it was last
        self._lost: set[str] = set()  # uids of those that were to stay, and go

    @property
    def left(self) -> tuple[str, ...]:
        """The names of those that are still waited for."""
        return tuple(self._left.values())

    def has(self, node: Node) -> bool:
        """Whether it is one of them; another node of the same name is not."""
        return self.expected.get(node.name) == node.uid

    def look(self, scene: Scene) -> Iterator[str]:
        """Take note of a scene; what of it is worth a line that stays."""
        for gone in scene.gone:
            if self._left.pop(gone.uid, None):
                self.has_failed = self.has_failed or self.keeps
                yield words.of_gone(self._timed(gone, scene.at))
        for node in scene.nodes:
            if node.uid in self._left:
                self._seen[node.uid] = node
                yield from self._stays(node) if self.keeps else ()

    def _timed(self, gone: Gone, at: float) -> Gone:
        # One that went very fast was not seen while it ended.
        if gone.after_seconds is not None:
            return gone
        return msgspec.structs.replace(gone, after_seconds=max(at - self._began[gone.uid], 0.0))

    def rest_of(self, scene: Scene) -> Scene:
        """What is left to be watched: that somebody is gone, or kept, has been said."""
        left = tuple(node for node in scene.nodes if node.uid in self._left)
        return msgspec.structs.replace(scene, nodes=left, gone=())

    def _stays(self, node: NodeStatus) -> Iterator[str]:
        if node.is_done:
            del self._left[node.uid]
            yield f"{node.name} is drained, and kept so; {command('uncordon', node.name)} gives it back"
        elif node.state is State.ENDING and node.uid not in self._lost:
            self._lost.add(node.uid)
            yield f"{node.name} is being deleted by now: it does not stay, and is watched until it is gone"
        elif node.state in (State.RETURNING, State.PENDING, State.IDLE):
            del self._left[node.uid]
            self.has_failed = True
            yield f"{node.name} was given back by somebody before it was empty"

    def unfinished(self, after: str) -> str:
        """For people: who is not there yet `after` so long, what each waits for, and how it goes on."""
        number, of = len(self._left), len(self.expected)
        who = "the node is" if of == 1 else f"{number} of {of} nodes {'is' if number == 1 else 'are'}"
        goal = "drained" if self.keeps else "gone"
        waiting = [f"{name}{self._reason(uid)}" for uid, name in self._left.items()]
        return (
            f"{who} not {goal} after {after}: {listed(waiting)}; the controller goes on: "
            f"{command('status', '-w', *self.left)}"
        )

    def _reason(self, uid: str) -> str:
        reason = words.waits_for(self._seen[uid]) if uid in self._seen else ""
        return f" ({reason})" if reason else ""

    def unwatched(self) -> str:
        """For people who look no longer: what goes on all the same, how to see it, and whether it can be taken back."""
        if not self._left:
            return "interrupted"
        names = ", ".join(self.left)
        if self.keeps:
            return (
                f"not watched any more; the controller goes on with the drain of {names}: "
                f"{command('status', '-w', *self.left)} shows how, {command('uncordon', *self.left)} takes it back"
            )
        return (
            f"not watched any more; the controller goes on, the deletion of {names} cannot be taken back: "
            f"{command('status', '-w', *self.left)} shows how it goes on"
        )
