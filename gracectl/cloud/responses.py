"""Responses of user-written endpoints and commands about an instance.

Invariant: an instance is gone only if the response says so explicitly. A status that any proxy may return, or the exit
code of a broken script, says nothing about an instance.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from gracectl.cloud.provider import InstanceState
from gracectl.model.foreign import harmless, without_secrets
from gracectl.model.untrusted import Decoder

Action = Literal["state", "terminate"]

DISPLAYED = 400
"""Characters of foreign text that are displayed: it goes into Events and conditions."""


class ProviderResponse(msgspec.Struct, frozen=True):
    """JSON object; unknown fields are ignored."""

    state: Literal["running", "ending", "gone", "unknown"] | None = None
    message: str = ""
    remedy: str = ""

    @property
    def instance(self) -> InstanceState | None:
        """The state, if the response has one."""
        return None if self.state is None else InstanceState(self.state)


def decode_response(text: bytes) -> ProviderResponse:
    """Decode a response. ValueError has the reason if it is invalid."""
    try:
        return _RESPONSE.decode(text)
    except msgspec.DecodeError as error:
        shown = display_text(text) or "empty"
        # The reason may repeat a value of any length.
        reason = display_text(str(error))
        raise ValueError(f'is not such as {{"state": "running"}} ({reason}): {shown}') from error


def display_text(text: bytes | str) -> str:
    """Foreign text for display: one line, without anything that looks like credentials."""
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return harmless(without_secrets(" ".join(words.split())), DISPLAYED)


def request_id(provider_id: str) -> str:
    """Id of the termination of an instance: the same for every repeat, in whichever process, without stored state."""
    return "terminate-" + hashlib.sha256(provider_id.encode()).hexdigest()[:40]


_RESPONSE = Decoder(ProviderResponse)
