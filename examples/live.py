"""The live view of `gracectl status -w` as a picture: the program's own screen, on virtual time.

Run it with `make examples ARGS=live`.
Three nodes of the embedded cluster are deleted and one is drained for maintenance; the
command's own follower reads the cluster, its own table is drawn, and rich writes the terminal as SVG.
"""

from __future__ import annotations

import argparse
import io
import logging
import re
from collections.abc import Sequence
from pathlib import Path

import anyio
import looptime
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from support.stage import Stage, a_budget_manifest, a_pod_manifest, a_workload, staged

from gracectl.cli.status.follow import StatusFrame, StatusScope, follow
from gracectl.cli.status.view import status_table
from gracectl.kube.auth.credentials import ClusterAddress
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.model import names
from gracectl.model.times import format_time

COLUMNS = 112
SECONDS = 45.0
"""From the deletion of the nodes to the picture."""

CLUSTER = ClusterAddress("production", "https://10.0.0.1:6443")
TERMINATED = ("worker-2", "worker-3", "worker-4")
MAINTAINED = "worker-5"
ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "status.svg"

THEME = TerminalTheme(
    (18, 20, 24),
    (220, 223, 228),
    [(40, 44, 52), (240, 113, 120), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194),
     (220, 223, 228)],
)  # fmt: skip
"""Dark, and legible on a light page as well."""

FONTS = re.compile(r"@font-face \{.*?\}\n", re.DOTALL)


async def build(stage: Stage) -> None:
    """Five nodes with an application under a budget, a protected job, and a critical pod."""
    await stage.add_nodes(*TERMINATED)
    await stage.create(
        a_workload("Deployment", "web", 6, behaviour={"ready-seconds": 20, "stop-seconds": 10}),
        a_budget_manifest("web", maxUnavailable=1),
        a_pod_manifest("nightly-report", "worker-3", annotations={names.DO_NOT_DISRUPT: "2h"}),
        a_workload("Deployment", "dns", 1, pod={"priorityClassName": names.SYSTEM_CLUSTER_CRITICAL}),
    )
    await stage.add_nodes(MAINTAINED, "worker-6")


def record() -> StatusFrame:
    """The frame that the command would show."""
    frame: StatusFrame = anyio.run(_recorded, backend_options={"loop_factory": looptime.new_event_loop})
    return frame


async def _recorded() -> StatusFrame:
    async with staged() as stage:
        await build(stage)
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.patch_node(
                MAINTAINED, {"metadata": {"annotations": {names.KEEP_DRAINED: format_time(stage.clock.now())}}}
            )
            await stage.clock.sleep(60.0)
            for node in TERMINATED:
                await stage.delete_node(node)
            return await _last_frame(stage, stage.clock.now() + SECONDS)


async def _last_frame(stage: Stage, until: float) -> StatusFrame:
    frames: list[StatusFrame] = []

    def show(frame: StatusFrame) -> bool:
        frames.append(frame)
        return frame.at >= until

    connection = Connection(stage.transport, stage.clock, KubeClient(stage.transport, stage.clock), CLUSTER)
    await follow(connection, stage.settings, StatusScope(lambda node: node.name != "worker-6"), show)
    return frames[-1]


def drawn(frame: StatusFrame) -> str:
    """The terminal as SVG, without fonts of other sites."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(status_table(frame, is_live=True), crop=False)
    svg = console.export_svg(title="gracectl status -w", theme=THEME, unique_id="live")
    return "\n".join(line.rstrip() for line in FONTS.sub("", svg).splitlines() if line.strip()) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m examples.live", description=__doc__)
    parser.add_argument("--update", action="store_true", help=f"write the picture to {PICTURE.relative_to(ROOT)}")
    chosen = parser.parse_args(arguments)
    logging.getLogger("gracectl").addHandler(logging.NullHandler())
    frame = record()
    Console(width=COLUMNS).print(status_table(frame, is_live=True), crop=False)
    if chosen.update:
        PICTURE.write_text(drawn(frame), encoding="utf-8")


if __name__ == "__main__":
    main()
