"""Collector of the traces of controllers on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
from kubesim.faults import Latency, Rule

from gracectl.controllers.tracing.pods import LEFT
from gracectl.model import names
from gracectl.telemetry.spans import Span, SpanStatistics, Trace
from support.span_rules import assert_flawless, roots
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload

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
