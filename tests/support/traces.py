"""Collector of the traces of controllers on virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from gracectl.telemetry.spans import Span, SpanStatistics, Trace
from support.stage import Stage


class Outlet:
    """The sink of one controller. `wants` None: every trace."""

    def __init__(self, stage: Stage, wanted: bool) -> None:
        self._stage = stage
        self._wanted = wanted
        self.emitted: list[tuple[float, Span]] = []

    def emit(self, span: Span) -> None:
        if self._wanted:
            self.emitted.append((self._stage.clock.monotonic(), span))

    def is_sampled(self, trace: Trace) -> bool:
        return self._wanted

    def statistics(self) -> SpanStatistics:
        return SpanStatistics(exported=len(self.emitted), failed=0, dropped=0, waiting=0)


class Collector:
    """Spans that the controllers of a stage export from now on. Instants are seconds since the stage began."""

    def __init__(self, stage: Stage, *, wanted: bool = True) -> None:
        self._stage = stage
        self._epoch = stage.clock.now() - stage.clock.monotonic()
        self.outlets: list[Outlet] = []

        def outlet() -> Outlet:
            self.outlets.append(Outlet(stage, wanted))
            return self.outlets[-1]

        stage.spans = outlet

    def lose(self, seconds: float) -> None:
        """The last controller was killed just now: the spans of its last seconds were not sent."""
        outlet, now = self.outlets[-1], self._stage.clock.monotonic()
        outlet.emitted = [(at, span) for at, span in outlet.emitted if at <= now - seconds]

    @property
    def spans(self) -> list[Span]:
        """All of them, with instants as the stage has them."""
        return [self._dated(span) for outlet in self.outlets for _, span in outlet.emitted]

    def of(self, name: str) -> list[Span]:
        """Those of that name, the earliest first."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: (span.start, span.end))

    def the(self, name: str) -> Span:
        """The only one of that name."""
        (span,) = self.of(name)
        return span

    def pod(self, name: str) -> Span:
        """The only one of a pod."""
        (span,) = (span for span in self.spans if span.attributes.get("k8s.pod.name") == name)
        return span

    def tree(self) -> list[str]:
        """Names, indented, with their instants: `  drain 0.5-12`."""
        children: dict[int | None, list[Span]] = {}
        for span in self.spans:
            children.setdefault(span.parent, []).append(span)

        def lines(parent: int | None, depth: int) -> Iterator[str]:
            for span in sorted(children.get(parent, ()), key=lambda span: (span.start, span.end)):
                yield f"{'  ' * depth}{span.name} {span.start:g}-{span.end:g}"
                if span.id is not None:
                    yield from lines(span.id, depth + 1)

        return list(lines(None, 0))

    def _dated(self, span: Span) -> Span:
        events = tuple(msgspec.structs.replace(each, at=self._since(each.at)) for each in span.events)
        start, end = self._since(span.start), self._since(span.end)
        return msgspec.structs.replace(span, start=start, end=end, events=events)

    def _since(self, at: float) -> float:
        return round(at - self._epoch, 3)


def orphans(spans: Iterable[Span]) -> list[Span]:
    """Those that name a parent that is not there, in the same trace."""
    spans = list(spans)
    there = {(span.trace.id, span.id) for span in spans}
    return [span for span in spans if span.parent is not None and (span.trace.id, span.parent) not in there]


def twins(spans: Iterable[Span]) -> Counter[int]:
    """Ids that several have, and how many."""
    counts = Counter(span.id for span in spans if span.id is not None)
    return Counter({id_: count for id_, count in counts.items() if count > 1})


def roots(spans: Iterable[Span]) -> list[Span]:
    """Those without a parent."""
    return [span for span in spans if span.parent is None]
