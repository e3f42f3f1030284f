"""The page of `gracectl ui` as pictures, and measured: `make examples ARGS=board`.

The story is one of the embedded cluster on virtual time: twelve nodes are deleted; a budget that never allows, a
protected job and a deadline hold some of them. The command's own board shows it, its own server serves that, and
Chromium draws it. `--measure`: frames per second and memory while 500 nodes with 15,000 pods change.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import looptime
from playwright.sync_api import Browser, Page, sync_playwright
from support.boards import (
    FixedClock,
    Json,
    ServedBoard,
    a_node,
    a_pod,
    a_window,
    at,
    blocked,
    chromium,
    of_nodes,
    serving,
    terminated,
)
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged

from gracectl.cli.status.follow import StatusFollower, StatusFrame
from gracectl.cli.ui.board import Board
from gracectl.cli.ui.server import SHOWN
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.runtime.clock import SystemClock

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
CLUSTER = ClusterAddress("production", "https://10.0.0.1:6443")
POOL = tuple(f"worker-{number}" for number in range(1, 13))
SECONDS = 62.0
"""From the deletion of the nodes to the picture."""

SHOTS: Mapping[str, Mapping[str, Any]] = {
    "board-light": {"viewport": {"width": 1360, "height": 800}, "color_scheme": "light"},
    "board-dark": {"viewport": {"width": 1360, "height": 800}, "color_scheme": "dark"},
    "board-phone": {"viewport": {"width": 400, "height": 880}, "color_scheme": "light"},
}
"""Name of each picture, with the browser's window."""

OPEN = {"board-dark": "worker-4"}
"""The node that is open in a picture."""


