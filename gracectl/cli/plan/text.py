"""Text of a forecast: title, nodes with warnings and pods, budgets, and assumptions.

Invariants: the most important parts come first; parts that are not shown are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from gracectl.cli.format import elapsed, elapsed_answer, total_text
from gracectl.cli.plan import messages
from gracectl.cli.plan.chart import Bar, bars_of, deletion_of
from gracectl.cli.plan.groups import PodGroup, groups_of
from gracectl.inspect.forecast import DrainForecast, NodeDrainForecast
from gracectl.model.times import format_time
from gracectl.policy.answers import Never, Window, total_of
from gracectl.policy.explain import agreed, counted, listed
from gracectl.policy.forecast import PodForecast
from gracectl.policy.plan import Outcome
from gracectl.policy.warnings import PlanWarning


class Detail(msgspec.Struct, frozen=True):
    """Options of the text. `verbose`: every pod and budget. `settings`: their source. `note`: a first line.
    `fit`: which nodes are drained within a window."""

    verbose: bool = False
    settings: str = ""
    note: str = ""
    fit: str = ""


class PodLine(msgspec.Struct, frozen=True):
    """A pod, or `count` pods with similar forecasts. `deleted_at`: when it may be deleted for the deadline, in seconds.

    `bars`: its states over time; none for a pod that the drain does not wait for.
    """

    when: str
    name: str
    text: str
    count: int = 1
    bars: tuple[Bar, ...] = ()
    deleted_at: float | None = None


class WaveText(msgspec.Struct, frozen=True):
    """Pods that leave together; `title` is empty where there is only one wave."""

    title: str
    lines: tuple[PodLine, ...]


class NodeText(msgspec.Struct, frozen=True):
    """A node. `facts`: its owner, its deadline, and since when it has been terminating. `deadline`: in seconds."""

    name: str
    headline: str
    facts: tuple[str, ...]
    warnings: tuple[PlanWarning, ...]
    waves: tuple[WaveText, ...]
    ignored: str
    deadline: float | None = None


class NodeSummary(msgspec.Struct, frozen=True):
    """A node among several. `kinds`: kinds of its warnings."""

    node: str
    drained: str
    deadline: str
    pods: int
    kinds: tuple[str, ...]


class PlanText(msgspec.Struct, frozen=True):
    """The whole text. `summary`, `all_drained`: empty for a single node. `other_budgets`: those only counted; `note`:
    its first line, if any."""

    title: str
    summary: tuple[NodeSummary, ...]
    all_drained: str
    nodes: tuple[NodeText, ...]
    budgets: tuple[messages.BudgetLine, ...]
    other_budgets: str
    remarks: tuple[str, ...]
    note: str = ""
    fit: str = ""


def plan_text(forecast: DrainForecast, detail: Detail) -> PlanText:
    """The text of a forecast. Times are counted from its instant."""
    origin = messages.time_origin_of(forecast)
    budgets = [messages.budget_line(forecast, each) for each in messages.budgets_of(forecast)]
    shown = budgets if detail.verbose else messages.tightest(budgets)
    nodes = tuple(_node(node, origin, detail) for node in forecast.nodes)
    return PlanText(
        title=_title(forecast),
        summary=tuple(node_summary(node, origin) for node in forecast.nodes) if len(forecast.nodes) > 1 else (),
        all_drained=_all_drained(forecast) if len(forecast.nodes) > 1 else "",
        nodes=nodes,
        budgets=tuple(shown),
        other_budgets=messages.other_budgets([line for line in budgets if line not in shown]),
        remarks=tuple(_remarks(forecast, detail, nodes)),
        note=detail.note,
        fit=detail.fit,
    )


def _title(forecast: DrainForecast) -> str:
    zero = f"0:00 is {format_time(forecast.whole.at)} by the server's clock"
    fresh = [node for node in forecast.nodes if not node.is_requested]
    title = f"What happens next ({zero})"
    if fresh:
        nodes = f"{fresh[0].name} is" if len(fresh) == 1 else f"{counted(len(fresh), 'node')} are"
        requested = "drained for maintenance" if fresh[0].is_maintenance else "deleted"
        title = f"What happens if {nodes} {requested} now ({zero})"
    asked = {node.name for node in forecast.nodes}
    besides = [node.name for node in forecast.whole.nodes if node.name not in asked]
    if not besides:
        return title
    return f"{title}, while {listed(besides)} {agreed(besides, 'is', 'are')} draining already"


def _all_drained(forecast: DrainForecast) -> str:
    """`All 6 nodes are drained in 0:40-5:00.`, or which never are, or of which that is unknown."""
    unmanaged = [node.name for node in forecast.nodes if messages.is_unmanaged(node)]
    total = total_of((node.name, node.forecast.drained) for node in forecast.nodes if not messages.is_unmanaged(node))
    text = total_text(total, forecast.whole.at, with_names=True)
    parts = [f"not managed: {listed(unmanaged)}"] if unmanaged else []
    if isinstance(total.drained, Window) and not total.never:
        nodes = "the others are" if unmanaged else f"all {total.nodes} nodes are"
        parts.append(f"{nodes} drained in {text}")
    elif text:
        parts.append(f"drained: {text}")
    found = "; ".join(parts)
    return f"{found[:1].upper()}{found[1:]}."


def node_summary(node: NodeDrainForecast, origin: messages.TimeOrigin) -> NodeSummary:
    """One line about a node."""
    return NodeSummary(
        node=node.name,
        drained="not drained" if messages.is_unmanaged(node) else elapsed_answer(node.forecast.drained, origin.at),
        deadline="none" if node.deadline is None else elapsed(node.deadline.at - origin.at),
        pods=sum(pod.is_waited_for for pod in node.forecast.pods),
        kinds=tuple(dict.fromkeys(warning.kind.value for warning in node.warnings)),
    )


def _node(node: NodeDrainForecast, origin: messages.TimeOrigin, detail: Detail) -> NodeText:
    left = [pod for pod in node.forecast.pods if pod.is_waited_for or detail.verbose]
    facts = (
        messages.owner_text(node),
        messages.deadline_text(node, origin.at),
        messages.since_text(node, origin.at),
    )
    return NodeText(
        name=node.name,
        headline=messages.drained_text(node, origin.at),
        facts=tuple(filter(None, facts)),
        warnings=node.warnings,
        waves=tuple(_waves(node, left, origin, verbose=detail.verbose)),
        ignored="" if detail.verbose else _ignored(node.forecast.pods),
        deadline=None if node.deadline is None else node.deadline.at - origin.at,
    )


def _waves(
    node: NodeDrainForecast, pods: Iterable[PodForecast], origin: messages.TimeOrigin, *, verbose: bool
) -> Iterator[WaveText]:
    by_wave: dict[int, list[PodForecast]] = {}
    for pod in pods:
        by_wave.setdefault(pod.entry.wave, []).append(pod)
    for wave in sorted(by_wave):
        groups = groups_of(by_wave[wave], origin, verbose=verbose)
        title = _wave_title(node, wave, by_wave[wave], origin) if len(by_wave) > 1 else ""
        yield WaveText(title, tuple(_line(group, origin) for group in groups))


def _line(group: PodGroup, origin: messages.TimeOrigin) -> PodLine:
    return PodLine(
        when=group.when(origin.at),
        name=group.name,
        text=group.text(origin),
        count=len(group.pods),
        bars=tuple(bars_of(group, origin.at)) if group.first.is_waited_for else (),
        deleted_at=deletion_of(group, origin.at),
    )


def _wave_title(node: NodeDrainForecast, wave: int, pods: Iterable[PodForecast], origin: messages.TimeOrigin) -> str:
    """`non-critical`; with the wave's own deadline, if it has one."""
    title = node.forecast.plan.order.waves[wave].name
    limits = {pod.entry.deadline for pod in pods if pod.entry.deadline is not None}
    own = limits - {node.forecast.plan.deadline}
    return f"{title}, until {origin.clock(max(own))}" if own else title


