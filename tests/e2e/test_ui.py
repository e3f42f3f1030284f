"""`gracectl ui` against any cluster: the board shows a drain to its end, also when its server is killed meanwhile."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import anyio
import pytest
from e2e_support.program import Program
from e2e_support.story import Story
from kubesim_support.patience import PATIENCE
from support.boards import applied

from benchmarks.ground.process import peak_memory
from gracectl.runtime.clock import SystemClock

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]


class Page:
    """A client that keeps the board as a page does, and every change that it got."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.board: Any = {}
        self.events: list[str] = []
        self._session = session
        self._url = url

    async def until(self, what: str, condition: Callable[[Any], object], after: str = "") -> None:
        """Follow the changes until the board is as it should be. `after`: the id to begin with."""
        with anyio.move_on_after(PATIENCE):
            parameters = {"after": after or self.board.get("id", "")}
            async with self._session.get(f"{self._url}api/v1/changes", params=parameters) as answer:
                fields: dict[str, str] = {}
                async for line in answer.content:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name:
                        fields[name] = value
                    elif "event" in fields:
                        self._take(fields)
                        fields = {}
                        if condition(self.board):
                            return
        raise AssertionError(f"not shown within {PATIENCE:g} s: {what}; the board: {json.dumps(self.board)[:3000]}")

    def _take(self, fields: dict[str, str]) -> None:
        self.events.append(fields["event"])
        data = json.loads(fields["data"])
        self.board = (data if fields["event"] == "snapshot" else applied(self.board, data)) | {"id": fields["id"]}

    def node(self, name: str) -> Any:
        """An active node, or {}."""
        nodes = (self.board["status"] or {}).get("nodes", ())
        return next((node for node in nodes if node["name"] == name), {})


async def address(program: Program) -> str:
    """Where the board is served, as the program says."""
    with anyio.fail_after(PATIENCE):
        while not (found := re.search(r"The board is at (http://\S+/)", program.text())):
            await SystemClock().sleep(0.02)
    return found[1]


async def test_the_board_shows_a_drain_from_its_beginning_to_its_end(story: Story) -> None:
    await story.controller()
    server, successor = await story.ui(), await story.ui()
    (leaving,) = await story.nodes("a")
    (pod,) = await story.workload("Deployment", "web", 1, replicas=1)
    await story.budget("strict", "web", maxUnavailable=0)
    await story.counted("strict")
    await story.nodes("refuge")
    async with aiohttp.ClientSession(trust_env=False) as session:
        page = Page(session, await address(server))
        await page.until("the cluster is read", lambda board: (board.get("connection") or {}).get("state") == "live")
        assert page.events[0] == "snapshot"
        await story.delete("Node", leaving)

        def blocked(board: Any) -> object:
            budgets = [each for each in board["podBudgets"] if each["namespace"] == story.namespace]
            queue = [(each["uid"], each["node"]) for budget in budgets for each in budget["queue"]]
            node = page.node(leaving)
            is_blocked = [each["state"] for each in node.get("pods") or ()] == ["blocked"]
            return queue == [(pod["metadata"]["uid"], leaving)] and is_blocked and node["step"] == "drain"

        await page.until("its pod is blocked by its budget", blocked)
        uid = page.node(leaving)["uid"]
        assert page.board["timelines"][uid]["steps"][-1]["step"] == "drain"

        # The server is killed, and another one knows nothing of the id.
        server.send(signal.SIGKILL)
        await server.ended()
        page, before = Page(session, await address(successor)), page.board["id"]
        await page.until("the same again", blocked, after=before)
        assert page.events[0] == "snapshot"
        await story.patch("PodDisruptionBudget", "strict", {"spec": {"maxUnavailable": 1}})
        await page.until("it is over", lambda board: uid in [each["uid"] for each in board["history"]])
        (ended,) = [each for each in page.board["history"] if each["uid"] == uid]
        assert (ended["name"], ended["deadlineKept"], page.node(leaving)) == (leaving, None, {})
        assert {"drain"} <= {each["step"] for each in ended["steps"]}
        about = [each["reason"] for each in page.board["events"] if each["object"]["name"] == leaving]
        assert "Draining" in about


MOST_MEMORY = 200.0
"""MiB."""
LARGE_EVENTS = 40
HIDDEN = "\u202e\x1b[2J"


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
async def test_events_of_megabytes_and_readers_that_do_not_read(story: Story) -> None:
    server = await story.ui()
    url = await address(server)
    pod = f"{story.run}-none"
    path = f"/api/v1/namespaces/{story.namespace}/events"
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": story.namespace, "name": pod}
    for number in range(LARGE_EVENTS):
        meta = {"name": f"large-{number}", "namespace": story.namespace}
        event = {"metadata": meta, "involvedObject": about, "reason": "Draining", "reportingComponent": "gracectl"}
        status, answer = await story.api.call("POST", path, event | {"message": HIDDEN + "x" * 1_000_000})
        assert status == 201, answer
    async with aiohttp.ClientSession(trust_env=False) as session:
        page = Page(session, url)

        def messages(board: Any) -> list[str]:
            return [each["message"] for each in board["events"] or () if each["object"]["name"] == pod]

        await page.until("all Events are shown", lambda board: len(messages(board)) >= LARGE_EVENTS)
        assert {len(each) for each in messages(page.board)} == {1024}
        assert all(each.startswith(r"\u202e\x1b[2Jx") for each in messages(page.board))
        silent = [silent_reader(url, what) for what in ("board", "changes") for _ in range(15)]
        await page.until("the board is shown as before", lambda board: messages(board), after="none")
        peak = peak_memory(server.pid)
        print(f"peak of memory: {peak:.0f} MiB")
        assert peak < MOST_MEMORY
        for reader in silent:
            reader.close()


def silent_reader(url: str, what: str) -> socket.socket:
    """A client that asks, and reads nothing."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    reader = socket.create_connection((host, int(port)))
    reader.send(f"GET /api/v1/{what} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return reader
