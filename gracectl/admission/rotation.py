"""The Secret of admission: an authority that is made once, the certificate that it signs, and the secret path.

The authority is valid for ten years, so that a renewed certificate needs no write to the webhook configurations, on
which the controller has no right. Every replica reads the Secret, only the leader writes it: always whole, and with the
resource version that was read. Invariant: a certificate of a new authority is served only when the configurations trust
it, unless the present certificate is invalid anyway. Instants are seconds since the epoch.
"""

from __future__ import annotations

import logging
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gracectl.admission.serving_certificate import SETTLING_SECONDS, Material, ServingCertificate
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.requests import Key
from gracectl.kube.resources import SECRETS
from gracectl.model import names
from gracectl.runtime import certificates
from gracectl.runtime.clock import Clock

LIFE_SECONDS: Final = 90 * 86_400.0
AUTHORITY_LIFE_SECONDS: Final = 3_650 * 86_400.0
ROTATION_SHARE: Final = 2 / 3
"""Share of its lifetime after which a certificate is rotated; a month is left for a controller that does not run."""

_SEGMENT: Final = re.compile(r"[0-9a-f]{32}")


class CertificateState(msgspec.Struct, frozen=True):
    """Contents of the Secret: the pair that is served, the authorities to trust (PEM), the key of the one that signs,
    and the secret segment of paths. Empty: not there; with certificates from files there is no pair and no key."""

    pair: certificates.KeyPair = certificates.KeyPair(b"", b"")
    authorities: bytes = b""
    authority_key: bytes = b""
    segment: str = ""


def next_state(
    state: CertificateState, hosts: tuple[str, ...], now: float, trusted_for: Callable[[bytes], float]
) -> CertificateState:
    """State that the Secret should have, which is `state` while all is well.

    `trusted_for`: seconds for which all clients have had an authority.
    """
    known = _readable(state.authorities)
    authority = _signing(state.authority_key, known, now) or certificates.new_authority(now, AUTHORITY_LIFE_SECONDS)
    trusted = certificates.authorities_in(authority.certificate)
    pair, is_valid = state.pair, _is_valid(state.pair, (*known, *trusted), hosts, now)
    is_own = is_valid and bool(certificates.issuers_of(pair.certificate, trusted))
    if is_own:
        is_renewed = is_due(certificates.certificate_info(pair.certificate), now)
    else:
        is_renewed = not is_valid or trusted_for(trusted[0]) >= SETTLING_SECONDS
    if is_renewed:
        pair = certificates.issue(hosts, now, LIFE_SECONDS, authority).pair
    others = (
        () if is_own or is_renewed else certificates.issuers_of(pair.certificate, certificates.unexpired(known, now))
    )
    bundle = b"".join((*others, *trusted))
    return CertificateState(pair, bundle, authority.key, state.segment or new_segment())


def new_segment() -> str:
    """A segment that cannot be guessed."""
    return secrets.token_hex(16)


def is_due(info: certificates.CertificateInfo, now: float) -> bool:
    """Whether a certificate is due for rotation."""
    return now >= info.not_before + (info.not_after - info.not_before) * ROTATION_SHARE


def _signing(key: bytes, authorities: tuple[bytes, ...], now: float) -> certificates.KeyPair | None:
    """The valid authority with this key; None if there is none."""
    for authority in certificates.unexpired(authorities, now) if key else ():
        pair = certificates.KeyPair(authority, key)
        try:
            certificates.check_authority(pair)
        except ValueError:
            continue
        return pair
    return None


def _is_valid(pair: certificates.KeyPair, authorities: tuple[bytes, ...], hosts: tuple[str, ...], now: float) -> bool:
    """Whether clients that trust these authorities accept the pair for these hosts now."""
    try:
        certificates.check(pair)
        info = certificates.certificate_info(pair.certificate)
        issuers = certificates.issuers_of(pair.certificate, certificates.unexpired(authorities, now))
    except ValueError:
        return False
    return info.not_after > now and info.names >= frozenset(hosts) and bool(issuers)


def _readable(bundle: bytes) -> tuple[bytes, ...]:
    """Authorities of a bundle; none if it is invalid."""
    try:
        return certificates.authorities_in(bundle)
    except ValueError:
        return ()


logger = logging.getLogger(__name__)

READ_SECONDS: Final = 10.0
FIRST_READ_SECONDS: Final = 1.0
"""Interval of reads, and the one until there is something to serve."""
SYNC_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 2.0
"""Between two syncs of the leader, and after one that failed."""

TYPE: Final = "kubernetes.io/tls"
FIELDS: Final = ("tls.crt", "tls.key", "ca.crt", "ca.key", "path")
OUTDATED_FIELDS: Final = ("next.crt", "next.key")
"""Written by earlier versions."""


class StoredCertificate(msgspec.Struct, frozen=True):
    """The Secret as read, and its decoded state; fields that cannot be decoded are empty."""

    body: dict[str, Any]
    state: CertificateState


