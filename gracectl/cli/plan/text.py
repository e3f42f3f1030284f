"""A forecast as it is told to people: title, nodes with their cautions and pods, budgets, and what all that rests on.

What a terminal and a page have in common. Invariant: what matters most comes first, and nothing is left out silently:
what is not shown is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from gracectl.cli.format import elapsed, elapsed_span
from gracectl.cli.plan import messages as words
from gracectl.cli.plan.groups import groups_of
from gracectl.cli.plan.messages import (
    BudgetLine,
    Ground,
    budget_line,
    budgets_of,
    counted,
    ground_of,
    the_others,
    tightest,
)
from gracectl.inspect.forecast import NodeOutlook, Outlook
from gracectl.model.times import format_time
from gracectl.policy.bounds import PodForecast
from gracectl.policy.explain import listed
from gracectl.policy.plan import Outcome
from gracectl.policy.warnings import PlanWarning

BY_DEFAULT = (
    "With default settings: waves, node groups and protection depend on them, so give the controller's own with "
    "--config."
)


class Terms(msgspec.Struct, frozen=True):
    """How much is told. `verbose`: every pod and budget for itself. `by_default`: the settings are nobody's own."""

    verbose: bool = False
    by_default: bool = False


class PodLine(msgspec.Struct, frozen=True):
    """A pod, or several of whom the same is said."""

    when: str
    name: str
    how: str
    count: int = 1


class WaveLines(msgspec.Struct, frozen=True):
    """Those who leave together; `title` is empty where there is one wave only."""

    title: str
    lines: tuple[PodLine, ...]


class NodeTelling(msgspec.Struct, frozen=True):
    """One node. `facts`: its deadline, and since when it has been ending."""

    name: str
    headline: str
    facts: tuple[str, ...]
    cautions: tuple[PlanWarning, ...]
    waves: tuple[WaveLines, ...]
    ignored: str


class Summary(msgspec.Struct, frozen=True):
    """One node among several. `kinds` of its cautions."""

    node: str
    drained: str
    deadline: str
    pods: int
    kinds: tuple[str, ...]


class Telling(msgspec.Struct, frozen=True):
    """All of it. `summary` is empty for a single node; `others`: the budgets that are only counted."""

    title: str
    summary: tuple[Summary, ...]
    nodes: tuple[NodeTelling, ...]
    budgets: tuple[BudgetLine, ...]
    others: str
    remarks: tuple[str, ...]


def telling(outlook: Outlook, terms: Terms) -> Telling:
    """Tell it. Times are counted from the instant of the forecast."""
    ground = ground_of(outlook)
    budgets = [budget_line(outlook, each) for each in budgets_of(outlook)]
    shown = budgets if terms.verbose else tightest(budgets)
    nodes = tuple(_node(node, ground, terms) for node in outlook.nodes)
    return Telling(
        title=_title(outlook),
        summary=tuple(_summary(node, ground) for node in outlook.nodes) if len(outlook.nodes) > 1 else (),
        nodes=nodes,
        budgets=tuple(shown),
        others=the_others([line for line in budgets if line not in shown]),
        remarks=tuple(_remarks(outlook, terms, nodes)),
    )


def _title(outlook: Outlook) -> str:
    zero = f"0:00 is {format_time(outlook.whole.at)} by the server's clock"
    fresh = [node for node in outlook.nodes if not node.is_begun]
    title = f"What happens next ({zero})"
    if fresh:
        who = f"{fresh[0].name} is" if len(fresh) == 1 else f"{counted(len(fresh), 'node')} are"
        asked_for = "drained for maintenance" if fresh[0].is_maintenance else "deleted"
        title = f"What happens if {who} {asked_for} now ({zero})"
    asked = {node.name for node in outlook.nodes}
    besides = [node.name for node in outlook.whole.nodes if node.name not in asked]
    if not besides:
        return title
    return f"{title}, while {listed(besides)} {'is' if len(besides) == 1 else 'are'} draining already"


# -- nodes -------------------------------------------------------------------------------------------------------------


