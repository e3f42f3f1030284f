"""Access to the board by host, origin and token.

A page of another site can send requests to a server on this machine. It must neither read a response nor, by a name
that it lets point to this machine (DNS rebinding), become a page of the same origin. Invariant: a request that a
browser sends for another site gets no data, and none is served under a name that is not ours.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
SHORTEST_TOKEN: Final = 16
"""Characters: a shorter one could be guessed."""
LONGEST_TOKEN: Final = 4096

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""Headers of every response."""


class TokenError(Exception):
    """A file with a token cannot be used; the message says why, without its content."""


class TokenFile:
    """Token in a file, read again when the file changes. A missing or invalid file admits no client."""

    def __init__(self, path: Path) -> None:
        """Raises TokenError."""
        self._path = path
        self._state: tuple[int, int, int] | None = None
        self._digest: bytes | None = None
        self._read()

    def matches(self, token: str) -> bool:
        """Whether this is the token; takes the same time for any that is not."""
        try:
            self._read()
        except TokenError:
            return False
        assert self._digest is not None
        return hmac.compare_digest(self._digest, _digest(token))

    def _read(self) -> None:
        try:
            found = self._path.stat()
            state = (found.st_mtime_ns, found.st_size, found.st_ino)
            if state == self._state:
                return
            self._state = self._digest = None
            token = self._path.read_bytes()[: LONGEST_TOKEN + 1].decode().strip()
        except OSError as error:
            self._state = None
            raise TokenError(f"cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise TokenError("is no text") from error
        if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN or not token.isascii() or not token.isprintable():
            raise TokenError(
                f"has no token of {SHORTEST_TOKEN} to {LONGEST_TOKEN} visible characters; "
                "write one with: openssl rand -hex 32"
            )
        self._digest, self._state = _digest(token), state

    @property
    def token(self) -> str:
        """The token, for a link. Raises TokenError."""
        self._read()
        return self._path.read_text(encoding="utf-8").strip()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Rejection(msgspec.Struct, frozen=True):
    """Why a request is not served, as an HTTP status and a text that repeats nothing of the request."""

    status: int
    text: str


WRONG_HOST: Final = Rejection(421, "host: not a name of this server; add it with --allowed-host\n")
FOREIGN: Final = Rejection(403, "origin: requests of other sites are not served\n")
UNAUTHORIZED: Final = Rejection(401, "token: missing or wrong; add #token=TOKEN to the address of the page\n")


class Access(msgspec.Struct, frozen=True):
    """Rules for requests. `hosts`: names of this server; `takes_addresses`: any IP address also counts, since the
    server listens on all. `token` None: no token is needed.
    """

    hosts: frozenset[str] = LOOPBACK_NAMES
    takes_addresses: bool = False
    token: TokenFile | None = None

    @classmethod
    def of(cls, bound: str | None, allowed: Iterable[str], token: TokenFile | None) -> Access:
        """Rules of a server that listens on `bound` (None: all addresses), and is reached by the `allowed` names."""
        is_all = bound is None or (_is_address(bound) and ipaddress.ip_address(bound).is_unspecified)
        own = frozenset() if is_all or bound is None else frozenset({bound.lower()})
        return cls(LOOPBACK_NAMES | own | frozenset(name.lower() for name in allowed), is_all, token)

    def refusal(self, headers: Mapping[str, str], *, is_page: bool, needs_token: bool) -> Rejection | None:
        """Why a request is not served; None if it is. `is_page`: links of other sites may lead to it."""
        host = headers.get("Host", "")
        name = host_name(host)
        if name is None or not self._is_ours(name):
            return WRONG_HOST
        origin = headers.get("Origin")
        if origin is not None and not self._is_own_origin(origin, host):
            return FOREIGN
        site = headers.get("Sec-Fetch-Site", "same-origin")
        is_followed_link = is_page and headers.get("Sec-Fetch-Mode") == "navigate"
        if site not in ("same-origin", "none") and not is_followed_link:
            return FOREIGN
        return UNAUTHORIZED if needs_token and not self.is_authorized(headers) else None

    def is_authorized(self, headers: Mapping[str, str]) -> bool:
        """Whether a request has the token, if one is needed."""
        if self.token is None:
            return True
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.token.matches(token.strip())

    def _is_ours(self, name: str) -> bool:
        return name in self.hosts or (self.takes_addresses and _is_address(name))

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """A proxy may speak HTTPS for us, so the scheme may be another one."""
        scheme, _, rest = origin.partition("://")
        return scheme in ("http", "https") and rest.lower() == host.lower()


def host_name(host: str) -> str | None:
    """Name or address in a Host header, without the port; None if it is not a host."""
    try:
        parts = urlsplit(f"//{host}")
        if parts.netloc != host or not host or "@" in host or parts.path or parts.query or parts.fragment:
            return None
        _ = parts.port  # ValueError if it is not a port
        return parts.hostname
    except ValueError:
        return None


def is_loopback(host: str | None) -> bool:
    """Whether only this machine reaches what listens there."""
    return host is not None and (host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
