"""Sources of the node agent: what the metadata service of a cloud says about the end of the machine that asks.

    ec2     `spot/instance-action` and `events/recommendations/rebalance`, every 5 s, with session tokens (IMDSv2):
            https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and
            https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    gce     `instance/preempted` and `instance/maintenance-event`, by requests that wait for a change:
            https://cloud.google.com/compute/docs/instances/create-use-spot and
            https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
    azure   scheduled events of this machine, every second, and their approval if that is wanted:
            https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events

Invariants: an answer is bounded in size and time, and follows no redirect; a notice is received once, so that it can be
removed from the node; an event is approved only when it names no other machine, and the node is drained.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

import aiohttp
import anyio
import msgspec

from gracectl.interruption.source import Handler, Notice, Receipt
from gracectl.model.encoding import encode
from gracectl.model.foreign import harmless
from gracectl.model.times import parse_time
from gracectl.model.untrusted import Decoder
from gracectl.policy.interruption import Kind

logger = logging.getLogger(__name__)

ADDRESS: Final = "http://169.254.169.254"
LARGEST_ANSWER: Final = 256 * 1024
ANSWER_SECONDS: Final = 5.0

EC2_SECONDS: Final = 5.0
EC2_TOKEN_SECONDS: Final = 21_600
EC2_RENEW_SECONDS: Final = 60.0
GCE_WAIT_SECONDS: Final = 60
GCE_PAUSE_SECONDS: Final = 1.0
GCE_PREEMPTION_SECONDS: Final = 30.0
AZURE_SECONDS: Final = 1.0
AZURE_FIRST_SECONDS: Final = 130.0
"""The first answer about events may take two minutes."""


class Unavailable(Exception):
    """The service has not answered as documented."""


class Answer(msgspec.Struct, frozen=True):
    """Answer of the service; names of `headers` are in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}


class Service(Protocol):
    """Metadata service of the machine."""

    async def ask(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", body: bytes = b"", seconds: float
    ) -> Answer:
        """Answer to a request. Raises Unavailable."""


