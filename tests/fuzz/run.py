"""Give each target so many examples in turn, until the time is over."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, settings

from fuzz.effort import TooMuchWork
from fuzz.target import Target
from fuzz.targets import TARGETS
from gracectl.runtime.clock import Clock, SystemClock

EXAMPLES = 50
"""Of a target before it is the next one's turn."""


class Failed(Exception):
    """A target has let out what it must not, or has taken too much; `inputs` is the smallest that makes it do so."""

    def __init__(self, target: Target, inputs: bytes | str) -> None:
        super().__init__(f"{target.name}: {inputs[:300]!r}")
        self.inputs = inputs


def tried(target: Target, examples: int, *, is_random: bool) -> int:
    """How many inputs the target has been given. Raises Failed."""
    number = 0
    last: bytes | str = b""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not is_random,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(target.all_inputs)
    def attempt(inputs: bytes | str) -> None:
        nonlocal number, last
        number += 1
        last = inputs
        target(inputs)

    try:
        attempt()
    except (Exception, TooMuchWork) as error:
        raise Failed(target, last) from error
    return number


def main(arguments: Sequence[str], targets: Sequence[Target] = TARGETS, clock: Clock | None = None) -> int:
    """`python -m fuzz SECONDS [TARGET ...]`: 0 if nothing was found, 1 if something was."""
    clock = clock or SystemClock()
    ends = clock.monotonic() + float(arguments[0])
    chosen = [target for target in targets if not arguments[1:] or target.name in arguments[1:]]
    if not chosen:
        print(f"no such target; there are {', '.join(target.name for target in targets)}", file=sys.stderr)
        return 2
    counts: Counter[str] = Counter()
    is_over = False
    while not is_over:
        for target in chosen:
            try:
                counts[target.name] += tried(target, EXAMPLES, is_random=True)
            except Failed as failed:
                traceback.print_exception(failed.__cause__)
                kept = target.keep(failed.inputs)
                print(f"{target.name}: failed after {counts[target.name]} examples; see {kept}", file=sys.stderr)
                return 1
            is_over = clock.monotonic() >= ends
            if is_over and min(counts[each.name] for each in chosen):
                break
    width = max(len(target.name) for target in chosen)
    for target in chosen:
        print(f"{target.name:<{width}}   {counts[target.name]}")
    return 0
