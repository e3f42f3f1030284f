"""Answers of a forecast: a time range, unknown, or never.

Texts, JSON, the board and `doctor` give the same three answers. Invariants: "unknown" names what is unknown; "never"
names a structural cause, and lasts until a person changes a budget, an annotation, a workload or settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

SAME_SECONDS = 1.0
"""Instants that are closer are shown as one."""


class Window(msgspec.Struct, frozen=True, tag="range", tag_field="answer", gc=False):
    """Time range in which something happens (Unix seconds). `expected`: when it probably does; None: unknown."""

    earliest: float
    latest: float
    expected: float | None = None

    @property
    def is_certain(self) -> bool:
        """Whether it is known to the second."""
        return self.latest - self.earliest < SAME_SECONDS


class Unknown(msgspec.Struct, frozen=True, tag="unknown", tag_field="answer"):
    """The time is unknown. `missing`: texts for users that say what is unknown.

    `earliest`: not before this instant (Unix seconds); None: also unknown.
    """

    missing: tuple[str, ...]
    earliest: float | None = None


class NeverKind(StrEnum):
    """Kind of a structural cause, for machines."""

    TWO_BUDGETS = "two-budgets"
    """The eviction API refuses a pod that two budgets select."""
    BUDGET_NOT_COUNTED = "budget-not-counted"
    """The server cannot tell how many pods a budget expects, and so the budget allows nothing."""
    BUDGET_ALLOWS_NOTHING = "budget-allows-nothing"
    """A budget requires all pods that it expects."""
    NOT_REPLACED = "not-replaced"
    """A budget requires all pods that are left, and its pods have no controller that replaces them."""
    PROTECTION = "protection"
    """A pod is protected indefinitely."""


class NeverCause(msgspec.Struct, frozen=True):
    """Structural cause. `reason`: the policy's own words; `pod`: `namespace/name`; `budgets`: `namespace/name` of each.

    `is_settled`: one reading of the cluster proves it. Otherwise the status may be in transition, and two readings must
    agree. `since`: since when (Unix seconds) the budget has allowed nothing, by its own status.
    """

    kind: NeverKind
    reason: str
    pod: str
    budgets: tuple[str, ...] = ()
    is_settled: bool = True
    since: float | None = None


class Never(msgspec.Struct, frozen=True, tag="never", tag_field="answer"):
    """The awaited event never happens, for these causes."""

    causes: tuple[NeverCause, ...]


Answer = Window | Unknown | Never
"""When something happens."""


def last_of(answers: Iterable[Answer]) -> Answer | None:
    """Answer for the last of several events; None for no events.

    Unknown if one event is unknown. Never only if all events are.
    """
    every = list(answers)
    windows = [each for each in every if isinstance(each, Window)]
    unknown = [each for each in every if isinstance(each, Unknown)]
    if unknown:
        instants = [each.earliest for each in every if not isinstance(each, Never)]
        missing = tuple(dict.fromkeys(text for each in unknown for text in each.missing))
        return Unknown(missing, max((at for at in instants if at is not None), default=None))
    if windows:
        expected = [each.expected for each in windows if each.expected is not None]
        return Window(
            max(each.earliest for each in windows),
            max(each.latest for each in windows),
            max(expected) if len(expected) == len(windows) else None,
        )
    causes = tuple(dict.fromkeys(cause for each in every if isinstance(each, Never) for cause in each.causes))
    return Never(causes) if every else None


class Total(msgspec.Struct, frozen=True):
    """Answer for the last of `nodes` nodes, without nodes that never drain; `drained` None: no nodes.

    `unknown`: names of nodes with unknown answers; `never`: names of nodes that never drain.
    """

    nodes: int
    drained: Answer | None
    unknown: tuple[str, ...]
    never: tuple[str, ...]


def total_of(answers: Iterable[tuple[str, Answer]]) -> Total:
    """The total of nodes by name."""
    every = tuple(answers)
    unknown, never = (tuple(name for name, each in every if isinstance(each, kind)) for kind in (Unknown, Never))
    return Total(len(every), last_of(answer for _, answer in every), unknown, never)


CauseKey = tuple[NeverKind, str]
"""Kind of a cause, and its budgets or pod."""

Sightings = Mapping[CauseKey, float]
"""Instant since which all readings have shown a cause (Unix seconds), by cause."""
