"""A certificate for the embedded cluster, which proves its address to whoever reads the kubeconfig, and to nobody else.

Clients send no token over plain HTTP, so a cluster that asks for tokens needs one.
"""

from __future__ import annotations

import ssl
from typing import Final

import msgspec

from gracectl.runtime.certificates import issue, load
from gracectl.runtime.clock import Clock

LIFE_SECONDS: Final = 30 * 86_400.0


class Certificate(msgspec.Struct, frozen=True):
    """What the server shows (`context`), and what clients check it by (`authority`, PEM)."""

    context: ssl.SSLContext
    authority: bytes


def self_made(host: str, clock: Clock) -> Certificate:
    """A certificate for this machine and `host`, good for 30 days."""
    issued = issue(dict.fromkeys(("localhost", "127.0.0.1", host)), clock.now(), LIFE_SECONDS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, issued.pair)
    return Certificate(context, issued.authority)
