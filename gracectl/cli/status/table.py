"""Status of nodes as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import INDENT, Cut, Row, Table, helpful, indented, marked
from gracectl.cli.format import cluster_text
from gracectl.cli.output import command
from gracectl.cli.progress import cause_lines, progress_lines, remaining_text
from gracectl.cli.status import messages
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.messages import PodText
from gracectl.inspect.status import NodePhase, NodeStatus

STYLES = {"blocked": "red", "protected": "yellow", "deleted": "red", "waiting": "dim"}
"""By the state of a pod."""


def status_table(
    frame: StatusFrame, *, verbose: bool = False, is_live: bool = False, is_wide: bool = False
) -> RenderableType:
    """All of a frame. `verbose`: each pod. `is_live`: it is redrawn: with progress, and as many nodes as fit.

    `is_wide`: with the traces.
    """
    is_long = len(frame.nodes) > messages.FEW_NODES
    head, foot = list(_head(frame, verbose, is_live)), list(_foot(frame, is_live))
    if len(frame.nodes) > 1:
        head.append(Text())
    if is_long and not verbose:
        summary = _summary(frame, messages.most_urgent(frame.nodes) if is_live else frame.nodes, is_wide=is_wide)
        return Cut(Group(*head), summary, Group(*foot), command("status")) if is_live else Group(*head, summary, *foot)
    if len(frame.nodes) > 1:
        head.append(_summary(frame, frame.nodes, is_wide=is_wide))
    elif is_wide:
        head += [indented(Text(f"trace {messages.trace_of(node, frame)}")) for node in frame.nodes if node.trace_id]
    for node in frame.nodes:
        if len(frame.nodes) == 1 or node.pods or node.warnings or node.pods is None or node.pending is not None:
            head += [Text(), *_node(node, frame.at, verbose)]
    return Group(*head, *foot)


def _head(frame: StatusFrame, verbose: bool, is_live: bool) -> Iterator[RenderableType]:
    """The most important lines; a terminal may have no room for all nodes."""
    if is_live:
        yield Text(cluster_text(frame.cluster))
    if frame.connection_loss is not None:
        yield Text(f"! {messages.connection_loss_text(frame.connection_loss, frame.at + frame.age)}", "bold red")
    yield Text(messages.title(frame))
    text = "" if frame.progress is None else remaining_text(frame.progress, frame.at)
    if text and not is_live and len(frame.nodes) > 1:
        yield Text(text)
    if is_live and frame.progress is not None:
        yield from progress_lines(frame.progress, frame.at)
    elif not is_live and len(frame.nodes) > messages.FEW_NODES and not verbose:
        if frame.progress is not None and frame.progress.causes:
            yield Text()
            yield from cause_lines(frame.progress, frame.at)
        yield Text("  -v, or the name of a node, shows more", "dim")


def _foot(frame: StatusFrame, is_live: bool) -> Iterator[RenderableType]:
    if messages.is_unlimited(frame) and not is_live:
        yield Text(f"\n! {messages.UNLIMITED}", "yellow")
    if frame.claims or frame.terminated:
        yield Text()
    for claim in frame.claims:
        yield Text(messages.claim_text(claim, frame.at))
    if frame.terminated:
        yield Text(messages.all_terminated_text(frame.terminated), "green")


def _summary(frame: StatusFrame, nodes: Sequence[NodeStatus], *, is_wide: bool) -> Table:
    """One line a node: the rest of a reason is in the lines about the node itself."""
    rows = []
    for node in nodes:
        is_blocked = any(each.kind.is_blocking for each in node.warnings)
        step = Text(messages.step_of(node), "red" if is_blocked else "green" if node.is_done else "cyan")
        left = Text(messages.left_of(node, frame.at), "red" if node.is_never_drained else "")
        reason = Text(messages.waits_for(node), "red" if is_blocked else "", no_wrap=True, overflow="ellipsis")
        age, pods, deadline = (
            messages.age_of(node, frame.at),
            messages.pods_left(node),
            messages.deadline_in(node, frame.at),
        )
        trace = [messages.trace_of(node, frame)] if is_wide else []
        rows.append(Row([node.name, step, age, pods, left, deadline, *trace, reason]))
    headers = ("node", "step", "age", "pods", "left", "deadline", *(["trace"] if is_wide else []), "waiting for")
    numbers = frozenset({"age", "pods", "left", "deadline"})
    return Table(headers, rows, numbers, has_message=True, droppable=("deadline", "age", "waiting for"))


def _node(node: NodeStatus, at: float, verbose: bool) -> Iterator[RenderableType]:
    text = messages.node_text(node, at, verbose=verbose)
    yield Text.assemble((f"{text.name}: ", "bold"), (text.headline, "" if node.state is NodePhase.IDLE else "bold"))
    for fact in filter(None, (text.deadline, text.forecast)):
        yield indented(Text(fact))
    yield from (marked(each.message, each.remedy, is_blocking=each.kind.is_blocking) for each in node.warnings)
    if text.pods:
        yield Text()
        yield _pods(text.pods)
    if text.others:
        yield indented(Text(text.others, "dim"))


def _pods(pods: Sequence[PodText]) -> Table:
    rows = [
        Row(
            [pod.name, Text(pod.state, STYLES.get(pod.state, "")), pod.age, pod.reason],
            [helpful(pod.remedy)] if pod.remedy else (),
        )
        for pod in pods
    ]
    return Table(
        ("pod", "state", "age", "reason"), rows, frozenset({"age"}), has_message=True, indent=INDENT, droppable=("age",)
    )
