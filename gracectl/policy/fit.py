"""Which nodes are drained within a window, a few at a time, by the forecast of their drains at its opening.

The quickest node begins first, and the next one when a place is free. Not included: the end of a machine, and pods that
move to nodes that are drained later.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from gracectl.model.times import format_time
from gracectl.policy.answers import Answer, Never, Unknown, Window
from gracectl.policy.explain import counted, listed


class Fit(StrEnum):
    """Whether a node is drained within a window."""

    YES = "yes"
    """Even if each drain takes as long as its forecast allows."""
    LIKELY = "likely"
    """If each drain takes as long as expected."""
    UNLIKELY = "unlikely"
    UNKNOWN = "unknown"
    NEVER = "never"
    """It is never drained."""


class NodeFit(msgspec.Struct, frozen=True):
    """A node. `drained`: when, if it begins in its turn."""

    name: str
    fit: Fit
    drained: Answer


class WindowFit(msgspec.Struct, frozen=True):
    """A window (Unix seconds; `closes` None: without a known end), the nodes at the same time, and each node."""

    opens: float
    closes: float | None
    at_once: int
    nodes: tuple[NodeFit, ...]

    def __str__(self) -> str:
        """`window from … to …, 2 nodes at the same time: 8 of 10 nodes are expected to be drained in it; …`."""
        until = "on" if self.closes is None else f"to {format_time(self.closes)}"
        at_once = f"{counted(self.at_once, 'node')} at the same time"
        surely = sum(each.fit is Fit.YES for each in self.nodes)
        expected = surely + sum(each.fit is Fit.LIKELY for each in self.nodes)
        slow = "" if surely == expected else f", {surely} even if each drain takes its longest"
        words = ((Fit.UNLIKELY, "not expected"), (Fit.UNKNOWN, "unknown"), (Fit.NEVER, "never drained"))
        found = ((word, [each.name for each in self.nodes if each.fit is fit]) for fit, word in words)
        others = "".join(f"; {word}: {listed(names)}" for word, names in found if names)
        return (
            f"Window from {format_time(self.opens)} {until}, {at_once}: {expected} of "
            f"{len(self.nodes)} expected to be drained in it{slow}{others}"
        )


def fit_window(
    forecasts: Iterable[tuple[str, Answer]], window: tuple[float, float | None], at_once: int, pause: float
) -> WindowFit:
    """Fit nodes into a window that opens and closes at these instants (Unix seconds; None: without a known end).

    `forecasts`: by name, when each is drained that begins at the opening. `pause`: seconds from the end of a drain
    until its place is free.
    """
    opens, closes = window
    answers = list(forecasts)
    known = {name: each for name, each in answers if isinstance(each, Window)}
    latest = _ends(known, opens, at_once, pause, lambda each: each.latest)
    expected = _ends(known, opens, at_once, pause, lambda each: each.latest if each.expected is None else each.expected)
    found = [
        NodeFit(name, _fit(end, latest[name], closes), Window(known[name].earliest, latest[name], end))
        for name, end in expected.items()
    ]
    found += [NodeFit(name, Fit.UNKNOWN, each) for name, each in answers if isinstance(each, Unknown)]
    found += [NodeFit(name, Fit.NEVER, each) for name, each in answers if isinstance(each, Never)]
    return WindowFit(opens, closes, at_once, tuple(found))


def _ends(
    known: dict[str, Window], opens: float, at_once: int, pause: float, end_of: Callable[[Window], float]
) -> dict[str, float]:
    """When each node is drained in its turn, the quickest first."""
    places = [opens] * at_once
    found: dict[str, float] = {}
    for seconds, name in sorted((max(end_of(each) - opens, 0.0), name) for name, each in known.items()):
        found[name] = heapq.heappop(places) + seconds
        heapq.heappush(places, found[name] + pause)
    return found


def _fit(expected: float, latest: float, closes: float | None) -> Fit:
    if closes is None or latest <= closes:
        return Fit.YES
    return Fit.LIKELY if expected <= closes else Fit.UNLIKELY
