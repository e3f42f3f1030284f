"""The embedded API server answers as a real one did: recordings replayed step by step.

Every difference that is allowed stands here with its reason; anything else fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from sim.replay import replay

from gracectl.runtime.clock import LoopClock
from gracectl.sim.core import ApiServer

pytestmark = pytest.mark.anyio


class Tape(NamedTuple):
    """A recording, the steps that are not compared, each with its reason, and what happened off the tape."""

    name: str
    skipped: dict[int, str] = {}  # noqa: RUF012 - read only
    compacted_before: int | None = None


QUOTES = "the message quotes the whole object with its managedFields, which are not kept yet"
TAPES = (
    Tape("deletes-finalizers"),
    Tape("deletes-options"),
    Tape(
        "discovery",
        {
            0: "another version of Kubernetes",
            2: "beta versions that today's Kubernetes no longer serves",
            10: "the OpenAPI document is empty: clients then validate nothing",
        },
    ),
    Tape("events", {15: "words a group that the real server leaves out of this one kind"}),
    Tape("eviction", {36: "the budget's controller belongs to the world around the server"}),
    Tape("eviction-of-another-uid", {15: "an event of the budget's controller"}),
    Tape("history-compacted", compacted_before=5),
    Tape("leases", {9: QUOTES, 10: QUOTES}),
    Tape("list-pages"),
    Tape("list-selectors"),
    Tape("list-versions"),
    Tape("nodes-cordon", {9: QUOTES}),
    Tape("nodes-delete"),
    Tape("pod-deletion"),
    Tape("tables"),
    Tape("volumes"),
    Tape("watch-changes"),
    Tape("watch-versions"),
    Tape("writes-create"),
    Tape("writes-patch", dict.fromkeys((18, 20), "today's Kubernetes warns of $patch, a field that no taint has")),
    Tape("writes-refused", {10: QUOTES, 11: "this server predates fieldValidation, which today's Kubernetes obeys"}),
)


def compact(server: ApiServer) -> None:
    """Something else is written, and then the past forgotten."""
    server.store.revision += 1
    server.store.compact()


@pytest.mark.parametrize("tape", TAPES, ids=lambda tape: tape.name)
async def test_answers_as_recorded(tape: Tape) -> None:
    server = ApiServer(LoopClock())
    before: dict[int, Callable[[], None]] = {}
    if tape.compacted_before is not None:
        before[tape.compacted_before] = lambda: compact(server)
    skipped: Iterable[int] = tape.skipped
    assert await replay(server, tape.name, skip=skipped, before=before) == []
