"""Boards of `gracectl ui`: frames that a test fills, a server in a thread, a client that applies changes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from gracectl.cli.status.follow import StatusFollower, StatusFrame, StatusScope
from gracectl.cli.status.report import status_report
from gracectl.cli.ui.access import Access, TokenFile
from gracectl.cli.ui.board import KEYED, LISTS, NESTED, Board, Object, merged
from gracectl.cli.ui.server import BoardServer
from gracectl.cli.ui.stream import ChangeRing, encoded, message
from gracectl.cli.ui.timeline import Span, holds
from gracectl.config import Settings
from gracectl.inspect.status import NodeStatuses, is_active
from gracectl.kube.client import KubeClient
from gracectl.kube.connection import Connection
from gracectl.model.times import format_time, parse_time
from gracectl.runtime.clock import Clock, LoopClock, SystemClock
from gracectl.runtime.supervise import while_running
from gracectl.telemetry.server import Servers
from support.builders import NOW
from support.servers import ScriptedTransport

# Boards as `gracectl ui` sends them, made of a few words: for pages that need no cluster behind them.
#
# Instants count from NOW. `of_nodes` checks that what is made has the fields of the real report.

BOARD_NOW = 1_768_225_600.0

Json = dict[str, Any]


def at(seconds: float | None) -> str | None:
    """An instant, so many seconds after NOW; None for None."""
    return None if seconds is None else format_time(BOARD_NOW + seconds)


def a_window(earliest: float, latest: float | None) -> Json:
    """The answer of a forecast, in seconds from NOW: a range, or unknown without a `latest`."""
    is_known = latest is not None
    return {
        "answer": "range" if is_known else "unknown",
        "earliest": at(earliest),
        "latest": at(latest),
        "expected": None,
        "earliestSeconds": earliest,
        "latestSeconds": latest,
        "expectedSeconds": None,
        "certain": earliest == latest,
        "missing": [] if is_known else ["when budget shop/db recovers: 1 of 3 pods is not Ready"],
        "causes": [],
    }


NEVER: Json = {**a_window(0.0, None), "answer": "never", "earliest": None, "earliestSeconds": None, "missing": []}
"""The answer never."""


def never_under(budget: str, pod: str) -> Json:
    """The answer for a node with a pod under a budget that requires all of its pods."""
    message = f"budget {budget} allows no disruption now (3 of 3 healthy, 3 required)"
    return NEVER | {"causes": [{"kind": "budget-allows-nothing", "message": message, "pod": pod, "budgets": [budget]}]}


def a_pod(name: str, state: str = "leaving", *, since: float = -30.0, **more: Any) -> Json:
    """A pod that blocks its node."""
    namespace, _, short = name.rpartition("/")
    return {
        "namespace": namespace or "shop",
        "name": short,
        "uid": f"pod-{name}",
        "state": state,
        "since": at(since),
        "sinceSeconds": -since,
        "reason": "",
        "message": "",
        "remedy": None,
        "until": None,
        "deleteAt": None,
        "budgets": [],
        "queuePosition": None,
        "protection": None,
    } | more


def blocked(name: str, budget: str, number: int, of: int, **more: Any) -> Json:
    """A pod that waits for its budget."""
    return a_pod(
        name,
        "blocked",
        reason=f"budget {budget} allows no disruption now (2 of 3 healthy, 2 required)",
        remedy=f"see which of its pods are not Ready: gracectl budgets -n {budget.partition('/')[0]}",
        budgets=[budget],
        queuePosition={"number": number, "of": of, "after": None if number == 1 else "shop/before", "undecided": False},
        **more,
    )


def protected(name: str, until: float, **more: Any) -> Json:
    """A pod with do-not-disrupt."""
    return a_pod(
        name,
        "protected",
        reason='protected by do-not-disrupt "4h"',
        remedy=f"end its protection: kubectl annotate pod -n shop {name} karpenter.sh/do-not-disrupt-",
        until=at(until),
        protection={"kind": "do-not-disrupt", "value": "4h", "until": at(until), "valid": True, "capped": False},
        **more,
    )


def a_deadline(seconds: float) -> Json:
    """A deadline, so many seconds after NOW."""
    return {
        "at": at(seconds),
        "inSeconds": seconds,
        "source": "annotation",
        "holder": "Node",
        "gracePeriodSeconds": None,
    }


def a_warning(kind: str, message: str, *, blocking: bool = False, remedy: str | None = None) -> Json:
    """A warning."""
    return {"kind": kind, "blocking": blocking, "message": message, "objects": [], "remedy": remedy}


def a_node(
    name: str, *, since: float | None = -60.0, step: str = "drain", pods: Sequence[Json] | None = (), **more: Any
) -> Json:
    """A terminating node."""
    cuts = [pod["deleteAt"] for pod in pods or () if pod["deleteAt"] and pod["state"] in ("blocked", "protected")]
    return {
        "name": name,
        "uid": f"uid-{name}",
        "state": "terminating",
        "since": at(since),
        "sinceSeconds": None if since is None else -since,
        "step": step,
        "done": False,
        "waitsFor": "",
        "trace": None,
        "pending": None,
        "podsLeft": None if pods is None else len(pods),
        "drained": a_window(20.0, 90.0) if pods else None,
        "never": False,
        "deadline": None,
        "warnings": [],
        "firstCutAt": min(cuts, default=None),
        "pods": None if pods is None else list(pods),
    } | more


def a_timeline(node: Json) -> Json:
    """The past of a node: cordoned for two seconds, each pod in its state since then."""
    since = -(node["sinceSeconds"] or 0.0)
    steps = [{"step": "cordon", "from": at(since), "to": at(since + 2)}]
    steps.append({"step": node["step"], "from": at(since + 2), "to": None})
    pods = {}
    for each in node["pods"] or ():
        began = -each["sinceSeconds"]
        pods[each["uid"]] = [{"state": each["state"], "from": at(began), "to": None}]
        if began > since + 2:
            pods[each["uid"]].insert(0, {"state": "waiting", "from": at(since + 2), "to": at(began)})
    waves = [{"wave": "default", "from": at(since + 2), "to": None}] if pods else []
    states = [[_span(each) for each in spans] for spans in pods.values()]
    return {"steps": steps, "waves": waves, "holds": [each.json("state") for each in holds(states)], "pods": pods}


def _span(each: Json) -> Span:
    return Span(each["state"], parse_time(each["from"]), None if each["to"] is None else parse_time(each["to"]))


def a_budget(name: str, *, healthy: int = 2, expected: int = 3, required: int = 2, **more: Any) -> Json:
    """A PodDisruptionBudget that allows what it has to spare."""
    namespace, _, short = name.partition("/")
    allowed = max(healthy - required, 0)
    return {
        "name": short,
        "minAvailable": required,
        "maxUnavailable": None,
        "state": "allowing" if allowed else "spent",
        "problem": None,
        "expected": expected,
        "required": required,
        "allowed": allowed,
        "unavailable": [],
        "blocks": [],
        "namespace": namespace,
        "healthy": healthy,
        "missing": 0,
        "uid": f"uid-{name}",
        "queue": [],
        "queued": len(more.get("queue", ())),
    } | more


def queued(pod: Json, node: str) -> Json:
    """An entry of the queue of a budget."""
    return {"namespace": pod["namespace"], "name": pod["name"], "uid": pod["uid"], "node": node, "since": pod["since"]}


def terminated(name: str, since: float, **seconds: float) -> Json:
    """An entry of the history; `seconds` by step."""
    total = sum(seconds.values())
    return {
        "uid": f"uid-{name}",
        "name": name,
        "since": at(since),
        "until": at(since + total),
        "seconds": total,
        "steps": [{"step": step, "seconds": each} for step, each in seconds.items()],
        "deadline": None,
        "deadlineKept": None,
        "trace": None,
    }


def progress_of(nodes: Iterable[Json], done: int, causes: Sequence[Json] = (), pods_done: int = 0) -> Json:
    """The progress of nodes, of which others are done."""
    going = [node for node in nodes if node["state"] == "terminating"]
    left = sum(node["podsLeft"] or 0 for node in going)
    latest = [node["drained"]["latestSeconds"] or 3600.0 for node in going if node["drained"]]
    return {
        "nodesDone": done,
        "nodes": done + len(going),
        "podsDone": pods_done,
        "pods": pods_done + left,
        "began": at(-120.0),
        "elapsedSeconds": 120.0,
        "drained": a_window(max(latest) / 2, max(latest)) if latest else None,
        "unknown": [node["name"] for node in going if node["drained"] and node["drained"]["answer"] == "unknown"],
        "never": [node["name"] for node in going if node["never"]],
        "forecastAt": at(0),
        "forecastAgeSeconds": 0.0,
        "causes": list(causes),
    }


def a_cause(
    message: str, *, reason: str = "budget", pods: int = 1, never: bool = False, remedy: str | None = None
) -> Json:
    """What blocks pods of several nodes."""
    return {
        "reason": reason,
        "message": message,
        "remedy": remedy,
        "pods": pods,
        "nodes": 1,
        "ageSeconds": 60.0,
        "atOnce": 1,
        "left": NEVER if never else a_window(10.0, 60.0),
        "never": never,
    }


def a_node_drain(name: str, state: str = "in progress", done: int = 12, total: int = 40, **more: Any) -> Json:
    """A NodeDrain of the board."""
    counts = {"total": total, "done": done, "pending": total - done - 4, "inProgress": 4, "drained": 0}
    return {
        "name": name,
        "uid": f"uid-{name}",
        "action": "Terminate",
        "state": state,
        "message": "",
        "requestedBy": "alice",
        "reason": "image 2026-12",
        "created": at(-600.0),
        "maxConcurrent": "10%",
        "paused": False,
        "startTime": at(-600.0),
        "completionTime": None,
        "estimatedEnd": at(1800.0),
        "counts": {**counts, "terminated": done, "skipped": 0, "failed": 0, "canceled": 0},
    } | more


def of_nodes(nodes: Sequence[Json], **more: Any) -> Json:
    """A board of these nodes. `causes`, `history`, `podBudgets` and the like: fields of it."""
    history = more.pop("history", [])
    causes, pods_done = more.pop("causes", ()), more.pop("pods_done", 0)
    status = {
        "cluster": {"context": "production", "server": "https://10.0.0.1:6443"},
        "at": at(0),
        "settings": "defaults",
        "longestProtectionSeconds": None,
        "connectionLoss": None,
        "controller": {"state": "active", "lease": "gracectl/gracectl", "holder": "gracectl-7d9f", "renewed": at(-1)},
        "freeze": None,
        "progress": progress_of(nodes, len(history), causes, pods_done) if nodes or history else None,
        "nodes": list(nodes),
        "claims": [],
        "terminated": [],
    } | more.pop("status", {})
    assert list(status) == list(status_report(StatusFrame(at=BOARD_NOW, nodes=())))
    return {
        "version": 1,
        "status": status,
        "withPods": True,
        "podBudgets": [],
        "nodeBudgets": [],
        "nodeDrains": [],
        "timelines": {node["uid"]: a_timeline(node) for node in nodes if node["state"] != "pending"},
        "history": history,
        "events": [],
        "eventsCut": False,
        "links": {"grafana": None},
        "pace": {"inProgress": 1, "maximum": 5, "managedNodes": 100},
        "breaker": {"open": False, "unhealthy": 1, "recovering": 0, "allowed": 20, "managedNodes": 100},
        "connection": {"state": "live", "since": None, "error": None},
    } | more


# Boards without a cluster behind them: frames of caches that a test fills.


class FrameClock(LoopClock):
    """The time of the next frame, which is always long after the one before, so that none is left out."""

    at = NOW
    elapsed_seconds = 0.0
    step = 60.0

    def now(self) -> float:
        """See Clock."""
        return self.at

    def monotonic(self) -> float:
        """See Clock."""
        return self.elapsed_seconds


class BoardStage:
    """A board, and the caches that its frames are made of."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.clock = clock = FrameClock()
        transport = ScriptedTransport(clock)
        connection = Connection(transport, clock, KubeClient(transport, clock))
        self.settings = settings = settings or Settings()
        self.follower = StatusFollower(connection, settings, StatusScope(is_active), is_endless=True)
        self.cluster = self.follower.watcher.cluster
        # It watches nothing, so that it would wait for the pods of each node.
        self.follower.statuses = NodeStatuses(self.cluster, settings.termination, follows=True)
        self.board = Board(self.follower, settings, "defaults", clock)
        self.last = StatusFrame(at=NOW, nodes=())

    @property
    def at(self) -> float:
        """When the next frame is (Unix seconds)."""
        return self.clock.at

    @at.setter
    def at(self, at: float) -> None:
        self.clock.at = at

    def frame(self, **fields: Any) -> None:
        """The caches as they are now, as the next frame."""
        asked = {node.name for node in self.cluster.nodes.values() if is_active(node)}
        statuses = self.follower.statuses.at(asked, self.at)
        self.last = StatusFrame(at=self.at, **({"nodes": statuses} | fields))
        self.clock.elapsed_seconds += self.clock.step
        self.board.update(self.last)


