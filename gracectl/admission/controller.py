"""Webhook controller of the leader: the self-made certificate, and the webhook configurations.

In this order: API servers are sent here only when requests can be served, and a certificate is served only when they
trust it. Failures are retried; none ends the process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gracectl.admission.rotation import (
    CertificateSecret,
    CertificateState,
    SharedCertificate,
    StoredCertificate,
    first_state,
    next_state,
)
from gracectl.admission.serving_certificate import ServingCertificate
from gracectl.admission.webhooks import WebhookRegistration
from gracectl.kube.errors import ApiError
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

SYNC_SECONDS: Final = 15.0
RETRY_SECONDS: Final = 2.0
"""Between two syncs, and after one that failed or came too early."""


class CertificateRotator:
    """Issues the certificate that all replicas serve, and rotates it in time."""

    def __init__(
        self, secret: CertificateSecret, shared: SharedCertificate, hosts: tuple[str, ...], clock: Clock
    ) -> None:
        self._secret = secret
        self._shared = shared
        self._hosts = hosts
        self._clock = clock

    async def sync(self, serving: ServingCertificate, registration: WebhookRegistration) -> None:
        """Bring the Secret up to date once. Raises ApiError: Conflict after a concurrent write."""
        stored = await self._secret.read()
        state = self._next_state(stored, serving, registration)
        if state is not None:
            stored = await self._secret.write(state, stored)
            what = "stored; in use once its authority is distributed" if state.upcoming else "stored"
            logger.info("admission certificate: new pair %s", what)
        assert stored is not None, "a missing Secret is written"
        self._shared.offer(stored)

    def _next_state(
        self, stored: StoredCertificate | None, serving: ServingCertificate, registration: WebhookRegistration
    ) -> CertificateState | None:
        now = self._clock.now()
        if stored is not None:
            trusted_for = registration.trusted_for(stored.state.authorities)
            return next_state(stored.state, self._hosts, now, trusted_for)
        # The Secret was deleted: replicas serve, and API servers trust, what was in it.
        served = serving.served
        if served is not None and serving.is_good():
            return CertificateState(served, serving.bundle())
        return first_state(self._hosts, now)


class WebhookController:
    """Webhook controller. `rotator` None: the certificate comes from files; `is_serving`: whether requests can be
    served."""

    def __init__(
        self,
        serving: ServingCertificate,
        registration: WebhookRegistration,
        rotator: CertificateRotator | None,
        is_serving: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._serving = serving
        self._registration = registration
        self._rotator = rotator
        self._is_serving = is_serving
        self._clock = clock
        self._warned: dict[str, str] = {}

    async def run(self) -> None:
        """Sync periodically, until cancelled."""
        while True:
            is_well = await self.sync()
            await self._clock.sleep(SYNC_SECONDS if is_well else RETRY_SECONDS)

    async def sync(self) -> bool:
        """Bring everything up to date once; returns whether all is."""
        is_certificate_ok = await self._try("certificate", self._sync_certificate)
        if not self._is_serving():
            return False
        return await self._try("webhook configurations", self._sync_configurations) and is_certificate_ok

    async def _sync_certificate(self) -> None:
        if self._rotator is not None:
            await self._rotator.sync(self._serving, self._registration)

    async def _sync_configurations(self) -> None:
        await self._registration.ensure(self._serving.bundle())

    async def _try(self, what: str, attempt: Callable[[], Awaitable[None]]) -> bool:
        try:
            await attempt()
        except ApiError as error:
            text = str(error)
            if text != self._warned.get(what):
                logger.warning("admission: %s not up to date: %s; retrying", what, text)
            self._warned[what] = text
            return False
        self._warned.pop(what, None)
        return True
