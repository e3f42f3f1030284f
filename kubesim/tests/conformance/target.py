"""A cluster that recordings and stories can be played against: the embedded one, or any that runs somewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Literal, Protocol

from kubesim.clock import Clock
from kubesim.server.api import Json, JsonObject, Request, Response

Review = Callable[[JsonObject], Awaitable[JsonObject]]
"""Answers an AdmissionReview with an AdmissionReview."""

WEBHOOK_PORT, DEAD_PORT = 19443, 19444
"""The address of the recorder's webhook, and one without a listener."""


class Unreachable(Exception):
    """Something that this target does not offer; the message says why."""


class Target(Protocol):
    """One cluster, spoken to as its administrator."""

    @property
    def kind(self) -> Literal["embedded", "live"]:
        """Which of the two it is."""
        ...

    @property
    def clock(self) -> Clock:
        """The time by which the suite waits."""
        ...

    @property
    def traits(self) -> frozenset[str]:
        """What is special about it: `taints nodes` (a node lifecycle controller is at work)."""
        ...

    async def handle(self, request: Request) -> Response:
        """Send one request; a request that brings its own Authorization header is sent with nothing else. The body of
        the answer is a JSON value, or a text."""
        ...

    async def pause(self) -> None:
        """What passes between two requests of one client."""
        ...

    def without_own(self, body: Json) -> Json:
        """An answer without what this very cluster adds (its service accounts, the taints of its controllers)."""
        ...

    def stage(self, made: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """Clear away, before and after, the cluster-scoped objects at these paths, with all that is in them.
        Raises Unreachable if it would do harm here."""
        ...

    def webhook(self, review: Review) -> AbstractAsyncContextManager[str]:
        """Serve a webhook at https://127.0.0.1:WEBHOOK_PORT/ as the API server sees it; yields its caBundle.
        Raises Unreachable."""
        ...

    def compact(self) -> None:
        """Forget all history. Raises Unreachable."""
        ...
