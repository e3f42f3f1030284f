"""How many CPU microseconds each part may cost, by the name of its benchmark; None: it only explains others.

That of a pod event is the design's. The others are about twice what was measured when they were written down, so that
what becomes much slower is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

YARDSTICK: Final = "yardstick"
"""Work that has nothing to do with gracectl: by it machines are compared."""

BUDGETS: Final[Mapping[str, float | None]] = {
    YARDSTICK: None,
    "pod event, 1,000 pods cached": 25,
    "pod event, 150,000 pods cached": 25,
    "of it: its line decoded": None,
    "of it: into the cache of 1,000": None,
    "of it: into the cache of 150,000": None,
    "plan of 110 pods without a deadline, each": 7,
    "plan of 500 pods without a deadline, each": 7,
    "plan of 110 pods with a deadline, each": 7,
    "plan of 500 pods with a deadline, each": 7,
    "forecast of 50 nodes, each of their pods": 133,
    "forecast of 500 nodes, each of their pods": 133,
    "a pod's budgets, of 1,000 in 200 namespaces": 5,
    "a pod's budgets, of 1,000 in one namespace": 5,
    "a workload's budgets, of 100": 20,
    "a workload's budgets, of 1,000": 20,
    "a workload's budgets, of 2,000": 20,
    "a workload's budgets, of 100, half of them hostile": 20,
    "a workload's budgets, of 1,000, half of them hostile": 20,
    "a workload's budgets, of 2,000, half of them hostile": 20,
    "a workload's budgets, of 2,000 that select all": 20,
    "a selector changes, of 2,000": 50,
    "a selector changes, of 2,000, half of them hostile": 50,
    "a pod's budgets, by looking at all 1,000": None,
    "one selector against one pod": 0.5,
    "lane of 100: a pod's way through it": 60,
    "lane of 1,000: a pod's way through it": 60,
    "lane of 5,000: a pod's way through it": 60,
    "work queue: a key added, got and done": 12,
    "work queue: a key that waits added again": 0.5,
    "timer wheel: arm": 1.5,
    "timer wheel: move": 2.5,
    "timer wheel: cancel": 1.2,
    "timer wheel: fire": 9,
}

GROWTH: Final[Mapping[str, tuple[str, float]]] = {
    "pod event, 150,000 pods cached": ("pod event, 1,000 pods cached", 2.0),
    "plan of 500 pods without a deadline, each": ("plan of 110 pods without a deadline, each", 1.5),
    "forecast of 500 nodes, each of their pods": ("forecast of 50 nodes, each of their pods", 2.0),
    "a workload's budgets, of 2,000": ("a workload's budgets, of 100", 2.0),
    "a workload's budgets, of 2,000, half of them hostile": ("a workload's budgets, of 100", 2.0),
    "lane of 5,000: a pod's way through it": ("lane of 100: a pod's way through it", 2.0),
}
"""How many times as much as a smaller one of its kind a part may cost: on any machine."""

THRESHOLD: Final = 1.15
"""How many times as much something may cost before it counts as slower: on shared machines less means nothing."""

THRESHOLDS: Final[Mapping[str, float]] = {
    # Half a microsecond each: the loop around them weighs as much.
    "one selector against one pod": 1.3,
    "work queue: a key that waits added again": 1.3,
    "timer wheel: arm": 1.3,
    "timer wheel: move": 1.3,
    "timer wheel: cancel": 1.3,
    # What they touch is larger than caches of processors, which neighbours on the machine share.
    "pod event, 150,000 pods cached": 1.25,
    "of it: into the cache of 150,000": 1.3,
    "lane of 5,000: a pod's way through it": 1.25,
}
"""Of those that scatter more than others."""
