"""How nodes stand as tables and sentences, as wide as the terminal: reasons are folded, never cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gracectl.cli.plan.table import GAP, INDENT, caution_line, name_width
from gracectl.cli.status import messages as words
from gracectl.cli.status.follow import Scene
from gracectl.cli.status.messages import PodWords
from gracectl.inspect.status import NodeStatus, State

STYLES = {"blocked": "red", "protected": "yellow", "deleted": "red", "waiting": "dim"}
"""By what is said of a pod."""


def table(scene: Scene, width: int, *, verbose: bool = False) -> RenderableType:
    """All that is to be said of a scene, for so many columns. `verbose`: each pod for itself."""
    return Group(*_parts(scene, width, verbose))


def _parts(scene: Scene, width: int, verbose: bool) -> Iterator[RenderableType]:
    if scene.interruption is not None:
        yield Text(f"! {words.of_interruption(scene.interruption, scene.at)}", "bold red")
    yield Text(words.title(scene))
    are_many = len(scene.nodes) > words.FEW_NODES and not verbose
    if are_many:
        yield from _causes(scene)  # first: a terminal may have no room for all the nodes
    if len(scene.nodes) > 1:
        yield Text()
        yield _summary(scene, width)
    for node in scene.nodes if not are_many else ():
        if len(scene.nodes) == 1 or _has_more_to_say(node):
            yield Text()
            yield from _node(node, scene.at, width, verbose)
    if words.is_unlimited(scene):
        yield Text(f"\n! {words.UNLIMITED}", "yellow")
    if scene.claims or scene.gone:
        yield Text()
    for claim in scene.claims:
        yield Text(words.of_claim(claim, scene.at))
    if scene.gone:
        yield Text(words.of_all_gone(scene.gone), "green")


def _has_more_to_say(node: NodeStatus) -> bool:
    """Than its line among several."""
    return bool(node.pods or node.obstacles or node.pods is None)


def _summary(scene: Scene, width: int) -> Table:
    """One line a node: what does not fit of the reason is in the lines about the node itself."""
    heads = ("node", "step", "for", "pods", "ends in")
    at = scene.at
    rows = [
        (node.name, words.step_of(node), words.time_of(node, at), words.left_of(node), words.ends_in(node, at))
        for node in scene.nodes
    ]
    widest = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    widest[0] = name_width(widest[0], width)
    found = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold", expand=True)
    found.add_column(heads[0], width=widest[0], overflow="fold")
    for head, most in zip(heads[1:], widest[1:], strict=True):
        found.add_column(head, width=most, no_wrap=True, justify="left" if head == "step" else "right")
    found.add_column("waits for", no_wrap=True, overflow="ellipsis", ratio=1)
    for node, row in zip(scene.nodes, rows, strict=True):
        is_grave = any(each.kind.is_blocking for each in node.obstacles)
        step = Text(row[1], "red" if is_grave else "green" if node.is_done else "cyan")
        found.add_row(Text(row[0]), step, *row[2:], Text(words.waits_for(node), "red" if is_grave else ""))
    return found


def _causes(scene: Scene) -> Iterator[RenderableType]:
    """What holds them all in all, and of which nodes somebody has to know."""
    for node in scene.nodes:
        if any(each.kind.is_blocking for each in node.obstacles):
            yield Text()
            yield Text(f"{node.name}:", "bold")
            for caution in node.obstacles:
                yield caution_line(caution)
    found, more = words.causes(scene)
    yield Text()
    if found:
        grid = Table.grid(padding=(0, GAP, 0, 0))
        for _ in ("pods", "nodes"):
            grid.add_column(no_wrap=True, justify="right")
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(overflow="fold")
        grid.add_row(*(Text(head, "bold") for head in ("pods", "nodes", "state", "for", "why")))
        for cause in found:
            state = Text(cause.state, STYLES.get(cause.state, ""))
            grid.add_row(str(cause.pods), str(cause.nodes), state, cause.held_for, Text(cause.why))
        yield grid
    others = f"{more} more reasons; " if more else ""
    yield Text(f"{others}-v, or the name of a node, lists pods", "dim")


def _node(node: NodeStatus, at: float, width: int, verbose: bool) -> Iterator[RenderableType]:
    told = words.described(node, at, verbose=verbose)
    yield Text.assemble((f"{told.name}: ", "bold"), (told.headline, "" if node.state is State.IDLE else "bold"))
    if told.deadline:
        yield Padding(Text(told.deadline), (0, 0, 0, INDENT))
    for caution in node.obstacles:
        yield caution_line(caution)
    if told.pods:
        yield Text()
        yield _pods(told.pods, width)
    if told.others:
        yield Padding(Text(told.others, "dim"), (0, 0, 0, INDENT))


def _pods(pods: Sequence[PodWords], width: int) -> RenderableType:
    longest = max(len("pod"), *(len(pod.name) for pod in pods))
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(width=name_width(longest, width), overflow="fold")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(overflow="fold")
    grid.add_row(*(Text(head, "bold") for head in ("pod", "state", "for", "why")))
    for pod in pods:
        grid.add_row(Text(pod.name), Text(pod.state, STYLES.get(pod.state, "")), pod.held_for, Text(pod.why))
    return Padding(grid, (0, 0, 0, INDENT))