class HttpService:
    """Metadata service at an address, over a session that its user closes."""

    def __init__(self, session: aiohttp.ClientSession, address: str = ADDRESS) -> None:
        self._session = session
        self._address = address

    async def ask(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", body: bytes = b"", seconds: float
    ) -> Answer:
        """See Service."""
        try:
            async with self._session.request(
                method,
                self._address + path,
                headers=headers,
                data=body or None,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as found:
                content = await _read(found.content)
                return Answer(found.status, content, {name.lower(): value for name, value in found.headers.items()})
        except TimeoutError as error:
            raise Unavailable(f"no answer in {seconds:g} s; pods may need agent.hostNetwork to reach it") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unavailable(harmless(str(error) or type(error).__name__, 200)) from error


def open_session() -> aiohttp.ClientSession:
    """Session that uses no proxy, and expands nothing that is compressed."""
    return aiohttp.ClientSession(trust_env=False, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar())


async def _read(content: aiohttp.StreamReader) -> bytes:
    try:
        await content.readexactly(LARGEST_ANSWER + 1)
    except asyncio.IncompleteReadError as whole:
        return whole.partial
    raise Unavailable(f"answer longer than {LARGEST_ANSWER // 1024} KiB")


class MetadataSource:
    """Source with one or more loops, each of which asks again and again."""

    name = ""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._problems: dict[str, str] = {}

    @property
    def problem(self) -> str:
        """See Polls."""
        return next(filter(None, self._problems.values()), "")

    async def _repeat(self, what: str, ask: Callable[[], Awaitable[None]], pause: float, handler: Handler) -> None:
        while True:
            try:
                await ask()
                self._set_problem(what, "")
            except (Unavailable, msgspec.DecodeError, ValueError) as error:
                self._set_problem(what, f"{what}: {harmless(str(error), 200)}")
                await handler.sleep(max(EC2_SECONDS - pause, 0.0))
            await handler.sleep(pause)

    def _set_problem(self, what: str, text: str) -> None:
        before = self._problems.get(what, "")
        if text and not before:
            logger.warning("source %s: metadata service: %s; retrying", self.name, text)
        elif before and not text:
            logger.info("source %s: metadata service: %s: answers again", self.name, what)
        self._problems[what] = text


def _expect_ok(answer: Answer) -> Answer:
    if answer.status != 200:
        raise Unavailable(f"status {answer.status}")
    return answer


# -- EC2 ---------------------------------------------------------------------------------------------------------------


class _Action(msgspec.Struct, frozen=True):
    action: str
    time: str


class _Rebalance(msgspec.Struct, frozen=True, rename="camel"):
    notice_time: str


_ACTION, _REBALANCE = Decoder(_Action), Decoder(_Rebalance)


class Ec2Source(MetadataSource):
    """A spot instance that will be taken back, or is at risk."""

    name = "ec2"

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._token, self._token_ends = "", 0.0
        self._received: dict[str, Notice | None] = {}

    async def poll(self, handler: Handler) -> None:
        """See Polls."""

        async def ask() -> None:
            await self._ask("spot/instance-action", spot_of, handler)
            await self._ask("events/recommendations/rebalance", rebalance_of, handler)

        await self._repeat("notices", ask, EC2_SECONDS, handler)

    async def _ask(self, category: str, read: Callable[[bytes], Notice], handler: Handler) -> None:
        answer = await self._get(f"/latest/meta-data/{category}", handler.now())
        notice = None if answer.status == 404 else read(_expect_ok(answer).body)
        if notice is not None and notice != self._received.get(category):
            await handler.receive(notice)
        self._received[category] = notice

    async def _get(self, path: str, now: float) -> Answer:
        for is_last in (False, True):
            if now >= self._token_ends:
                await self._renew(now)
            headers = {"X-aws-ec2-metadata-token": self._token}
            answer = await self._service.ask(path, headers, seconds=ANSWER_SECONDS)
            if answer.status != 401 or is_last:
                break
            self._token_ends = 0.0
        return answer

    async def _renew(self, now: float) -> None:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(EC2_TOKEN_SECONDS)}
        found = await self._service.ask("/latest/api/token", headers, method="PUT", seconds=ANSWER_SECONDS)
        token = _expect_ok(found).body.decode("ascii", "replace").strip()
        if re.fullmatch(r"[!-~]{1,1024}", token) is None:
            raise Unavailable("no session token")
        self._token, self._token_ends = token, now + EC2_TOKEN_SECONDS - EC2_RENEW_SECONDS


def spot_of(body: bytes) -> Notice:
    """Notice of `spot/instance-action`. Raises msgspec.DecodeError or ValueError."""
    found = _ACTION.decode(body)
    return Notice(kind=Kind.SPOT, at=parse_time(found.time), text=found.action)


def rebalance_of(body: bytes) -> Notice:
    """Notice of `events/recommendations/rebalance`. Raises msgspec.DecodeError or ValueError."""
    return Notice(kind=Kind.REBALANCE, issued=parse_time(_REBALANCE.decode(body).notice_time))


# -- Compute Engine ----------------------------------------------------------------------------------------------------


class GceSource(MetadataSource):
    """A machine that is preempted, or terminated for maintenance of its host."""

    name = "gce"

    async def poll(self, handler: Handler) -> None:
        """See Polls. A live migration ends no machine."""
        async with anyio.create_task_group() as group:
            for each in (
                ("preempted", "TRUE", Kind.SPOT, GCE_PREEMPTION_SECONDS),
                ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", Kind.OTHER, None),
            ):
                group.start_soon(self._follow, handler, *each)

    async def _follow(self, handler: Handler, key: str, ends: str, kind: Kind, seconds: float | None) -> None:
        """Receive a notice when the value of a key is `ends`; the machine goes some seconds later."""
        etag, notice, is_received = "", None, False

        async def ask() -> None:
            nonlocal etag, notice, is_received
            query = f"?wait_for_change=true&timeout_sec={GCE_WAIT_SECONDS}&last_etag={etag}" if etag else ""
            longest = ANSWER_SECONDS + (GCE_WAIT_SECONDS if etag else 0)
            path, etag = f"/computeMetadata/v1/instance/{key}{query}", ""
            answer = _expect_ok(await self._service.ask(path, {"Metadata-Flavor": "Google"}, seconds=longest))
            if answer.headers.get("metadata-flavor") != "Google":
                raise Unavailable("not Google's")
            if answer.body.strip() != ends.encode():
                notice, is_received = None, False
            elif not is_received:
                notice = notice or Notice(kind=kind, at=None if seconds is None else handler.now() + seconds, text=key)
                await handler.receive(notice)
                is_received = True
            found = answer.headers.get("etag", "")
            etag = found if re.fullmatch(r"[0-9A-Za-z]{1,64}", found) else ""

        await self._repeat(key, ask, GCE_PAUSE_SECONDS, handler)


