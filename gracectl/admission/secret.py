"""The Secret in which a certificate that we make is kept, so that all replicas show one, and the next leader goes on.

Every replica reads it, the leader alone writes it: always whole, and under the version that was read.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from typing import Any, Final

import msgspec

from gracectl.admission.identity import Identity, Material
from gracectl.admission.rotation import Kept
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, NotFound
from gracectl.kube.requests import Key
from gracectl.kube.resources import SECRETS
from gracectl.model import names
from gracectl.runtime.certificates import KeyPair
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 10.0
FIRST_LOOK_SECONDS: Final = 1.0
"""Between two looks, and as long as there has been nothing to show."""

TYPE: Final = "kubernetes.io/tls"
CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
NEXT_CERTIFICATE, NEXT_KEY = "next.crt", "next.key"
FIELDS: Final = (CERTIFICATE, KEY, AUTHORITIES, NEXT_CERTIFICATE, NEXT_KEY)


class Found(msgspec.Struct, frozen=True):
    """The Secret as it was read, and what is kept in it; what cannot be read is empty."""

    body: dict[str, Any]
    kept: Kept


class CertificateSecret:
    """Reads and writes the Secret of that key."""

    def __init__(self, client: KubeClient, key: Key) -> None:
        self._client = client
        self._key = key

    async def read(self) -> Found | None:
        """What is there; None: nothing. Raises ApiError."""
        try:
            return _found(await self._client.get(SECRETS, self._key))
        except NotFound:
            return None

    async def write(self, kept: Kept, instead_of: Found | None) -> Found:
        """Keep this instead of what was read. Raises ApiError: Conflict or AlreadyExists if it has changed since."""
        namespace, name = self._key
        if instead_of is None:
            metadata = {
                "name": name,
                "namespace": namespace,
                "labels": {names.MANAGED_BY: names.EVENT_COMPONENT},
            }
            body = {"metadata": metadata, "type": TYPE, "data": _data(kept)}
            return _found(await self._client.create(SECRETS, namespace, body))
        others = {name: value for name, value in (instead_of.body.get("data") or {}).items() if name not in FIELDS}
        body = {**instead_of.body, "data": {**others, **_data(kept)}}
        return _found(await self._client.update(SECRETS, self._key, body))


class SharedCertificate:
    """Shows what is kept in the Secret, whoever has written it."""

    def __init__(self, secret: CertificateSecret, identity: Identity, clock: Clock) -> None:
        self._secret = secret
        self._identity = identity
        self._clock = clock
        self._complaint = ""

    async def run(self) -> None:
        """A part: look at the Secret, until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_SECONDS if self._identity.is_ready else FIRST_LOOK_SECONDS)

    async def look(self) -> None:
        """Read the Secret once and offer what is in it."""
        try:
            found = await self._secret.read()
        except ApiError as error:
            self._complain(str(error))
            return
        if found is not None:
            self.take(found)

    def take(self, found: Found) -> None:
        """Offer what was found; what is of no use is told once, and mended by whoever leads."""
        try:
            self._identity.offer(Material(found.kept.pair, found.kept.authorities))
        except ValueError as error:
            self._complain(f"the Secret holds no certificate: {error}")
        else:
            self._complaint = ""

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            logger.warning("the certificate of the admission server cannot be read: %s; looked at again soon", text)


def _found(body: dict[str, Any]) -> Found:
    data = body.get("data") or {}
    certificate, key, authorities, next_certificate, next_key = (_decoded(data.get(field)) for field in FIELDS)
    upcoming = KeyPair(next_certificate, next_key) if next_certificate and next_key else None
    return Found(body, Kept(KeyPair(certificate, key), authorities, upcoming))


def _decoded(text: object) -> bytes:
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else b""
    except (NotBase64, ValueError):
        return b""


def _data(kept: Kept) -> dict[str, str]:
    upcoming = kept.upcoming or KeyPair(b"", b"")
    values = (kept.pair.certificate, kept.pair.key, kept.authorities, upcoming.certificate, upcoming.key)
    return {field: b64encode(value).decode() for field, value in zip(FIELDS, values, strict=True) if value}
