"""The webhook of notices: who is trusted, what a body may be, and what is answered."""

from __future__ import annotations

import base64
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest
import yaml
from support.handlers import StandInHandler, T

from gracectl.cloud.webhook import signed_headers
from gracectl.interruption.http import ALERT_PATH, MOST_ALERTS, NOTICE_PATH, HttpSource
from gracectl.interruption.source import Notice, Outcome
from gracectl.kube.errors import ServerError
from gracectl.kube.transport.operation import Operation
from gracectl.policy.interruption import Kind
from gracectl.runtime.certificates import issue
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.supervise import while_running

pytestmark = pytest.mark.real_time

SECRET = b"s" * 24
OTHER = b"o" * 24
TOKEN = "0123456789abcdef0123456789abcdef"
NOTICE = {"node": "n1", "kind": "maintenance", "at": "2026-01-01T06:00:00Z", "text": "fan 3 of n1 has failed"}


class Place:
    def __init__(self, handler: StandInHandler, source: HttpSource, session: aiohttp.ClientSession) -> None:
        self.handler = handler
        self._urls = source.urls
        self._session = session

    async def post(self, body: Any, path: str = NOTICE_PATH, **headers: str) -> tuple[int, str]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.post(self._urls[path], data=raw, headers=headers, ssl=False) as response:
            return response.status, await response.text()

    async def signed(self, body: Any, path: str = NOTICE_PATH, secret: bytes = SECRET, at: float = T) -> Any:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, text = await self.post(raw, path, **signed_headers([secret], "msg-1", int(at), raw))
        return status, json.loads(text) if status == 200 else text


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[Place]:
    (folder / "secrets").write_text(f"whsec_{base64.b64encode(SECRET).decode()}\n")
    (folder / "token").write_text(f"{TOKEN}\n")
    given = {"listen": "127.0.0.1:0", "secretFile": str(folder / "secrets"), **options}
    source = HttpSource(msgspec.convert(given, HttpSource.Options))
    handler = StandInHandler()
    await source.open(handler)
    async with aiohttp.ClientSession() as session, while_running(source.serve):
        yield Place(handler, source, session)


async def test_a_signed_notice_is_received(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        answer = await place.signed(NOTICE)
        assert answer == (200, {"notices": [{"outcome": "recorded", "nodes": ["n1"]}]})
        assert place.handler.notices == [
            Notice(kind=Kind.MAINTENANCE, node="n1", at=T + 21600, text="fan 3 of n1 has failed")
        ]
        place.handler.outcomes["n1"] = Outcome.UNKNOWN
        assert await place.signed(NOTICE) == (200, {"notices": [{"outcome": "unknown", "nodes": []}]})
        machine = {"providerID": "redfish://rack-7/4", "kind": "other", "issued": "2026-01-01T00:00:00Z"}
        assert (await place.signed(machine))[0] == 200
        assert place.handler.notices[-1] == Notice(kind=Kind.OTHER, provider_id="redfish://rack-7/4", issued=T)


async def test_nothing_else_is_trusted(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        raw = json.dumps(NOTICE).encode()
        good = signed_headers([SECRET], "msg-1", int(T), raw)
        for refused in (
            place.post(raw),
            place.signed(NOTICE, secret=OTHER),
            place.signed(NOTICE, at=T - 301),
            place.signed(NOTICE, at=T + 301),
            place.post(raw, **{**good, "webhook-id": "msg-2"}),
            place.post(raw, **{**good, "webhook-id": "é"}),
            place.post(raw, **{**good, "webhook-timestamp": "soon"}),
            place.post(raw, **{**good, "webhook-signature": "v1,é"}),
            place.post(raw + b" ", **good),
            place.post(raw, authorization=f"Bearer {TOKEN}"),
        ):
            status, text = await refused
            assert (status, text) == (401, "no valid signature or token; check secret and clocks\n")
        assert place.handler.notices == []
        assert place.handler.counted == [Outcome.REFUSED] * 10


async def test_of_several_signatures_and_secrets_one_is_enough(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        text = "\n".join(base64.b64encode(each).decode() for each in (OTHER, SECRET))
        (tmp_path / "secrets").write_text(text)
        assert (await place.signed(NOTICE, secret=OTHER))[0] == 200
        raw = json.dumps(NOTICE).encode()
        assert (await place.post(raw, **signed_headers([b"x" * 24, SECRET], "a", int(T), raw)))[0] == 200


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"not JSON", "JSON is malformed"),
        ([], "Expected `object`"),
        ({"kind": "spot"}, "name the machine by node or by providerID"),
        ({**NOTICE, "providerID": "x"}, "name the machine by node or by providerID"),
        ({**NOTICE, "kind": "nonsense"}, "Invalid enum value"),
        ({**NOTICE, "node": "\x1b[2J"}, "node: is not a DNS-1123 subdomain"),
        ({**NOTICE, "at": "soon"}, "at: 'soon' is no RFC 3339 time"),
        ({**NOTICE, "deadline": "5m"}, "unknown field `deadline`"),
        ({"kind": "spot", "providerID": "x" * 2000}, "providerID: longer than 1000 characters"),
    ],
)
async def test_invalid_bodies_are_refused_with_their_reason(tmp_path: Path, body: Any, reason: str) -> None:
    async with serving(tmp_path) as place:
        status, text = await place.signed(body)
        assert status == 400
        assert reason in text
        assert place.handler.counted == [Outcome.REFUSED]


