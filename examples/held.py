"""What held a node: a termination that five causes block, one of them a dead leader, and its trace as a picture.

Run it with `make examples ARGS=held`.
The controllers are real, the cluster is the embedded one, and time is virtual; the picture
shows the spans that they export as a viewer of traces does.
"""

from __future__ import annotations

import argparse
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import looptime
import msgspec
from support.stage import Stage, a_budget_manifest, a_pod_manifest, staged
from support.traces import Collector

from examples import svg
from examples.svg import Font, box, label, legend, line, opening
from gracectl.cloud.provider import ProviderUnavailable
from gracectl.config import Settings
from gracectl.model import names
from gracectl.telemetry.spans import Span

NODE = "worker-1"
BUDGETS = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets"
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tracing.md"
PICTURE = ROOT / "docs" / "pictures" / "trace.svg"

HOLDS = ("protected ", "blocked by ", "waiting for wave ", "refused by ", "no leader")
"""How the names of spans begin that say what held a node, beside those of steps that fail."""

ROW, BAR, TITLE, AXIS, INDENT, LEGEND = 22, 12, 48, 26, 14, 26
LEFT, RIGHT = 400, svg.WIDTH - svg.MARGIN - 56
TICK = 20
LEAST = 2.0
"""Pixels of the shortest span."""


async def play(stage: Stage) -> Collector:
    """Half a minute and more each: a protection, a budget that is then deleted, a wave, a dead leader, the instance."""
    await stage.create(
        a_pod_manifest("job", NODE, annotations={names.DO_NOT_DISRUPT: "30s"}),
        a_pod_manifest("vault", NODE),
        a_budget_manifest("vault", maxUnavailable=0),
        a_pod_manifest("dns", NODE, priorityClassName=names.SYSTEM_CLUSTER_CRITICAL, behaviour={"stop-seconds": 8}),
    )
    collector = Collector(stage)
    stage.provider.moods.extend([ProviderUnavailable("quota")] * 10)
    async with stage.mortal() as controller:
        await stage.settle(controller)
        await stage.delete_node(NODE)
        await stage.clock.sleep(40)
        await stage.call("DELETE", f"{BUDGETS}/vault")
        await stage.clock.sleep(13)  # not when it renews its lease, which it does every two seconds
    await stage.clock.sleep(30)
    async with stage.controller():
        await stage.until_gone(NODE)
        await stage.clock.sleep(1)
    return collector


def record() -> list[Span]:
    """The spans, with seconds since the deletion."""
    spans: list[Span] = anyio.run(_recorded, backend_options={"loop_factory": looptime.new_event_loop})
    return spans


async def _recorded() -> list[Span]:
    async with staged(NODE, settings=Settings()) as stage:
        spans = (await play(stage)).exact
    (began,) = (span.start for span in spans if span.parent is None)
    return [msgspec.structs.replace(span, start=span.start - began, end=span.end - began) for span in spans]


def what_held(spans: Sequence[Span]) -> Mapping[str, float]:
    """Seconds by cause, as the names of spans alone say it, in the order of their beginnings."""
    found: dict[str, float] = defaultdict(float)
    for span in sorted(filter(is_hold, spans), key=lambda span: span.start):
        found[span.name] += span.end - span.start
    return found


def is_hold(span: Span) -> bool:
    """Whether the span says what held the node."""
    return span.name.startswith(HOLDS) or " fails: " in span.name


def rows(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Depth and span, parents first, in the order in which viewers show them."""
    children: dict[int | None, list[Span]] = defaultdict(list)
    for span in spans:
        children[span.parent].append(span)

    def below(parent: int | None, depth: int) -> Iterator[tuple[int, Span]]:
        for span in sorted(children[parent], key=lambda span: (span.start, -span.end)):
            yield depth, span
            if span.id is not None:
                yield from below(span.id, depth + 1)

    return list(below(None, 0))


def drawn(spans: Sequence[Span]) -> str:
    """The trace as SVG: a row for each span."""
    shown = rows(spans)
    root = shown[0][1]
    bottom = TITLE + ROW * len(shown)
    height = bottom + AXIS + LEGEND + svg.MARGIN // 2
    scale = (RIGHT - LEFT) / root.end
    body = [label(svg.MARGIN, 30, f"{NODE}: one trace, {_seconds(root)}", Font(size=15, weight="bold"))]
    for at in range(0, int(root.end) + 1, TICK):
        body.append(line(LEFT + at * scale, TITLE - 4, bottom, svg.GRID))
        body.append(label(LEFT + at * scale, bottom + 16, f"{at} s", Font(svg.FAINT, 12, anchor="middle")))
    for number, (depth, span) in enumerate(shown):
        body += _row(TITLE + number * ROW, depth, span, scale)
    body += legend(
        bottom + AXIS,
        (svg.AMBER, "what held it", 120),
        (svg.ALARM, "what held it, an error", 180),
        (svg.BLUE, "what was done", 130),
    )
    causes = ", ".join(f"{cause} for {held:.0f} s" for cause, held in what_held(spans).items())
    return "\n".join([*opening(height, f"The trace of a terminated node: {causes}"), *body, "</svg>", ""])


def _row(y: int, depth: int, span: Span, scale: float) -> Iterator[str]:
    held = is_hold(span)
    pod = str(span.attributes.get("k8s.pod.name", "")) if span.name.startswith("pod ") else ""
    color = svg.BLUE if not held else svg.ALARM if span.error else svg.AMBER
    start, width = round(LEFT + span.start * scale, 1), max(round((span.end - span.start) * scale, 1), LEAST)
    x = svg.MARGIN + depth * INDENT
    yield label(x, y + 15, span.name, Font(weight="bold" if held else "normal"))
    if pod:
        yield label(x + 7.5 * len(span.name), y + 15, pod, Font(svg.FAINT, 12))
    yield box(start, y + (ROW - BAR) // 2, width, BAR, color)
    if span.end - span.start >= 1:
        yield label(start + width + 5, y + 15, _seconds(span), Font(svg.INK if held else svg.FAINT, 12))


def _seconds(span: Span) -> str:
    return f"{span.end - span.start:.0f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Play, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m examples.held", description=__doc__)
    parser.add_argument("--update", action="store_true", help=f"write the picture to {PICTURE.relative_to(ROOT)}")
    chosen = parser.parse_args(arguments)
    logging.getLogger("gracectl").addHandler(logging.NullHandler())
    spans = record()
    for cause, seconds in what_held(spans).items():
        print(f"{seconds:6.1f} s  {cause}")
    if chosen.update:
        PICTURE.write_text(drawn(spans), encoding="utf-8")


if __name__ == "__main__":
    main()
