"""Escalation checks: the author of a role must hold its rules, the author of a binding the rules of its role.

An object that a PUT or an apply creates also needs the right to create. The verbs `escalate` and `bind` lift the
checks, and superusers need neither. As in kube-apiserver the check precedes validation and ignores writes of owners and
finalizers only.
"""

from __future__ import annotations

from typing import Final

from kubesim.auth.attributes import Attempt, denied
from kubesim.auth.rbac import MASTERS, RBAC_GROUP, Rbac
from kubesim.auth.rules import Rule, compacted, rule_from, uncovered
from kubesim.server.api import JsonObject
from kubesim.server.calls import Call
from kubesim.server.goformat import quoted_words
from kubesim.server.status import Refusal, forbidden, internal, not_found

EVERYTHING: Final = (Rule("*", groups="*", resources="*"), Rule("*", urls="*"))
ROLES: Final = ("roles", "clusterroles")
COLLECTED: Final = ("ownerReferences", "finalizers")


class Escalation:
    """Refuses writes for which the right to write alone is not enough (implements hooks.Permission)."""

    def __init__(self, rbac: Rbac) -> None:
        self._rbac = rbac

    def check(self, call: Call, new: JsonObject, old: JsonObject | None) -> None:
        """Look at what is about to be written, `old` being what it replaces. Raises Refusal (403, 404, 500)."""
        if old is None and call.request.method != "POST":
            self._check_creation(call)
        resource = call.route.resource
        if resource.group != RBAC_GROUP or MASTERS in call.user.groups:
            return
        if old is not None and is_collecting(new, old):
            return
        if resource.plural in ROLES:
            self._check_role(call, new, old)
        else:
            self._check_binding(call, new)

    def _check_creation(self, call: Call) -> None:
        route, resource = call.route, call.route.resource
        attempt = Attempt("create", resource.group, resource.plural, "", route.namespace or "", route.name)
        decision = self._rbac.decide(call.user, attempt)
        if not decision.allowed:
            raise denied(attempt, call.user, decision.reason)

    def _check_role(self, call: Call, new: JsonObject, old: JsonObject | None) -> None:
        route = call.route
        attempt = Attempt("escalate", RBAC_GROUP, route.resource.plural, "", route.namespace or "", route.name)
        if self._rbac.decide(call.user, attempt).allowed:
            return
        self._refuse_gain(call, new, [rule_from(raw) for raw in new.get("rules") or ()])
        if any(role is not None and role.get("aggregationRule") for role in (new, old)):
            held, _ = self._rbac.rules_for(call.user, "")
            if uncovered(held, EVERYTHING):
                raise refused(call, new, "must have cluster-admin privileges to use the aggregationRule")

    def _check_binding(self, call: Call, new: JsonObject) -> None:
        role_ref: JsonObject = new.get("roleRef") or {}
        namespace, name = call.route.namespace or "", role_ref.get("name") or ""
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(role_ref.get("kind") or "")
        if plural is None:
            raise internal(f'unsupported role reference kind: "{role_ref.get("kind") or ""}"')
        if self._rbac.decide(call.user, Attempt("bind", RBAC_GROUP, plural, "", namespace, name)).allowed:
            return
        rules = self._rbac.role_rules(role_ref, namespace)
        if rules is None:
            # The real server, too, names the binding's resource here and not the role's.
            raise not_found(call.route.resource.words, name)
        self._refuse_gain(call, new, rules)

    def _refuse_gain(self, call: Call, new: JsonObject, wanted: list[Rule]) -> None:
        held, missing = self._rbac.rules_for(call.user, call.route.namespace or "")
        gained = uncovered(held, wanted)
        if not gained:
            return
        listed = "\n".join(sorted({str(rule) for rule in compacted(gained)}))
        why = (
            f'user "{call.user.name}" (groups={quoted_words(call.user.groups)}) is attempting to grant RBAC '
            f"permissions not currently held:\n{listed}"
        )
        if missing:
            why += f"; resolution errors: [{', '.join(missing)}]"
        raise refused(call, new, why)


def refused(call: Call, new: JsonObject, why: str) -> Refusal:
    """403 about the object that is written."""
    return forbidden(call.route.resource.words, new["metadata"].get("name") or call.route.name, why)


def is_collecting(new: JsonObject, old: JsonObject) -> bool:
    """Whether a write changes nothing but what the garbage collector lives on."""
    if any(new.get(key) != old.get(key) for key in (new.keys() | old.keys()) - {"metadata", "kind", "apiVersion"}):
        return False
    before, after = old["metadata"], new["metadata"]
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return bool(changed) and changed <= set(COLLECTED)
