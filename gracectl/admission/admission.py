"""The admission server: handlers and certificate in every replica, and the webhook controller of the leader.

Every replica serves, leader or not. A replica that is stopping goes on serving for a moment, because API servers notice
it a little later, and closes their connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gracectl.admission.controller import CertificateRotator, WebhookController
from gracectl.admission.files import SETTLING_SECONDS as FILES_SETTLE
from gracectl.admission.files import ClientAuthorities, FileCertificate
from gracectl.admission.nodebudgets import NodeBudgetValidator
from gracectl.admission.nodeclaims import NodeClaimValidator
from gracectl.admission.nodes import NodeDeletionValidator, NodeFinalizerInjector
from gracectl.admission.rotation import SETTLING_SECONDS, CertificateSecret, SharedCertificate
from gracectl.admission.server import LIMITS, WebhookServer, admission_samples
from gracectl.admission.serving_certificate import ServingCertificate
from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import (
    NODE_BUDGET_WEBHOOK,
    NODE_CLAIM_WEBHOOK,
    NODE_CREATE_WEBHOOK,
    NODE_DELETE_WEBHOOK,
    WebhookRegistration,
)
from gracectl.kube.client import KubeClient
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Admitter
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import Component
from gracectl.telemetry.connections import ConnectionStatistics
from gracectl.telemetry.health import Check
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.server import Endpoint, Servers

LINGER_SECONDS: Final = 3.0
"""How long API servers may still reach a replica that is stopping."""

SHUTDOWN_SECONDS: Final = 10.0
"""How long requests under way have to complete after that."""


class AdmissionDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of the admission server. `client` writes as any replica, `leading` only as the leader; `selector`:
    of managed nodes."""

    client: KubeClient
    leading: KubeClient
    admitter: Admitter
    selector: LabelSelector
    clock: Clock


class Admission:
    """Admission server; used only if the settings have a listen address."""

    def __init__(self, settings: AdmissionSettings, deps: AdmissionDependencies) -> None:
        clock, admitter = deps.clock, deps.admitter
        self._clock = clock
        self._admitter = admitter
        self._handlers = WebhookServer(
            {
                NODE_CREATE_WEBHOOK: NodeFinalizerInjector(deps.selector),
                NODE_DELETE_WEBHOOK: NodeDeletionValidator(admitter, self._is_synced),
                NODE_BUDGET_WEBHOOK: NodeBudgetValidator(admitter.nodes),
                NODE_CLAIM_WEBHOOK: NodeClaimValidator(),
            },
            clock,
            settings.timeout_seconds,
            frozenset(settings.client_certificates.names),
        )
        self._certificate: FileCertificate | SharedCertificate
        rotator = None
        if settings.certificates.are_given:
            self._identity = ServingCertificate(clock, FILES_SETTLE)
            self._certificate = FileCertificate(settings.certificates, self._identity, clock)
        else:
            self._identity = ServingCertificate(clock, SETTLING_SECONDS, settings.hosts)
            key = (settings.namespace, settings.secret)
            self._certificate = SharedCertificate(CertificateSecret(deps.client, key), self._identity, clock)
            rotator = CertificateRotator(CertificateSecret(deps.leading, key), self._certificate, settings.hosts, clock)
        authorities = settings.client_certificates.ca_file
        self._clients = ClientAuthorities(authorities, self._identity, clock) if authorities else None
        registration = WebhookRegistration(deps.leading, settings, clock)
        self._controller = WebhookController(self._identity, registration, rotator, self._is_serving, clock)
        door = Endpoint(
            "admission.listen",
            settings.listen,
            self._handlers.http_handlers,
            method="POST",
            tls=lambda: self._identity.context,
            limits=LIMITS,
        )
        self._servers = Servers((door,), clock, grace_seconds=min(SHUTDOWN_SECONDS, settings.timeout_seconds))

    async def open(self) -> Mapping[str, str]:
        """Listen; handshakes fail until there is a certificate. Returns the URL of each path. Raises CannotListen, or
        ValueError if the file of client authorities cannot be read."""
        if self._clients is not None:
            self._clients.require()
        return await self._servers.open()

    @property
    def components(self) -> Mapping[str, Component]:
        """Components of every replica, once it is open."""
        clients = {"client authorities": self._clients.run} if self._clients else {}
        return {"certificate": self._certificate.run, "admission": self._serve, **clients}

    async def lead(self) -> None:
        """Run the webhook controller of the leader, until cancelled."""
        await self._controller.run()

    async def close(self) -> None:
        """Stop listening."""
        await self._servers.close()

    def readiness(self) -> Check:
        """Whether there is a valid certificate."""
        info = self._identity.info
        reason = "no certificate yet" if info is None else f"certificate valid until {format_time(info.ends)}"
        return Check("admission", self._identity.is_good(), reason)

    def connections(self) -> Mapping[str, ConnectionStatistics]:
        """Statistics of connections, by port."""
        return self._servers.statistics()

    def samples(self) -> Iterator[Sample]:
        """Samples for the metrics."""
        return admission_samples(self._handlers.statistics(), self._identity.info)

    async def _serve(self) -> None:
        await self._servers.run(self._linger)

    async def _linger(self) -> None:
        self._handlers.is_stopping = True
        await self._clock.sleep(LINGER_SECONDS)

    def _is_synced(self) -> bool:
        return self._admitter.nodes.live and self._admitter.budgets.live

    def _is_serving(self) -> bool:
        return self._identity.is_good() and self._is_synced()
