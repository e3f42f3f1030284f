"""NodeDrains as a table, as the story of one, and as JSON.

All of it is what the object records; nothing is forecast here. Instants are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import Row, Table, marked
from gracectl.cli.drains.followed import is_finished
from gracectl.cli.format import elapsed
from gracectl.cli.output import command
from gracectl.cli.report import Json, instant
from gracectl.model.meta import Condition, condition_of
from gracectl.model.names import BLOCKED, COMPLETE, FAILED, PROGRESSING
from gracectl.model.nodedrain import Action, Blocker, Counts, NodeDrain, NodeProgress, NodeState
from gracectl.model.times import format_time
from gracectl.policy.explain import counted

MOST_NAMED = 3
"""Nodes of a command line."""
DONE = (NodeState.DRAINED, NodeState.TERMINATED)
VERBS = {Action.DRAIN: "drain", Action.TERMINATE: "terminate"}
UNANSWERED_SECONDS = 15.0
"""A controller that leads answers a new NodeDrain within this time."""
UNANSWERED = "no controller has answered; is `gracectl controller` running, in a version that knows NodeDrains?"
BAD = ("failed", "canceling", "blocked")
TELLING = (*BAD, "waiting", "paused")
"""States with a message that says more than the counts."""


def state_of(drain: NodeDrain) -> str:
    """One word or two for people: `complete`, `failed`, `canceling`, `paused`, `blocked`, `in progress`, `waiting`,
    `new` (no controller has answered)."""
    if _true(drain, COMPLETE):
        return "complete"
    if _true(drain, FAILED):
        return "failed"
    if drain.deletion_timestamp is not None:
        return "canceling"
    if not drain.observed_generation:
        return "new"
    if drain.paused:
        return "paused"
    if _true(drain, BLOCKED):
        return "blocked"
    return "in progress" if drain.counts.in_progress else "waiting"


def why(drain: NodeDrain) -> str:
    """What it waits for, or how it has ended; empty if unknown."""
    for kind in (COMPLETE, FAILED, BLOCKED):
        if found := _true(drain, kind):
            return found.message
    progressing = condition_of(drain.conditions, PROGRESSING)
    return "" if progressing is None else progressing.message


def counts_text(counts: Counts) -> str:
    """`28 of 40 nodes; 4 in progress, 6 pending, 2 skipped`."""
    fields = ("in_progress", "pending", "skipped", "failed", "canceled")
    rest = [f"{number} {field.replace('_', ' ')}" for field in fields if (number := getattr(counts, field))]
    done = f"{counts.done} of {counted(counts.total, 'node')}"
    return f"{done}; {', '.join(rest)}" if rest else done


def drains_table(drains: Sequence[NodeDrain], at: float) -> Table:
    """All of them, the newest first."""
    rows = [
        Row(
            (
                drain.name,
                VERBS[drain.action],
                _colored(state_of(drain)),
                f"{drain.counts.done}/{drain.counts.total}" if drain.counts.total else "-",
                elapsed(max(at - drain.created, 0.0)),
                _end(drain, at) or "-",
                drain.requested_by or "-",
                _message(drain),
            )
        )
        for drain in sorted(drains, key=lambda drain: (-drain.created, drain.name))
    ]
    headers = ("name", "action", "state", "done", "age", "ends", "by", "message")
    return Table(headers, rows, frozenset({"done", "age"}), has_message=True, droppable=("by", "ends"))


def _message(drain: NodeDrain) -> str:
    return (why(drain) if state_of(drain) in TELLING else "") or drain.reason or why(drain)


def story(drain: NodeDrain, at: float) -> RenderableType:
    """Who asked, how far it is, what it waits for, what is next, and what happened to each node."""
    return Group(*_story(drain, at))


def _story(drain: NodeDrain, at: float) -> Iterator[RenderableType]:
    state = state_of(drain)
    counts = drain.counts
    total = counts.total or len(drain.node_names)
    nodes = (
        f"{counted(total, 'node')}, {drain.max_concurrent} at a time" if total else f"{drain.max_concurrent} at a time"
    )
    yield Text.assemble(f"{drain.name}: ", _colored(state), f": {VERBS[drain.action]} {nodes}")
    who = f" by {drain.requested_by}" if drain.requested_by else ""
    reason = f": {drain.reason}" if drain.reason else ""
    yield Text(f"requested {elapsed(max(at - drain.created, 0.0))} ago ({format_time(drain.created)}){who}{reason}")
    if counts.total:
        yield Text(f"done: {counts_text(counts)}{_times(drain, at)}")
    elif state == "new" and at - drain.created > UNANSWERED_SECONDS:
        yield marked(UNANSWERED, is_blocking=True)
    if state in TELLING and (text := why(drain)):
        stuck = [node.name for node in drain.nodes if node.state is NodeState.DRAINING and node.blocked_by][:MOST_NAMED]
        helps = f"see what helps: {command('status', *stuck)}" if stuck and state == "blocked" else ""
        yield marked(text, helps, is_blocking=state in BAD)
    shown = [node for node in drain.nodes if node.state not in DONE]
    if shown:
        yield Text()
        rows = [_row(node, at) for node in shown]
        yield Table(("node", "state", "since", "pods", "message"), rows, frozenset({"since", "pods"}), has_message=True)
    open_nodes = counts.total - counts.done
    if 0 < len(shown) < open_nodes:
        yield Text(f"… and {counted(open_nodes - len(shown), 'node')} more", "dim")


def _row(node: NodeProgress, at: float) -> Row:
    since = "" if node.since is None else elapsed(max(at - node.since, 0.0))
    pods = "" if node.pods_left is None else str(node.pods_left)
    notes = [marked(_blocker(each), is_blocking=False) for each in node.blocked_by]
    return Row((node.name, node.state.lower(), since, pods, node.message), notes)


def _blocker(blocker: Blocker) -> str:
    name = "/".join(filter(None, (blocker.namespace, blocker.name)))
    until = "" if blocker.until is None else f", until {format_time(blocker.until)}"
    return f"{blocker.kind} {name}{f': {blocker.message}' if blocker.message else ''}{until}"


def _times(drain: NodeDrain, at: float) -> str:
    if drain.completion_time is not None:
        took = "" if drain.start_time is None else f" after {elapsed(drain.completion_time - drain.start_time)}"
        return f"; ended {format_time(drain.completion_time)}{took}"
    end = _end(drain, at)
    return f"; ends in {end}, by the forecast" if end else ""


def _end(drain: NodeDrain, at: float) -> str:
    """Time until the estimated end; empty if unknown, or after the end."""
    if drain.estimated_end is None or is_finished(drain):
        return ""
    return elapsed(max(drain.estimated_end - at, 0.0))


def _true(drain: NodeDrain, kind: str) -> Condition | None:
    found = condition_of(drain.conditions, kind)
    return found if found is not None and found.status == "True" else None


def _colored(state: str) -> Text:
    return Text(state, "red" if state in BAD else "green" if state == "complete" else "")


def drain_report(drain: NodeDrain) -> Json:
    """JSON of one, with its nodes."""
    return {**drain_row(drain), "nodes": [_node_report(node) for node in drain.nodes]}


def drain_row(drain: NodeDrain) -> Json:
    """JSON of one. `state`: as in the table; `message`: what it waits for, or how it has ended."""
    return {
        "name": drain.name,
        "uid": drain.uid,
        "action": drain.action.value,
        "state": state_of(drain),
        "message": why(drain),
        "requestedBy": drain.requested_by or None,
        "reason": drain.reason or None,
        "created": instant(drain.created),
        "maxConcurrent": drain.max_concurrent,
        "paused": drain.paused,
        "startTime": instant(drain.start_time),
        "completionTime": instant(drain.completion_time),
        "estimatedEnd": instant(drain.estimated_end),
        "counts": msgspec.to_builtins(drain.counts),
    }


def _node_report(node: NodeProgress) -> Json:
    return {
        "name": node.name,
        "uid": node.uid,
        "state": node.state.value,
        "since": instant(node.since),
        "podsLeft": node.pods_left,
        "message": node.message,
        "blockedBy": [
            {**msgspec.structs.asdict(each), "until": instant(each.until), "namespace": each.namespace or None}
            for each in node.blocked_by
        ],
        "traceID": node.trace_id or None,
    }
