"""The admission server: handlers, certificate and a look at the webhook configurations in every replica; the leader
maintains the Secret.

Every replica serves, leader or not. A replica that is stopping goes on serving for a moment, because API servers notice
it a little later, and closes their connections.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from hmac import compare_digest
from typing import Final

import msgspec

from gracectl.admission.files import ClientAuthorities, FileCertificate
from gracectl.admission.freeze import CAMPAIGN, DELETION, FreezeWarner
from gracectl.admission.nodebudgets import NodeBudgetValidator
from gracectl.admission.nodeclaims import NodeClaimDeletionValidator, NodeClaimValidator
from gracectl.admission.nodedrains import NodeDrainValidator, RequesterInjector
from gracectl.admission.nodes import NodeDeletionValidator, NodeFinalizerInjector
from gracectl.admission.registration import LOOK_SECONDS, RETRY_SECONDS, RegistrationWatch
from gracectl.admission.rotation import CertificateRotator, CertificateSecret, SharedCertificate
from gracectl.admission.server import LIMITS, WebhookServer, admission_samples
from gracectl.admission.serving_certificate import ServingCertificate
from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import (
    NODE_BUDGET_WEBHOOK,
    NODE_CLAIM_DELETE_WEBHOOK,
    NODE_CLAIM_WEBHOOK,
    NODE_CREATE_WEBHOOK,
    NODE_DELETE_WEBHOOK,
    NODE_DRAIN_REQUESTER_WEBHOOK,
    NODE_DRAIN_WEBHOOK,
)
from gracectl.kube.client import KubeClient
from gracectl.model.claim import NodeClaim
from gracectl.model.node import Node
from gracectl.model.times import format_time
from gracectl.nodebudgets.admitter import Admitter
from gracectl.policy.finalizers import FinalizerRule
from gracectl.policy.freeze import Freeze
from gracectl.policy.owners import ManagedNodes
from gracectl.runtime.clock import Clock
from gracectl.runtime.supervise import Component
from gracectl.telemetry.connections import ConnectionStatistics
from gracectl.telemetry.health import Check
from gracectl.telemetry.metrics import Sample
from gracectl.telemetry.server import Endpoint, Servers

LINGER_SECONDS: Final = 3.0
"""How long API servers may still reach a replica that is stopping."""

SHUTDOWN_SECONDS: Final = 10.0
"""Time for requests in progress to complete after that."""


class AdmissionDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """Dependencies of the admission server. `client` writes as any replica, `leading` only as the leader; `is_urgent`:
    whether the machine of a node goes anyway."""

    client: KubeClient
    leading: KubeClient
    admitter: Admitter
    managed: ManagedNodes
    finalizer: Callable[[], FinalizerRule]
    clock: Clock
    nodes_of: Callable[[NodeClaim], Collection[Node] | None] = lambda claim: ()
    """The nodes of a claim of this name and UID; None: not known yet."""
    is_urgent: Callable[[Node], bool] = lambda node: False
    freeze: Callable[[], Freeze | None] = lambda: None
    """The freeze in force."""


class Admission:
    """Admission server; used only if the settings have a listen address."""

    def __init__(self, settings: AdmissionSettings, deps: AdmissionDependencies) -> None:
        clock, admitter = deps.clock, deps.admitter
        self._clock = clock
        self._admitter = admitter
        self._nodes_of_claim = deps.nodes_of
        node_deletion = NodeDeletionValidator(admitter, self._is_synced, deps.is_urgent)
        claim_deletion = NodeClaimDeletionValidator(admitter, self._nodes_of, deps.is_urgent)
        self._handlers = WebhookServer(
            {
                NODE_CREATE_WEBHOOK: NodeFinalizerInjector(deps.managed, deps.finalizer),
                NODE_DELETE_WEBHOOK: FreezeWarner(node_deletion, deps.freeze, DELETION),
                NODE_BUDGET_WEBHOOK: NodeBudgetValidator(admitter.nodes),
                NODE_CLAIM_WEBHOOK: NodeClaimValidator(),
                NODE_CLAIM_DELETE_WEBHOOK: FreezeWarner(claim_deletion, deps.freeze, DELETION),
                NODE_DRAIN_REQUESTER_WEBHOOK: RequesterInjector(),
                NODE_DRAIN_WEBHOOK: FreezeWarner(NodeDrainValidator(), deps.freeze, CAMPAIGN),
            },
            clock,
            settings.timeout_seconds,
            frozenset(settings.client_certificates.names),
            self._is_ours,
        )
        files = settings.certificates if settings.certificates.are_given else None
        hosts = None if files else settings.hosts
        self._registration = RegistrationWatch(deps.client, settings, clock)
        trusted_for = self._registration.trusted_for
        self._identity = ServingCertificate(clock, trusted_for, hosts or ())
        self._files = FileCertificate(files, self._identity, clock) if files else None
        key = (settings.namespace, settings.secret)
        self._shared = SharedCertificate(CertificateSecret(deps.client, key), None if files else self._identity, clock)
        self._rotator = CertificateRotator(
            CertificateSecret(deps.leading, key), self._shared, self._identity, hosts, trusted_for
        )
        authorities = settings.client_certificates.ca_file
        self._clients = ClientAuthorities(authorities, self._identity, clock) if authorities else None
        door = Endpoint(
            "admission.listen",
            settings.listen,
            {},
            find=self._handlers.find,
            method="POST",
            tls=lambda: self._identity.context,
            limits=LIMITS,
        )
        self._servers = Servers((door,), clock, grace_seconds=min(SHUTDOWN_SECONDS, settings.timeout_seconds))

    async def open(self) -> None:
        """Listen; handshakes fail until there is a certificate. Raises CannotListen, or ValueError if the file of
        client authorities cannot be read."""
        if self._clients is not None:
            self._clients.require()
        await self._servers.open()

    @property
    def components(self) -> Mapping[str, Component]:
        """Components of every replica, once it is open."""
        found = {"admission secret": self._shared.run, "registration": self._look, "admission": self._serve}
        if self._files:
            found["certificate"] = self._files.run
        if self._clients:
            found["client authorities"] = self._clients.run
        return found

    async def lead(self) -> None:
        """Maintain the Secret, until cancelled."""
        await self._rotator.run(self._clock)

    async def close(self) -> None:
        """Stop listening."""
        await self._servers.close()

    def readiness(self) -> Check:
        """Whether there is a valid certificate; also says what is wrong with the webhook configurations. A replica does
        not wait for them, as `helm install --wait` registers webhooks when replicas are ready."""
        info = self._identity.info
        reason = "no certificate yet" if info is None else f"certificate valid until {format_time(info.not_after)}"
        if problem := self._registration.problem(self._shared.state):
            reason = f"{reason}; {problem}"
        return Check("admission", self._identity.is_good(), reason)

    def connections(self) -> Mapping[str, ConnectionStatistics]:
        """Statistics of connections, by port."""
        return self._servers.statistics()

    def samples(self) -> Iterator[Sample]:
        """Samples for the metrics."""
        is_registered = not self._registration.problem(self._shared.state)
        return admission_samples(self._handlers.statistics(), self._identity.info, is_registered=is_registered)

    async def _serve(self) -> None:
        await self._servers.run(self._linger)

    async def _linger(self) -> None:
        self._handlers.is_stopping = True
        await self._clock.sleep(LINGER_SECONDS)

    async def _look(self) -> None:
        while True:
            await self._registration.look(self._shared.state)
            await self._clock.sleep(LOOK_SECONDS if self._registration.is_known else RETRY_SECONDS)

    def _is_ours(self, segment: str) -> bool:
        """Whether API servers may come by a path with this segment ("": a plain path)."""
        if not segment:
            return self._registration.names_plain_paths
        return compare_digest(segment.encode(), self._shared.state.segment.encode())

    def _nodes_of(self, claim: NodeClaim) -> Collection[Node] | None:
        return self._nodes_of_claim(claim) if self._is_synced() else None

    def _is_synced(self) -> bool:
        return self._admitter.nodes.live and self._admitter.budgets.live
