"""Instances terminated by an external HTTP endpoint: the requests, their signature, and the meaning of its answers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import ClientSession, web
from support.instances import SECRET, Call, Endpoint, says, serving

from gracectl.cli.config import provider_of
from gracectl.cloud.http import LONGEST_RESPONSE, HttpClient
from gracectl.cloud.provider import (
    TRACEPARENT,
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderRefused,
    ProviderSettings,
    ProviderUnavailable,
    load_provider,
)
from gracectl.cloud.webhook import WebhookProvider, read_secrets, signed_headers
from gracectl.config import ConfigError, Settings
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time

ID = "aws:///eu-1a/i-1"
CERTIFICATES = Path(__file__).parent.parent / "kube" / "certificates"
NEW_SECRET = "whsec_" + "A" * 43 + "="


class Patient(SystemClock):
    """A clock whose waits return at once; the seconds are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await anyio.lowlevel.checkpoint()


class Site:
    """An endpoint, and the provider under test."""

    def __init__(self, endpoint: Endpoint, folder: Path) -> None:
        self.endpoint = endpoint
        self.clock = Patient()
        self.secret_file = folder / "secret"
        self.secret_file.write_text(f"whsec_{SECRET}\n")
        self.provider = self.made()

    def made(self, **options: Any) -> WebhookProvider:
        whole = {"url": self.endpoint.url, "secretFile": str(self.secret_file), **options}
        return WebhookProvider(msgspec.convert(whole, WebhookProvider.Options), clock=self.clock)

    def answers(self, *answers: web.Response) -> None:
        self.endpoint.answers.extend(answers)


@pytest.fixture
async def site(tmp_path: Path, anyio_backend: object) -> AsyncIterator[Site]:
    async with serving() as endpoint:
        made = Site(endpoint, tmp_path)
        yield made
        await made.provider.aclose()


# -- the question ------------------------------------------------------------------------------------------------------


async def test_a_question_says_what_is_wanted_of_which_instance(site: Site) -> None:
    before = site.clock.now()
    assert await site.provider.state(ID) is InstanceState.RUNNING
    (call,) = site.endpoint.calls
    assert call.path == "/machines"
    assert call.body.keys() == {"apiVersion", "action", "providerID", "requestID"}
    assert (call.body["apiVersion"], call.body["action"], call.body["providerID"]) == ("gracectl.io/v1", "state", ID)
    assert call.headers["content-type"] == "application/json"
    assert call.headers["webhook-id"] == call.headers["idempotency-key"] == call.body["requestID"]
    assert int(before) <= int(call.headers["webhook-timestamp"]) <= site.clock.now()


async def test_the_request_carries_the_trace_of_the_termination(site: Site) -> None:
    await site.provider.state(ID)
    assert "traceparent" not in site.endpoint.calls[-1].headers
    token = TRACEPARENT.set(f"00-{'a' * 32}-{'b' * 16}-01")
    await site.provider.state(ID)
    TRACEPARENT.reset(token)
    assert site.endpoint.calls[-1].headers["traceparent"] == f"00-{'a' * 32}-{'b' * 16}-01"


async def test_the_end_of_an_instance_has_the_same_id_for_every_repeat_by_every_process(site: Site) -> None:
    site.answers(says(503), says(202), says(202), says(202))
    await site.provider.terminate(ID)
    await site.provider.terminate(ID)
    another = site.made()
    await another.terminate(ID)
    await another.aclose()
    ids = [call.headers["idempotency-key"] for call in site.endpoint.calls]
    assert len(ids) == 4
    assert len(set(ids)) == 1
    site.answers(says(202))
    await site.provider.terminate("aws:///eu-1a/i-2")
    assert site.endpoint.calls[-1].headers["webhook-id"] != ids[0]


async def test_the_end_of_an_instance_says_of_which_node_it_is(site: Site) -> None:
    site.answers(says(202))
    await site.provider.terminate(ID, NodeIdentity("n1", ("10.0.0.7",), "c1", ("n2",)))
    assert site.endpoint.calls[-1].body["node"] == {
        "name": "n1", "addresses": ["10.0.0.7"], "claim": "c1", "conflicts": ["n2"],
    }  # fmt: skip
    await site.provider.terminate(ID)  # that of a claim without a node
    assert "node" not in site.endpoint.calls[-1].body


