"""A history as a timeline in words, and the verdict on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum

from examples.history import History

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Order(IntEnum):
    """In which order is told what happened in one instant: causes before what they have brought about."""

    BEGINNING = 0
    END = 1
    READINESS = 2
    ASKING = 3
    SUDDEN_END = 4
    NODE = 5


def clock_time(seconds: float) -> str:
    """`15:00`; parts of a second are shown if there are any."""
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}:{int(rest):02}" + f"{rest % 1:.3f}"[1:].removesuffix(".000")


def timeline(history: History, grace: int) -> list[str]:
    """One line for each thing that happened, with the number of healthy pods after its instant; then the verdict.

    `grace`: the seconds that each pod asks for.
    """
    lines = [" time  healthy"]
    for at, _, words in sorted(_happenings(history), key=lambda each: each[:2]):
        lines.append(f"{clock_time(at):>5}  {history.healthy_at(at):>7}  {words}")
    return [*lines, "", *verdict(history, grace)]


def _happenings(history: History) -> Iterator[tuple[float, Order, str]]:
    deadline = f"; deadline {clock_time(history.deadline)}" if history.deadline is not None else ""
    yield 0.0, Order.BEGINNING, f"{_listed(node.name for node in history.nodes)} are deleted{deadline}"
    for letter, pod in zip(LETTERS, history.leavers, strict=False):
        for asked in pod.asked:
            again = " again" if asked is not pod.asked[0] else ""
            yield asked.at, Order.ASKING, f"{letter} on {pod.node} is {asked.how}{again}, with {asked.grace} s"
        is_sudden = pod.asked[-1].at == pod.ended
        way = "is cut off" if pod.was_cut else "has ended by itself"
        yield pod.ended, Order.SUDDEN_END if is_sudden else Order.END, f"{letter} {way} after {pod.had:g} s"
    for letter, newcomer in zip(LETTERS, history.newcomers, strict=False):
        yield newcomer.ready, Order.READINESS, f"{letter}'s replacement on {newcomer.node} is Ready"
    ends: dict[float, list[str]] = defaultdict(list)
    for node in history.nodes:
        # The finalizer goes last: a node that is gone while its instance runs would be a leak.
        ends[node.gone].append(node.name if node.instance_ended <= node.gone else f"{node.name} (WITHOUT ITS INSTANCE)")
    for at, nodes in ends.items():
        yield at, Order.NODE, f"{_listed(nodes)}: instance ended, node gone"


def verdict(history: History, grace: int) -> list[str]:
    """How much of its grace each pod had, what became of the budget, and when the nodes were gone."""
    return [_of_grace(history, grace), _of_budget(history), _of_nodes(history)]


def _of_grace(history: History, grace: int) -> str:
    if all(pod.had >= grace for pod in history.leavers):
        return f"Each pod had the whole {grace} s that it asks for."
    had = ", ".join(f"{letter} {pod.had:g} s" for letter, pod in zip(LETTERS, history.leavers, strict=False))
    return f"Of the {grace} s that each pod asks for, it had: {had}."


def _of_budget(history: History) -> str:
    lacking = history.lacking()
    if not lacking:
        return f"The budget ({history.required} healthy) was kept all the time."
    spans = _listed(f"from {clock_time(start)} to {clock_time(end)}" for start, end in lacking)
    return f"The budget ({history.required} healthy) was overstepped {spans}, because the deadline demanded it."


def _of_nodes(history: History) -> str:
    if history.deadline is None:
        return f"The last node was gone at {clock_time(history.over)}; there was no deadline."
    kept = "by the deadline" if history.over <= history.deadline else "AFTER THE DEADLINE"
    return f"The last node was gone at {clock_time(history.over)}, {kept}."


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
