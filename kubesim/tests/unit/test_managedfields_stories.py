"""Server-side apply as kube-apiserver answers it: the stories of stories/apply.json, step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Request, Response

pytestmark = pytest.mark.anyio

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parent / "stories" / "apply.json").read_text())
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

OLDER_WORDS = "a version that does not fit is refused in the words of the recording writes-apply, which is older"
OTHER_YAML = "another YAML parser, other words"
OWN_CLIENT = "the scheduler, which is not here, wrote the first condition and owns the list"
KNOWN: dict[tuple[str, str], str] = {
    ("refused", "no kind, no version"): OLDER_WORDS,
    ("refused", "no version"): OLDER_WORDS,
    ("refused", "another version"): OLDER_WORDS,
    ("refused", "another kind and version"): OLDER_WORDS,
    ("refused", "nothing"): OLDER_WORDS,
    ("refused", "no yaml"): OTHER_YAML,
    ("refused", "an unprintable name"): "Go quotes control characters in its own way",
    ("refused", "a uid, missing object"): "a uid is not looked at when an object is created",
    ("pod", "beside"): OWN_CLIENT,
}
"""Steps whose answer differs in its words only, and why; the status must be right all the same."""


def part(value: Any, path: str) -> Any:
    """What stands in an object at a dotted path, without the times of conditions; None if nothing does."""
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return timeless(value)


def timeless(value: Any) -> Any:
    """A value without the times of its conditions."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in ("lastHeartbeatTime", "lastTransitionTime")}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def owners(body: Any) -> list[dict[str, Any]]:
    """managedFields as the stories show them."""
    return [
        {
            **{key: entry[key] for key in ("manager", "operation", "subresource") if entry.get(key)},
            "timed": "time" in entry,
            "fields": json.dumps(entry["fieldsV1"]),
        }
        for entry in body["metadata"].get("managedFields", [])
    ]


class Story:
    """One story on its way. An object's managedFields begin when something is applied to it or a client writes some."""

    def __init__(self) -> None:
        self.tracked = False
        self.version = ""

    def differences(self, step: dict[str, Any], response: Response) -> Iterator[str]:
        """How an answer differs from the story's."""
        if response.status != step["status"]:
            yield f"status {response.status}, not {step['status']}: {response.body}"
            return
        if "message" in step:
            yield from self._refusal(step, response.body)
            return
        for path, shown in step["shown"].items():
            if part(response.body, path) != shown:
                yield f"{path}: {part(response.body, path)}, not {shown}"
        yield from self._ownership(step, response.body)

    @staticmethod
    def _refusal(step: dict[str, Any], body: Any) -> Iterator[str]:
        if body["message"] != step["message"]:
            yield f"{body['message']!r}, not {step['message']!r}"
        # The real server tells of the managers in no order.
        actual, expected = (
            sorted(causes, key=str) for causes in (part(body, "details.causes") or [], step.get("causes", []))
        )
        if actual != expected:
            yield f"causes {actual}, not {expected}"

    def _ownership(self, step: dict[str, Any], body: Any) -> Iterator[str]:
        request = step["request"]
        text = json.dumps(request.get("body"))
        applied = "apply-patch" in request.get("headers", {}).get("content-type", "")
        self.tracked = self.tracked or applied or '"managedFields"' in text
        expected = [{**entry, "fields": json.dumps(entry["fields"])} for entry in step["owners"]]
        if owners(body) != (expected if self.tracked else []):
            yield f"owners {owners(body)}, not {expected}"
        version = body["metadata"].get("resourceVersion", self.version)
        if "changed" in step and (version != self.version) != step["changed"]:
            yield f"version {version} after {self.version}"
        self.version = version


async def told(server: ApiServer, step: dict[str, Any]) -> Response:
    """Send a step's request."""
    request = step["request"]
    body = request.get("body")
    return await server.handle(
        Request(
            method=request["method"],
            path=request["path"],
            query=request.get("query", {}),
            headers=request.get("headers", {}),
            body=body.encode() if isinstance(body, str) else json.dumps(body).encode() if body is not None else b"",
        )
    )


@pytest.mark.parametrize("name", DOCUMENT["stories"])
async def test_is_answered_as_a_real_server_answers(name: str) -> None:
    clock = LoopClock()
    server = ApiServer(clock)
    if name.startswith("custom"):
        await server.handle(Request(method="POST", path=DEFINITIONS, body=DOCUMENT["definition"]))
        await clock.sleep(5)
    story, failures = Story(), list[str]()
    for index, step in enumerate(DOCUMENT["stories"][name]):
        differences = list(story.differences(step, await told(server, step)))
        if (name, step.get("note", "")) in KNOWN:
            assert not any(difference.startswith("status") for difference in differences)
            continue
        failures += [f"step {index} ({step.get('note', '')}): {difference}" for difference in differences]
    assert failures == []
