"""Status of nodes as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import INDENT, Row, Table, indented, marked
from gracectl.cli.status import messages
from gracectl.cli.status.follow import StatusFrame
from gracectl.cli.status.messages import PodText
from gracectl.inspect.status import NodePhase, NodeStatus

STYLES = {"blocked": "red", "protected": "yellow", "deleted": "red", "waiting": "dim"}
"""By the state of a pod."""


def status_table(frame: StatusFrame, *, verbose: bool = False) -> RenderableType:
    """All of a frame. `verbose`: each pod."""
    return Group(*_parts(frame, verbose))


def _parts(frame: StatusFrame, verbose: bool) -> Iterator[RenderableType]:
    if frame.connection_loss is not None:
        yield Text(f"! {messages.connection_loss_text(frame.connection_loss, frame.at + frame.age)}", "bold red")
    yield Text(messages.title(frame))
    are_many = len(frame.nodes) > messages.FEW_NODES and not verbose
    if are_many:
        yield from _causes(frame)  # first: a terminal may have no room for all the nodes
    if len(frame.nodes) > 1:
        yield Text()
        yield _summary(frame)
    for node in frame.nodes if not are_many else ():
        if len(frame.nodes) == 1 or node.pods or node.warnings or node.pods is None:
            yield Text()
            yield from _node(node, frame.at, verbose)
    if messages.is_unlimited(frame):
        yield Text(f"\n! {messages.UNLIMITED}", "yellow")
    if frame.claims or frame.terminated:
        yield Text()
    for claim in frame.claims:
        yield Text(messages.claim_text(claim, frame.at))
    if frame.terminated:
        yield Text(messages.all_terminated_text(frame.terminated), "green")


def _summary(frame: StatusFrame) -> Table:
    """One line a node: the rest of a reason is in the lines about the node itself."""
    rows = []
    for node in frame.nodes:
        is_blocked = any(each.kind.is_blocking for each in node.warnings)
        step = Text(messages.step_of(node), "red" if is_blocked else "green" if node.is_done else "cyan")
        reason = Text(messages.waits_for(node), "red" if is_blocked else "", no_wrap=True, overflow="ellipsis")
        figures = (messages.age_of(node, frame.at), messages.pods_left(node), messages.deadline_in(node, frame.at))
        rows.append(Row([node.name, step, *figures, reason]))
    headers = ("node", "step", "age", "pods", "deadline", "waiting for")
    return Table(headers, rows, frozenset({"age", "pods", "deadline"}), has_message=True)


def _causes(frame: StatusFrame) -> Iterator[RenderableType]:
    """What blocks all of them in all, and the nodes that will not drain."""
    for node in frame.nodes:
        if any(each.kind.is_blocking for each in node.warnings):
            yield Text()
            yield Text(f"{node.name}:", "bold")
            yield from (marked(each.message, is_blocking=each.kind.is_blocking) for each in node.warnings)
    found, more = messages.causes(frame)
    yield Text()
    if found:
        rows = [
            Row([str(each.pods), str(each.nodes), Text(each.state, STYLES.get(each.state, "")), each.age, each.reason])
            for each in found
        ]
        headers = ("pods", "nodes", "state", "age", "reason")
        yield Table(headers, rows, frozenset({"pods", "nodes", "age"}), has_message=True)
    others = f"{more} more reasons; " if more else ""
    yield Text(f"{others}-v, or the name of a node, lists pods", "dim")


def _node(node: NodeStatus, at: float, verbose: bool) -> Iterator[RenderableType]:
    text = messages.node_text(node, at, verbose=verbose)
    yield Text.assemble((f"{text.name}: ", "bold"), (text.headline, "" if node.state is NodePhase.IDLE else "bold"))
    if text.deadline:
        yield indented(Text(text.deadline))
    yield from (marked(each.message, is_blocking=each.kind.is_blocking) for each in node.warnings)
    if text.pods:
        yield Text()
        yield _pods(text.pods)
    if text.others:
        yield indented(Text(text.others, "dim"))


def _pods(pods: Sequence[PodText]) -> Table:
    rows = [Row([pod.name, Text(pod.state, STYLES.get(pod.state, "")), pod.age, pod.reason]) for pod in pods]
    return Table(("pod", "state", "age", "reason"), rows, frozenset({"age"}), has_message=True, indent=INDENT)
