"""Bodies as a real server reads them: what is unknown, wrong or said twice; and objects as it writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Response
from kubesim_support.caller import LEASES, MERGE, NODES, PODS, STRATEGIC, Caller

pytestmark = pytest.mark.anyio

ANSWERS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "answers" / "bodies.json").read_text())["answers"]


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


def warnings_of(response: Response) -> str:
    return response.headers.get("warning", "").replace('\\"', '"')


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
async def test_answers_as_a_real_server(caller: Caller, answer: dict[str, Any]) -> None:
    path, _, query = answer["path"].partition("?")
    headers = {"content-type": "application/json"}
    response = await caller.call("POST", path, answer["body"].encode(), headers=headers, **dict(parse_qsl(query)))
    expected = [each for each in answer.get("warnings", ()) if not each.startswith("duplicate")]
    assert response.status == answer["status"]
    assert response.body.get("message") == answer.get("message")
    assert [each for each in expected if f'299 - "{each}"' not in warnings_of(response)] == []
    assert warnings_of(response).count("299 - ") == len(expected)


class TestInstantsOfTheYear10000:
    """Seen on Kubernetes 1.37: stored, written with all digits, and not read again."""

    STORED = "10000-01-01T23:58:59Z"

    async def poisoned(self, caller: Caller) -> None:
        await caller.create(NODES, {"metadata": {"name": "n", "finalizers": ["a/b"]}})
        entry = {"type": "Ready", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59-23:59"}
        await caller.patch(f"{NODES}/n/status", {"status": {"conditions": [entry]}})
        shown = await caller.get(f"{NODES}/n")
        assert shown["status"]["conditions"][0]["lastTransitionTime"] == self.STORED

    @pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
    async def test_no_patch_is_taken_that_leaves_one_there(self, caller: Caller, kind: str) -> None:
        await self.poisoned(caller)
        patch = {"metadata": {"labels": {"a": "b"}}}
        refused = await caller.call("PATCH", f"{NODES}/n", patch, headers={"content-type": kind})
        assert refused.status == 422
        assert refused.body["message"].endswith('cannot parse "0-01-01T23:58:59Z" as "-"')


class TestCanonical:
    async def test_a_lease_keeps_its_microseconds(self, caller: Caller) -> None:
        spec = {"renewTime": "2026-01-01T01:00:00.000001+01:00", "leaseDurationSeconds": 15}
        made = await caller.create(LEASES, {"metadata": {"name": "l"}, "spec": spec})
        assert made["spec"] == {"leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000001Z"}

    @pytest.mark.parametrize(("kind", "directive"), [(MERGE, {}), (STRATEGIC, {}), (STRATEGIC, {"$patch": "replace"})])
    async def test_so_is_what_a_patch_brought(self, caller: Caller, kind: str, directive: dict[str, str]) -> None:
        await caller.create(PODS, pod())
        condition = {"type": "Ready", "status": "True"}
        patch = {"status": {"phase": "Running", "conditions": [condition], **directive}}
        await caller.patch(f"{PODS}/p/status", patch, kind)
        condition["status"] = "Unknown"
        assert (await caller.get(f"{PODS}/p"))["status"]["conditions"][0]["status"] == "True"
