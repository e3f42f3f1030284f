"""What a run of the suite found, for the end of pytest's output: how much was compared, and every known difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from conformance.differences import TARGETS, Difference, Side
from conformance.known import DIFFERENCES
from conformance.player import Played
from conformance.tape import Tape


class Report:
    """Gathers the recordings of one run."""

    def __init__(self) -> None:
        self._recordings: list[str] = []
        self._target = ""
        self._counts: Counter[str] = Counter()
        self._seen: dict[tuple[Side, str], list[str]] = {}
        self._alike: list[str] = []
        self._left_out: dict[str, list[str]] = {}

    def add(self, tape: Tape, played: list[Played], differences: dict[int, list[Difference]], target: str) -> None:
        """Take in a recording played on a target. `found`: the known differences by step."""
        self._recordings.append(tape.scenario)
        self._target = target
        for step in played:
            if step.left_out:
                self._counts["left out"] += 1
                self._left_out.setdefault(step.left_out, []).append(f"{tape.scenario} {step.index}")
                continue
            self._counts["compared"] += 1
            if step.is_alike:
                self._counts["alike"] += 1
                self._alike.append(f"{tape.scenario} {step.index}: {tape.steps[step.index].nondeterministic}")
            elif step.index in differences:
                self._counts["different"] += 1
            else:
                self._counts["identical"] += 1
            for difference in differences.get(step.index, ()):
                self._seen.setdefault((difference.side, difference.reason), []).append(f"{tape.scenario} {step.index}")

    def lines(self) -> Iterator[str]:
        """The report, if there is anything to say."""
        if not self._recordings:
            return
        counts = self._counts
        yield f"{len(self._recordings)} recordings, {counts['compared']} steps compared: " + ", ".join(
            (
                f"{counts['identical']} identical",
                f"{counts['different']} with known differences",
                f"{counts['alike']} alike (nondeterministic)",
                f"{counts['left out']} left out",
            )
        )
        for side in Side:
            seen = {reason: where for (whose, reason), where in self._seen.items() if whose is side}
            if seen:
                yield f"{side.name.lower()}: {side.value} ({len(seen)})"
                yield from (f"  {reason} [{brief(where)}]" for reason, where in seen.items())
        yield from self._elsewhere()
        if self._alike:
            yield f"nondeterministic: not the same from run to run, but alike ({len(self._alike)})"
            yield from (f"  {each}" for each in self._alike)
        if self._left_out:
            yield f"left out ({counts['left out']})"
            yield from (f"  {reason} [{brief(where)}]" for reason, where in self._left_out.items())

    def _elsewhere(self) -> Iterator[str]:
        """What differs where this run could not see it."""
        for side in (Side.STILL, Side.EMBEDDED):
            entries = [each for each in DIFFERENCES if each.side is side]
            if entries and self._target not in TARGETS[side]:
                yield f"{side.name.lower()}: {side.value} (not seen here)"
                yield from dict.fromkeys(f"  {each.reason} [{each.places}]" for each in entries)


def brief(places: list[str]) -> str:
    """`discovery 0, 2; leases 9` for places such as `discovery 2`."""
    steps: dict[str, list[str]] = {}
    for place in dict.fromkeys(places):
        recording, _, step = place.rpartition(" ")
        steps.setdefault(recording, []).append(step)
    return "; ".join(f"{recording} {', '.join(_runs(numbers))}" for recording, numbers in steps.items())


def _runs(steps: list[str]) -> Iterator[str]:
    """`8-11` for four in a row."""
    for _, group in groupby(enumerate(map(int, steps)), key=lambda pair: pair[1] - pair[0]):
        run = [step for _, step in group]
        yield f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run))