# -- Azure -------------------------------------------------------------------------------------------------------------

AZURE_KINDS: Final = {"Preempt": Kind.SPOT, "Terminate": Kind.OTHER, "Redeploy": Kind.MAINTENANCE}
"""Reboots and freezes end no node, as on AKS."""
AZURE_NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
AZURE_EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
AZURE_HEADERS: Final = {"Metadata": "true"}


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str = ""
    resources: tuple[str, ...] = ()
    not_before: str | None = ""


class _Events(msgspec.Struct, frozen=True, rename="pascal"):
    events: tuple[_Event, ...] = ()


_EVENTS = Decoder(_Events)


def events_of(body: bytes) -> tuple[_Event, ...]:
    """Scheduled events. Raises msgspec.DecodeError."""
    return _EVENTS.decode(body).events


class AzureSource(MetadataSource):
    """A machine that is evicted, deleted or redeployed. `approves`: let an event begin early, once its node is
    drained."""

    name = "azure"

    def __init__(self, service: Service, *, approves: bool = False) -> None:
        super().__init__(service)
        self._approves = approves
        self._machine = ""
        self._seconds = AZURE_FIRST_SECONDS
        self._received: set[str] = set()
        self._drained: set[str] = set()
        self._approved: set[str] = set()

    async def poll(self, handler: Handler) -> None:
        """See Polls."""
        async with anyio.create_task_group() as group:

            async def wait(event_id: str, receipt: Receipt) -> None:
                await handler.until_drained(receipt)
                self._drained.add(event_id)

            async def ask() -> None:
                events = await self._events()
                for event in events:
                    if event.event_id not in self._received:
                        receipt = await handler.receive(azure_notice_of(event, handler.now()))
                        self._received.add(event.event_id)
                        if self._approves and receipt.nodes:
                            group.start_soon(wait, event.event_id, receipt)
                    await self._approve(event)
                for known in (self._received, self._drained, self._approved):
                    known &= {event.event_id for event in events}

            await self._repeat("scheduled events", ask, AZURE_SECONDS, handler)

    async def _events(self) -> tuple[_Event, ...]:
        """Events that end this machine."""
        if not self._machine:
            name = await self._service.ask(AZURE_NAME, AZURE_HEADERS, seconds=ANSWER_SECONDS)
            self._machine = _expect_ok(name).body.decode("ascii", "replace").strip()
        found = _expect_ok(await self._service.ask(AZURE_EVENTS, AZURE_HEADERS, seconds=self._seconds))
        self._seconds = ANSWER_SECONDS
        events = events_of(found.body)
        return tuple(each for each in events if self._machine in each.resources and each.event_type in AZURE_KINDS)

    async def _approve(self, event: _Event) -> None:
        """Approve an event; that approves it for all machines that it names."""
        is_due = event.event_id in self._drained - self._approved and event.event_status == "Scheduled"
        if not is_due or set(event.resources) != {self._machine}:
            return
        body = encode({"StartRequests": [{"EventId": event.event_id}]})
        _expect_ok(
            await self._service.ask(AZURE_EVENTS, AZURE_HEADERS, method="POST", body=body, seconds=ANSWER_SECONDS)
        )
        self._approved.add(event.event_id)
        logger.info("source azure: event %s: approved: the node is drained", harmless(event.event_id))


def azure_notice_of(event: _Event, now: float) -> Notice:
    """Notice of an event; one that has started has no time. Raises ValueError."""
    try:
        at = parsedate_to_datetime(event.not_before).timestamp() if event.not_before else now
    except (ValueError, OverflowError) as error:
        raise ValueError(f'NotBefore: "{harmless(event.not_before or "")}" is no time') from error
    return Notice(kind=AZURE_KINDS[event.event_type], at=at, text=event.event_type)
