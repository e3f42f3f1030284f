"""Roles and bindings as objects: what is filled in, what is refused, and that no user grants more than it has.

Words and order of refusals as a real server's (1.33).
"""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim.server.api import Response
from kubesim_support.accounts import RBAC, as_admin, grant, guarded, rule
from kubesim_support.caller import Caller

pytestmark = pytest.mark.anyio

GROUP = "rbac.authorization.k8s.io"
ROLES, CLUSTER_ROLES = f"{RBAC}/namespaces/default/roles", f"{RBAC}/clusterroles"
BINDINGS, CLUSTER_BINDINGS = f"{RBAC}/namespaces/default/rolebindings", f"{RBAC}/clusterrolebindings"
MERGE = {"content-type": "application/merge-patch+json"}


@pytest.fixture
def caller() -> Caller:
    return Caller(ApiServer(LoopClock()))


@pytest.mark.parametrize(
    ("path", "body", "causes"),
    [
        (
            ROLES,
            {"rules": [{"verbs": []}, {"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}]},
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
                'rules[1].nonResourceURLs: Invalid value: []string{"/x"}: namespaced rules cannot apply to '
                "non-resource URLs",
                'rules[1].nonResourceURLs: Invalid value: []string{"/x"}: rules cannot apply to both regular '
                "resources and non-resource URLs",
            ],
        ),
        (
            CLUSTER_ROLES,
            {"metadata": {"name": "a%b/c"}, "aggregationRule": {}},
            [
                "metadata.name: Invalid value: \"a%b/c\": may not contain '/'",
                "metadata.name: Invalid value: \"a%b/c\": may not contain '%'",
                "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if "
                "aggregationRule is non-nil",
            ],
        ),
        (
            BINDINGS,
            {
                "roleRef": {"kind": "Thing", "apiGroup": "x"},
                "subjects": [
                    {"kind": "Robot", "name": ""},
                    {"kind": "User", "apiGroup": "y", "name": "a"},
                    {"kind": "ServiceAccount", "name": "a", "apiGroup": "z"},
                ],
            },
            [
                f'roleRef.apiGroup: Unsupported value: "x": supported values: "{GROUP}"',
                'roleRef.kind: Unsupported value: "Thing": supported values: "Role", "ClusterRole"',
                "roleRef.name: Required value",
                "subjects[0].name: Required value",
                'subjects[0].kind: Unsupported value: "Robot": supported values: "ServiceAccount", "User", "Group"',
                f'subjects[1].apiGroup: Unsupported value: "y": supported values: "{GROUP}"',
                'subjects[2].apiGroup: Unsupported value: "z": supported values: ""',
            ],
        ),
        (
            CLUSTER_BINDINGS,
            {"roleRef": {"kind": "Role", "name": "a/b"}, "subjects": [{"kind": "ServiceAccount", "name": "a"}]},
            [
                'roleRef.kind: Unsupported value: "Role": supported values: "ClusterRole"',
                "roleRef.name: Invalid value: \"a/b\": may not contain '/'",
                "subjects[0].namespace: Required value",
            ],
        ),
    ],
)
async def test_faults(caller: Caller, path: str, body: dict[str, Any], causes: list[str]) -> None:
    refused = await caller.call("POST", path, {"metadata": {"name": "bad"}, **body})
    assert refused.status == 422
    refusals = refused.body["details"]["causes"]
    assert [f"{cause['field']}: {cause['message']}" for cause in refusals] == causes


async def test_a_binding_keeps_its_role(caller: Caller) -> None:
    await caller.create(BINDINGS, {"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"}})
    refused = await caller.call("PATCH", f"{BINDINGS}/b", {"roleRef": {"name": "other"}}, headers=MERGE)
    assert (refused.status, refused.body["message"]) == (
        422,
        f'RoleBinding.{GROUP} "b" is invalid: roleRef: Invalid value: rbac.RoleRef{{APIGroup:"{GROUP}", Kind:"Role", '
        'Name:"other"}: cannot change roleRef',
    )


MAKER = rule("create update patch", "roles clusterroles rolebindings clusterrolebindings", GROUP)
HOLDS = 'user "maker" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:\n'


async def as_maker(server: ApiServer, method: str, path: str, body: Any) -> Response:
    kind = MERGE if method == "PATCH" else {}
    return await Caller(server).call(method, path, body, headers={"authorization": "Bearer t", **kind})


async def test_a_change_of_a_role_is_looked_at_as_a_whole() -> None:
    server = await guarded(LoopClock(), "maker", MAKER)
    await as_admin(server, "POST", ROLES, {"metadata": {"name": "r"}, "rules": [rule("get", "secrets")]})
    assert (await as_maker(server, "PATCH", f"{ROLES}/r", {"metadata": {"labels": {"a": "b"}}})).status == 403
    assert (await as_maker(server, "PATCH", f"{ROLES}/r", {"metadata": {"finalizers": ["a.b/c"]}})).status == 200
    assert (await as_maker(server, "PATCH", f"{ROLES}/r", {"rules": []})).status == 200


async def test_only_a_cluster_admin_gathers_roles() -> None:
    server = await guarded(LoopClock(), "maker", MAKER)
    gathering = {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}
    body = {"metadata": {"name": "esc"}, "aggregationRule": gathering}
    refused = await as_maker(server, "POST", CLUSTER_ROLES, body)
    assert refused.body["message"] == (
        f'clusterroles.{GROUP} "esc" is forbidden: must have cluster-admin privileges to use the aggregationRule'
    )
    everything = [rule("*", "*", "*"), {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    await grant(server, {"kind": "User", "name": "maker"}, *everything, name="all")
    assert (await as_maker(server, "POST", CLUSTER_ROLES, body)).status == 201


async def test_a_binding_to_a_role_with_more_than_its_maker_has() -> None:
    server = await guarded(LoopClock(), "maker", MAKER)
    await as_admin(server, "POST", ROLES, {"metadata": {"name": "r"}, "rules": [rule("get list", "pods")]})

    async def bind(path: str, kind: str, name: str) -> Response:
        return await as_maker(
            server, "POST", path, {"metadata": {"name": "esc"}, "roleRef": {"kind": kind, "name": name}}
        )

    refused = await bind(BINDINGS, "Role", "r")
    assert (refused.status, refused.body["message"]) == (
        403,
        f'rolebindings.{GROUP} "esc" is forbidden: {HOLDS}{{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}}',
    )
    refused = await bind(CLUSTER_BINDINGS, "ClusterRole", "cluster-admin")
    assert refused.body["message"].endswith(
        '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}\n{NonResourceURLs:["*"], Verbs:["*"]}'
    )
    missing = await bind(BINDINGS, "Role", "gone")
    assert (missing.status, missing.body["message"]) == (404, f'rolebindings.{GROUP} "gone" not found')
    assert (await bind(BINDINGS, "Robot", "r")).status == 500


async def test_escalate_and_bind_are_the_ways_round() -> None:
    server = await guarded(LoopClock(), "maker", MAKER, rule("escalate", "roles", GROUP))
    role = {"metadata": {"name": "r"}, "rules": [rule("get", "secrets")]}
    assert (await as_maker(server, "POST", ROLES, role)).status == 201
    assert (await as_maker(server, "POST", CLUSTER_ROLES, role)).status == 403
    binding = {"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"}}
    assert (await as_maker(server, "POST", BINDINGS, binding)).status == 403
    only = {**rule("bind", "roles", GROUP), "resourceNames": ["r"]}
    await grant(server, {"kind": "User", "name": "maker"}, only, name="bind")
    assert (await as_maker(server, "POST", BINDINGS, binding)).status == 201
