"""Access to the server: authentication, impersonation, authorization (recording auth).

Invariant: without tokens, a request without a user needs no lookup. 401 precedes 403, and 403 precedes 404.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from kubesim.auth.attributes import attempt_of, denied
from kubesim.auth.authentication import Authentication
from kubesim.auth.escalation import Escalation
from kubesim.auth.impersonation import Impersonation, NoUser, is_impersonated
from kubesim.auth.nodes import Kubelets
from kubesim.auth.rbac import MASTERS, Rbac
from kubesim.auth.reviews import Reviews
from kubesim.auth.serviceaccounts import AccountTokens
from kubesim.auth.tokenrequests import TokenRequests
from kubesim.server.api import JsonObject, Request
from kubesim.server.bodies import Bodies
from kubesim.server.calls import ADMINISTRATOR, Call, User
from kubesim.server.hooks import Permission
from kubesim.server.stamps import Stamps
from kubesim.server.status import internal
from kubesim.server.store import Store


class Access:
    """Admits or refuses requests. `permission` checks writes of roles; `reviews` and `token_requests` answer about
    access."""

    def __init__(
        self, store: Store, stamps: Stamps, bodies: Bodies, *, tokens: Mapping[str, str | User] | None, seed: int
    ) -> None:
        """`tokens`: see Authentication; `seed`: servers with different ones do not take each other's tokens."""
        key = hashlib.sha256(f"ServiceAccount tokens {seed}".encode()).digest()
        accounts = AccountTokens(store, stamps, key=key)
        self._authentication = Authentication(tokens, accounts)
        self._rbac = Rbac(store)
        self._kubelets = Kubelets(store)
        self.permission = Permissions(Escalation(self._rbac), self._kubelets)
        self.reviews = Reviews(self._rbac, self._authentication, bodies, stamps)
        self.token_requests = TokenRequests(store, stamps, accounts, bodies)

    def check(self, request: Request) -> User:
        """The user in the name of which the request is answered. Raises Refusal (401, 403)."""
        headers = request.headers
        impersonated = is_impersonated(headers)
        if self._authentication.is_open and not (
            impersonated or "authorization" in headers or request.certificate is not None
        ):
            return ADMINISTRATOR
        user = self._authentication.user_of(request)
        if impersonated:
            user = self._impersonated(user, request)
        if MASTERS in user.groups:
            return user
        attempt = attempt_of(request)
        decision = self._rbac.decide(user, attempt)
        if not decision.allowed:
            own = self._kubelets.decide(user, attempt, request)
            if not own.allowed:
                raise denied(attempt, user, own.reason or decision.reason)
        return user

    def _impersonated(self, user: User, request: Request) -> User:
        try:
            impersonation = Impersonation(request.headers)
        except NoUser:
            why = f'Internal Server Error: "{request.path}": requested groups or more without impersonating a user'
            raise internal(why) from None
        constrained = tuple(impersonation.constrained_attempts(user, attempt_of(request)))
        if constrained and all(self._rbac.decide(user, attempt).allowed for attempt in constrained):
            return impersonation.kubelet
        wanted = tuple(impersonation.attempts())
        if constrained and not all(self._rbac.decide(user, attempt).allowed for attempt in wanted):
            wanted = constrained  # as the server words it, which tries the old way last
        for attempt in wanted:
            decision = self._rbac.decide(user, attempt)
            if not decision.allowed:
                raise denied(attempt, user, decision.reason)
        return impersonation.user


class Permissions:
    """Several hooks.Permission, asked in turn."""

    def __init__(self, *permissions: Permission) -> None:
        self._permissions = permissions

    def check(self, call: Call, new: JsonObject, old: JsonObject | None) -> None:
        """See hooks.Permission."""
        for each in self._permissions:
            each.check(call, new, old)
