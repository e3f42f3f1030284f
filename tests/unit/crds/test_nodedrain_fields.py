"""The definition of NodeDrains that ships: defaults, refusals, and what cannot be changed."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Request

from gracectl.cli.crds import shipped_definitions

NODE_DRAINS = "/apis/gracectl.io/v1alpha1/nodedrains"
ONE = {"action": "Drain", "nodeName": "n1"}
POOL = {"action": "Terminate", "nodeSelector": {"matchLabels": {"pool": "a"}}}


async def call(server: ApiServer, spec: dict[str, Any], patch: dict[str, Any] | None = None) -> tuple[int, Any]:
    body = {"apiVersion": "gracectl.io/v1alpha1", "kind": "NodeDrain", "metadata": {"name": "a"}, "spec": spec}
    made = await server.handle(Request(method="POST", path=NODE_DRAINS, body=body))
    if patch is not None:
        headers = {"content-type": "application/merge-patch+json"}
        request = Request(method="PATCH", path=f"{NODE_DRAINS}/a", body={"spec": patch}, headers=headers)
        made = await server.handle(request)
    assert isinstance(made.body, dict)
    return made.status, made.body.get("spec") or made.body["message"]


@pytest.fixture
def server() -> ApiServer:
    made = ApiServer(LoopClock())
    made.predefine(*shipped_definitions())
    return made


async def test_defaults_are_written(server: ApiServer) -> None:
    defaults = {
        "maxConcurrent": 1,
        "waitForReplacement": True,
        "order": "ByForecast",
        "onUndrainable": "Wait",
        "onTimeout": "KeepCordoned",
    }
    assert await call(server, ONE) == (201, ONE | defaults)


@pytest.mark.parametrize(("spec", "words"), [
    ({"action": "Drain"}, "give exactly one of nodeName, nodeNames and nodeSelector"),
    ({**ONE, "nodeNames": ["n2"]}, "give exactly one of nodeName, nodeNames and nodeSelector"),
    ({"nodeName": "n1"}, "spec.action: Required value"),
    ({**ONE, "action": "Explode"}, "spec.action: Unsupported value"),
    ({"action": "Drain", "nodeSelector": {}}, "an empty selector would select every node"),
    ({"action": "Drain", "nodeNames": []}, "spec.nodeNames"),
    ({**ONE, "maxConcurrent": 0}, "spec.maxConcurrent"),
    ({**ONE, "maxConcurrent": "0%"}, "spec.maxConcurrent"),
    ({**ONE, "maxConcurrent": "101%"}, "spec.maxConcurrent"),
    ({**ONE, "timeout": "0s"}, "must be longer than 0s; leave it out for no timeout"),
    ({**ONE, "timeout": "10"}, "spec.timeout"),
    ({**ONE, "ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
])  # fmt: skip
async def test_what_cannot_be_meant_is_refused_with_the_field(
    server: ApiServer, spec: dict[str, Any], words: str
) -> None:
    status, message = await call(server, spec)
    assert status == 422
    assert words in message


@pytest.mark.parametrize("patch", [
    {"paused": True}, {"maxConcurrent": "10%"}, {"reason": "image"}, {"ttlSecondsAfterFinished": 60},
    {"windows": [{"schedule": "0 22 * * *", "duration": "6h", "timeZone": "Europe/Berlin"}]},
])  # fmt: skip
async def test_what_can_be_changed(server: ApiServer, patch: dict[str, Any]) -> None:
    status, spec = await call(server, POOL, patch)
    assert (status, {field: spec[field] for field in patch}) == (200, patch)


@pytest.mark.parametrize(("patch", "words"), [
    ({"nodeSelector": None, "nodeName": "n1"}, "the nodes cannot be changed; create another NodeDrain"),
    ({"nodeSelector": {"matchLabels": {"pool": "b"}}}, "the nodes cannot be changed; create another NodeDrain"),
    ({"action": "Drain"}, "the action cannot be changed; delete the NodeDrain and create another one"),
    ({"timeout": "5m"}, "timeout and onTimeout cannot be changed"),
    ({"waitForReplacement": False}, "cannot be changed"),
    ({"order": "ByName"}, "cannot be changed"),
    ({"onUndrainable": "Skip"}, "cannot be changed"),
    ({"onTimeout": "Uncordon"}, "cannot be changed"),
])  # fmt: skip
async def test_what_cannot_be_changed(server: ApiServer, patch: dict[str, Any], words: str) -> None:
    status, message = await call(server, POOL, patch)
    assert status == 422
    assert words in message
