"""Rules for the spans of every test that makes traces, after what Jaeger does with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gracectl.telemetry.spans import Span


def flaws(spans: Iterable[Span]) -> list[str]:
    """What a viewer would stumble over, in Jaeger's microseconds; empty for good traces.

    Spans without length, or the name of their node or claim; outside of their parent; with the id of another that no
    successor has marked; and siblings that touch: the critical path of Jaeger's UI skips these
    (`findLastFinishingChildSpan` takes only what ended *before*). If the root of a trace is there: spans without
    parent, and a second root.
    """
    spans = list(spans)
    return [*_flaws_of_each(spans), *_flaws_of_traces(spans), *_outside(spans), *_touching(spans)]


def assert_flawless(spans: Iterable[Span]) -> None:
    """AssertionError that lists the flaws, if there are any."""
    found = flaws(spans)
    assert not found, "\n".join(found)


def _flaws_of_each(spans: list[Span]) -> list[str]:
    found = [f"no length: {span.name}" for span in spans if micro(span.end - span.start) <= 0]
    named = {"k8s.node.name", "k8s.nodeclaim.name"}
    return found + [f"no node: {span.name}" for span in spans if not named & span.attributes.keys()]


def _flaws_of_traces(spans: list[Span]) -> list[str]:
    whole = Counter(span.trace.id for span in roots(spans))
    found = [f"no parent: {span.name}" for span in orphans(spans) if span.trace.id in whole]
    found += [f"{count} roots: {id_:032x}" for id_, count in whole.items() if count > 1]
    unmarked = twins(span for span in spans if not span.attributes.get("gracectl.resumed"))
    return found + [f"{count} with one id: {id_:016x}" for id_, count in unmarked.items()]


def _outside(spans: list[Span]) -> list[str]:
    parents: dict[tuple[int, int | None], list[Span]] = {}
    for span in spans:
        parents.setdefault((span.trace.id, span.id), []).append(span)
    found = []
    for span in spans:
        same = parents.get((span.trace.id, span.parent), []) if span.parent is not None else []
        if same and not min(p.start for p in same) <= span.start < span.end <= max(p.end for p in same):
            bounds = [(p.start - span.start, p.end - span.end) for p in same]
            found.append(f"outside of {same[0].name}: {span.name} {bounds}")
    return found


def _touching(spans: list[Span]) -> list[str]:
    children: dict[tuple[int, int | None], list[Span]] = {}
    for span in spans:
        children.setdefault((span.trace.id, span.parent), []).append(span)
    found = []
    for (_, parent), siblings in children.items():
        starts = {micro(each.start): each.name for each in siblings}
        touching = [each for each in siblings if parent is not None and ended(each) in starts]
        found += [f"touching: {each.name} and {starts[ended(each)]}" for each in touching]
    return found


def micro(seconds: float) -> int:
    """Whole microseconds, as Jaeger stores them."""
    return int(seconds * 1e6)


def ended(span: Span) -> int:
    """The end of a span, as Jaeger computes it."""
    return micro(span.start) + micro(span.end - span.start)


def critical_path(spans: Iterable[Span]) -> list[str]:
    """Names on the critical path of Jaeger's UI (`computeCriticalPath`), from the last to the first.

    From the end of the root backwards: the child that ended last before the one that came next.
    """
    spans = list(spans)
    (root,) = roots(spans)
    path: list[str] = []

    def follow(span: Span, until: float) -> None:
        path.append(span.name)
        children = [child for child in spans if span.id is not None and child.parent == span.id]
        while before := [child for child in children if ended(child) < until]:
            last = max(before, key=ended)
            follow(last, ended(last) + 1)
            until = micro(last.start)

    follow(root, ended(root) + 1)
    return path


def twins(spans: Iterable[Span]) -> Counter[int]:
    """Ids that several have, and how many."""
    counts = Counter(span.id for span in spans if span.id is not None)
    return Counter({id_: count for id_, count in counts.items() if count > 1})


def roots(spans: Iterable[Span]) -> list[Span]:
    """Those without a parent."""
    return [span for span in spans if span.parent is None]


def orphans(spans: Iterable[Span]) -> list[Span]:
    """Those that name a parent that is not there, in the same trace."""
    spans = list(spans)
    there = {(span.trace.id, span.id) for span in spans}
    return [span for span in spans if span.parent is not None and (span.trace.id, span.parent) not in there]