class CertificateSecret:
    """Reads and writes the Secret of this key."""

    def __init__(self, client: KubeClient, key: Key) -> None:
        self._client = client
        self.key = key

    async def read(self) -> StoredCertificate | None:
        """Current content; None if there is no Secret. Raises ApiError."""
        try:
            return _decode(await self._client.get(SECRETS, self.key))
        except NotFound:
            return None

    async def write(self, state: CertificateState, before: StoredCertificate | None) -> StoredCertificate:
        """Replace what was read by a state. Raises ApiError: Conflict or AlreadyExists if it has changed since."""
        namespace, name = self.key
        data = _data(state)
        if before is None:
            metadata = {
                "name": name,
                "namespace": namespace,
                "labels": {names.MANAGED_BY: names.EVENT_COMPONENT},
            }
            kind = {"type": TYPE} if "tls.crt" in data else {}
            return _decode(await self._client.create(SECRETS, namespace, {"metadata": metadata, **kind, "data": data}))
        others = before.body.get("data") or {}
        if "tls.crt" in data:
            others = {name: value for name, value in others.items() if name not in (*FIELDS, *OUTDATED_FIELDS)}
        body = {**before.body, "data": {**others, **data}}
        return _decode(await self._client.update(SECRETS, self.key, body))


class SharedCertificate:
    """Contents of the Secret in every replica. `serving`: receives the certificate; None: the certificate is from
    files."""

    def __init__(self, secret: CertificateSecret, serving: ServingCertificate | None, clock: Clock) -> None:
        self.state = CertificateState()
        """State at the last read."""
        self._secret = secret
        self._serving = serving
        self._clock = clock
        self._warned = ""

    async def run(self) -> None:
        """Component: read the Secret periodically, until cancelled."""
        while True:
            await self.reload()
            is_ready = self.state.segment and (self._serving is None or self._serving.is_ready)
            await self._clock.sleep(READ_SECONDS if is_ready else FIRST_READ_SECONDS)

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
        if stored.state.segment:
            self.state = stored.state
        if self._serving is None:
            return
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


class CertificateRotator:
    """Keeps the Secret up to date, in the leader. `hosts` None: the certificate comes from files, and the Secret has
    only its authorities and the secret path. `trusted_for`: see next_state."""

    def __init__(
        self,
        secret: CertificateSecret,
        shared: SharedCertificate,
        serving: ServingCertificate,
        hosts: tuple[str, ...] | None,
        trusted_for: Callable[[bytes], float],
    ) -> None:
        self._secret = secret
        self._shared = shared
        self._serving = serving
        self._hosts = hosts
        self._trusted_for = trusted_for
        self._warned = ""

    async def run(self, clock: Clock) -> None:
        """Sync periodically, until cancelled."""
        while True:
            await clock.sleep(SYNC_SECONDS if await self.try_sync(clock.now()) else RETRY_SECONDS)

    async def try_sync(self, now: float) -> bool:
        """Sync once; a failure is logged once, and retried. Returns whether it succeeded."""
        try:
            await self.sync(now)
        except ApiError as error:
            if str(error) != self._warned:
                logger.warning("admission: certificate not up to date: %s; retrying", error)
            self._warned = str(error)
            return False
        self._warned = ""
        return True

    async def sync(self, now: float) -> None:
        """Bring the Secret up to date once. Raises ApiError: Conflict after a concurrent write."""
        stored = await self._secret.read()
        # A Secret that was deleted is written again: API servers trust, and call, what was in it.
        before = self._shared.state if stored is None else stored.state
        after = self._next(before, now)
        if stored is None or after != stored.state:
            stored = await self._secret.write(after, stored)
            logger.info("secret %s/%s: written", *self._secret.key)
        self._shared.offer(stored)

    def _next(self, before: CertificateState, now: float) -> CertificateState:
        if self._hosts is None:
            bundle = self._serving.bundle() or before.authorities
            return msgspec.structs.replace(before, authorities=bundle, segment=before.segment or new_segment())
        return next_state(before, self._hosts, now, self._trusted_for)


def _decode(body: dict[str, Any]) -> StoredCertificate:
    data = body.get("data") or {}
    certificate, key, authorities, authority_key, segment = (_base64_value(data.get(field)) for field in FIELDS)
    text = segment.decode("ascii", "replace")
    path = text if _SEGMENT.fullmatch(text) else ""
    return StoredCertificate(
        body, CertificateState(certificates.KeyPair(certificate, key), authorities, authority_key, path)
    )


def _base64_value(text: object) -> bytes:
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else b""
    except (NotBase64, ValueError):
        return b""


def _data(state: CertificateState) -> dict[str, str]:
    pair = state.pair
    values = (pair.certificate, pair.key, state.authorities, state.authority_key, state.segment.encode())
    return {field: b64encode(value).decode() for field, value in zip(FIELDS, values, strict=True) if value}
