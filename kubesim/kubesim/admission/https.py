"""Webhooks over HTTPS: trust by caBundle, host names checked as Go checks them, errors in Go's words.

The session opens with the first call and closes with the server. The caller sets deadlines by cancelling.
"""

from __future__ import annotations

import base64
import binascii
import errno
import ssl
from collections import OrderedDict
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from kubesim.admission.caller import HTTPS_PORT, Reply, post_failed
from kubesim.admission.failures import CallFailed
from kubesim.admission.services import Address, NoAddress, Services
from kubesim.admission.webhooks import Client

CONTEXTS: Final = 64
"""How many caBundles are kept ready."""

EXPIRED: Final = (9, 10)
WRONG_HOST: Final = 62
WRONG_ADDRESS: Final = 64
"""X509_V_ERR_* of OpenSSL."""


class HttpsCaller:
    """Asks webhooks over sockets."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._session: aiohttp.ClientSession | None = None
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    async def post(self, client: Client, url: str, body: bytes) -> Reply:
        """See WebhookCaller."""
        context = self._context(client.ca_bundle)
        address, name = self._address(client, url)
        target = URL(url, encoded=True).with_host(address.host).with_port(address.port)
        headers = {"Content-Type": "application/json", "Accept": "application/json, */*", "Host": urlsplit(url).netloc}
        try:
            async with self._opened().post(
                target, data=body, headers=headers, ssl=context, server_hostname=name, allow_redirects=False
            ) as response:
                kind = response.headers.get("Content-Type", "")
                return Reply(response.status, await response.read(), kind)
        except (aiohttp.ClientError, OSError) as error:
            raise CallFailed(post_failed(url, _words(error, address, name))) from error

    async def aclose(self) -> None:
        """See WebhookCaller."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # A webhook may take its timeoutSeconds, and the caller has the clock: no deadlines of aiohttp's own.
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=None))
        return self._session

    def _address(self, client: Client, url: str) -> tuple[Address, str]:
        """Where to connect to, and the name that the certificate must bear."""
        if client.service is not None:
            try:
                return self._services.address(client.service), client.service.host
            except NoAddress as error:
                raise CallFailed(post_failed(url, str(error))) from None
        split = urlsplit(client.url)
        host = split.hostname or ""
        return Address(host, split.port or HTTPS_PORT), host

    def _context(self, ca_bundle: str) -> ssl.SSLContext:
        context = self._contexts.get(ca_bundle)
        if context is None:
            context = self._contexts[ca_bundle] = trusting(ca_bundle)
            if len(self._contexts) > CONTEXTS:
                self._contexts.popitem(last=False)
        return context


def trusting(ca_bundle: str) -> ssl.SSLContext:
    """TLS context for a caBundle (base64 of PEM; empty: the system's authorities). Raises CallFailed."""
    try:
        pem = base64.b64decode(ca_bundle).decode("ascii")
        context = ssl.create_default_context(cadata=pem or None)
    except (ssl.SSLError, binascii.Error, ValueError):
        why = "unable to load root certificates: unable to parse bytes as PEM block"
        raise CallFailed(f"could not get REST client: {why}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.hostname_checks_common_name = False
    return context


def _words(error: Exception, address: Address, name: str) -> str:
    """What Go says of such a failure."""
    cause = error.certificate_error if isinstance(error, aiohttp.ClientConnectorCertificateError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: x509: {_distrust(cause, name)}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"dial tcp: lookup {address.host}: no such host"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "tls: first record does not look like a TLS handshake"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ECONNREFUSED:
        return f"dial tcp {address.host}:{address.port}: connect: connection refused"
    if number == errno.ECONNRESET:
        return f"read tcp {address.host}:{address.port}: read: connection reset by peer"
    return f"dial tcp {address.host}:{address.port}: {error}"


def _distrust(error: ssl.SSLCertVerificationError, name: str) -> str:
    if error.verify_code in EXPIRED:
        return "certificate has expired or is not yet valid"
    if error.verify_code == WRONG_ADDRESS:
        return f"cannot validate certificate for {name} because it doesn't contain any IP SANs"
    if error.verify_code == WRONG_HOST:
        return f"certificate is not valid for any names, but wanted to match {name}"
    return "certificate signed by unknown authority"
