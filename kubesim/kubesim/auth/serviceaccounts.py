"""Tokens of ServiceAccounts: their claims and their validity.

A token is a JWT with the claims of a real one, signed with a key of this server. Its content is cached; its expiry, its
account and its bound object are checked at every use. (A real server notices a deletion up to 10 s late.)
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from kubesim.auth.rbac import ACCOUNT_PREFIX
from kubesim.server.api import JsonObject
from kubesim.server.calls import User
from kubesim.server.goformat import quoted_words
from kubesim.server.stamps import Stamps
from kubesim.server.store import Store

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
HEADER: Final = {"alg": "HS256", "typ": "JWT"}
OUR_CLAIMS: Final = "kubernetes.io"
ACCOUNTS: Final = "serviceaccounts"
BINDABLE: Final = {"pod": "pods", "secret": "secrets", "node": "nodes"}
"""What a token may be bound to: the claim, and the table that holds the objects. An object that is gone takes its
tokens with it."""

REMEMBERED: Final = 1024
"""So many tokens are kept read at most."""

CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"


class BadToken(Exception):
    """A token that this server has issued and that is no longer good, or not for this; says why."""


class Bound(NamedTuple):
    """The object that a token is bound to: its claim (`pod`, `secret`, `node`), its name and its uid."""

    claim: str
    name: str
    uid: str


class Said(NamedTuple):
    """Claims of a token: expiry, audiences, account, bound object."""

    expires: int
    audiences: tuple[str, ...]
    user: User
    about: JsonObject


class AccountTokens:
    """Issues tokens for ServiceAccounts and reads them."""

    def __init__(self, store: Store, stamps: Stamps, *, key: bytes) -> None:
        """`key` signs; a server with another one does not know the tokens."""
        self._store = store
        self._stamps = stamps
        self._key = key
        self._said: dict[str, Said] = {}

    def issue(self, account: JsonObject, audiences: Sequence[str], seconds: int, bound: Sequence[Bound] = ()) -> str:
        """Issue a token of an account for so many seconds. `bound`: its bound object, and the node of a pod."""
        metadata = account["metadata"]
        namespace, name, now = metadata["namespace"], metadata["name"], int(self._stamps.seconds)
        ours: JsonObject = {"namespace": namespace, "serviceaccount": {"name": name, "uid": metadata["uid"]}}
        ours.update({each.claim: {"name": each.name, "uid": each.uid} for each in bound})
        claims = {
            "aud": list(audiences),
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": self._stamps.uid(),
            OUR_CLAIMS: ours,
            "nbf": now,
            "sub": f"{ACCOUNT_PREFIX}{namespace}:{name}",
        }
        signed = f"{encoded(orjson.dumps(HEADER))}.{encoded(orjson.dumps(claims))}"
        return f"{signed}.{self._signature(signed)}"

    def is_ours(self, token: str) -> bool:
        """Whether this server has issued the token, good or not."""
        if token in self._said:
            return True
        signed, dot, signature = token.rpartition(".")
        if not dot or not hmac.compare_digest(signature.encode(), self._signature(signed).encode()):
            return False
        if len(self._said) >= REMEMBERED:
            self._said.clear()
        claims = orjson.loads(decoded(signed.partition(".")[2]))
        self._said[token] = Said(claims["exp"], tuple(claims["aud"]), user_from(claims), claims[OUR_CLAIMS])
        return True

    def read(self, token: str, audiences: Sequence[str]) -> tuple[User, tuple[str, ...]]:
        """Account of the token, and the `audiences` that it is valid for. Raises BadToken, also for a foreign token."""
        if not self.is_ours(token):
            raise BadToken("the token was not issued here")
        said = self._said[token]
        if self._stamps.seconds > said.expires:
            raise BadToken("service account token has expired")
        meant = tuple(audience for audience in audiences if audience in said.audiences)
        if not meant:
            has, needs = quoted_words(said.audiences), quoted_words(audiences)
            raise BadToken(f"token audiences {has} is invalid for the target audiences {needs}")
        self._check_objects(said.about)
        return said.user, meant

    def _check_objects(self, ours: JsonObject) -> None:
        namespace, account = ours["namespace"], ours["serviceaccount"]
        stored = self._store.table(ACCOUNTS).get(namespace, account["name"])
        if stored is None:
            raise BadToken(f'serviceaccounts "{account["name"]}" not found')
        if stored["metadata"]["uid"] != account["uid"]:
            found = stored["metadata"]["uid"]
            raise BadToken(f"service account UID ({found}) does not match claim ({account['uid']})")
        for claim, table in BINDABLE.items():
            # A token that is bound to a pod contains its node; it is not looked up.
            if claim not in ours or (claim == "node" and "pod" in ours):
                continue
            home = "" if claim == "node" else namespace
            found = self._store.table(table).get(home, ours[claim]["name"])
            if found is None or found["metadata"]["uid"] != ours[claim]["uid"]:
                raise BadToken("service account token has been invalidated")

    def _signature(self, signed: str) -> str:
        return encoded(hmac.digest(self._key, signed.encode(), "sha256"))


def user_from(claims: JsonObject) -> User:
    """The user that a token's claims describe."""
    ours = claims[OUR_CLAIMS]
    extra = {CREDENTIAL_ID: (f"JTI={claims['jti']}",)}
    for claim in ("node", "pod"):
        if claim in ours:
            for field in ("name", "uid"):
                extra[f"authentication.kubernetes.io/{claim}-{field}"] = (ours[claim][field],)
    return User(claims["sub"], ours["serviceaccount"]["uid"], account_groups(ours["namespace"]), extra)


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of every ServiceAccount of a namespace."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def encoded(raw: bytes) -> str:
    """Bytes as a part of a JWT."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decoded(part: str) -> bytes:
    """A part of a JWT as bytes. Raises ValueError."""
    try:
        return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error as error:
        raise ValueError(str(error)) from error
