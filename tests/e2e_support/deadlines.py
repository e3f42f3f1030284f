"""What the stories about deadlines read from the cluster's objects: instants of the server, in its whole seconds."""

from __future__ import annotations

from kubesim.server.api import JsonObject

from e2e_support.sight import Seen
from e2e_support.story import Story
from gracectl.model import names
from gracectl.model.times import parse_time

EARLY = 1.0
"""Nothing may be early; but the server's clock is not the controller's, and it has whole seconds only."""

LATE = 4.0
"""Much less than any retry, and generous to a slow machine."""


def deadline_of(story: Story, kind: str, name: str) -> float | None:
    """The instant that the annotation names, on a node or claim that is (still) there."""
    found = story.sight.get(kind, name) or {"metadata": {}}
    text = (found["metadata"].get("annotations") or {}).get(names.TERMINATION_TIMESTAMP)
    return parse_time(text) if text else None


async def until_deadline(story: Story, kind: str, name: str) -> float:
    """Wait until the deadline is written; returns it."""
    await story.sight.until(f"{kind} {name} has a deadline", lambda: deadline_of(story, kind, name))
    at = deadline_of(story, kind, name)
    assert at is not None
    return at


def told_to_end(story: Story, pod: JsonObject) -> tuple[float, int]:
    """When a pod was deleted, and with how many seconds of grace."""
    seen = story.sight.asked(pod)
    assert seen is not None, f"{pod['metadata']['name']} was never told to end"
    metadata = seen.object["metadata"]
    grace: int = metadata["deletionGracePeriodSeconds"]
    return parse_time(metadata["deletionTimestamp"]) - grace, grace


def assert_deleted_in_time(story: Story, pod: JsonObject, deadline: float, grace: int) -> None:
    """It got all its grace of so many seconds before the deadline, or what was left where the machine was slow."""
    at, given = told_to_end(story, pod)
    assert deadline - grace - EARLY <= at <= deadline - grace + story.at_most(LATE)
    assert max(1, min(grace, deadline - at)) <= given <= grace


def finished_by_itself(story: Story, pod: JsonObject) -> bool:
    """Whether a pod's containers stopped before they were killed."""
    over = story.sight.over(pod)
    return over is not None and over.object["status"]["phase"] == "Succeeded"


def gone(story: Story, kind: str, object_: JsonObject) -> Seen:
    """When an object was removed; it must be gone."""
    seen = story.sight.gone(kind, object_)
    assert seen is not None, f"{object_['metadata']['name']} is still there"
    return seen
