"""Preview of a drain or a termination: where, how much, when it would be done, and what would never be.

Printed before the confirmation and before any request. Invariants: forecast, warnings and texts are the same as in
`gracectl plan`; parts that are cut are counted; nodes that never drain are always named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import marked
from gracectl.cli.format import cluster_text, drained_in, never_text, total_text
from gracectl.cli.plan.brief import joined_warnings
from gracectl.cli.plan.messages import time_origin_of
from gracectl.cli.plan.table import summary_table
from gracectl.cli.plan.text import node_summary
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.model.node import Node
from gracectl.policy.answers import Never
from gracectl.policy.explain import counted, listed

MANY = 20
"""Maximum nodes and warnings with a line; the others are counted."""


DEADLINE_ENDS = "budgets and protection end at the deadline"
"""Part of the preview and the question of a drain with a deadline."""


class NeverDrained(Exception):
    """Nothing was requested, as nodes would never be drained; the preview says why, and what to do."""

    def __init__(self, nodes: Sequence[NodeDrainForecast]) -> None:
        names = listed([node.name for node in nodes], MANY)
        super().__init__(
            f"nothing was changed: {names} would never be drained, for the reasons above; resolve them, or give --force"
        )


def endless(forecast: DrainForecast) -> tuple[NodeDrainForecast, ...]:
    """Nodes that would be requested now, and would never drain."""
    return tuple(node for node in forecast.nodes if isinstance(node.forecast.drained, Never) and not node.is_requested)


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the preview. `cluster` None: already named. `forecast` None: refused, see `refusal`.

    `is_whole`: nothing is cut. `note`: that no controller leads, or none is installed. `has_deadline`: say what it
    means. `at_once`: nodes at the same time; None: all. `pace`: the setting that limits them; empty: --at-once does.
    """

    cluster: ClusterAddress | None
    nodes: Sequence[Node]
    forecast: DrainForecast | None
    refusal: str = ""
    for_maintenance: bool
    is_whole: bool = False
    note: str = ""
    has_deadline: bool = False
    at_once: int | None = None
    pace: str = ""
    is_rotation: bool = False

    @property
    def action(self) -> str:
        """`terminate worker-1`, `drain 3 nodes`."""
        verb = "drain" if self.for_maintenance else "rotate" if self.is_rotation else "terminate"
        return f"{verb} {self.nodes[0].name if len(self.nodes) == 1 else counted(len(self.nodes), 'node')}"

    def rendered(self) -> RenderableType:
        """The whole preview."""
        return Group(*self._parts())

    def _parts(self) -> Iterator[RenderableType]:
        if self.cluster is not None:
            yield Text(cluster_text(self.cluster))
        if self.note:
            yield Text(self.note, "yellow")
        if self.has_deadline:
            yield Text(f"{DEADLINE_ENDS}: pods that are still there are deleted, with their grace before it", "yellow")
        if self.forecast is None:
            yield Text(f"{self.action}; pods unknown: no forecast")
            yield marked(f"no forecast: {self.refusal}", is_blocking=False)
            if len(self.nodes) > 1:
                yield Text(listed([node.name for node in self.nodes], MANY))
            return
        if self.at_once is not None and self.at_once < len(self.nodes):
            pace = f", at most {self.pace}" if self.pace else ""
            lost = _lost(self.forecast)
            yield Text(f"{self.action}, {_pods(self.forecast)}; {self.at_once} at a time{pace}{lost}")
            yield Text("The times are of all nodes drained together.", "dim")
        else:
            yield Text(f"{self.action}, {_pods(self.forecast)}; {_drained(self.forecast)}")
        yield Text()
        yield from _summary(self.forecast, self.is_whole)
        lines = joined_warnings(self.forecast, is_whole=self.is_whole)
        if lines:
            yield Text()
        shown = lines if self.is_whole else lines[:MANY]
        for warning in shown:
            yield marked(warning.message, warning.remedy, is_blocking=warning.kind.is_blocking)
        if len(lines) > len(shown):
            yield Text(f"… and {len(lines) - len(shown)} more warnings; --dry-run shows all", "dim")


def _summary(forecast: DrainForecast, is_whole: bool) -> Iterator[RenderableType]:
    """A line for each node; nodes that never drain come first if not all nodes have one."""
    origin = time_origin_of(forecast)
    nodes = forecast.nodes
    if len(nodes) > MANY and not is_whole:
        nodes = tuple(sorted(nodes, key=lambda node: not isinstance(node.forecast.drained, Never)))[:MANY]
    yield summary_table([node_summary(node, origin) for node in nodes])
    if len(nodes) < len(forecast.nodes):
        yield Text(f"… and {len(forecast.nodes) - len(nodes)} more nodes; --dry-run shows all", "dim")


def _pods(forecast: DrainForecast) -> str:
    return counted(sum(pod.is_waited_for for node in forecast.nodes for pod in node.forecast.pods), "pod")


def _lost(forecast: DrainForecast) -> str:
    """`; drained: never for 1 node (batch-7)`; empty if all are."""
    return f"; drained: {never_text(forecast.total, with_names=True)}" if forecast.total.never else ""


def _drained(forecast: DrainForecast) -> str:
    """`drained in 0:10-4:32`; of several, when all are, and which never."""
    total, at = forecast.total, forecast.whole.at
    assert total.drained is not None
    if isinstance(total.drained, Never) or total.nodes == 1:
        return drained_in(total.drained, at)
    text = total_text(total, at, with_names=True)
    return f"drained: {text}" if total.unknown or total.never else f"all drained in {text}"
