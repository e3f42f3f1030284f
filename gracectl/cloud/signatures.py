"""Signatures of HTTP calls, as https://www.standardwebhooks.com has them; the secrets may be replaced at any time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

SHORTEST: Final = 24
"""Bytes of a secret."""
_PREFIX: Final = "whsec_"


def read_secrets(text: str) -> tuple[bytes, ...]:
    """Those of a file, one a line, in base64, with `whsec_` before it or without; several while they are being
    replaced. ValueError says what is wrong with which line, never what stands there."""
    secrets = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            secret = base64.b64decode(line.strip().removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"line {number} is no base64; make one with: openssl rand -base64 32") from error
        if len(secret) < SHORTEST:
            raise ValueError(
                f"line {number}: the secret has {len(secret)} bytes, and must have {SHORTEST} at least; "
                "make one with: openssl rand -base64 32"
            )
        secrets.append(secret)
    if not secrets:
        raise ValueError("there is no secret; make one with: openssl rand -base64 32")
    return tuple(secrets)


def signed_headers(secrets: Sequence[bytes], id_: str, seconds: int, body: bytes) -> dict[str, str]:
    """The three headers of a call; the signature has a part for each secret."""
    signed = f"{id_}.{seconds}.".encode() + body
    parts = (base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode() for secret in secrets)
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(seconds),
        "webhook-signature": " ".join(f"v1,{part}" for part in parts),
    }
