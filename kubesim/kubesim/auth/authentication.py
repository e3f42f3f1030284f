"""Authentication: client certificates, bearer tokens, ServiceAccount tokens, anonymous (recording auth).

If tokens are required, a request without one is system:anonymous, and an unknown token is 401 everywhere. If not
(`tokens` is None), every client is the administrator, unless its certificate or ServiceAccount token names a user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from kubesim.auth.rbac import MASTERS
from kubesim.auth.serviceaccounts import ISSUER, AccountTokens, BadToken
from kubesim.server.api import Request
from kubesim.server.calls import ADMINISTRATOR, User
from kubesim.server.status import unauthorized

AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
ANONYMOUS: Final = User("system:anonymous", groups=(UNAUTHENTICATED,))
AUDIENCES: Final = (ISSUER,)
"""The audience of tokens that this server takes."""

INVALID: Final = "invalid bearer token"


class Identity(NamedTuple):
    """The user of a token and its audiences, or what is wrong with it."""

    user: User | None
    audiences: tuple[str, ...] = ()
    error: str = ""


class Authentication:
    """Finds the user of a request."""

    def __init__(self, tokens: Mapping[str, str | User] | None, accounts: AccountTokens) -> None:
        """`tokens`: users by bearer token; a bare name is a superuser. None: no token is asked for."""
        self._static = {token: known_user(user) for token, user in (tokens or {}).items()}
        self._accounts = accounts
        self.is_open = tokens is None
        """No token is asked for."""

    def user_of(self, request: Request) -> User:
        """The user of a request; a certificate goes before a token. Raises Refusal (401)."""
        if request.certificate is not None and request.certificate.name:
            name, organisations = request.certificate
            return authenticated(User(name, groups=organisations))
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return ADMINISTRATOR if self.is_open else ANONYMOUS
        user = self._static.get(token)
        if user is not None:
            return user
        if self.is_open and not self._accounts.is_ours(token):
            return ADMINISTRATOR
        user = self.identify(token, AUDIENCES).user
        if user is None:
            raise unauthorized()
        return user

    def identify(self, token: str, audiences: Sequence[str]) -> Identity:
        """The user of a token, if it was made for one of `audiences`."""
        user = self._static.get(token)
        if user is not None:
            meant = tuple(audience for audience in audiences if audience in AUDIENCES)
            return Identity(user, meant) if meant else Identity(None, error=INVALID)
        if not self._accounts.is_ours(token):
            return Identity(None, error=INVALID)
        try:
            user, meant = self._accounts.read(token, audiences)
        except BadToken as error:
            return Identity(None, error=f"[{INVALID}, {error}]")
        return Identity(authenticated(user), meant)


def known_user(user: str | User) -> User:
    """A configured user: a bare name is a superuser."""
    return authenticated(User(user, groups=(MASTERS,)) if isinstance(user, str) else user)


def authenticated(user: User) -> User:
    """An authenticated user, with the group that says so."""
    if AUTHENTICATED in user.groups:
        return user
    return msgspec.structs.replace(user, groups=(*user.groups, AUTHENTICATED))
