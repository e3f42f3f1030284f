"""What programs of other people answer when they are asked about an instance, over HTTP or from a process of their own.

Invariant: an instance is gone only where that is said, in so many words. A status that any proxy may give, or the exit
code of any broken script, is no word about an instance.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from gracectl.cloud.provider import InstanceState
from gracectl.model.foreign import harmless, without_secrets
from gracectl.model.untrusted import Decoder

Action = Literal["state", "terminate"]

SHOWN = 400
"""Characters of what others say: it goes into Events and conditions."""


class Answer(msgspec.Struct, frozen=True):
    """A JSON object; fields that are not known are ignored."""

    state: Literal["running", "ending", "gone", "unknown"] | None = None
    message: str = ""
    remedy: str = ""

    @property
    def instance(self) -> InstanceState | None:
        """The state, if there is a word about it."""
        return None if self.state is None else InstanceState(self.state)


def read_answer(text: bytes) -> Answer:
    """The answer in this text. ValueError says what is wrong with it."""
    try:
        return _ANSWER.decode(text)
    except msgspec.DecodeError as error:
        shown = shown_text(text) or "empty"
        raise ValueError(f'is not such as {{"state": "running"}} ({error}): {shown}') from error


def shown_text(text: bytes | str) -> str:
    """What others say, fit for people: one line, without what looks like credentials."""
    words = text.decode(errors="replace") if isinstance(text, bytes) else text
    return harmless(without_secrets(" ".join(words.split())), SHOWN)


def request_id(provider_id: str) -> str:
    """The name of the end of that instance: the same for every repeat, by whichever process, without a memory."""
    return "terminate-" + hashlib.sha256(provider_id.encode()).hexdigest()[:40]


_ANSWER = Decoder(Answer)
