"""Rotation of the self-made certificate, in two writes, so that no client ever rejects it; and the Secret with it.

First the next pair is stored, and its authority joins the bundle; when all clients have had time to read that, the next
pair replaces the present one. In between, and if the leader changes, everything works as before: all replicas serve
what is in the Secret, and the next leader continues. Every replica reads it, only the leader writes it: always whole,
and with the resource version that was read. Instants are seconds since the epoch.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Any, Final

import msgspec

from gracectl.admission.serving_certificate import Material, ServingCertificate
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.requests import Key
from gracectl.kube.resources import SECRETS
from gracectl.model import names
from gracectl.runtime.certificates import (
    CertificateInfo,
    KeyPair,
    authorities_in,
    certificate_info,
    check,
    issue,
    issuers_of,
    unexpired,
)
from gracectl.runtime.clock import Clock

LIFE_SECONDS: Final = 90 * 86_400.0
ROTATION_SHARE: Final = 2 / 3
"""Share of its lifetime after which a certificate is rotated; a month is left for a controller that does not run."""
SETTLING_SECONDS: Final = 60.0
"""From when the webhook configurations have an authority until every API server has read it."""


class CertificateState(msgspec.Struct, frozen=True):
    """Stored certificates: the pair that is served, the one that comes next, and the authorities to trust (PEM)."""

    pair: KeyPair
    authorities: bytes
    upcoming: KeyPair | None = None


def first_state(hosts: tuple[str, ...], now: float) -> CertificateState:
    """First state of all."""
    issued = issue(hosts, now, LIFE_SECONDS)
    return CertificateState(issued.pair, issued.authority)


def next_state(
    state: CertificateState, hosts: tuple[str, ...], now: float, trusted_for: float
) -> CertificateState | None:
    """State that replaces `state`; None: it may stay.

    `trusted_for`: seconds for which all clients have had `state.authorities`.
    """
    authorities = _readable(state.authorities)
    if not _is_valid(state.pair, authorities, hosts, now):
        # The present pair is invalid anyway: use the next one if it is valid, else a new one, at once.
        if state.upcoming is not None and _is_valid(state.upcoming, authorities, hosts, now):
            return CertificateState(state.upcoming, state.authorities)
        issued = issue(hosts, now, LIFE_SECONDS)
        return CertificateState(issued.pair, _bundle((*authorities, issued.authority), now))
    if state.upcoming is not None:
        if not _is_valid(state.upcoming, authorities, hosts, now):
            return CertificateState(state.pair, state.authorities)
        return CertificateState(state.upcoming, state.authorities) if trusted_for >= SETTLING_SECONDS else None
    if is_due(certificate_info(state.pair.certificate), now):
        issued = issue(hosts, now, LIFE_SECONDS)
        return CertificateState(state.pair, _bundle((*authorities, issued.authority), now), issued.pair)
    valid = _bundle(authorities, now)
    return CertificateState(state.pair, valid) if valid != state.authorities else None


def is_due(info: CertificateInfo, now: float) -> bool:
    """Whether a certificate is due for rotation."""
    return now >= info.begins + (info.ends - info.begins) * ROTATION_SHARE


def _is_valid(pair: KeyPair, authorities: tuple[bytes, ...], hosts: tuple[str, ...], now: float) -> bool:
    """Whether clients that trust these authorities accept the pair for these hosts now."""
    try:
        check(pair)
        info = certificate_info(pair.certificate)
        issuers = issuers_of(pair.certificate, unexpired(authorities, now))
    except ValueError:
        return False
    return info.ends > now and info.names >= frozenset(hosts) and bool(issuers)


def _bundle(authorities: tuple[bytes, ...], now: float) -> bytes:
    return b"".join(unexpired(dict.fromkeys(authorities), now))


def _readable(bundle: bytes) -> tuple[bytes, ...]:
    """Authorities of a bundle; none if it is invalid."""
    try:
        return authorities_in(bundle)
    except ValueError:
        return ()


logger = logging.getLogger(__name__)

READ_SECONDS: Final = 10.0
FIRST_READ_SECONDS: Final = 1.0
"""Interval of reads, and the one until there is a certificate."""

TYPE: Final = "kubernetes.io/tls"
CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
FIELDS: Final = (CERTIFICATE, KEY, AUTHORITIES, NEXT_CERTIFICATE, NEXT_KEY)


class StoredCertificate(msgspec.Struct, frozen=True):
    """The Secret as read, and its decoded state; fields that cannot be decoded are empty."""

    body: dict[str, Any]
    state: CertificateState


class CertificateSecret:
    """Reads and writes the Secret of this key."""

    def __init__(self, client: KubeClient, key: Key) -> None:
        self._client = client
        self._key = key

    async def read(self) -> StoredCertificate | None:
        """Current content; None if there is no Secret. Raises ApiError."""
        try:
            return _decode(await self._client.get(SECRETS, self._key))
        except NotFound:
            return None

    async def write(self, state: CertificateState, before: StoredCertificate | None) -> StoredCertificate:
        """Replace what was read by a state. Raises ApiError: Conflict or AlreadyExists if it has changed since."""
        namespace, name = self._key
        if before is None:
            metadata = {
                "name": name,
                "namespace": namespace,
                "labels": {names.MANAGED_BY: names.EVENT_COMPONENT},
            }
            body = {"metadata": metadata, "type": TYPE, "data": _data(state)}
            return _decode(await self._client.create(SECRETS, namespace, body))
        others = {name: value for name, value in (before.body.get("data") or {}).items() if name not in FIELDS}
        body = {**before.body, "data": {**others, **_data(state)}}
        return _decode(await self._client.update(SECRETS, self._key, body))


class SharedCertificate:
    """The server's certificate, from the Secret."""

    def __init__(self, secret: CertificateSecret, serving: ServingCertificate, clock: Clock) -> None:
        self._secret = secret
        self._serving = serving
        self._clock = clock
        self._warned = ""

    async def run(self) -> None:
        """Component: read the Secret periodically, until cancelled."""
        while True:
            await self.reload()
            await self._clock.sleep(READ_SECONDS if self._serving.is_ready else FIRST_READ_SECONDS)

    async def reload(self) -> None:
        """Read the Secret once and offer its certificate."""
        try:
            stored = await self._secret.read()
        except ApiError as error:
            self._warn(str(error))
            return
        if stored is not None:
            self.offer(stored)

    def offer(self, stored: StoredCertificate) -> None:
        """Offer a certificate; an invalid one is logged once, and replaced by the leader."""
        try:
            self._serving.offer(Material(stored.state.pair, stored.state.authorities))
        except ValueError as error:
            self._warn(f"Secret without a valid certificate: {error}")
        else:
            self._warned = ""

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            logger.warning("admission certificate: cannot be read: %s; retrying", text)


def _decode(body: dict[str, Any]) -> StoredCertificate:
    data = body.get("data") or {}
    certificate, key, authorities, next_certificate, next_key = (_base64_value(data.get(field)) for field in FIELDS)
    upcoming = KeyPair(next_certificate, next_key) if next_certificate and next_key else None
    return StoredCertificate(body, CertificateState(KeyPair(certificate, key), authorities, upcoming))


def _base64_value(text: object) -> bytes:
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else b""
    except (NotBase64, ValueError):
        return b""


def _data(state: CertificateState) -> dict[str, str]:
    upcoming = state.upcoming or KeyPair(b"", b"")
    values = (state.pair.certificate, state.pair.key, state.authorities, upcoming.certificate, upcoming.key)
    return {field: b64encode(value).decode() for field, value in zip(FIELDS, values, strict=True) if value}
