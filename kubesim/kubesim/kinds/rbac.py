"""Roles, bindings and access reviews (recording auth; refusals in kube-apiserver's words).

Names are free (`system:basic-user`). A binding's roleRef is immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kubesim.auth.rbac import RBAC_GROUP
from kubesim.auth.reviews import ACCESS_GROUP, IDENTITY_GROUP
from kubesim.kinds.workloads import TopLevel
from kubesim.printers.columns import AGE, DEFAULT, NAME
from kubesim.server.api import Json, JsonObject
from kubesim.server.goformat import go_strings
from kubesim.server.names import SUBDOMAIN_RULE, is_subdomain, path_name_faults
from kubesim.server.resource import Column, Resource
from kubesim.server.status import INVALID, Cause, invalid_value, not_supported, required

QUALIFIED_SUBJECTS: Final = ("User", "Group")
SUBJECTS: Final = ("ServiceAccount", *QUALIFIED_SUBJECTS)


class RoleStrategy(TopLevel):
    """Roles and ClusterRoles."""

    names_are_free = True
    created_by_put = True
    empty: Mapping[str, Json] = {"rules": None}

    def __init__(self, *, namespaced: bool) -> None:
        self._namespaced = namespaced

    def normalise(self, new: JsonObject) -> JsonObject:
        new = new if new.get("rules") else {**new, "rules": None}
        if new.get("aggregationRule", {}) is None:
            return {key: value for key, value in new.items() if key != "aggregationRule"}
        return new

    def validate(self, new: JsonObject) -> list[Cause]:
        faults: list[Cause] = []
        for index, rule in enumerate(new["rules"] or ()):
            faults += self._rule_faults(rule, f"rules[{index}]")
        gathering = new.get("aggregationRule")
        if gathering is not None and not gathering.get("clusterRoleSelectors"):
            why = "at least one clusterRoleSelector required if aggregationRule is non-nil"
            faults.append(required("aggregationRule.clusterRoleSelectors", why))
        return faults

    def _rule_faults(self, rule: JsonObject, path: str) -> list[Cause]:
        faults: list[Cause] = []
        if not rule.get("verbs"):
            faults.append(required(f"{path}.verbs", "verbs must contain at least one value"))
        urls = rule.get("nonResourceURLs")
        if urls:
            field, value = f"{path}.nonResourceURLs", f"Invalid value: {go_strings(urls)}"
            if self._namespaced:
                why = "namespaced rules cannot apply to non-resource URLs"
                faults.append(Cause(INVALID, f"{value}: {why}", field))
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                why = "rules cannot apply to both regular resources and non-resource URLs"
                faults.append(Cause(INVALID, f"{value}: {why}", field))
            return faults
        if not rule.get("apiGroups"):
            faults.append(required(f"{path}.apiGroups", "resource rules must supply at least one api group"))
        if not rule.get("resources"):
            faults.append(required(f"{path}.resources", "resource rules must supply at least one resource"))
        return faults


class BindingStrategy(TopLevel):
    """RoleBindings and ClusterRoleBindings."""

    names_are_free = True
    created_by_put = True
    empty: Mapping[str, Json] = {"roleRef": {"apiGroup": "", "kind": "", "name": ""}}

    def __init__(self, *, namespaced: bool) -> None:
        self._namespaced = namespaced

    def normalise(self, new: JsonObject) -> JsonObject:
        given: JsonObject = new.get("roleRef") or {}
        role_ref = {
            "apiGroup": given.get("apiGroup") or RBAC_GROUP,
            "kind": given.get("kind") or "",
            "name": given.get("name") or "",
        }
        subjects = [qualified(subject) for subject in new.get("subjects") or ()]
        shown = {key: value for key, value in new.items() if key != "subjects"}
        return {**shown, "roleRef": role_ref, **({"subjects": subjects} if subjects else {})}

    def validate(self, new: JsonObject) -> list[Cause]:
        role_ref = new["roleRef"]
        faults: list[Cause] = []
        if role_ref["apiGroup"] != RBAC_GROUP:
            faults.append(not_supported("roleRef.apiGroup", f'"{role_ref["apiGroup"]}"', [RBAC_GROUP]))
        kinds = ["Role", "ClusterRole"] if self._namespaced else ["ClusterRole"]
        if role_ref["kind"] not in kinds:
            faults.append(not_supported("roleRef.kind", f'"{role_ref["kind"]}"', kinds))
        if not role_ref["name"]:
            faults.append(required("roleRef.name"))
        faults += path_name_faults("roleRef.name", role_ref["name"])
        for index, subject in enumerate(new.get("subjects") or ()):
            faults += self._subject_faults(subject, f"subjects[{index}]")
        return faults

    def _subject_faults(self, subject: JsonObject, path: str) -> list[Cause]:
        kind, name, group = subject["kind"], subject["name"], subject.get("apiGroup", "")
        faults: list[Cause] = []
        if not name:
            faults.append(required(f"{path}.name"))
        if kind not in SUBJECTS:
            return [*faults, not_supported(f"{path}.kind", f'"{kind}"', SUBJECTS)]
        if kind == "ServiceAccount" and name and not is_subdomain(name):
            faults.append(invalid_value(f"{path}.name", name, SUBDOMAIN_RULE))
        wanted = RBAC_GROUP if kind in QUALIFIED_SUBJECTS else ""
        if group != wanted:
            faults.append(not_supported(f"{path}.apiGroup", f'"{group}"', [wanted]))
        if kind == "ServiceAccount" and not self._namespaced and not subject.get("namespace"):
            faults.append(required(f"{path}.namespace"))
        return faults

    def validate_update(self, new: JsonObject, old: JsonObject) -> list[Cause]:
        role_ref = new["roleRef"]
        if role_ref == old["roleRef"]:
            return []
        shown = ", ".join(f'{key[0].upper()}{key[1:]}:"{value}"' for key, value in role_ref.items())
        shown = shown.replace("ApiGroup", "APIGroup")
        return [Cause(INVALID, f"Invalid value: rbac.RoleRef{{{shown}}}: cannot change roleRef", "roleRef")]


def qualified(subject: JsonObject) -> JsonObject:
    """A subject with the API group that its kind has."""
    kind = subject.get("kind") or ""
    group = subject.get("apiGroup") or (RBAC_GROUP if kind in QUALIFIED_SUBJECTS else "")
    shown = {"kind": kind, "apiGroup": group, "name": subject.get("name") or "", "namespace": subject.get("namespace")}
    return {key: value for key, value in shown.items() if value or key in ("kind", "name")}


def subjects_of(kind: str) -> Callable[[JsonObject, float], str]:
    """A cell that names the subjects of one kind."""

    def show(binding: JsonObject, now: float) -> str:
        found = (subject for subject in binding.get("subjects") or () if subject["kind"] == kind)
        return ", ".join("/".join(filter(None, (each.get("namespace"), each["name"]))) for each in found)

    return show


BINDING_COLUMNS: Final = (
    NAME,
    Column("Role", lambda binding, now: f"{binding['roleRef']['kind']}/{binding['roleRef']['name']}"),
    AGE,
    Column("Users", subjects_of("User"), wide=True),
    Column("Groups", subjects_of("Group"), wide=True),
    Column("ServiceAccounts", subjects_of("ServiceAccount"), wide=True),
)
REVIEWS: Final = (
    (ACCESS_GROUP, "SelfSubjectAccessReview", False),
    (ACCESS_GROUP, "SubjectAccessReview", False),
    (ACCESS_GROUP, "LocalSubjectAccessReview", True),
    (ACCESS_GROUP, "SelfSubjectRulesReview", False),
    (IDENTITY_GROUP, "SelfSubjectReview", False),
    (IDENTITY_GROUP, "TokenReview", False),
)


def access_kinds() -> tuple[Resource, ...]:
    """The resources of access control, stored and asking."""
    return (*_stored(), *review_kinds())


def review_kinds() -> tuple[Resource, ...]:
    """The resources that are never stored: they are created to be answered."""
    return tuple(
        Resource(
            group=group,
            version="v1",
            plural=f"{kind.lower()}s",
            kind=kind,
            namespaced=namespaced,
            verbs=("create",),
            singular=kind.lower(),
        )
        for group, kind, namespaced in REVIEWS
    )


def _stored() -> tuple[Resource, ...]:
    return tuple(
        Resource(
            group=RBAC_GROUP,
            version="v1",
            plural=f"{kind.lower()}s",
            kind=kind,
            namespaced=namespaced,
            strategy=strategy,
            columns=columns,
            singular=kind.lower(),
        )
        for kind, namespaced, strategy, columns in (
            ("Role", True, RoleStrategy(namespaced=True), DEFAULT),
            ("ClusterRole", False, RoleStrategy(namespaced=False), DEFAULT),
            ("RoleBinding", True, BindingStrategy(namespaced=True), BINDING_COLUMNS),
            ("ClusterRoleBinding", False, BindingStrategy(namespaced=False), BINDING_COLUMNS),
        )
    )
