"""`gracectl drain` and `terminate`, interrupted: they exit at once and say what was requested; webhooks that deny."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubesim_support.patience import PATIENCE
from support.fleet import STRICTLY, Fleet, fleet, started
from support.servers import mute

from gracectl.model import names

pytestmark = pytest.mark.real_time

ASKED = "deletion requested"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("interrupts")) as found:
        yield found


def test_a_deletion_that_is_not_watched_any_more_goes_on(place: Fleet) -> None:
    place.held("worker-1")
    with place.running("terminate", "--yes", "worker-1") as process:
        process.until("worker-1: terminating for")
        process.interrupt()
        assert process.ended_soon() == (
            130,
            "gracectl: interrupted; the controller continues to terminate worker-1; the deletion cannot be undone; "
            "to watch: gracectl status -w worker-1\n",
        )
    assert place.is_deleted("worker-1")
    place.release("worker-1")


def test_a_drain_of_a_node_that_stays_can_be_taken_back(place: Fleet) -> None:
    place.held("worker-2")
    with place.running("drain", "worker-2") as process:
        process.until("worker-2: being drained for maintenance")
        process.interrupt()
        assert process.ended_soon() == (
            130,
            "gracectl: interrupted; the controller continues to drain worker-2; "
            "to watch: gracectl status -w worker-2; to undo: gracectl uncordon worker-2\n",
        )
    assert names.KEEP_DRAINED in place.annotations("worker-2")


@pytest.mark.parametrize("command", [("terminate", "--yes"), ("drain",), ("drain", "--no-wait")])
def test_before_anything_was_asked_for_that_is_said(tmp_path: Path, command: tuple[str, ...]) -> None:
    with (
        mute(tmp_path, "worker-1", deaf=True) as (server, kubeconfig),
        started([*STRICTLY, *command, "worker-1", "--kubeconfig", str(kubeconfig)]) as process,
    ):
        assert server.asked[""].wait(PATIENCE)
        process.interrupt()
        assert process.ended_soon() == (130, "gracectl: interrupted; nothing was requested\n")


def test_interrupted_while_it_asks_it_names_requested_and_unknown_nodes(tmp_path: Path) -> None:
    """Ten are asked at a time: of these ten are silent, and two wait behind them."""
    silent = tuple(f"silent-{n:02}" for n in range(10))
    with mute(tmp_path, "asked", *silent, "waiting-1", "waiting-2", silent=silent) as (server, kubeconfig):
        nodes = ("asked", *silent, "waiting-1", "waiting-2")
        with started([*STRICTLY, "terminate", "--yes", *nodes, "--kubeconfig", str(kubeconfig)]) as process:
            process.until(f"asked: {ASKED}")
            for name in silent:
                assert server.asked[name].wait(PATIENCE)
            process.interrupt()
            assert process.ended_soon() == (
                130,
                "gracectl: interrupted; deletion requested: asked (cannot be undone); outcome "
                f"unknown: {', '.join(silent)}; not requested: waiting-1, waiting-2\n",
            )
        assert not server.asked["waiting-1"].is_set()