def _ignored(pods: Iterable[PodForecast]) -> str:
    """`not waited for: 5 pods (2 static pod: …; 3 finished: …)`."""
    reasons = Counter(pod.entry.reason for pod in pods if pod.entry.outcome is Outcome.IGNORED)
    if not reasons:
        return ""
    found = "; ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    return f"not waited for: {counted(reasons.total(), 'pod')} ({found})"


def _remarks(forecast: DrainForecast, detail: Detail, nodes: Iterable[NodeText]) -> Iterator[str]:
    windows = [pod.removal for node in forecast.nodes for pod in node.forecast.pods if pod.removal is not None]
    answers = [node.forecast.drained for node in forecast.nodes]
    answers += [pod.leaves for node in forecast.nodes for pod in node.forecast.pods if pod.leaves is not None]
    certainty = "Nothing was changed. A single time is certain unless objects change."
    if not all(window.is_certain for window in windows):
        certainty += (
            " Two times are bounds: a pod may terminate immediately or need its whole grace period, and a replacement "
            "may be Ready immediately or up to "
            f"{forecast.whole.assumptions.replacement_seconds:g} s after its creation (--replacement-seconds); if one "
            "takes longer, the pods behind it leave later."
        )
    yield certainty
    if any(isinstance(answer, Never) for answer in answers):
        yield '"Never" means: until you change what the warnings name.'
    yield f"Drained: no pod is left to wait for; {_afterwards(forecast)}."
    if any(line.count > 1 for node in nodes for wave in node.waves for line in wave.lines):
        yield "Pods with the same forecast share a line; -v lists every pod."
    if detail.settings:
        yield f"Settings: {detail.settings}."


def _afterwards(forecast: DrainForecast) -> str:
    stays = [node.is_maintenance for node in forecast.nodes]
    if not all(stays):
        return "volumes and the instance follow" + (" if the node is terminated" if any(stays) else "")
    return "volumes follow, then the node stays cordoned until it is uncordoned"