async def test_looking_twice_is_two_questions(site: Site) -> None:
    await site.provider.state(ID)
    await site.provider.state(ID)
    first, second = (call.headers["webhook-id"] for call in site.endpoint.calls)
    assert first != second


def test_the_signature_is_that_of_the_standards_own_example() -> None:
    secrets = read_secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signed_headers(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


async def test_while_a_secret_is_replaced_calls_are_signed_with_both(site: Site) -> None:
    await site.provider.state(ID)
    site.secret_file.write_text(f"{NEW_SECRET}\n\nwhsec_{SECRET}\n")
    await site.provider.state(ID)  # the endpoint knows the old one
    site.endpoint.secret = NEW_SECRET.removeprefix("whsec_")
    await site.provider.state(ID)  # and now the new one
    site.secret_file.write_text(NEW_SECRET)
    await site.provider.state(ID)
    signatures = [len(call.headers["webhook-signature"].split()) for call in site.endpoint.calls]
    assert signatures == [1, 2, 2, 1]


async def test_an_unusable_secret_is_reported_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.secret_file.write_text("too short")
    await site.provider.state(ID)
    site.secret_file.unlink()
    await site.provider.state(ID)
    await site.provider.state(ID)
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2
    assert "line 1 is not base64" in messages[0]
    assert "too short" not in messages[0]
    assert "No such file" in messages[1]


# -- the answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", list(InstanceState))
async def test_the_four_states(site: Site, word: InstanceState) -> None:
    site.answers(says(200, {"state": word.value, "more": "is ignored"}))
    assert await site.provider.state(ID) is word


@pytest.mark.parametrize("answer", [(202, None), (202, {"state": "ending"}), (200, {"state": "ending"})])
async def test_an_end_that_is_accepted(site: Site, answer: tuple[int, Any]) -> None:
    site.answers(says(*answer))
    await site.provider.terminate(ID)


@pytest.mark.parametrize("status", [200, 202, 404, 410])
async def test_gone_is_what_says_so(site: Site, status: int) -> None:
    site.answers(says(status, {"state": "gone"}), says(status, {"state": "gone"}))
    assert await site.provider.state(ID) is InstanceState.GONE
    with pytest.raises(InstanceGone, match=ID):
        await site.provider.terminate(ID)


@pytest.mark.parametrize("status", [404, 410])
@pytest.mark.parametrize(
    "body", [None, "404 page not found", {"message": "no such route"}, {"state": "running"}, "gone"]
)
async def test_a_status_alone_never_says_that_an_instance_is_gone(site: Site, status: int, body: Any) -> None:
    """An ingress without a backend, a wrong path: every node of the cluster would be released."""
    site.answers(says(status, body), says(status, body))
    for call in (site.provider.state, site.provider.terminate):
        with pytest.raises(ProviderRefused, match=rf"status {status} without .*: .*check provider.options.url"):
            await call(ID)


@pytest.mark.parametrize("body", ["<html>welcome</html>", "", "[]", {"state": "stopped"}, {"no": "state"}])
async def test_a_200_without_a_state_is_no_answer(site: Site, body: Any) -> None:
    site.answers(says(200, body), says(200, body))
    for call in (site.provider.state, site.provider.terminate):
        with pytest.raises(ProviderUnavailable, match="status 200: its body"):
            await call(ID)
    assert len(site.endpoint.calls) == 2


async def test_a_state_cannot_be_answered_by_accepting_it(site: Site) -> None:
    site.answers(says(202))
    with pytest.raises(ProviderUnavailable, match="status 202 for a state"):
        await site.provider.state(ID)


@pytest.mark.parametrize("status", [400, 403, 409, 422])
async def test_a_refusal_is_told_with_its_remedy_and_not_repeated(site: Site, status: int) -> None:
    site.answers(says(status, {"message": "held by the auditors", "remedy": "ask Eve"}))
    with pytest.raises(ProviderRefused) as caught:
        await site.provider.terminate(ID)
    assert str(caught.value).endswith(f"status {status}: held by the auditors; ask Eve")
    assert caught.value.remedy == "ask Eve"
    assert len(site.endpoint.calls) == 1


async def test_a_wrong_secret_is_for_people(site: Site) -> None:
    site.endpoint.secret = NEW_SECRET.removeprefix("whsec_")
    with pytest.raises(ProviderRefused, match="the signature does not fit; check that both sides have the same secret"):
        await site.provider.state(ID)


async def test_what_others_say_is_shown_on_one_line_and_without_secrets(site: Site) -> None:
    site.answers(says(403, "no\n\x1b[31mway\nAuthorization: Bearer abcdefghijklmnopqrstuvwxyz " + "x" * 5000))
    with pytest.raises(ProviderRefused) as caught:
        await site.provider.state(ID)
    text = str(caught.value)
    assert "\n" not in text
    assert "\x1b" not in text
    assert "abcdefghijkl" not in text
    assert len(text) < 700


async def test_redirects_are_not_followed(site: Site) -> None:
    site.answers(says(307, None, location="https://elsewhere.example.com/"))
    with pytest.raises(ProviderRefused, match=r"redirect to https://elsewhere\.example\.com/; set the final address"):
        await site.provider.terminate(ID)
    assert len(site.endpoint.calls) == 1


async def test_what_stands_behind_the_question_mark_is_sent_and_never_told(site: Site) -> None:
    site.answers(says(404), says(500))
    asking = site.made(url=site.endpoint.url + "?token=hush", attempts=1)
    with pytest.raises(ProviderRefused, match="/machines: status 404") as refused:
        await asking.terminate(ID)
    with pytest.raises(ProviderUnavailable, match="/machines: status 500") as failed:
        await asking.state(ID)
    await asking.aclose()
    assert "hush" not in f"{refused.value} {failed.value}"
    assert site.endpoint.calls[0].path == "/machines?token=hush"


# -- what passes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_what_may_pass_is_tried_again_at_once(site: Site, status: int) -> None:
    site.answers(says(status), says(status), says(200, {"state": "ending"}))
    assert await site.provider.state(ID) is InstanceState.ENDING
    assert len(site.clock.slept) == 2
    assert all(0 < seconds <= 1 for seconds in site.clock.slept)


async def test_what_does_not_pass_is_unavailable_after_a_few_tries(site: Site) -> None:
    site.answers(*(says(503, {"message": "the database is away"}) for _ in range(9)))
    with pytest.raises(ProviderUnavailable, match="status 503: the database is away"):
        await site.provider.terminate(ID)
    assert len(site.endpoint.calls) == 3
    stubborn = site.made(attempts=5)
    with pytest.raises(ProviderUnavailable):
        await stubborn.terminate(ID)
    await stubborn.aclose()
    assert len(site.endpoint.calls) == 3 + 5


async def test_a_retry_after_is_respected(site: Site) -> None:
    site.answers(says(429, None, retry_after="7"), says(202))
    await site.provider.terminate(ID)
    assert site.clock.slept == [7.0]
    before = site.clock.now()
    later = format_datetime(datetime.fromtimestamp(before + 6, UTC), usegmt=True)
    site.answers(says(503, None, retry_after=later), says(202))
    await site.provider.terminate(ID)
    passed = site.clock.now() - before
    assert 5 - passed <= site.clock.slept[-1] <= 6  # a date names whole seconds


async def test_a_long_retry_after_is_left_to_the_controller(site: Site) -> None:
    site.answers(says(503, None, retry_after="3600"))
    with pytest.raises(ProviderUnavailable):
        await site.provider.terminate(ID)
    assert (len(site.endpoint.calls), site.clock.slept) == (1, [])


async def test_an_endpoint_that_takes_too_long_is_unavailable(site: Site) -> None:
    async def asleep(call: Call) -> web.StreamResponse:
        await anyio.sleep(5)
        return says(200)

    site.endpoint.otherwise = asleep
    hasty = site.made(timeoutSeconds=0.5)
    with pytest.raises(ProviderUnavailable, match=r"no response within 0\.5 s"):
        await hasty.state(ID)
    await hasty.aclose()
    assert len(site.endpoint.calls) == 3


async def test_an_endpoint_that_is_not_there_is_unavailable(site: Site) -> None:
    unreachable = site.made(url="http://127.0.0.1:1/")
    with pytest.raises(ProviderUnavailable, match=r"no connection to 127\.0\.0\.1:1: Connection refused"):
        await unreachable.terminate(ID)
    await unreachable.aclose()


async def test_an_answer_without_an_end_is_cut(site: Site) -> None:
    site.answers(*(says(200, "x" * (LONGEST_RESPONSE + 1)) for _ in range(3)))
    with pytest.raises(ProviderUnavailable, match="response exceeds 64 KiB"):
        await site.provider.state(ID)


# -- TLS and options ---------------------------------------------------------------------------------------------------


async def test_https_is_checked_against_the_authority_of_the_option(tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    # What the server has to say of clients that hang up on it is not our concern.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with serving(tls) as endpoint:
        site = Site(endpoint, tmp_path)
        ca_file = tmp_path / "ca.pem"
        ca_file.write_bytes((CERTIFICATES / "other-ca.pem").read_bytes())
        strict = site.made(caFile=str(ca_file), attempts=1)
        for provider in (site.provider, strict):
            with pytest.raises(ProviderUnavailable, match="certificate"):
                await provider.state(ID)
        ca_file.write_bytes((CERTIFICATES / "ca.pem").read_bytes())
        assert await strict.state(ID) is InstanceState.RUNNING
        await strict.aclose()
        await site.provider.aclose()


@pytest.mark.parametrize(("options", "message"), [
    ({}, "missing required field `url`"),
    ({"url": "http://machines.example.com"}, "can be read and changed.*insecure: true"),
    ({"url": "machines.example.com"}, "is not a URL such as https://"),
    ({"url": "https://eve:pass@x"}, "must not have credentials"),
    ({"url": "https://x/#there"}, "HTTP does not send"),
    ({"url": "https://x:99999"}, "Port out of range"),
    ({"url": "http://[::1]/", "caFile": "/x"}, "caFile: applies to https"),
    ({"url": "https://x", "timeoutSeconds": 0}, r"at `\$\.timeoutSeconds`"),
    ({"url": "https://x", "attempts": 0}, r"at `\$\.attempts`"),
    ({"url": "https://x", "secret": "s"}, "unknown field `secret`"),
])  # fmt: skip
def test_options_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        load_provider(ProviderSettings("webhook", {"secretFile": "/nowhere", **options}))


def test_plain_http_is_allowed_to_this_machine_and_where_configured() -> None:
    for options in (
        {"url": "http://localhost:8080/x"},
        {"url": "http://127.0.0.2"},
        {"url": "http://x", "insecure": True},
    ):
        msgspec.convert({"secretFile": "/nowhere", **options}, WebhookProvider.Options)


@pytest.mark.parametrize(("content", "message"), [
    (None, "No such file or directory"),
    ("", "no secret found; create one with: openssl rand -base64 32"),
    ("c2hvcnQ=", "line 1: the secret has 5 bytes, and must have 24 at least"),
    (f"{SECRET}\nnot base64!", "line 2 is not base64"),
])  # fmt: skip
def test_a_secret_that_cannot_be_used_is_told_at_the_start(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    settings = Settings(provider=ProviderSettings("webhook", {"url": "https://x", "secretFile": str(file)}))
    with pytest.raises(ConfigError, match=rf"^provider\.options\.secretFile: .*{message}.*\(provider webhook\)$"):
        provider_of(settings)


async def test_an_answer_that_is_no_http_does_not_tell_what_stands_behind_the_question_mark(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"nonsense\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    caller = HttpClient("the endpoint", 10.0)
    try:
        with pytest.raises(ProviderUnavailable, match="invalid HTTP response") as caught:
            await caller.request("POST", f"http://127.0.0.1:{port}/?password=hunter2", body=b"")
    finally:
        await caller.aclose()
        server.close()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 2024 00:00:00 +999999999999999999", "Mon, 01 Jan 999999999999999999999 00:00:00 GMT"]
)
async def test_a_date_that_no_calendar_has_asks_for_no_patience(site: Site, date: str) -> None:
    site.answers(web.Response(status=503, headers={"Retry-After": date}))
    site.answers(says(200, {"state": "running"}))
    assert await site.provider.state(ID) is InstanceState.RUNNING


async def test_a_question_during_close_has_its_own_session(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.answers(says(200, {"state": "running"}), says(200, {"state": "running"}))
    await site.provider.state(ID)
    is_closing, may_end = anyio.Event(), anyio.Event()
    close = ClientSession.close

    async def slowly(session: ClientSession) -> None:
        await close(session)
        is_closing.set()
        await may_end.wait()

    monkeypatch.setattr(ClientSession, "close", slowly)
    async with anyio.create_task_group() as group:
        group.start_soon(site.provider.aclose)
        await is_closing.wait()
        try:
            assert await site.provider.state(ID) is InstanceState.RUNNING
        finally:
            may_end.set()