# The server of `gracectl ui` in a thread of its own, with a board that a test makes: for a browser beside it.

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = "GRACECTL_CHROMIUM"


def chromium() -> str | None:
    """The browser: that of the variable, or the first one that is installed."""
    return os.environ.get(BROWSER) or next(filter(None, map(shutil.which, PROGRAMS)), None)


class FixedClock(SystemClock):
    """Its wall time begins at an instant when it is made."""

    def __init__(self, at: float) -> None:
        self._at = at
        self._began = self.monotonic()

    def now(self) -> float:
        return self._at + self.monotonic() - self._began


class ScriptedBoard(Board):
    """A board with the states that a test gives it, without a cluster."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.ring = ChangeRing()
        self.state = state
        self._boot = secrets.token_hex(4)

    def node_pods(self, uid: str) -> Json | None:
        """See Board; of a state without pods, those that the test gave its nodes."""
        nodes = {node["uid"]: node for node in self.state.get("nodesWithPods", ())}
        if uid not in nodes:
            return None
        return {"uid": uid, "pods": nodes[uid]["pods"], "timeline": a_timeline(nodes[uid])["pods"]}

    def push(self, state: Mapping[str, Any]) -> None:
        """The next state: clients get what has changed."""
        self.state, delta = merged(self.state, state)
        if delta:
            id_ = f"{self._boot}-{self.ring.latest + 1}"
            self.ring.append(message("change", id_, encoded(delta)))


class ServedBoard:
    """A board that a browser can open at `url`; see `serving`."""

    def __init__(self, portal: BlockingPortal, state: Mapping[str, Any], clock: Clock, token: Path | None) -> None:
        self._portal = portal
        self._clock = clock
        self._access = Access(token=None if token is None else TokenFile(token))
        self._state = state
        self._board: ScriptedBoard | None = None
        self._running: contextlib.AbstractContextManager[str] | None = None
        self._listen = "127.0.0.1:0"
        self.url = ""

    def start(self) -> None:
        """Serve; again at the same address after `stop`, as a new process would."""
        self._board = ScriptedBoard(self._state)
        self._running = self._portal.wrap_async_context_manager(self._serve(self._board))
        self.url = self._running.__enter__()
        self._listen = self.url.removeprefix("http://").rstrip("/")

    def stop(self) -> None:
        """The server is gone."""
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)

    def push(self, state: Mapping[str, Any]) -> None:
        """The next state of the board."""
        self._state = state
        if self._running is not None and self._board is not None:
            self._portal.call(self._board.push, state)

    @contextlib.asynccontextmanager
    async def _serve(self, board: Board) -> AsyncIterator[str]:
        server = BoardServer(board, self._access, self._clock)
        servers = Servers([server.endpoint(self._listen)], self._clock, grace_seconds=0.05)
        urls = await servers.open()
        async with while_running(servers.run):
            yield urls["/"]


@contextlib.contextmanager
def serving(state: Mapping[str, Any], clock: Clock, *, token: Path | None = None) -> Iterator[ServedBoard]:
    """The board behind the real server, while the block runs."""
    with start_blocking_portal() as portal:
        board = ServedBoard(portal, state, clock, token)
        board.start()
        try:
            yield board
        finally:
            board.stop()


# Changes of the board applied by a client, as docs/ui.md describes them.


def applied(old: Object, delta: Object) -> dict[str, Any]:
    """The state after a change."""
    state = dict(old)
    for name, value in delta.items():
        before = state.get(name)
        if name in NESTED and isinstance(before, dict):
            state[name] = applied(before, value)
        elif name in KEYED and isinstance(before, LISTS) and isinstance(value, dict):
            state[name] = _applied_list(before, value)
        elif name in KEYED and isinstance(before, dict):
            removed = set(value.get("remove", ()))
            changed = value.get("set", {})
            kept = {uid: each for uid, each in before.items() if uid not in removed}
            state[name] = kept | {
                uid: applied(kept[uid], each) if uid in kept and isinstance(each, dict) else each
                for uid, each in changed.items()
            }
        else:
            state[name] = value
    return state


def _applied_list(before: Sequence[Any], delta: Object) -> list[Any]:
    removed = set(delta.get("remove", ()))
    by_uid = {each["uid"]: each for each in before if each["uid"] not in removed}
    for each in delta.get("set", ()):
        uid = each["uid"]
        by_uid[uid] = applied(by_uid[uid], each) if uid in by_uid else each
    return [by_uid[uid] for uid in delta.get("order", by_uid)]
