"""Impersonation: the Impersonate-* headers (recording auth; `kubectl --as`).

Each thing that is impersonated (user, account, group, uid, extra value) is a right of its own, the verb `impersonate`,
held by the authenticated user. Headers that came more than once hold their values with commas between.

Of constrained impersonation (KEP-5284) there is one mode. A ServiceAccount with a token of a node impersonates it,
for the verbs that it is granted (in the words of Kubernetes 1.37.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

from kubesim.auth.attributes import Attempt
from kubesim.auth.authentication import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED
from kubesim.auth.nodes import NODE_PREFIX, NODES_GROUP
from kubesim.auth.rbac import ACCOUNT_PREFIX
from kubesim.auth.serviceaccounts import account_groups
from kubesim.server.calls import User
from kubesim.server.names import is_subdomain

USER: Final = "impersonate-user"
GROUP: Final = "impersonate-group"
UID: Final = "impersonate-uid"
EXTRA: Final = "impersonate-extra-"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
AUTHENTICATION_GROUP: Final = "authentication.k8s.io"


class NoUser(Exception):
    """Groups, a uid or extra values are to be impersonated, but no user."""


def is_impersonated(headers: Mapping[str, str]) -> bool:
    """Whether a request impersonates."""
    return USER in headers or GROUP in headers or UID in headers


class Impersonation:
    """The impersonated user, according to the headers."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        """Raises NoUser."""
        self._name = headers.get(USER, "")
        self._groups = _values(headers.get(GROUP, ""))
        self._uid = headers.get(UID, "")
        self._extra = {
            unquote(header.removeprefix(EXTRA)): _values(value)
            for header, value in headers.items()
            if header.startswith(EXTRA)
        }
        if not self._name:
            raise NoUser

    def attempts(self) -> Iterator[Attempt]:
        """What the authenticated user must be allowed to do."""
        account = account_of(self._name)
        if account:
            namespace, name = account
            yield Attempt("impersonate", "", "serviceaccounts", "", namespace, name)
        else:
            yield Attempt("impersonate", "", "users", "", "", self._name)
        for group in self._groups:
            yield Attempt("impersonate", "", "groups", "", "", group)
        for key, values in self._extra.items():
            for value in values:
                yield Attempt("impersonate", AUTHENTICATION_GROUP, "userextras", key, "", value)
        if self._uid:
            yield Attempt("impersonate", AUTHENTICATION_GROUP, "uids", "", "", self._uid)

    def constrained_attempts(self, by: User, attempt: Attempt) -> tuple[Attempt, ...]:
        """What `by` must be allowed in order to do this as the node of its token; empty if that is not the user."""
        node, own = self._name.removeprefix(NODE_PREFIX), by.extra.get(NODE_NAME, ())
        if not self._name.startswith(NODE_PREFIX) or account_of(by.name) is None or self._groups:
            return ()
        mode, name = ("associated-node", "*") if own == (node,) else ("arbitrary-node", node)
        on = attempt._replace(verb=f"impersonate-on:{mode}:{attempt.verb}")
        return (on, Attempt(f"impersonate:{mode}", AUTHENTICATION_GROUP, "nodes", "", "", name))

    @property
    def kubelet(self) -> User:
        """The node as which a constrained request is answered, with its group."""
        return User(self._name, groups=(NODES_GROUP, AUTHENTICATED))

    @property
    def user(self) -> User:
        """The user as which the request is answered."""
        groups = self._groups
        account = account_of(self._name)
        if account and not groups:
            groups = account_groups(account[0])
        if self._name == ANONYMOUS.name:
            groups = groups if UNAUTHENTICATED in groups else (*groups, UNAUTHENTICATED)
        elif AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
            groups = (*groups, AUTHENTICATED)
        return User(self._name, self._uid, groups, self._extra)


def account_of(user: str) -> tuple[str, str] | None:
    """Namespace and name of the ServiceAccount that a user name means, or None if it means none."""
    if not user.startswith(ACCOUNT_PREFIX):
        return None
    namespace, _, name = user.removeprefix(ACCOUNT_PREFIX).partition(":")
    return (namespace, name) if is_subdomain(namespace) and is_subdomain(name) else None


def _values(header: str) -> tuple[str, ...]:
    return tuple(value for part in header.split(",") if (value := part.strip()))
