"""Plays a recording against a target, step by step, and says where the answers deviate.

Invariants: every step of a recording is either compared or listed with the reason why not; a polled step is repeated
until its answer is the recorded one (but for known differences) or its time is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import anyio
import anyio.abc
import msgspec
import orjson
from conformance.placeholders import PLACEHOLDER, Bindings, Deviation
from conformance.tape import Answered, Sent, Step, Tape
from conformance.target import Target, Unreachable
from conformance.trims import normalised, trim_named
from kubesim.server.api import EventStream, Json, JsonObject, Request, Response

COMPARED_HEADERS = ("Content-Type", "Retry-After", "Warning", "Allow")
POLLED_SECONDS, POLLED_EVERY = 150.0, 0.02
EVENTS_SECONDS = 150.0
"""How long a watch may take to show what was recorded: the pod garbage collector of a real cluster needs 80 s."""
SURPLUS_SECONDS = 0.3
ATTEMPTS = 100

Known = Callable[[int, Deviation], bool]
"""Whether a deviation of a step is listed."""


class Retry(msgspec.Struct, frozen=True):
    """Steps that were repeated together until the last of them came out as recorded: a race with a controller. `reset`
    is the path of what is deleted before each further attempt."""

    first: int
    last: int
    reset: str


class Offstage(msgspec.Struct, frozen=True):
    """What the recorder did off the tape, by the step before which (or instead of which) it happened."""

    before: Mapping[int, Callable[[Player], Awaitable[None]]] = {}
    measured: Mapping[int, Callable[[Player], Awaitable[Json]]] = {}
    answers: Mapping[int, Callable[[Player, JsonObject], Awaitable[JsonObject]]] = {}
    """How the webhook answered questions that are not on the tape: from `request` to `response`, less its uid."""
    loosely: Mapping[int, Callable[[Json, Json], bool]] = {}
    """How steps marked nondeterministic are compared (recorded, here) when they are not the same."""
    hurried: frozenset[int] = frozenset()
    """Steps that the next one follows at once."""
    retries: Sequence[Retry] = ()
    has_webhook: bool = False


class Played(msgspec.Struct, frozen=True):
    """What became of one step: `deviations`, or `left_out` (why it was not run)."""

    index: int
    deviations: tuple[Deviation, ...] = ()
    left_out: str = ""
    is_alike: bool = False
    """Not the same, but as its nondeterminism allows."""


class Player:
    """One recording against one target. `tasks` runs what goes on beside it."""

    def __init__(
        self, target: Target, tape: Tape, offstage: Offstage, known: Known, tasks: anyio.abc.TaskGroup
    ) -> None:
        self.target = target
        self.tasks = tasks
        self.asked = 0
        self.took = 0.0
        self.answered: dict[int, Response] = {}
        self.memory: dict[str, Any] = {}
        self._steps = tape.steps
        self._offstage = offstage
        self._known = known
        self._bindings = Bindings(clean=self._cleaned)
        self._watches: dict[int, Response] = {}
        self._played: dict[int, Played] = {}
        self._script: list[tuple[int, Step]] = []
        self._answer: Callable[[Player, JsonObject], Awaitable[JsonObject]] | None = None
        self._seen: Json = None

    async def play(self, left_out: Mapping[int, str]) -> list[Played]:
        """Play it all but the steps left out (with the reason of each)."""
        for index, reason in left_out.items():
            self._played[index] = Played(index, left_out=reason)
        index, attempts = 0, 0
        while index < len(self._steps):
            last = await self._act(index)
            retry = next((each for each in self._offstage.retries if each.last == last), None)
            if retry is not None and not self._is_as_known(last) and attempts < ATTEMPTS:
                attempts += 1
                await self.send(Sent("DELETE", retry.reset))
                for again in range(retry.first, retry.last + 1):
                    del self._played[again]
                index = retry.first
                continue
            index = last + 1
        for response in self._watches.values():
            if response.stream is not None:
                await response.stream.aclose()
        return [self._played[index] for index in sorted(self._played)]

    async def send(self, sent: Sent) -> Response:
        """Send a request, its placeholders filled in."""
        if sent.method == "PUT" and isinstance(sent.body, dict):
            await self._learn_uid(sent)
        body = self._bindings.filled(sent.body)
        raw = body.encode() if isinstance(body, str) else b"" if body is None else orjson.dumps(body)
        return await self.target.handle(
            Request(
                method=sent.method,
                path=self._bindings.filled(sent.path),
                query=self._bindings.filled(sent.query),
                headers={key.lower(): value for key, value in sent.headers.items()},
                body=raw,
            )
        )

    async def call(self, method: str, path: str, body: Json = None, content_type: str = "application/json") -> Response:
        """Send something that is not on the tape."""
        return await self.send(Sent(method, path, headers={"Content-Type": content_type}, body=body))

    def learn(self, placeholder: str, value: str) -> None:
        """From now on a placeholder stands for this."""
        list(self._bindings.deviations(placeholder, value, ""))

    def request_of(self, index: int) -> Sent:
        """The request of a step."""
        request = self._steps[index].request
        assert request is not None
        return request

    async def review(self, question: JsonObject) -> JsonObject:
        """The recorder's webhook: takes its own steps, compares the question, gives the recorded answer."""
        self.asked += 1
        while self._script:
            index, step = self._script.pop(0)
            if not step.is_question:
                self._played[index] = Played(index, await self._compared(step))
                continue
            assert step.request is not None
            assert step.response is not None
            deviations = self._bindings.deviations(step.request.body, self._shown(step, question), "question")
            self._played[index] = Played(index, tuple(deviations))
            answer: JsonObject = self._bindings.filled(step.response.body)
            return answer
        answer = await self._answer(self, question["request"]) if self._answer is not None else {"allowed": True}
        uid = question["request"]["uid"]
        return {**{key: question[key] for key in ("apiVersion", "kind")}, "response": {"uid": uid, **answer}}

    # -- one step ------------------------------------------------------------------------------------------------------

    async def _act(self, index: int) -> int:
        """Play a step, with the questions that the server asks before it answers; returns the last one's index."""
        last = index
        while self._steps[last].is_question or self._steps[last].is_webhook_s:
            last += 1
        if last in self._played and self._played[last].left_out:
            for each in range(index, last):
                self._played.setdefault(each, self._played[last])
            return last
        if index in self._offstage.before:
            await self._offstage.before[index](self)
        await self._open_watches(range(index, last + 1))
        self._script = [(each, self._steps[each]) for each in range(index, last)]
        self._answer = self._offstage.answers.get(last)
        self._played[last] = self._judged(last, await self._outcome(last))
        for each, _ in self._script:
            self._played[each] = Played(each, (Deviation("question", "asked", "not asked"),))
        self._script = []
        if last not in self._offstage.hurried:
            await self.target.pause()
        return last

    def _judged(self, index: int, played: Played) -> Played:
        """A step that may differ from run to run is held against what may not."""
        step = self._steps[index]
        alike = self._offstage.loosely.get(index)
        if not played.deviations or alike is None:
            return played
        recorded: Json = step.facts
        if step.response is not None:
            recorded = step.response.events if step.is_watch else step.response.body
        return Played(index, is_alike=True) if alike(recorded, self._seen) else played

    async def _outcome(self, index: int) -> Played:
        step = self._steps[index]
        if step.is_watch:
            return Played(index, await self._compared_watch(index, step))
        if step.facts is not None:
            measure = self._offstage.measured.get(index)
            if measure is None:
                return Played(index, (Deviation("facts", step.facts, "not measured"),))
            try:
                outcome = await measure(self)
            except Unreachable as reason:
                return Played(index, left_out=str(reason))
            self._seen = outcome
            return Played(index, tuple(self._bindings.deviations(step.facts, outcome, "facts")))
        if step.polled:
            return Played(index, await self._polled(index, step))
        self.asked, begun = 0, self.target.clock.monotonic()
        deviations = await self._compared(step, index)
        self.took = self.target.clock.monotonic() - begun
        return Played(index, deviations)

    def _is_as_known(self, index: int) -> bool:
        return all(self._known(index, each) for each in self._played[index].deviations)

    async def _polled(self, index: int, step: Step) -> tuple[Deviation, ...]:
        clock, before = self.target.clock, self._bindings
        end = clock.monotonic() + POLLED_SECONDS
        while True:
            self._bindings = before.copy()
            deviations = await self._compared(step)
            if all(self._known(index, each) for each in deviations) or clock.monotonic() > end:
                return deviations
            await clock.sleep(POLLED_EVERY)

    async def _compared(self, step: Step, index: int = -1) -> tuple[Deviation, ...]:
        assert step.request is not None
        assert step.response is not None
        response = self.answered[index] = await self.send(step.request)
        deviations = self._compared_heads(step.response, response)
        if step.response.status == response.status:
            self._seen = self._shown(step, response.body)
            deviations.extend(self._bindings.deviations(step.response.body, self._seen, "body"))
        return tuple(deviations)

    def _cleaned(self, body: Json) -> Json:
        return self.target.without_own(normalised(body))

    def _shown(self, step: Step, body: Json) -> Json:
        return trim_named(step.trimmed)(self._cleaned(body))

    @staticmethod
    def _compared_heads(recorded: Answered, here: Response) -> list[Deviation]:
        """Where the status is another, that says it all, with its message."""
        if recorded.status != here.status:
            message = here.body.get("message", "") if isinstance(here.body, dict) else here.body
            return [Deviation("status", recorded.status, f"{here.status} {message}".strip())]
        deviations = []
        for header in COMPARED_HEADERS:
            want, have = recorded.headers.get(header, ""), here.headers.get(header.lower(), "")
            if want != have:
                deviations.append(Deviation(f"headers.{header}", want, have))
        return deviations

    async def _learn_uid(self, sent: Sent) -> None:
        """A PUT brings the uid that the recorder read, perhaps in an answer that the tape shows trimmed."""
        uid = sent.body.get("metadata", {}).get("uid", "")
        if PLACEHOLDER.fullmatch(uid) and not self._bindings.knows(uid):
            current = await self.send(Sent("GET", sent.path))
            list(self._bindings.deviations(uid, current.body["metadata"]["uid"], ""))

    # -- watches -------------------------------------------------------------------------------------------------------

    async def _open_watches(self, indexes: range) -> None:
        for later, step in enumerate(self._steps):
            if step.opened_before_step in indexes and later not in self._watches and later not in self._played:
                assert step.request is not None
                self._watches[later] = await self.send(step.request)

    async def _compared_watch(self, index: int, step: Step) -> tuple[Deviation, ...]:
        recorded, here = step.response, self._watches.pop(index)
        assert recorded is not None
        if deviations := self._compared_heads(recorded, here):
            return tuple(deviations)
        if here.stream is None:
            # An ordinary answer: the recorder trimmed events only.
            events: list[Json] = [self._cleaned(here.body)]
        else:
            is_ended_by_server = recorded.ended != "still open" and not self._is_full(step)
            read, ended = await read_events(here.stream, len(recorded.events), until_the_end=is_ended_by_server)
            await here.stream.aclose()
            events = [{"type": event["type"], "object": self._shown(step, event["object"])} for event in read]
            if self.target.kind == "live":
                # The cluster's own controllers write, too, what is not ours to see.
                events = [each for before, each in pairwise([None, *events]) if not _tells_nothing(before, each)]
            if is_ended_by_server != ended:
                return (Deviation("ended", recorded.ended, "by server" if ended else "still open"),)
        self._seen = events
        return tuple(self._bindings.deviations(recorded.events, events, "events"))

    @staticmethod
    def _is_full(step: Step) -> bool:
        """Whether the recorder stopped reading: a server ends a watch only at its time, or with an error."""
        assert step.request is not None
        assert step.response is not None
        is_error = any(event.get("type", "ERROR") == "ERROR" for event in step.response.events)
        return "timeoutSeconds" not in step.request.query and not is_error


def _tells_nothing(before: Json, event: Json) -> bool:
    return before is not None and event == {"type": "MODIFIED", "object": before["object"]}


async def read_events(stream: EventStream, count: int, *, until_the_end: bool) -> tuple[list[JsonObject], bool]:
    """Read events until the stream ends or, after `count` of them, falls silent; says whether it ended."""
    events: list[JsonObject] = []
    while True:
        patience = EVENTS_SECONDS if until_the_end or len(events) < count else SURPLUS_SECONDS
        with anyio.move_on_after(patience) as scope:
            try:
                event = await stream.__anext__()
            except StopAsyncIteration:
                return events, True
            events.append({"type": event.type, "object": event.object})
        if scope.cancelled_caught:
            return events, False