async def build(stage: Stage) -> None:
    """Applications under budgets, one of which never allows, and a protected job."""
    await stage.add_nodes(*POOL)
    await stage.create(
        a_workload("Deployment", "web", 20, behaviour={"ready-seconds": 8, "stop-seconds": 5}),
        a_budget_manifest("web", maxUnavailable=1),
        a_workload("Deployment", "api", 24, behaviour={"ready-seconds": 5, "stop-seconds": 14}),
        a_budget_manifest("api", minAvailable="75%"),
        a_pod_manifest("db-0", "worker-7", behaviour={"stop-seconds": 20}),
        a_budget_manifest("db-0", minAvailable=1),
        a_pod_manifest("nightly-report-28931", "worker-4", annotations={names.DO_NOT_DISRUPT: "2h"}),
        a_pod_manifest("import-5531", "worker-2", annotations={names.DO_NOT_DISRUPT: "2h"}),
        a_workload("Deployment", "dns", 3, pod={"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL}),
    )
    await stage.add_nodes("worker-13", "worker-14", "worker-15", "worker-16")


def record() -> tuple[Mapping[str, Any], float]:
    """The board as `gracectl ui` would have it, and its instant."""
    options = {"loop_factory": looptime.new_event_loop}
    found: tuple[Mapping[str, Any], float] = anyio.run(_recorded, backend_options=options)
    return found


async def _recorded() -> tuple[Mapping[str, Any], float]:
    async with staged() as stage:
        await build(stage)
        connection = Connection(stage.transport, stage.clock, KubeClient(stage.transport, stage.clock), CLUSTER)
        follower = StatusFollower(connection, stage.settings, SHOWN, is_endless=True)
        board = Board(follower, stage.settings, "defaults", stage.clock)
        async with stage.controller() as controller, anyio.create_task_group() as group:
            await stage.settle(controller)
            until = stage.clock.now() + 5.0 + SECONDS
            group.start_soon(_terminate, stage)
            group.start_soon(board.events.follow, connection.client, stage.clock)

            def show(frame: StatusFrame) -> bool:
                board.update(frame)
                return frame.at >= until

            await follower.run(show)
            group.cancel_scope.cancel()
        # The controller of the stage contends for no Lease.
        leader = {
            "state": "active",
            "lease": "gracectl/gracectl",
            "holder": "gracectl-6f9c8d",
            "renewed": format_time(until),
        }
        return {**board.state, "status": board.state["status"] | {"controller": leader}}, until


async def _terminate(stage: Stage) -> None:
    await stage.clock.sleep(5.0)
    deadline = {
        "metadata": {"annotations": {names.TERMINATION_TIMESTAMP: format_time(stage.clock.now() + SECONDS + 75)}}
    }
    await stage.patch_node("worker-2", deadline)
    await stage.patch_node(
        "worker-16", {"metadata": {"annotations": {names.KEEP_DRAINED: format_time(stage.clock.now())}}}
    )
    for node in POOL:
        await stage.delete_node(node)
        await stage.clock.sleep(1.5)


class StillClock(FixedClock):
    """Its wall time stands still, so that a forecast is as old in the picture however slow the machine is."""

    def now(self) -> float:
        return self._at


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        yield browser
        browser.close()


def draw(folder: Path) -> list[Path]:
    """Draw the pictures into a folder."""
    state, now = record()
    drawn = []
    with browsing() as browser, serving(state, StillClock(now)) as board:
        for name, window in SHOTS.items():
            context = browser.new_context(**window, reduced_motion="reduce", timezone_id="UTC", locale="en-GB")
            page = context.new_page()
            page.goto(f"{board.url}?node={OPEN[name]}" if name in OPEN else board.url)
            page.get_by_role("rowheader").first.wait_for()
            path = folder / f"{name}.png"
            page.screenshot(path=path)
            context.close()
            drawn.append(path)
    return drawn


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw or measure."""
    parser = argparse.ArgumentParser(prog="python -m examples.board", description=__doc__)
    parser.add_argument("--update", action="store_true", help=f"draw the pictures into {PICTURES.relative_to(ROOT)}")
    parser.add_argument("--folder", type=Path, help="draw them there")
    parser.add_argument("--measure", action="store_true", help="measure instead")
    chosen = parser.parse_args(arguments)
    logging.getLogger("gracectl").addHandler(logging.NullHandler())
    if chosen.measure:
        measure()
        return
    folder = PICTURES if chosen.update else chosen.folder or ROOT / "build" / "board"
    folder.mkdir(parents=True, exist_ok=True)
    for path in draw(folder):
        print(f"{path}: {path.stat().st_size // 1024} KiB")


# -- measuring ---------------------------------------------------------------------------------------------------------

NODES, PODS, CHANGED = 500, 30, 25
FRAMES_SECONDS = 10.0
CHURN = 1500

FRAMES = """async (seconds) => {
  const times = [];
  const end = performance.now() + seconds * 1000;
  const step = 8;
  await new Promise((resolve) => requestAnimationFrame(function frame(at) {
    times.push(at);
    scrollBy(0, times.length % 400 < 200 ? step : -step);
    at < end ? requestAnimationFrame(frame) : resolve();
  }));
  return times;
}"""
"""Scroll for so many seconds, and tell when each frame was drawn."""


def crowd(turn: int) -> Json:
    """500 nodes with 30 pods each, of which some have changed in this turn."""
    nodes = []
    for number in range(NODES):
        pods = [
            a_pod(f"api-{number}-{pod}", "terminating", until=at(30.0))
            if (pod + (turn if (number + turn) % (NODES // CHANGED) == 0 else 0)) % 3 == 0
            else blocked(f"web-{number}-{pod}", "shop/web", pod + 1, PODS)
            for pod in range(PODS)
        ]
        name = f"ip-10-0-{number // 250}-{number % 250}.eu-west-1.compute.internal"
        nodes.append(
            a_node(name, since=-300.0 + number % 200, pods=pods, drained=a_window(60.0 + number, 600.0 + number))
        )
    return of_nodes(nodes)


def measure() -> None:
    """Print frames per second while the page scrolls and news arrive, and its memory over thousands of changes."""
    turns = [crowd(turn) for turn in range(8)]
    with browsing() as browser, serving(turns[0], SystemClock()) as board:
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.goto(board.url)
        page.get_by_role("rowheader").first.wait_for()
        _frames(page, board, turns)
        _memory(page, board)


def _frames(page: Page, board: ServedBoard, turns: Sequence[Json]) -> None:
    with anyio.from_thread.start_blocking_portal() as portal:

        async def churn() -> None:
            turn = 0
            while True:
                turn += 1
                await anyio.to_thread.run_sync(board.push, turns[turn % len(turns)])
                await anyio.sleep(0.25)

        task = portal.start_task_soon(churn)
        times = page.evaluate(FRAMES, FRAMES_SECONDS)
        task.cancel()
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    print(
        f"{NODES} nodes, {NODES * PODS} pods, four changes a second, scrolling: "
        f"{1000 * len(gaps) / sum(gaps):.0f} frames a second; a frame takes {statistics.median(gaps):.0f} ms, "
        f"p95 {gaps[len(gaps) * 95 // 100]:.0f} ms, at most {gaps[-1]:.0f} ms"
    )


def _memory(page: Page, board: ServedBoard) -> None:
    """Nodes come and go: ten of a hundred in each change."""
    client = page.context.new_cdp_session(page)
    page.goto(f"{board.url}?sort=name")
    for turn in range(CHURN + 1):
        board.push(_churned(turn))
        if turn % 10 == 0:
            page.get_by_role("rowheader", name=f"node-{10 * turn}", exact=True).wait_for()
        if turn % (CHURN // 6) == 0:
            client.send("HeapProfiler.collectGarbage")
            used = client.send("Runtime.getHeapUsage")["usedSize"]
            elements = page.evaluate("document.querySelectorAll('*').length")
            print(f"after {turn} changes, {10 * turn} nodes: {used / 2**20:.1f} MiB of heap, {elements} elements")


def _churned(turn: int) -> Json:
    first = 10 * turn
    nodes = [
        a_node(f"node-{first + number}", pods=[a_pod(f"pod-{first + number}-{pod}") for pod in range(10)])
        for number in range(100)
    ]
    history = [
        terminated(f"node-{first - number}", -100.0 - number, cordon=1.0, drain=60.0) for number in range(100, 0, -1)
    ]
    events = [
        {"uid": f"event-{turn - number}", "at": at(turn - number), "type": "Normal", "reason": "Evicted", "count": 1}
        | {
            "message": "evicted",
            "object": {"kind": "Pod", "namespace": "shop", "name": f"pod-{turn - number}", "uid": ""},
        }
        for number in range(200, 0, -1)
    ]
    return of_nodes(nodes, history=history, events=events)


if __name__ == "__main__":
    main()
