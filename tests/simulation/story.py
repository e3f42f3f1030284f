"""Story of a run: who did what when, short enough to be read."""

from __future__ import annotations

from collections.abc import Iterator

from simulation.plan import Plan
from simulation.run import Result

LINES = 70
"""A story has so many lines at most; the middle is left out."""
WIDTH = 150


def story(result: Result) -> Iterator[str]:
    """Lines: what there was, then seconds since the start, who, what, and at last what was broken."""
    yield from scenery(result.plan)
    lines = list(_lines(result.story))
    if len(lines) > LINES:
        cut = len(lines) - LINES
        lines = [*lines[: LINES // 2], f"          … {cut} lines", *lines[-(LINES // 2) :]]
    yield from lines
    yield "broken:"
    yield from (f"  {each}" for each in result.violations[:10])


def scenery(plan: Plan) -> Iterator[str]:
    """What the world has."""
    processes = f"{plan.processes} processes with a Lease" if plan.elects else "1 process"
    yield f"seed {plan.seed}: {processes}, {plan.size} parts{'' if plan.knows_claims else ', no NodeClaims'}"
    for node in plan.nodes:
        claim = " with a claim" if node.claim else ""
        period = f", grace period {node.period}" if node.period else ""
        yield f"  node {node.name}{claim}{period} {node.labels or ''}".rstrip()
    for each in plan.objects:
        spec = each["spec"]
        shown = {key: spec[key] for key in ("nodeName", "replicas", "maxUnavailable", "minAvailable") if key in spec}
        pod = spec.get("template", each)
        shown |= pod["metadata"].get("annotations") or {}
        yield f"  {each['kind']} {each['metadata']['name']} {shown}"[:WIDTH]
    for key, value in plan.settings.items():
        if key != "nodeGroups":
            yield f"  settings: {key} {value}"[:WIDTH]


def _lines(log: list[tuple[float, str, str]]) -> Iterator[str]:
    """The log; what repeats itself at once is one line."""
    index = 0
    while index < len(log):
        at, who, what = log[index]
        same = index
        while same + 1 < len(log) and log[same + 1][1:] == (who, what):
            same += 1
        times = same - index + 1
        more = f" ({times} times, until {log[same][0]:.3f})" if times > 1 else ""
        yield f"{at:10.3f} {who:8} {what}{more}"[:WIDTH]
        index = same + 1
