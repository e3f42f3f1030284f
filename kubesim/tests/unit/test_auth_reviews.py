"""Questions about access: what a user may do, who one is, whose a token is. Bodies as a real server's (1.33)."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.clock import LoopClock
from kubesim_support.accounts import as_admin, guarded, rule
from kubesim_support.caller import Caller

pytestmark = pytest.mark.anyio

ACCESS = "/apis/authorization.k8s.io/v1"
IDENTITY = "/apis/authentication.k8s.io/v1"
ISSUER = "https://kubernetes.default.svc.cluster.local"
PODS = {"verb": "list", "resource": "pods", "namespace": "default"}


async def review(server: ApiServer, path: str, body: Any, token: str = "t") -> Any:
    answer = await Caller(server).call("POST", path, body, headers={"authorization": f"Bearer {token}"})
    assert answer.status == 201, answer.body
    return answer.body


async def refusal(path: str, body: Any) -> tuple[int, str]:
    answer = await Caller(ApiServer(LoopClock())).call("POST", path, body)
    return answer.status, answer.body["message"]


async def test_may_they() -> None:
    server = await guarded(LoopClock(), "robot", rule("list", "pods"))
    subject = {"user": "robot", "groups": ["system:authenticated"]}

    async def may(spec: Any, path: str = f"{ACCESS}/subjectaccessreviews", **more: Any) -> bool:
        body = {**more, "spec": {**subject, **spec}}
        allowed: bool = (await review(server, path, body, "of-the-admin"))["status"]["allowed"]
        return allowed

    assert await may({"resourceAttributes": PODS})
    assert not await may({"resourceAttributes": {**PODS, "verb": "delete"}})
    assert await may({"nonResourceAttributes": {"verb": "get", "path": "/healthz"}})
    assert not await may({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}})
    assert await may({"user": "x", "groups": ["system:masters"], "resourceAttributes": {**PODS, "verb": "delete"}})
    local = f"{ACCESS}/namespaces/default/localsubjectaccessreviews"
    assert await may({"resourceAttributes": PODS}, local, metadata={"namespace": "default"})


async def test_who_am_i_said_to_be() -> None:
    headers = {"impersonate-user": "jane", "impersonate-uid": "7", "impersonate-extra-Acme%2fproject": "x"}
    caller = Caller(ApiServer(LoopClock()))
    lowered = {key.lower(): value for key, value in headers.items()}
    answer = await caller.call("POST", f"{IDENTITY}/selfsubjectreviews", {}, headers=lowered)
    assert answer.body["status"]["userInfo"] == {
        "username": "jane",
        "uid": "7",
        "groups": ["system:authenticated"],
        "extra": {"acme/project": ["x"]},
    }


async def test_whose_token_is_this() -> None:
    server = await guarded(LoopClock(), "robot")

    async def whose(token: str, *audiences: str) -> Any:
        body = {"spec": {"token": token, **({"audiences": list(audiences)} if audiences else {})}}
        return (await review(server, f"{IDENTITY}/tokenreviews", body, "of-the-admin"))["status"]

    assert await whose("nonsense") == {"user": {}, "error": "invalid bearer token"}
    assert await whose("t") == {
        "authenticated": True,
        "user": {"username": "robot", "groups": ["system:authenticated"]},
        "audiences": [ISSUER],
    }
    assert await whose("t", "vault") == {"user": {}, "error": "invalid bearer token"}
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    uid = (await as_admin(server, "POST", accounts, {"metadata": {"name": "a"}}))["metadata"]["uid"]
    asked = await as_admin(server, "POST", f"{accounts}/a/token", {"spec": {"audiences": ["vault"]}})
    token = asked["status"]["token"]
    assert await whose(token) == {
        "user": {},
        "error": (
            f'[invalid bearer token, token audiences ["vault"] is invalid for the target audiences ["{ISSUER}"]]'
        ),
    }
    answer = await whose(token, "vault", "x")
    assert answer["audiences"] == ["vault"]
    assert (answer["user"]["username"], answer["user"]["uid"]) == ("system:serviceaccount:default:a", uid)
    assert answer["user"]["groups"] == [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ]
    await as_admin(server, "DELETE", f"{accounts}/a")
    assert await whose(token, "vault") == {
        "user": {},
        "error": '[invalid bearer token, serviceaccounts "a" not found]',
    }


@pytest.mark.parametrize(
    ("path", "body", "code", "message"),
    [
        (
            f"{ACCESS}/selfsubjectaccessreviews",
            {},
            422,
            '.authorization.k8s.io "" is invalid: spec.resourceAttributes: Invalid value: "null": exactly one of '
            "nonResourceAttributes or resourceAttributes must be specified",
        ),
        (
            f"{ACCESS}/selfsubjectaccessreviews",
            {"spec": {"resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/x", "verb": "get"}}},
            422,
            '.authorization.k8s.io "" is invalid: spec.nonResourceAttributes: Invalid value: '
            'authorization.NonResourceAttributes{Path:"/x", Verb:"get"}: cannot be specified in combination with '
            "resourceAttributes",
        ),
        (
            f"{ACCESS}/subjectaccessreviews",
            {"spec": {"resourceAttributes": {"verb": "get"}}},
            422,
            '.authorization.k8s.io "" is invalid: spec.user: Invalid value: "": at least one of user or group must be '
            "specified",
        ),
        (f"{ACCESS}/selfsubjectrulesreviews", {"spec": {}}, 400, "no namespace on request"),
        (f"{IDENTITY}/tokenreviews", {"spec": {}}, 400, "token is required for TokenReview in authentication"),
        (
            f"{ACCESS}/subjectaccessreviews",
            {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"},
            400,
            'SelfSubjectAccessReview in version "v1" cannot be handled as a SubjectAccessReview: converting '
            "(v1.SelfSubjectAccessReview) to (authorization.SubjectAccessReview): unknown conversion",
        ),
    ],
)
async def test_refused_questions(path: str, body: Any, code: int, message: str) -> None:
    assert await refusal(path, body) == (code, message)


async def test_a_local_question_stays_in_its_namespace() -> None:
    path = f"{ACCESS}/namespaces/default/localsubjectaccessreviews"
    spec = {"user": "joe", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "other"}}
    assert await refusal(path, {"metadata": {"namespace": "default"}, "spec": spec}) == (
        422,
        '.authorization.k8s.io "" is invalid: spec.resourceAttributes.namespace: Invalid value: "other": must match '
        "metadata.namespace",
    )
