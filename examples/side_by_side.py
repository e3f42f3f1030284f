"""`kubectl drain` and `gracectl drain` side by side: what both programs print on one simulated cluster, and when.

Run it with `make examples ARGS='side_by_side --update'`; it takes a minute. KUBECTL names the program.
Four pods under one budget leave a node. First kubectl drains it; then gracectl drains the node to which they went. The
picture plays in the time that it took; where pictures do not move, all lines show.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from e2e_support import manifests
from e2e_support.target import embedded_cluster
from kubesim.controllers.objects import is_ready
from support.fleet import PODS, RUN, Fleet

from gracectl.runtime.clock import SystemClock

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "side-by-side.svg"

REPLICAS = 4
BEHAVIOUR = {"start-seconds": "0.3", "ready-seconds": "1.5", "stop-seconds": "1"}

COLUMNS, SIZE, ROW = 62, 11.0, 16.0
ADVANCE = SIZE * 0.602
"""Width of a character."""
PANEL = COLUMNS * ADVANCE + 24
PAUSE = 4.0
"""Seconds for which the end is shown."""
INSTANT = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\s+")
BACK, BAR, TEXT, FAINT, GOOD = "#121418", "#282c34", "#dcdfe4", "#7f8794", "#98c379"


class Line(NamedTuple):
    """One line of output, and the seconds from the start of the program to it."""

    at: float
    text: str


class Recording(NamedTuple):
    """One program: what was typed, what it printed, and when it ended."""

    command: str
    lines: tuple[Line, ...]
    seconds: float


def record() -> tuple[Recording, Recording]:
    """kubectl, then gracectl."""
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        raise SystemExit("examples: there is no kubectl: name it with KUBECTL=/path/to/kubectl")
    with tempfile.TemporaryDirectory(prefix="gracectl-example-") as name:
        folder = Path(name)
        with embedded_cluster(folder, "--nodes", "2", "--pods", "1") as kubeconfig:
            place = Fleet(kubeconfig, folder)
            place.add("worker-7", pool="web")
            build(place)
            place.add("worker-8", pool="web")
            options = ["--kubeconfig", str(kubeconfig)]
            typed = "kubectl drain worker-7 --ignore-daemonsets"
            theirs = run(typed, [kubectl, *typed.split()[1:], *options], folder)
            place.patch("worker-7", {"spec": {"unschedulable": None}})
            place.until("the pods are Ready again", lambda: ready(place) == REPLICAS)
            typed = "gracectl drain worker-8"
            ours = run(typed, [sys.executable, "-m", "gracectl", *typed.split()[1:], *options], folder)
    return theirs, ours


def build(place: Fleet) -> None:
    """A Deployment with a budget that lets one pod go at a time."""
    selector = {"nodeSelector": {"pool": "web"}}
    web = manifests.workload("Deployment", "web", RUN, replicas=REPLICAS, behaviour=BEHAVIOUR, spec=selector)
    place.ask("POST", "/apis/apps/v1/namespaces/default/deployments", web)
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    place.ask("POST", budgets, manifests.budget("web", "web", maxUnavailable=1))
    place.until("the pods are Ready", lambda: ready(place) == REPLICAS)


def ready(place: Fleet) -> int:
    """How many pods of the Deployment are Ready."""
    pods = place.ask("GET", f"{PODS}?labelSelector=app%3Dweb")["items"]
    return sum(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods)


def run(typed: str, command: Sequence[str], folder: Path) -> Recording:
    """Run a program to its end."""
    environment = {**os.environ, "HOME": str(folder), "PYTHONUNBUFFERED": "1"}
    clock = SystemClock()
    began = clock.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        lines = [Line(clock.monotonic() - began, line.rstrip("\n")) for line in process.stdout]
        code = process.wait()
    if code:
        raise SystemExit(f"examples: {typed}: exit code {code}: {lines[-1].text if lines else ''}")
    return Recording(typed, tuple(lines), clock.monotonic() - began)


def drawn(recordings: Sequence[Recording]) -> str:
    """The picture of both."""
    rows = max(len(each.lines) for each in recordings) + 2
    height = rows * ROW + 56
    width = 2 * PANEL + 12
    total = max(each.seconds for each in recordings) + PAUSE
    title = "; ".join(f"{each.command}: {each.seconds:.0f} s" for each in recordings)
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" '
        f'font-size="{SIZE:g}">',
        f"<title>{escape(title)}</title>",
    ]
    for number, each in enumerate(recordings):
        body += _panel(each, number * (PANEL + 12), height, total)
    return "\n".join([*body, "</svg>", ""])


def _panel(recording: Recording, left: float, height: float, total: float) -> Iterator[str]:
    yield f'<rect x="{left:g}" y="0" width="{PANEL:g}" height="{height:g}" rx="8" fill="{BACK}"/>'
    yield f'<rect x="{left:g}" y="0" width="{PANEL:g}" height="26" rx="8" fill="{BAR}"/>'
    x, y = left + 12, 44.0
    yield _text(x, 17, f"$ {recording.command}", TEXT)
    for at, text in recording.lines:
        shown = INSTANT.sub("", text)
        cut = shown if len(shown) <= COLUMNS - 6 else f"{shown[: COLUMNS - 7]}…"
        yield _appearing(_text(x, y, f"{at:4.1f}", FAINT) + _text(x + 6 * ADVANCE, y, cut, TEXT), at, total)
        y += ROW
    done = _text(x, y + 8, f"drained after {recording.seconds:.1f} s", GOOD)
    yield _appearing(done, recording.seconds, total)


def _text(x: float, y: float, text: str, color: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" xml:space="preserve">{escape(text)}</text>'


def _appearing(element: str, at: float, total: float) -> str:
    """The element, which appears at this instant of each repetition."""
    share = min(at / total, 0.999)
    times = f'values="0;1" keyTimes="0;{share:.4f}" calcMode="discrete"'
    return f'<g>{element}<animate attributeName="opacity" {times} dur="{total:.1f}s" repeatCount="indefinite"/></g>'


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m examples.side_by_side", description=__doc__)
    parser.add_argument("--update", action="store_true", help=f"write the picture to {PICTURE.relative_to(ROOT)}")
    chosen = parser.parse_args(arguments)
    recordings = record()
    for each in recordings:
        print(f"$ {each.command}")
        for at, text in each.lines:
            print(f"{at:5.1f}  {text}")
        print(f"{each.seconds:5.1f}  done\n")
    if chosen.update:
        PICTURE.write_text(drawn(recordings), encoding="utf-8")


if __name__ == "__main__":
    main()
