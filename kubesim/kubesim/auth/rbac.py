"""Authorization by the stored roles and bindings (rbac.authorization.k8s.io/v1).

Invariant: an answer reflects the newest roles and bindings. A user's rules are cached until one of the four tables
changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kubesim.auth.attributes import Attempt
from kubesim.auth.rules import Rule, rule_from
from kubesim.server.api import JsonObject
from kubesim.server.calls import User
from kubesim.server.store import Store

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
MASTERS: Final = "system:masters"
"""Members of this group may do everything, whatever roles say."""

ACCOUNT_PREFIX: Final = "system:serviceaccount:"
KNOWN_USERS: Final = 4096
"""For so many users at most their rights are kept worked out."""


KNOWN_ATTEMPTS: Final = 4096
"""So many answers at most are kept of each user: namespaces and paths come and go."""


class Decision(NamedTuple):
    """Whether an attempt is allowed, and which binding allows it (or why one that might have is of no use)."""

    allowed: bool
    reason: str = ""


class Held(NamedTuple):
    """Rules of a user in one namespace (or everywhere), each with its binding, and missing roles of bindings."""

    rules: tuple[tuple[Rule, str], ...]
    missing: tuple[str, ...]


class Rbac:
    """Decides by roles."""

    def __init__(self, store: Store) -> None:
        self._roles = store.table(f"roles.{RBAC_GROUP}")
        self._cluster_roles = store.table(f"clusterroles.{RBAC_GROUP}")
        self._bindings = store.table(f"rolebindings.{RBAC_GROUP}")
        self._cluster_bindings = store.table(f"clusterrolebindings.{RBAC_GROUP}")
        self._tables = (self._roles, self._cluster_roles, self._bindings, self._cluster_bindings)
        self._as_of: tuple[int, ...] = ()
        self._held: dict[tuple[str, tuple[str, ...]], Rights] = {}

    def decide(self, user: User, attempt: Attempt) -> Decision:
        """Whether the user may do what is attempted."""
        if MASTERS in user.groups:
            return Decision(True)
        return self._rights(user).decide(attempt)

    def rules_for(self, user: User, namespace: str) -> tuple[list[Rule], list[str]]:
        """All rules that the user holds in a namespace ("": in all of them), and the roles that are not there."""
        rights = self._rights(user)
        held = [rights.held("")]
        if namespace:
            held.append(rights.held(namespace))
        rules = [rule for each in held for rule, _ in each.rules]
        return rules, [missing for each in held for missing in each.missing]

    def role_rules(self, role_ref: JsonObject, namespace: str) -> list[Rule] | None:
        """The rules of the role that a binding in `namespace` names, or None if there is no such role."""
        table, home = (self._roles, namespace) if role_ref.get("kind") == "Role" else (self._cluster_roles, "")
        role = table.get(home, role_ref.get("name") or "")
        return None if role is None else [rule_from(raw) for raw in role.get("rules") or ()]

    def _rights(self, user: User) -> Rights:
        now = tuple(table.position for table in self._tables)
        if now != self._as_of or len(self._held) > KNOWN_USERS:
            self._as_of = now
            self._held.clear()
        key = user.name, user.groups
        rights = self._held.get(key)
        if rights is None:
            rights = self._held[key] = Rights(self, user)
        return rights

    def bound(self, user: User, namespace: str) -> Held:
        """What the bindings of a namespace ("": the cluster's) give a user."""
        bindings = self._bindings.listed(namespace) if namespace else self._cluster_bindings.listed(None)
        rules: list[tuple[Rule, str]] = []
        missing: list[str] = []
        for binding in bindings:
            subject = first_subject(binding, user, namespace)
            if subject is None:
                continue
            role_ref = binding["roleRef"]
            given = self.role_rules(role_ref, namespace)
            if given is None:
                missing.append(f'{role_ref["kind"].lower()}.{RBAC_GROUP} "{role_ref["name"]}" not found')
                continue
            source = described(binding, subject)
            rules.extend((rule, source) for rule in given)
        return Held(tuple(rules), tuple(missing))


class Rights:
    """What one user may do, by the roles and bindings of one moment."""

    def __init__(self, rbac: Rbac, user: User) -> None:
        self._rbac = rbac
        self._user = user
        self._by_namespace: dict[str, Held] = {}
        self._decided: dict[Attempt, Decision] = {}

    def held(self, namespace: str) -> Held:
        """The rules that hold in one namespace only ("": everywhere)."""
        held = self._by_namespace.get(namespace)
        if held is None:
            held = self._by_namespace[namespace] = self._rbac.bound(self._user, namespace)
        return held

    def decide(self, attempt: Attempt) -> Decision:
        """Whether an attempt is allowed."""
        # Without its name an attempt is one of a few: that part of the answer is kept.
        general = attempt._replace(name="") if attempt.name else attempt
        decision = self._decided.get(general)
        if decision is None:
            if len(self._decided) >= KNOWN_ATTEMPTS:
                self._decided.clear()
            decision = self._decided[general] = self._decide(general)
        if decision.allowed or not attempt.name:
            return decision
        return self._by_name(attempt) or decision

    def _decide(self, attempt: Attempt) -> Decision:
        for rule, source in self._applicable(attempt.namespace):
            if rule.allows(attempt):
                return Decision(True, f"RBAC: allowed by {source}")
        missing = list(dict.fromkeys([*self.held("").missing, *self._missing_in(attempt.namespace)]))
        if not missing:
            return Decision(False)
        return Decision(False, f"RBAC: {missing[0]}" if len(missing) == 1 else f"RBAC: [{', '.join(missing)}]")

    def _by_name(self, attempt: Attempt) -> Decision | None:
        for rule, source in self._applicable(attempt.namespace):
            if rule.names and rule.allows(attempt):
                return Decision(True, f"RBAC: allowed by {source}")
        return None

    def _applicable(self, namespace: str) -> Iterator[tuple[Rule, str]]:
        yield from self.held("").rules
        if namespace:
            yield from self.held(namespace).rules

    def _missing_in(self, namespace: str) -> tuple[str, ...]:
        return self.held(namespace).missing if namespace else ()


def first_subject(binding: JsonObject, user: User, namespace: str) -> JsonObject | None:
    """The first subject of a binding that is the user, or None."""
    subjects: list[JsonObject] = binding.get("subjects") or []
    return next((subject for subject in subjects if is_subject(subject, user, namespace)), None)


def is_subject(subject: JsonObject, user: User, namespace: str) -> bool:
    """Whether a subject means the user. An account without a namespace is one of the binding's own."""
    name = subject.get("name") or ""
    match subject.get("kind"):
        case "User":
            return bool(name == user.name)
        case "Group":
            return name in user.groups
        case "ServiceAccount":
            home = subject.get("namespace") or namespace
            return bool(home) and user.name == f"{ACCOUNT_PREFIX}{home}:{name}"
    return False


def described(binding: JsonObject, subject: JsonObject) -> str:
    """A binding in words: `RoleBinding "reader/ns" of Role "reader" to User "jane"`."""
    metadata, role_ref = binding["metadata"], binding["roleRef"]
    namespace = metadata.get("namespace", "")
    name = f"{metadata['name']}/{namespace}" if namespace else metadata["name"]
    who = subject["name"]
    if subject["kind"] == "ServiceAccount":
        who = f"{who}/{subject.get('namespace') or namespace}"
    return f'{binding["kind"]} "{name}" of {role_ref["kind"]} "{role_ref["name"]}" to {subject["kind"]} "{who}"'
