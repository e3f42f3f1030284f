"""What rendered manifests allow an account, right by right; and those manifests with one of the rights taken out.

Read from the roles and bindings as they stand there, by the rules of RBAC itself: no second list of rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import NamedTuple

from kubesim.auth.attributes import Attempt
from kubesim.auth.rbac import first_subject
from kubesim.auth.rules import Rule, rule_from
from kubesim.server.api import JsonObject
from kubesim.server.calls import User

from gracectl.kube.rbac import Permission

CLUSTER_WIDE = ("ClusterRoleBinding",)
BINDINGS = (*CLUSTER_WIDE, "RoleBinding")


class Account(NamedTuple):
    """A ServiceAccount."""

    namespace: str
    name: str

    @property
    def user(self) -> User:
        """The user name of the account for API servers."""
        return User(f"system:serviceaccount:{self.namespace}:{self.name}")


class Grant(NamedTuple):
    """One verb on one resource (and, if `name` is not empty, on that object only), as a bound role gives it.
    `namespace`: where it holds; "" is everywhere. `role`: kind, namespace, name."""

    role: tuple[str, str, str]
    namespace: str
    verb: str
    group: str
    resource: str
    name: str

    def allows(self, attempt: Attempt) -> bool:
        """Whether it is enough for this."""
        is_there = not self.namespace or attempt.namespace == self.namespace
        return is_there and self.rule.allows(attempt)

    @property
    def rule(self) -> Rule:
        """The smallest rule that gives it."""
        names = (self.name,) if self.name else ()
        return Rule((self.verb,), groups=(self.group,), resources=(self.resource,), names=names)

    @property
    def right(self) -> Permission:
        """The same as the controller asks for it."""
        plural, _, subresource = self.resource.partition("/")
        return Permission(self.verb, plural, self.group, subresource, self.namespace, self.name)

    def __str__(self) -> str:
        return str(self.right)


def grants_of(objects: Iterable[JsonObject], account: Account) -> list[Grant]:
    """All that these objects allow an account, in their order; a right that is given twice is there twice."""
    found = list(objects)
    return [grant for binding in found if binding["kind"] in BINDINGS for grant in _bound(found, binding, account)]


def _bound(objects: list[JsonObject], binding: JsonObject, account: Account) -> Iterator[Grant]:
    home = binding["metadata"].get("namespace", "")
    if first_subject(binding, account.user, home) is None:
        return
    namespace = "" if binding["kind"] in CLUSTER_WIDE else home
    role = _role_of(objects, binding)
    for rule in role["rules"]:
        assert "nonResourceURLs" not in rule, f"{_key(role)} is about paths"
        for part in rule_from(rule).parts():
            (verb,), (group,), (resource,) = part.verbs, part.groups, part.resources
            yield Grant(_key(role), namespace, verb, group, resource, part.names[0] if part.names else "")


def _role_of(objects: list[JsonObject], binding: JsonObject) -> JsonObject:
    reference = binding["roleRef"]
    home = binding["metadata"].get("namespace", "") if reference["kind"] == "Role" else ""
    wanted = (reference["kind"], home, reference["name"])
    (found,) = (each for each in objects if each["kind"] in ("Role", "ClusterRole") and _key(each) == wanted)
    return found


def _key(thing: JsonObject) -> tuple[str, str, str]:
    return thing["kind"], thing["metadata"].get("namespace", ""), thing["metadata"]["name"]


def without(objects: Iterable[JsonObject], grant: Grant) -> list[JsonObject]:
    """These objects, but that the grant's role does not give it any more."""
    changed = deepcopy(list(objects))
    for role in changed:
        if _key(role) == grant.role:
            role["rules"] = [_raw(part) for rule in role["rules"] for part in rule_from(rule).parts()]
            role["rules"].remove(_raw(grant.rule))
    return changed


def _raw(rule: Rule) -> JsonObject:
    named = {"resourceNames": list(rule.names)} if rule.names else {}
    return {"apiGroups": list(rule.groups), "resources": list(rule.resources), "verbs": list(rule.verbs), **named}


def given_only_by(grants: Iterable[Grant], attempts: Iterable[Attempt]) -> dict[Grant, list[Attempt]]:
    """By grant, the attempts for which nothing else would do. Invariant: a grant with none could be
    removed without any effect."""
    given = list(grants)
    needed: dict[Grant, list[Attempt]] = {}
    for attempt in dict.fromkeys(attempts):
        enough = [grant for grant in given if grant.allows(attempt)]
        if len(enough) == 1:
            needed.setdefault(enough[0], []).append(attempt)
    return needed
