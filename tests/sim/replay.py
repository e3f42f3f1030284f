"""Replays a recording of a real API server against the embedded one and says where the answers differ.

Placeholders of the recordings (`<uid:1>`, `<rv:3>`, `<time>`…) stand for values: the first sight of one in an answer
binds it, every later sight must be the same value, and two placeholders of one kind never share a value. Where a step
is `trimmed`, no more is compared than is shown. A controller's work (`polled` steps) is done by the replay itself: it
writes the status that the controller would have written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import anyio
import orjson

from gracectl.sim.core import ApiServer
from gracectl.sim.server.api import EventStream, Json, JsonObject, Request, Response

RECORDINGS = Path(__file__).parents[1] / "conformance" / "recordings"
PLACEHOLDER = re.compile(r"<(uid|rv|list-rv|bookmark-rv|continue|name|time|age|pointer)(?::\d+)?>")
ANYTHING = {"<time>", "<rv>", "<age>", "<pointer>", "<uid>"}
COMPARED_HEADERS = ("Content-Type", "Retry-After", "Warning", "Allow")
MADE_UP = {"uid": "00000000-0000-4000-8000-{:012d}", "time": "2026-01-01T00:00:00Z"}
STILL_OPEN_SECONDS = 0.2


def steps_of(name: str) -> list[JsonObject]:
    """The steps of a recording."""
    steps: list[JsonObject] = json.loads((RECORDINGS / f"{name}.json").read_text())["steps"]
    return steps


class Bindings:
    """What the placeholders of one recording stand for."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def differences(self, recorded: Json, actual: Json, *, shown_only: bool, path: str = "") -> Iterator[str]:
        """How `actual` differs from `recorded`; with `shown_only`, keys that the recording lacks do not count."""
        if isinstance(recorded, dict) and isinstance(actual, dict):
            for key in recorded.keys() | (set() if shown_only else actual.keys()):
                if key not in actual:
                    yield f"{path}.{key}: missing, recorded {recorded[key]!r}"
                elif key not in recorded:
                    yield f"{path}.{key}: not in the recording, here {actual[key]!r}"
                else:
                    yield from self.differences(recorded[key], actual[key], shown_only=shown_only, path=f"{path}.{key}")
        elif isinstance(recorded, list) and isinstance(actual, list):
            if shown_only and is_named(recorded):
                # A list of named things (groups, resources) is cut to those that matter.
                by_name = {each.get("name"): each for each in actual}
                actual = [by_name[each["name"]] for each in recorded if each["name"] in by_name]
            if len(recorded) != len(actual):
                yield f"{path}: {len(actual)} items, recorded {len(recorded)}: {actual!r}"
            for index, (one, other) in enumerate(zip(recorded, actual, strict=False)):
                # Lists are often reduced to the names of their items.
                found = other["metadata"]["name"] if isinstance(one, str) and isinstance(other, dict) else other
                yield from self.differences(one, found, shown_only=shown_only, path=f"{path}[{index}]")
        elif isinstance(recorded, str) and isinstance(actual, str):
            if not self._unify(recorded, actual):
                yield f"{path}: {actual!r}, recorded {self.resolved(recorded)!r}"
        elif recorded != actual:
            yield f"{path}: {actual!r}, recorded {recorded!r}"

    def knows(self, text: str) -> bool:
        """Whether a placeholder has a value."""
        return text in self._values

    def _unify(self, recorded: str, actual: str) -> bool:
        if recorded == actual:
            return True
        pattern, end, fresh = "", 0, list[str]()
        for found in PLACEHOLDER.finditer(recorded):
            pattern += re.escape(recorded[end : found.start()])
            end = found.end()
            text = found.group()
            if text in ANYTHING:
                pattern += ".*?"
            elif text in self._values:
                pattern += re.escape(self._values[text])
            else:
                pattern += "(.+?)"
                fresh.append(text)
        match = re.fullmatch(pattern + re.escape(recorded[end:]), actual, re.DOTALL)
        if match is None:
            return False
        return all(self._bind(text, value) for text, value in zip(fresh, match.groups(), strict=True))

    def _bind(self, text: str, value: str) -> bool:
        kind = text.partition(":")[0]
        if any(value == known and text != other and other.startswith(kind) for other, known in self._values.items()):
            return False
        self._values[text] = value
        return True

    def resolved(self, recorded: Json) -> Json:
        """The recorded value with its placeholders filled in; those never seen in an answer are made up."""
        if isinstance(recorded, dict):
            return {self.resolved(key): self.resolved(value) for key, value in recorded.items()}
        if isinstance(recorded, list):
            return [self.resolved(item) for item in recorded]
        return PLACEHOLDER.sub(self._value, recorded) if isinstance(recorded, str) else recorded

    def _value(self, found: re.Match[str]) -> str:
        text = found.group()
        if text not in self._values and found[1] in MADE_UP:
            made_up = MADE_UP[found[1]].format(len(self._values))
            if text in ANYTHING:
                return made_up
            self._values[text] = made_up
        return self._values.get(text, text)


