"""What the recorder kept: conversations with a real API server, one JSON file per scenario.

A step is a request with its answer; a watch (noted after the requests that were made while it was open); a question
that the server asked the recorder's webhook; or a fact, which is no request but something counted or measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
from kubesim.server.api import Json, JsonObject

RECORDINGS = Path(__file__).parent / "recordings"
QUESTION = "webhook:"
WEBHOOK_NAMES = ("rec-guard", "rec-webhook")
CLUSTER_SCOPED = re.compile(r"/api(s/[^/]+)?/v\w+/(?P<plural>[a-z]+)(/(?P<name>[^/]+))?")
NEVER_STORED = ("selfsubjectaccessreviews",)
BEFORE_IT_ANSWERS = ("before it answers", "while the API server waits for its answer")
"""How the notes of those steps begin that the webhook took before it answered."""


class Sent(msgspec.Struct, frozen=True):
    """A request as it was sent."""

    method: str
    path: str
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: Json = None


class Answered(msgspec.Struct, frozen=True):
    """What came back: a body, or the events of a watch and how the stream stood in the end."""

    status: int
    headers: dict[str, str] = {}
    body: Json = None
    events: list[JsonObject] = []
    ended: str = ""


class Step(msgspec.Struct, frozen=True):
    """One step of a recording. `trimmed` names what was left out of the answer; `nondeterministic` says why two runs
    may differ; `polled`: it was repeated until the answer was this one."""

    note: str = ""
    trimmed: str = ""
    nondeterministic: str = ""
    polled: bool = False
    opened_before_step: int | None = None
    request: Sent | None = None
    response: Answered | None = None
    facts: JsonObject | None = None

    @property
    def is_watch(self) -> bool:
        """Whether the step is a watch."""
        return self.opened_before_step is not None

    @property
    def is_question(self) -> bool:
        """Whether the server asked, rather than the client."""
        return self.request is not None and self.request.path == QUESTION

    @property
    def is_webhook_s(self) -> bool:
        """Whether the webhook took this step, before it answered the question that follows."""
        return self.note.startswith(BEFORE_IT_ANSWERS)


class Tape(msgspec.Struct, frozen=True):
    """One recording."""

    scenario: str
    about: str
    server: str
    steps: list[Step]

    @property
    def made(self) -> tuple[str, ...]:
        """The paths of the cluster-scoped objects that the recorder made, but for its webhooks' registrations."""
        return tuple(dict.fromkeys(path for step in self.steps if step.request for path in _made_by(step.request)))


def _made_by(request: Sent) -> Iterator[str]:
    match = CLUSTER_SCOPED.fullmatch(request.path)
    if match is None or match["plural"] in NEVER_STORED or request.method not in ("POST", "PATCH", "PUT"):
        return
    name = match["name"]
    if request.method == "POST" and isinstance(request.body, dict):
        name = request.body.get("metadata", {}).get("name")
    if name and name not in WEBHOOK_NAMES:
        yield request.path if match["name"] else f"{request.path}/{name}"


@cache
def tape(name: str) -> Tape:
    """The recording of that name."""
    return msgspec.convert(json.loads((RECORDINGS / f"{name}.json").read_text()), Tape)


def all_names() -> list[str]:
    """The names of all recordings there are."""
    return sorted(path.stem for path in RECORDINGS.glob("*.json"))
