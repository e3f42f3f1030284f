"""Traces of controllers on virtual time, and rules for the spans of every test that makes traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec
from kubesim.faults import Latency, Rule

from gracectl.controllers.tracing.pods import LEFT
from gracectl.model import names
from gracectl.telemetry.spans import Span, SpanStatistics, Trace
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload

# Rules for the spans of every test that makes traces, after what Jaeger does with them.


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
    problems = flaws(spans)
    assert not problems, "\n".join(problems)


def _flaws_of_each(spans: list[Span]) -> list[str]:
    problems = [f"no length: {span.name}" for span in spans if micro(span.end - span.start) <= 0]
    named = {"k8s.node.name", "k8s.nodeclaim.name"}
    return problems + [f"no node: {span.name}" for span in spans if not named & span.attributes.keys()]


def _flaws_of_traces(spans: list[Span]) -> list[str]:
    whole = Counter(span.trace.id for span in roots(spans))
    problems = [f"no parent: {span.name}" for span in orphans(spans) if span.trace.id in whole]
    problems += [f"{count} roots: {id_:032x}" for id_, count in whole.items() if count > 1]
    unmarked = twins(span for span in spans if not span.attributes.get("gracectl.resumed"))
    return problems + [f"{count} with one id: {id_:016x}" for id_, count in unmarked.items()]


def _outside(spans: list[Span]) -> list[str]:
    parents: dict[tuple[int, int | None], list[Span]] = {}
    for span in spans:
        parents.setdefault((span.trace.id, span.id), []).append(span)
    problems = []
    for span in spans:
        same = parents.get((span.trace.id, span.parent), []) if span.parent is not None else []
        if same and not min(p.start for p in same) <= span.start < span.end <= max(p.end for p in same):
            bounds = [(p.start - span.start, p.end - span.end) for p in same]
            problems.append(f"outside of {same[0].name}: {span.name} {bounds}")
    return problems


def _touching(spans: list[Span]) -> list[str]:
    children: dict[tuple[int, int | None], list[Span]] = {}
    for span in spans:
        children.setdefault((span.trace.id, span.parent), []).append(span)
    problems = []
    for (_, parent), siblings in children.items():
        starts = {micro(each.start): each.name for each in siblings}
        touching = [each for each in siblings if parent is not None and ended(each) in starts]
        problems += [f"touching: {each.name} and {starts[ended(each)]}" for each in touching]
    return problems


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


# Collector of the traces of controllers on virtual time.

CRITICAL = "system-node-critical"


class Outlet:
    """The sink of one controller or agent, which exports only what is sampled."""

    def __init__(self, stage: Stage, is_sampled: Callable[[Trace], bool]) -> None:
        self.is_sampled = is_sampled
        self._stage = stage
        self.emitted: list[tuple[float, Span]] = []

    def emit(self, span: Span) -> None:
        if self.is_sampled(span.trace):
            self.emitted.append((self._stage.clock.monotonic(), span))

    def statistics(self) -> SpanStatistics:
        return SpanStatistics(exported=len(self.emitted), failed=0, dropped=0, waiting=0)


class Collector:
    """Spans that the controllers of a stage export from now on. Instants are seconds since the stage began.

    When the stage is over they must have no flaws.
    """

    def __init__(self, stage: Stage, is_sampled: Callable[[Trace], bool] = lambda trace: True) -> None:
        self._stage = stage
        self._epoch = stage.clock.now() - stage.clock.monotonic()
        self._is_sampled = is_sampled
        self.outlets: list[Outlet] = []
        stage.spans = self.outlet
        stage.checks.append(self._check)

    def outlet(self) -> Outlet:
        """A sink of one more process."""
        self.outlets.append(Outlet(self._stage, self._is_sampled))
        return self.outlets[-1]

    def _check(self) -> None:
        assert_flawless(self.exact)

    def lose(self, seconds: float) -> None:
        """The last controller was killed just now: the spans of its last seconds were not sent."""
        outlet, now = self.outlets[-1], self._stage.clock.monotonic()
        outlet.emitted = [(at, span) for at, span in outlet.emitted if at <= now - seconds]

    @property
    def spans(self) -> list[Span]:
        """All of them, with instants as the stage has them."""
        return [self._dated(span) for outlet in self.outlets for _, span in outlet.emitted]

    @property
    def exact(self) -> list[Span]:
        """All of them as they were exported, with Unix seconds."""
        return [span for outlet in self.outlets for _, span in outlet.emitted]

    def of(self, name: str) -> list[Span]:
        """Those of that name, the earliest first."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: (span.start, span.end))

    def the(self, name: str) -> Span:
        """The only one of that name."""
        (span,) = self.of(name)
        return span

    def pods(self, name: str) -> list[Span]:
        """Those of a pod that say how it has left."""
        return sorted((span for span in self._of_pod(name) if LEFT in span.attributes), key=lambda span: span.end)

    def pod(self, name: str) -> Span:
        """The one of a pod that says how it has left, but for its termination."""
        (span,) = (span for span in self.pods(name) if span.name != "pod terminating")
        return span

    def terminating(self, name: str) -> Span:
        """The one of its termination."""
        (span,) = (span for span in self._of_pod(name) if span.name == "pod terminating")
        return span

    def holds(self, name: str) -> list[tuple[str, float, float]]:
        """What has held a pod, from when to when."""
        return [(span.name, span.start, span.end) for span in self._of_pod(name) if LEFT not in span.attributes]

    def _of_pod(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.attributes.get("k8s.pod.name") == name]

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


async def terminated(stage: Stage, *nodes: str, claims: tuple[str, ...] = ()) -> Collector:
    """Delete the nodes under a controller, and wait until nothing of them is left."""
    collector = Collector(stage)
    async with stage.controller() as controller:
        await stage.settle(controller)
        for name in nodes:
            await stage.delete_node(name)
        await stage.until_gone(*nodes)
        await stage.until_claims_gone(*claims)
        await stage.clock.sleep(1)
    return collector


async def a_world(stage: Stage) -> None:
    """A node with three waves: budgeted, plain, protected and slow pods, a DaemonSet's, critical ones."""
    await stage.create(
        a_workload("Deployment", "web", 4, behaviour={"ready-seconds": 0.4, "stop-seconds": 0.3}),
        a_budget_manifest("web", maxUnavailable=1),
        a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "3s"}, behaviour={"stop-seconds": 1}),
        a_pod_manifest("slow", "n1", behaviour={"stop-seconds": 4}),
        a_pod_manifest("dns", "n1", priorityClassName=CRITICAL, behaviour={"stop-seconds": 2}),
    )
    stage.transport.behind.add(Rule(fault=Latency(0.01, 0.01)))


async def until_told(stage: Stage, *nodes: str) -> None:
    """Wait until these nodes are gone, and their last spans are written."""
    await stage.until_gone(*nodes)
    await stage.clock.sleep(1)


def assert_one_trace(collector: Collector) -> None:
    """One whole trace of one node; see `flaws` for its spans."""
    (root,) = roots(collector.spans)
    assert root.name == "terminate node"
    assert {span.trace for span in collector.spans} == {root.trace}