def _summary(node: NodeOutlook, ground: Ground) -> Summary:
    return Summary(
        node=node.name,
        drained="not drained" if words.is_unheld(node) else elapsed_span(node.prospect.drained, ground.at),
        deadline="none" if node.deadline is None else elapsed(node.deadline.at - ground.at),
        pods=sum(pod.is_waited_for for pod in node.prospect.pods),
        kinds=tuple(dict.fromkeys(caution.kind.value for caution in node.cautions)),
    )


def _node(node: NodeOutlook, ground: Ground, terms: Terms) -> NodeTelling:
    left = [pod for pod in node.prospect.pods if pod.is_waited_for or terms.verbose]
    facts = (words.deadline(node, ground.at), words.ending(node, ground.at))
    return NodeTelling(
        name=node.name,
        headline=words.drained(node, ground.at),
        facts=tuple(filter(None, facts)),
        cautions=node.cautions,
        waves=tuple(_waves(node, left, ground, verbose=terms.verbose)),
        ignored="" if terms.verbose else _ignored(node.prospect.pods),
    )


def _waves(node: NodeOutlook, pods: Iterable[PodForecast], ground: Ground, *, verbose: bool) -> Iterator[WaveLines]:
    by_wave: dict[int, list[PodForecast]] = {}
    for pod in pods:
        by_wave.setdefault(pod.entry.wave, []).append(pod)
    for wave in sorted(by_wave):
        groups = groups_of(by_wave[wave], ground, verbose=verbose)
        title = wave_title(node, wave, by_wave[wave], ground) if len(by_wave) > 1 else ""
        lines = (PodLine(each.when(ground.at), each.name, each.how(ground), len(each.pods)) for each in groups)
        yield WaveLines(title, tuple(lines))


def wave_title(node: NodeOutlook, wave: int, pods: Iterable[PodForecast], ground: Ground) -> str:
    """`non-critical`; where a wave has a deadline of its own, until when."""
    title = node.prospect.plan.order.waves[wave].name
    limits = {pod.entry.deadline for pod in pods if pod.entry.deadline is not None}
    own = limits - {node.prospect.plan.deadline}
    return f"{title}, until {ground.clock(max(own))}" if own else title


def _ignored(pods: Iterable[PodForecast]) -> str:
    """`not waited for: 5 pods (2 static pod: …; 3 finished: …)`."""
    reasons = Counter(pod.entry.reason for pod in pods if pod.entry.outcome is Outcome.IGNORED)
    if not reasons:
        return ""
    found = "; ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    return f"not waited for: {counted(reasons.total(), 'pod')} ({found})"


# -- what it rests on --------------------------------------------------------------------------------------------------


def _remarks(outlook: Outlook, terms: Terms, nodes: Iterable[NodeTelling]) -> Iterator[str]:
    told = [pod.removal for node in outlook.nodes for pod in node.prospect.pods if pod.removal is not None]
    is_endless = any(span.latest is None for span in told) or any(
        each.prospect.drained is None for each in outlook.nodes
    )
    sure = "Nothing was changed. A single time is certain, as long as nobody interferes."
    if not all(span.is_certain for span in told):
        sure += (
            " Between two times nobody can say when: a pod may stop at once or need all of its grace, and a "
            f"replacement may be Ready at once or {outlook.whole.assumptions.replacement_seconds:g} s after it was "
            "made (--replacement-seconds); if one takes longer, those behind it leave later."
        )
    yield sure
    if is_endless:
        yield '"Never" and "or later" hold until somebody changes something; the cautions say what.'
    yield f"Drained means that no pod is waited for any more; {_afterwards(outlook)}."
    if any(line.count > 1 for node in nodes for wave in node.waves for line in wave.lines):
        yield "Pods of whom the same is to be said stand together; -v lists each of them."
    if terms.by_default:
        yield BY_DEFAULT


def _afterwards(outlook: Outlook) -> str:
    stays = [node.is_maintenance for node in outlook.nodes]
    if not all(stays):
        return "volumes and the instance come after that" + (" where a node ends" if any(stays) else "")
    return "volumes come after that, and then the node is kept so until somebody gives it back"
