"""Three replicas on three nodes that are deleted at once: what a termination grace period does to them.

The scenario of the grace period's design: a Deployment of three pods, one on each node, whose budget lets one go at a
time. Each needs the ten minutes of its terminationGracePeriodSeconds to end, and its replacement on a fourth node needs
ten minutes to become Ready. It is played with three grace periods, and once with a rule taken away.

Run it with `make examples ARGS=three_replicas`.
It stands on the stage of the tests: the whole controller, the whole embedded cluster, and a
clock that skips idle time, so that half an hour takes a second.
"""

from __future__ import annotations

import argparse
import logging
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import anyio
import looptime
import msgspec
from kubesim.controllers.nodeclaims import ClaimSpec
from support.stage import Stage, a_budget_manifest, a_workload, staged

from examples.history import Historian, History
from examples.pages import put_in
from examples.picture import picture
from examples.timeline import timeline
from gracectl.app.controller import Controller
from gracectl.model.names import EventReason
from gracectl.model.pod import Pod

GRACE = 600
NODES = ("node-1", "node-2", "node-3")
ELSEWHERE = "node-4"
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "deadlines.md"
REASONS = (
    EventReason.TERMINATION_GRACE_PERIOD_EXPIRING,
    EventReason.DRAIN_BLOCKED,
    EventReason.DELETED_FOR_DEADLINE,
    EventReason.TERMINATION_GRACE_PERIOD_EXPIRED,
)
"""Those of the Events that tell of a deadline."""

PICTURE = ROOT / "docs" / "pictures" / "three-replicas.svg"


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """One way to play it. `name` is that of its block on the page; `grace_period`: "" for none."""

    name: str
    grace_period: str = ""
    is_preemptive: bool = True

    @property
    def title(self) -> str:
        """What is different about it."""
        if not self.grace_period:
            return "no terminationGracePeriod: as the budget allows"
        rule = "" if self.is_preemptive else ", if pods were deleted at the deadline only"
        return f"terminationGracePeriod {self.grace_period}{rule}"


PLAYS = (
    Play(name="quarter", grace_period="15m"),
    Play(name="late", grace_period="15m", is_preemptive=False),
    Play(name="short", grace_period="5m"),
    Play(name="none"),
)


class Played(msgspec.Struct, frozen=True):
    """What the API server saw of a play, and the Events (object, reason, message) with which gracectl told people."""

    play: Play
    history: History
    events: tuple[tuple[str, str, str], ...]


def perform(play: Play) -> Played:
    """Play it, on virtual time."""
    with ExitStack() as stack:
        if not play.is_preemptive:
            stack.enter_context(deletes_at_the_deadline_only())
        played: Played = anyio.run(_perform, play, backend_options={"loop_factory": looptime.new_event_loop})
    return played


async def _perform(play: Play) -> Played:
    async with staged() as stage:
        historian = Historian(stage)
        await build(stage, play.grace_period)
        async with stage.controller() as controller:
            await settle(stage, controller)
            historian.begin()
            for node in NODES:
                await stage.delete_node(node)
            await stage.until_gone(*NODES)
            await stage.cluster.until_ready()
        (budget,) = stage.server.store.table("poddisruptionbudgets.policy")
        history = historian.history(required=budget["status"]["desiredHealthy"])
        return Played(play, history, tuple(await stage.events()))


async def build(stage: Stage, grace_period: str) -> None:
    """The nodes, the application on them with its budget, and a node for the replacements."""
    claim = ClaimSpec(termination_grace_period=grace_period)
    await stage.add_nodes(*NODES, pods=1, claim=claim)
    await stage.create(
        a_workload(
            "Deployment",
            "orders",
            len(NODES),
            behaviour={"ready-seconds": GRACE, "stop-seconds": GRACE},
            pod={"terminationGracePeriodSeconds": GRACE},
        ),
        a_budget_manifest("orders", maxUnavailable=1),
    )
    await stage.add_nodes(ELSEWHERE, claim=claim)


async def settle(stage: Stage, controller: Controller) -> None:
    """Wait until the controller holds the nodes, and for a full minute: deletionTimestamps have whole seconds."""
    await stage.settle(controller)
    await stage.clock.sleep(60.0 - stage.clock.now() % 60.0)


@contextmanager
def deletes_at_the_deadline_only() -> Iterator[None]:
    """Take away the rule that a pod is deleted its grace before the deadline: gracectl as it would be without it."""

    def at_the_deadline(pod: Pod, deadline: float, now: float, begins: float | None = None) -> float:
        return deadline

    with (
        patch("gracectl.policy.planner.delete_at", at_the_deadline),
        patch("gracectl.eviction.deleter.delete_at", at_the_deadline),
    ):
        yield


def blocks_of(plays: Sequence[Played]) -> dict[str, str]:
    """What the page shows of what is printed, by its name there."""
    return {each.play.name: printed(each) for each in plays[:2]} | {"told": "\n".join(told(plays[0]))}


def printed(played: Played) -> str:
    """The timeline of a play."""
    return "\n".join([played.play.title, "", *timeline(played.history, GRACE)])


def told(played: Played) -> Iterator[str]:
    """What is said about the deadline of the second pod's node, on the node and on the pod."""
    pod = played.history.leavers[1]
    yield f"{played.play.title}: Events on {pod.node} and its pod"
    for object_, reason, message in played.events:
        if object_ in (pod.node, pod.name) and reason in REASONS:
            yield ""
            yield f"{object_}  {reason}"
            yield from textwrap.wrap(message, 110, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def drawn(plays: Sequence[Played]) -> str:
    """The first two plays as a picture."""
    return picture([(each.play.title, each.history) for each in plays[:2]], GRACE)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play, print, draw."""
    parser = argparse.ArgumentParser(prog="python -m examples.three_replicas", description=__doc__)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the first two plays")
    parser.add_argument("--update", action="store_true", help="write what is printed and drawn into docs/")
    chosen = parser.parse_args(arguments)
    # The controller's log is dropped: the report is read off the server.
    logging.getLogger("gracectl").addHandler(logging.NullHandler())
    plays = [perform(play) for play in PLAYS]
    blocks = blocks_of(plays)
    print("\n\n\n".join([*map(printed, plays), blocks["told"]]))
    if chosen.svg:
        chosen.svg.write_text(drawn(plays), encoding="utf-8")
    if chosen.update:
        PICTURE.write_text(drawn(plays), encoding="utf-8")
        PAGE.write_text(put_in(PAGE.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main()
