"""Result of a demo: printed as JSON or as a summary, and decides the exit code."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from gracectl.cli.console import Row, Table
from gracectl.cli.report import JsonObject
from gracectl.policy.explain import counted

STEPS = ("cordon", "drain", "volumes", "instance", "finalizer")
"""Steps of a termination in reports; the check of the instance before the first step counts as part of it."""


class NodeResult(JsonObject, frozen=True):
    """One deleted node. `seconds`: from its DELETE until the watch showed it gone (null: it is not gone).

    `steps`: seconds by step, as the controller counted them. `pods`: how many left it, as the watch showed.
    """

    name: str
    seconds: float | None
    steps: Mapping[str, float]
    pods: int


class BudgetResult(JsonObject, frozen=True):
    """A budget as the referee saw it. `lowest`: fewest healthy pods at any event (null: it was never fulfilled)."""

    name: str
    bound: str
    pods: int
    required: int
    lowest: int | None
    violations: int


class ViolationResult(JsonObject, frozen=True):
    """`seconds` after the deletion of the nodes, an event about `pod` broke `budget`."""

    seconds: float
    budget: str
    pod: str
    healthy: int
    required: int


class Replacements(JsonObject, frozen=True):
    """How many of the evicted pods are to run again on other nodes, and how many of these are Ready there."""

    expected: int = 0
    running: int = 0


class Leavings(JsonObject, frozen=True):
    """Objects of the deleted nodes: how many existed, and how many are left."""

    before: int = 0
    left: int = 0


class Result(JsonObject, frozen=True, kw_only=True):
    """The JSON object of `-o json`, in this order.

    `seconds`: from the first DELETE until everything was done. `evictions` and `refusals`: responses 201 and 429
    (budget spent) to the controller; `evictionsSeen`: pods that the watch showed leaving. `blindSeconds`: how long the
    referee's watch was interrupted. `failures`: empty exactly if `ok`.
    """

    seconds: float
    seed: int
    speed: float
    ok: bool
    nodes: tuple[NodeResult, ...] = ()
    evictions: int = 0
    evictions_seen: int = 0
    refusals: int = 0
    budget_violations: int = 0
    violations: tuple[ViolationResult, ...] = ()
    budgets: tuple[BudgetResult, ...] = ()
    replacements: Replacements = Replacements()
    volumes: Leavings = Leavings()
    instances: Leavings = Leavings()
    touched_twice: tuple[str, ...] = ()
    blind_seconds: float = 0.0
    failures: tuple[str, ...] = ()


def judged(result: Result, *failures: str) -> Result:
    """Fill in `ok` and `failures`: the given ones, and those that the figures show."""
    found = (*failures, *_failures(result))
    return msgspec.structs.replace(result, ok=not found, failures=found)


def summary(result: Result) -> RenderableType:
    """Tables and sentences that fit into 80 columns."""
    parts: list[RenderableType] = []
    if result.nodes:
        parts += [_nodes_table(result.nodes), Text()]
    if result.budgets:
        parts += [_budgets_table(result.budgets), Text()]
    parts += [_figures(result), _closing(result)]
    return Group(*parts)


def _failures(result: Result) -> list[str]:
    found = [f"node {node.name} is not gone" for node in result.nodes if node.seconds is None]
    found += [
        f"budget {v.budget} was violated after {v.seconds:.2f} s: {v.healthy} healthy, {v.required} required ({v.pod})"
        for v in result.violations
    ]
    if result.replacements.running < result.replacements.expected:
        missing = result.replacements.expected - result.replacements.running
        found.append(f"{missing} of {result.replacements.expected} replacement pods do not run on another node")
    if result.instances.left:
        found.append(f"{result.instances.left} of {result.instances.before} instances still run")
    if result.volumes.left:
        found.append(f"{result.volumes.left} of {result.volumes.before} volumes are still attached")
    if result.evictions_seen > result.evictions:
        found.append(f"{result.evictions_seen} pods left, but only {result.evictions} were evicted")
    if result.touched_twice:
        found.append(f"evicted twice: {', '.join(result.touched_twice)}")
    if result.blind_seconds:
        found.append(f"the watch was cut for up to {result.blind_seconds:.2f} s, so the budgets cannot be vouched for")
    return found


def _nodes_table(nodes: tuple[NodeResult, ...]) -> Table:
    rows = []
    for node in nodes:
        steps = [f"{node.steps[step]:.2f}" if step in node.steps else "-" for step in STEPS]
        total = Text("not gone", "red") if node.seconds is None else f"{node.seconds:.2f}"
        rows.append(Row([node.name, *steps, total, str(node.pods)]))
    numbers = (*STEPS, "total", "pods")
    return Table(("node (seconds)", *numbers), rows, frozenset(numbers))


def _budgets_table(budgets: tuple[BudgetResult, ...]) -> Table:
    rows = []
    for budget in budgets:
        verdict = Text("kept" if budget.lowest is None else "never violated", "green")
        if budget.violations:
            verdict = Text(f"VIOLATED {budget.violations}×", "bold red")
        lowest = "-" if budget.lowest is None else str(budget.lowest)
        rows.append(Row([budget.name, budget.bound, str(budget.pods), str(budget.required), lowest, verdict]))
    numbers = ("pods", "required", "lowest")
    return Table(("budget", "bound", *numbers, "verdict"), rows, frozenset(numbers))


def _figures(result: Result) -> Text:
    replacements, instances, volumes = result.replacements, result.instances, result.volumes
    return Text(
        f"evictions      {result.evictions} ({result.evictions_seen} seen in the watch)\n"
        f"refused (429)  {result.refusals}\n"
        f"replacements   {replacements.running} of {replacements.expected} run on other nodes\n"
        f"instances      {instances.before - instances.left} of {instances.before} ended\n"
        f"volumes        {volumes.before - volumes.left} of {volumes.before} detached"
    )


def _closing(result: Result) -> Text:
    if not result.ok:
        return Text("\nNot as it should be: see below.", "bold red")
    pods = sum(node.pods for node in result.nodes)
    left = f"{counted(pods, 'pod')} left {'it' if len(result.nodes) == 1 else 'them'}"
    ended = f"{counted(len(result.nodes), 'node')} ended in {result.seconds:.1f} s"
    return Text(f"\n{ended}; {left}, and no budget was violated.", "bold green")
