"""Attacks by what is no pod: collectors of traces, the clock of the machine, readiness under budgets for nodes."""

from __future__ import annotations

import gzip
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from e2e_support.names import LABEL
from e2e_support.siege import MOST_MEMORY, PATIENCE, Attack, annotated, besieged
from e2e_support.story import Story
from kubesim.controllers.objects import is_terminating

from benchmarks.ground.relay import served
from gracectl.model.names import DO_NOT_DISRUPT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.real_time,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc"),
]

BOMB_MEBIBYTES = 512
CHUNK = b"x" * 65_536

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def without_end(incoming: web.BaseRequest) -> web.StreamResponse:
    """Answer with bytes for as long as they are taken."""
    await incoming.read()
    outgoing = web.StreamResponse()
    await outgoing.prepare(incoming)
    with anyio.move_on_after(PATIENCE):
        while True:
            await outgoing.write(CHUNK)
    return outgoing


async def with_a_bomb(incoming: web.BaseRequest) -> web.StreamResponse:
    """Answer with half a megabyte that decompresses to half a gigabyte."""
    await incoming.read()
    part = gzip.compress(b"\0" * 2**20, compresslevel=1)
    return web.Response(body=part * BOMB_MEBIBYTES, headers={"Content-Encoding": "gzip"})


async def drop_by_drop(incoming: web.BaseRequest) -> web.StreamResponse:
    """Answer with a byte now and then."""
    await incoming.read()
    outgoing = web.StreamResponse()
    await outgoing.prepare(incoming)
    with anyio.move_on_after(PATIENCE):
        while True:
            await outgoing.write(b"x")
            await anyio.sleep(0.5)
    return outgoing


@pytest.mark.parametrize("answer", [without_end, with_a_bomb, drop_by_drop])
async def test_a_hostile_collector_of_traces(story: Story, answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def counted(incoming: web.BaseRequest) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await answer(incoming)

    async with served(counted) as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        siege = await besieged(story, Attack({}, 1, annotated("true")))
        await siege.end()
        await siege.unharmed(until=siege.attacked)
        with anyio.fail_after(PATIENCE):
            while not asked:
                await story.clock.sleep(0.1)
        await story.clock.sleep(2)  # for what it may read
        assert siege.program.peak() < MOST_MEMORY
        siege.program.send(signal.SIGTERM)
        assert await siege.program.ended() == 0


HOUR = 3_600
WRONG_CLOCK = """
import time
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + {seconds}
time.time_ns = lambda: real_ns() + {seconds} * 10**9
"""


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_process_whose_machine_has_a_wrong_clock(
    story: Story, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python starts with another time of day. It leads, as no other process does, and pauses deadlines."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WRONG_CLOCK.format(seconds=seconds))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", "")))))
    groups = [{"selector": {"matchLabels": {LABEL: story.run}}, "terminationGracePeriod": "5s"}]
    siege = await besieged(story, Attack({}, 1, annotated("true", DO_NOT_DISRUPT)), nodeGroups=groups)
    lease = await story.api.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{story.namespace}/leases/gracectl")
    told = partial(story.events_about, lease[1], "ClocksDisagree")
    await story.sight.until("the dispute is reported", told, seconds=PATIENCE)
    await siege.end(is_same_term=False)
    await story.clock.sleep(10)  # past the deadline
    assert not is_terminating(story.sees("Pod", "hostile-0"))
    assert story.sight.get("Node", siege.attacked) is not None


FLAPS = 60
NODE_BUDGETS = 10
WRITES_WITHOUT_DELAY = 6


async def test_readiness_that_flaps_under_ten_node_budgets(budget_story: Story) -> None:
    story = budget_story
    siege = await besieged(story, Attack({}, 1, annotated("true")))
    for number in range(NODE_BUDGETS):
        await story.node_budget(f"pool-{number}", maxUnavailable=5)
    before, began = len(story.sight.journal), anyio.current_time()
    for number in range(FLAPS):
        ready = {"type": "Ready", "status": ("False", "True")[number % 2], "reason": "Flapping", "message": ""}
        await story.patch("Node", siege.attacked, {"status": {"conditions": [ready]}}, status=True)
        await story.clock.sleep(0.05)
    lasted = anyio.current_time() - began
    writes = sum(seen.kind == "NodeDisruptionBudget" for seen in story.sight.journal[before:])
    assert 0 < writes <= NODE_BUDGETS * (WRITES_WITHOUT_DELAY + lasted)
    assert writes < NODE_BUDGETS * FLAPS / 2
    await siege.end()
