"""The admission server as one thing: its doors and its certificate in every replica, and the leader's office.

Every replica answers, whoever leads. Who is told to stop goes on answering for a moment, as API servers hear of it a
little later, and tells those who ask to go elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from gracectl.admission.files import SETTLING_SECONDS as FILES_SETTLE
from gracectl.admission.files import ClientAuthorities, FiledCertificate
from gracectl.admission.identity import Identity
from gracectl.admission.nodebudgets import NodeBudgetWriting
from gracectl.admission.nodeclaims import NodeClaimWriting
from gracectl.admission.nodes import NodeCreation, NodeDeletion
from gracectl.admission.office import Custody, Office
from gracectl.admission.registration import Registration
from gracectl.admission.rotation import SETTLING_SECONDS
from gracectl.admission.samples import admission_samples
from gracectl.admission.secret import CertificateSecret, SharedCertificate
from gracectl.admission.server import LIMITS, Reception
from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import NODE_BUDGET_WRITING, NODE_CLAIM_WRITING, NODE_CREATION, NODE_DELETION
from gracectl.kube.client import KubeClient
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Admitter
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import Component
from gracectl.telemetry.connections import ConnectionStatistics
from gracectl.telemetry.health import Check
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.server import Door, Servers

LINGER_SECONDS: Final = 3.0
"""How long API servers may go on asking a replica that has been told to stop."""

FAREWELL_SECONDS: Final = 10.0
"""Whoever has been asked by then has so long to answer."""


class AdmissionMeans(msgspec.Struct, frozen=True, kw_only=True):
    """What all of it is built from. `client` writes as any replica, `leading` only while we lead; `selector`: which
    nodes are managed."""

    client: KubeClient
    leading: KubeClient
    gate: Admitter
    selector: LabelSelector
    clock: Clock


class Admission:
    """See the module. Wanted only where the settings name an address."""

    def __init__(self, settings: AdmissionSettings, means: AdmissionMeans) -> None:
        clock, gate = means.clock, means.gate
        self._clock = clock
        self._gate = gate
        self._reception = Reception(
            {
                NODE_CREATION: NodeCreation(means.selector),
                NODE_DELETION: NodeDeletion(gate, self._sees),
                NODE_BUDGET_WRITING: NodeBudgetWriting(gate.nodes),
                NODE_CLAIM_WRITING: NodeClaimWriting(),
            },
            clock,
            settings.timeout_seconds,
            frozenset(settings.client_certificates.names),
        )
        self._certificate: FiledCertificate | SharedCertificate
        custody = None
        if settings.certificates.are_given:
            self._identity = Identity(clock, FILES_SETTLE)
            self._certificate = FiledCertificate(settings.certificates, self._identity, clock)
        else:
            self._identity = Identity(clock, SETTLING_SECONDS, settings.hosts)
            key = (settings.namespace, settings.secret)
            self._certificate = SharedCertificate(CertificateSecret(means.client, key), self._identity, clock)
            custody = Custody(CertificateSecret(means.leading, key), self._certificate, settings.hosts, clock)
        authorities = settings.client_certificates.ca_file
        self._clients = ClientAuthorities(authorities, self._identity, clock) if authorities else None
        registration = Registration(means.leading, settings, clock)
        self._office = Office(self._identity, registration, custody, self._is_serving, clock)
        door = Door(
            "admission.listen",
            settings.listen,
            self._reception.answers,
            method="POST",
            tls=lambda: self._identity.context,
            limits=LIMITS,
        )
        self._servers = Servers((door,), clock, farewell=min(FAREWELL_SECONDS, settings.timeout_seconds))

    async def open(self) -> Mapping[str, str]:
        """Listen; nobody gets past the handshake before there is a certificate. Returns the URL of each path. Raises
        CannotListen, or ValueError if the authorities of clients cannot be read."""
        if self._clients is not None:
            self._clients.require()
        return await self._servers.open()

    @property
    def parts(self) -> Mapping[str, Component]:
        """What runs in every replica, once it is open."""
        clients = {"client authorities": self._clients.run} if self._clients else {}
        return {"certificate": self._certificate.run, "admission": self._serve, **clients}

    async def lead(self) -> None:
        """What the leader does, until cancelled."""
        await self._office.run()

    async def close(self) -> None:
        """Listen no more."""
        await self._servers.close()

    def readiness(self) -> Check:
        """Whether there is a certificate to show."""
        facts = self._identity.facts
        seen = "there is no certificate yet" if facts is None else f"its certificate ends {format_time(facts.ends)}"
        return Check("admission", self._identity.is_good(), seen)

    def connections(self) -> Mapping[str, ConnectionStatistics]:
        """Of those who ask."""
        return self._servers.statistics()

    def samples(self) -> Iterator[Sample]:
        """For the metrics."""
        return admission_samples(self._reception.statistics(), self._identity.facts)

    async def _serve(self) -> None:
        await self._servers.run(self._leave)

    async def _leave(self) -> None:
        self._reception.is_leaving = True
        await self._clock.sleep(LINGER_SECONDS)

    def _sees(self) -> bool:
        return self._gate.nodes.live and self._gate.budgets.live

    def _is_serving(self) -> bool:
        return self._identity.is_good() and self._sees()