class Replay:
    """One recording against one server."""

    def __init__(
        self, server: ApiServer, steps: list[JsonObject], skip: frozenset[int], before: Mapping[int, Callable[[], None]]
    ) -> None:
        self._server = server
        self._steps = steps
        self._left_out = skip
        self._before = before
        self._bindings = Bindings()
        self._watches: dict[int, Response] = {}

    def _skip(self, index: int) -> bool:
        return index in self._left_out or "request" not in self._steps[index]

    async def differences(self) -> list[str]:
        """Every difference, each with the index of its step."""
        found: list[str] = []
        for index, step in enumerate(self._steps):
            self._before.get(index, lambda: None)()
            await self._open_watches(index)
            if self._skip(index):
                continue
            compare = self._compare_watch(index, step) if "opened_before_step" in step else self._compare(step)
            found.extend(f"step {index} ({step.get('note', '')}): {difference}" for difference in await compare)
        for response in self._watches.values():
            if response.stream is not None:
                await response.stream.aclose()
        return found

    async def _send(self, recorded: JsonObject) -> Response:
        if recorded["method"] == "PUT" and isinstance(recorded.get("body"), dict):
            await self._learn_uid(recorded)
        body = self._bindings.resolved(recorded.get("body"))
        if isinstance(body, str):
            body = body.encode()
        elif body is not None:
            body = orjson.dumps(body)
        return await self._server.handle(
            Request(
                method=recorded["method"],
                path=self._bindings.resolved(recorded["path"]),
                query=self._bindings.resolved(recorded.get("query", {})),
                headers={key.lower(): value for key, value in recorded.get("headers", {}).items()},
                body=body or b"",
            )
        )

    async def _learn_uid(self, recorded: JsonObject) -> None:
        """A PUT brings the uid that the recorder read, perhaps in an answer that the tape shows trimmed."""
        uid = recorded["body"].get("metadata", {}).get("uid", "")
        if PLACEHOLDER.fullmatch(uid) and not self._bindings.knows(uid):
            current = await self._server.handle(Request(method="GET", path=self._bindings.resolved(recorded["path"])))
            list(self._bindings.differences(uid, current.body["metadata"]["uid"], shown_only=True))

    async def _open_watches(self, index: int) -> None:
        for later, step in enumerate(self._steps):
            if step.get("opened_before_step") == index and later not in self._watches and not self._skip(later):
                self._watches[later] = await self._send(step["request"])

    async def _compare(self, step: JsonObject) -> list[str]:
        if step.get("polled"):
            await self._do_the_controllers_work(step)
        recorded, actual = step["response"], await self._send(step["request"])
        await self._collect_garbage(step["request"], actual)
        differences = self._compare_heads(recorded, actual)
        if recorded["body"] is not None:
            differences += self._bindings.differences(recorded["body"], actual.body, shown_only="trimmed" in step)
        return differences

    @staticmethod
    def _compare_heads(recorded: JsonObject, actual: Response) -> list[str]:
        differences = []
        if recorded["status"] != actual.status:
            differences.append(f"status {actual.status}, recorded {recorded['status']}: {actual.body}")
        for header in COMPARED_HEADERS:
            want, have = recorded["headers"].get(header), actual.headers.get(header.lower())
            if want != have:
                differences.append(f"header {header} {have!r}, recorded {want!r}")
        return differences

    async def _compare_watch(self, index: int, step: JsonObject) -> list[str]:
        recorded, actual = step["response"], self._watches.pop(index)
        differences = self._compare_heads(recorded, actual)
        if actual.stream is None:
            events: list[Json] = [actual.body]
            ended = True
        else:
            events, ended = await read_events(actual.stream, len(recorded["events"]))
            await actual.stream.aclose()
        if recorded["ended"] == "still open" and ended:
            differences.append("the stream ended, recorded still open")
        shown_only = "trimmed" in step
        return differences + list(
            self._bindings.differences(recorded["events"], events, shown_only=shown_only, path="events")
        )

    async def _collect_garbage(self, request: JsonObject, actual: Response) -> None:
        """Let go of what only waits for the garbage collector."""
        finalizers = actual.body.get("metadata", {}).get("finalizers", []) if isinstance(actual.body, dict) else []
        if request["method"] == "DELETE" and finalizers in (["orphan"], ["foregroundDeletion"]):
            headers = {"content-type": "application/merge-patch+json"}
            body = {"metadata": {"finalizers": None}}
            await self._send({"method": "PATCH", "path": request["path"], "headers": headers, "body": body})

    async def _do_the_controllers_work(self, step: JsonObject) -> None:
        """Write the budget status that the recording waited for."""
        path, status = step["request"]["path"], step["response"]["body"].get("status")
        if "/poddisruptionbudgets/" in path:
            current = await self._send({"method": "GET", "path": path})
            body = {**current.body, "status": status}
            await self._send({"method": "PUT", "path": f"{path}/status", "body": body})


def is_named(items: list[Json]) -> bool:
    """Whether every item is an object that begins with its name, as those of discovery do."""
    return bool(items) and all(isinstance(item, dict) and "name" in item for item in items)


async def read_events(stream: EventStream, count: int) -> tuple[list[Json], bool]:
    """Read events until the stream ends or falls silent; says whether it ended. Waits beyond `count` for surplus
    ones.
    """
    events: list[Json] = []
    while True:
        with anyio.move_on_after(STILL_OPEN_SECONDS if len(events) >= count else 15) as scope:
            try:
                event = await stream.__anext__()
            except StopAsyncIteration:
                return events, True
            events.append({"type": event.type, "object": event.object})
        if scope.cancelled_caught:
            return events, False


async def replay(
    server: ApiServer,
    name: str,
    *,
    skip: Iterable[int] = (),
    before: Mapping[int, Callable[[], None]] | None = None,
) -> list[str]:
    """Replay a recording; returns the differences.

    `skip`: steps that are not sent; `before`: what happens off the tape, by the step that follows.
    """
    return await Replay(server, steps_of(name), frozenset(skip), before or {}).differences()
