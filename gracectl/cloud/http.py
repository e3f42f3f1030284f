"""What providers that speak HTTP have in common: one session, limits on time and size, and failures in words."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
import msgspec

from gracectl.cloud.answers import shown_text
from gracectl.cloud.provider import ProviderUnavailable
from gracectl.kube.http import HEADERS, in_words

LONGEST_ANSWER: Final = 64 * 1024
"""Bytes. Nothing that is to be said of one instance is longer."""


class Reply(msgspec.Struct, frozen=True):
    """A whole answer; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Caller:
    """Asks one server, `who` of messages, each time for at most `timeout` seconds.

    No proxy of the environment, no redirects, no cookies: nobody else is asked than who is meant.
    """

    def __init__(self, who: str, timeout: float) -> None:
        self._who = who
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Reply:
        """The answer, whatever its status. Raises ProviderUnavailable."""
        # Made on first use: a session belongs to the event loop that runs it.
        session = self._session = self._session or self._made()
        try:
            async with session.request(
                method, url, data=body, headers=headers, allow_redirects=False, ssl=True if tls is None else tls
            ) as reply:
                said = {name.lower(): value for name, value in reply.headers.items()}
                return Reply(reply.status, said, await self._body(reply))
        except TimeoutError as error:
            raise ProviderUnavailable(f"{self._who} does not answer: nothing in {self._timeout:g} s") from error
        except aiohttp.ClientResponseError as error:
            # Its own sentence ends with the whole address, and some write a password behind the question mark.
            raise ProviderUnavailable(f"{self._who} does not answer in HTTP: {shown_text(error.message)}") from None
        except aiohttp.ClientError as error:
            raise ProviderUnavailable(f"{self._who} does not answer: {in_words(error)}") from error

    async def aclose(self) -> None:
        """Close the session. A call makes a new one."""
        session, self._session = self._session, None  # at once: whoever asks meanwhile must not get one that closes
        if session:
            await session.close()

    def _made(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=HEADERS,
            auto_decompress=False,
            trust_env=False,
        )

    async def _body(self, reply: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for piece in reply.content.iter_any():
            body += piece
            if len(body) > LONGEST_ANSWER:
                reply.close()
                raise ProviderUnavailable(f"{self._who} answers with more than {LONGEST_ANSWER // 1024} KiB")
        return bytes(body)
