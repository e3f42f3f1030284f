"""Fixed work in plain Python, as code of our kind does it; never change it, or figures of before mean nothing."""

from __future__ import annotations

from benchmarks.micro.budgets import YARDSTICK
from benchmarks.micro.conftest import Measure

COUNT = 20_000


class Thing:
    """Something with attributes."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def grown(self, by: int) -> Thing:
        """A larger one."""
        return Thing(self.name, self.size + by)


def test_yardstick(measure: Measure) -> None:
    def work() -> int:
        found: dict[str, Thing] = {}
        total = 0
        for number in range(COUNT):
            key = f"thing-{number % 1000}"
            known = found.get(key)
            found[key] = known.grown(1) if known is not None else Thing(key.upper(), number)
            total += len(found[key].name.split("-")) + found[key].size
        return total

    measure(YARDSTICK, COUNT, work)
