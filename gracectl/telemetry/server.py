"""The HTTP servers of metrics, probes and admission: a few paths on an address, each answered by one function."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import anyio
import msgspec
from aiohttp import web

from gracectl.telemetry.settings import Address, parse_address

logger = logging.getLogger(__name__)

Answer = Callable[[web.Request], Awaitable[web.Response]]

FAREWELL_SECONDS: Final = 0.5
"""What is being answered when a server is closed has so long to come to its end."""


class Door(msgspec.Struct, frozen=True):
    """What is answered where. `field`: the setting that says so, for people; `listen`: see parse_address; "": nowhere.

    `answers`: by path, what answers a request of that `method`; must be quick, as nothing else happens meanwhile.
    `tls`: HTTPS, with the certificate that the context has at each handshake. `largest_body`: bytes of a request.
    """

    field: str
    listen: str
    answers: Mapping[str, Answer]
    method: Literal["GET", "POST"] = "GET"
    tls: ssl.SSLContext | None = None
    largest_body: int = 1024 * 1024


class CannotListen(Exception):
    """Nothing can be served at an address; the message names the setting and the reason."""


class Servers:
    """One server for each address; doors at the same address share one, and what the first of them says of TLS and
    bodies. `farewell`: seconds for what is being answered when they are closed."""

    def __init__(self, doors: Iterable[Door], *, farewell: float = FAREWELL_SECONDS) -> None:
        self._farewell = farewell
        self._doors: dict[Address, list[Door]] = {}
        for door in doors:
            if door.listen:
                self._doors.setdefault(parse_address(door.listen), []).append(door)
        self._runners: list[web.AppRunner] = []

    @property
    def are_wanted(self) -> bool:
        """Whether anything is to be served at all."""
        return bool(self._doors)

    async def open(self) -> Mapping[str, str]:
        """Listen, and answer until closed; returns the URL of each path. Raises CannotListen, and nothing is open."""
        urls: dict[str, str] = {}
        for address, doors in self._doors.items():
            try:
                url = await self._opened(address, doors)
            except (OSError, UnicodeError) as error:
                await self.close()
                reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
                door = doors[0]
                raise CannotListen(f"{door.field}: cannot listen on {door.listen}: {reason}") from error
            urls |= {path: url + path for door in doors for path in door.answers}
        for path, url in urls.items():
            logger.info("%s is served at %s", path, url)
        return urls

    async def run(self) -> None:
        """A part: once open, answer until cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def close(self) -> None:
        """Listen no more."""
        while self._runners:
            await self._runners.pop().cleanup()

    async def _opened(self, address: Address, doors: Sequence[Door]) -> str:
        tls = doors[0].tls
        application = web.Application(client_max_size=doors[0].largest_body)
        for door in doors:
            for path, answer in door.answers.items():
                if door.method == "GET":
                    application.router.add_get(path, answer)  # and HEAD
                else:
                    application.router.add_route(door.method, path, answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=self._farewell)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, *address, ssl_context=tls).start()
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"{'https' if tls else 'http'}://{shown}:{bound[1]}"