async def test_large_bodies_and_other_paths_and_methods_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        assert (await place.signed(b"x" * 300_000))[0] == 413


async def test_what_could_not_be_recorded_is_to_be_repeated(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        place.handler.outcomes["n1"] = ServerError(Operation("patch", "", "nodes", "", "", "n1"))
        status, text = await place.signed(NOTICE)
        assert status == 503
        assert text.startswith("API server: ")


def alerts(*found: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "status": "firing", "receiver": "gracectl", "alerts": list(found)}


def an_alert(node: str, status: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": "DiskWearsOut", "node": node, **labels},
        "annotations": {"summary": "5 % left"},
        "startsAt": "2026-01-01T00:00:00Z",
        "fingerprint": "c",
    }


async def test_firing_alerts_with_a_node_are_notices(tmp_path: Path) -> None:
    async with serving(tmp_path) as place:
        body = alerts(
            an_alert("n1"), an_alert("n2", "resolved"), an_alert("n3", gracectl_kind="other"), an_alert("not a node")
        )
        status, answer = await place.signed(body, ALERT_PATH)
        assert (status, len(answer["notices"])) == (200, 2)
        text = "alert DiskWearsOut: 5 % left"
        assert place.handler.notices == [
            Notice(kind=Kind.MAINTENANCE, node="n1", issued=T, text=text),
            Notice(kind=Kind.OTHER, node="n3", issued=T, text=text),
        ]
        assert await place.signed(alerts(an_alert("n2", "resolved")), ALERT_PATH) == (200, {"notices": []})
        assert place.handler.counted == [Outcome.IGNORED]
        assert (await place.signed(alerts(an_alert("n1", gracectl_kind="x")), ALERT_PATH))[0] == 400
        assert (await place.signed(alerts(*[an_alert("n1")] * 101), ALERT_PATH))[0] == 400


async def test_a_token_is_enough_over_tls(tmp_path: Path) -> None:
    issued = issue(["localhost"], T, 1e9)
    (tmp_path / "cert").write_bytes(issued.pair.certificate)
    (tmp_path / "key").write_bytes(issued.pair.key)
    files = {"certFile": str(tmp_path / "cert"), "keyFile": str(tmp_path / "key")}
    async with serving(tmp_path, tokenFile=str(tmp_path / "token"), secretFile="", **files) as place:
        assert place._urls[NOTICE_PATH].startswith("https://")
        assert (await place.post(NOTICE, authorization=f"Bearer {TOKEN}"))[0] == 200
        assert (await place.post(NOTICE, authorization=f"Bearer {TOKEN}0"))[0] == 401
        assert (await place.post(NOTICE, authorization="Bearer é"))[0] == 401
        assert (await place.post(alerts(an_alert("n1")), ALERT_PATH, authorization=f"Bearer {TOKEN}"))[0] == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "listen"),
        ({"listen": ":8090"}, "secretFile: is missing"),
        ({"listen": "nowhere", "secretFile": "/s"}, "listen: 'nowhere' is not an address"),
        ({"listen": ":8090", "secretFile": "/s", "certFile": "/c"}, "certFile and keyFile: set both"),
        ({"listen": ":8090", "tokenFile": "/t"}, "tokenFile: needs TLS"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(options, HttpSource.Options)


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("secretFile", "nonsense", "secretFile: .*line 1"),
        ("tokenFile", "short", "tokenFile: .*at least 16 characters"),
        ("tokenFile", None, "tokenFile: .*No such file"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, option: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "file").write_text(content)
    options = {"listen": "127.0.0.1:0", option: str(tmp_path / "file")}
    with pytest.raises(ValueError, match=message):
        HttpSource(msgspec.convert(options, HttpSource.Options))


def test_a_context_of_tls_is_made_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "cert").write_text("nothing")
    options = {
        "listen": ":0",
        "tokenFile": str(tmp_path / "token"),
        "certFile": str(tmp_path / "cert"),
        "keyFile": "/k",
    }
    with pytest.raises((ValueError, ssl.SSLError)):
        HttpSource(msgspec.convert(options, HttpSource.Options))


@pytest.mark.skipif(not (which("curl") and which("openssl")), reason="needs curl and openssl")
async def test_the_script_of_the_examples_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'fan "3" \\ of\nrack'
    async with serving(tmp_path) as place:
        now = SystemClock().now()
        monkeypatch.setattr(place.handler, "now", lambda: now)
        script = Path(__file__).parents[3] / "examples/interruptions/notify.sh"
        environment = {
            "PATH": os.environ["PATH"],
            "GRACECTL_URL": place._urls[NOTICE_PATH].removesuffix(NOTICE_PATH),
            "GRACECTL_SECRET_FILE": str(tmp_path / "secrets"),
        }
        command = [str(script), "n1", "other", "2026-01-01T00:05:00Z", text]
        ran = await anyio.run_process(command, env=environment, check=False)
        assert json.loads(ran.stdout) == {"notices": [{"outcome": "recorded", "nodes": ["n1"]}]}
        assert place.handler.notices == [Notice(kind=Kind.OTHER, node="n1", at=T + 300, text='fan "3" \\ ofrack')]


def test_the_example_of_alertmanager_names_a_path_that_is_served() -> None:
    example = yaml.safe_load((Path(__file__).parents[3] / "examples/interruptions/alertmanager.yaml").read_text())
    [hook] = example["receivers"][1]["webhook_configs"]
    assert hook["url"].endswith(ALERT_PATH)
    assert hook["max_alerts"] == MOST_ALERTS
