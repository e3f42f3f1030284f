"""What the leader does for admission: the certificate, if we make it ourselves, and the webhook configurations.

In this order: nobody is sent to us before we can answer, and nobody is shown a certificate that he has not been told to
trust. Whatever fails is tried again; nothing here ends a process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gracectl.admission.identity import Identity
from gracectl.admission.registration import Registration
from gracectl.admission.rotation import Kept, begun, following
from gracectl.admission.secret import CertificateSecret, Found, SharedCertificate
from gracectl.kube.errors import ApiError
from gracectl.runtime.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 15.0
SOON_SECONDS: Final = 2.0
"""Between two looks, and after one that has failed or came too early."""


class Custody:
    """Makes the certificate that all replicas show, and replaces it in time."""

    def __init__(
        self, secret: CertificateSecret, shared: SharedCertificate, hosts: tuple[str, ...], clock: Clock
    ) -> None:
        self._secret = secret
        self._shared = shared
        self._hosts = hosts
        self._clock = clock

    async def look(self, identity: Identity, registration: Registration) -> None:
        """See to the Secret once. Raises ApiError: Conflict if somebody else has just written."""
        found = await self._secret.read()
        kept = self._following(found, identity, registration)
        if kept is not None:
            found = await self._secret.write(kept, found)
            what = "laid aside, and shown when its authority is known" if kept.upcoming else "written"
            logger.info("the certificate of the admission server: a pair is %s", what)
        assert found is not None, "what was not there has been written"
        self._shared.take(found)

    def _following(self, found: Found | None, identity: Identity, registration: Registration) -> Kept | None:
        now = self._clock.now()
        if found is not None:
            trusted_for = registration.trusted_for(found.kept.authorities)
            return following(found.kept, self._hosts, now, trusted_for)
        # Somebody has deleted it, and everybody shows and trusts what was in it.
        shown = identity.shown
        if shown is not None and identity.is_good():
            return Kept(shown, identity.bundle())
        return begun(self._hosts, now)


class Office:
    """See the module. `custody` None: somebody else makes the certificate; `is_serving`: whether we can answer."""

    def __init__(
        self,
        identity: Identity,
        registration: Registration,
        custody: Custody | None,
        is_serving: Callable[[], bool],
        clock: Clock,
    ) -> None:
        self._identity = identity
        self._registration = registration
        self._custody = custody
        self._is_serving = is_serving
        self._clock = clock
        self._complaints: dict[str, str] = {}

    async def run(self) -> None:
        """For as long as we lead: until cancelled."""
        while True:
            is_well = await self.look()
            await self._clock.sleep(LOOK_SECONDS if is_well else SOON_SECONDS)

    async def look(self) -> bool:
        """See to everything once; whether all is as it should be."""
        is_kept = await self._tried("certificate", self._keep_certificate)
        if not self._is_serving():
            return False
        return await self._tried("webhook configurations", self._keep_registered) and is_kept

    async def _keep_certificate(self) -> None:
        if self._custody is not None:
            await self._custody.look(self._identity, self._registration)

    async def _keep_registered(self) -> None:
        await self._registration.keep(self._identity.bundle())

    async def _tried(self, what: str, attempt: Callable[[], Awaitable[None]]) -> bool:
        try:
            await attempt()
        except ApiError as error:
            text = str(error)
            if text != self._complaints.get(what):
                logger.warning("admission: the %s cannot be seen to: %s; tried again", what, text)
            self._complaints[what] = text
            return False
        self._complaints.pop(what, None)
        return True
