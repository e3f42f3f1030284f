"""What one rule allows, what it covers of another, and how requests are read as attempts."""

from __future__ import annotations

import pytest
from kubesim.auth.attributes import Attempt, attempt_of
from kubesim.auth.rules import Rule, compacted, uncovered
from kubesim.server.api import Request

PODS = Rule(("get", "list"), groups=("",), resources=("pods",))


@pytest.mark.parametrize(
    ("rule", "attempt", "allowed"),
    [
        (PODS, Attempt("get", "", "pods"), True),
        (PODS, Attempt("delete", "", "pods"), False),
        (PODS, Attempt("get", "apps", "pods"), False),
        (PODS, Attempt("get", "", "pods", "log"), False),
        (PODS, Attempt("get", path="/pods"), False),
        (Rule("*", groups="*", resources="*"), Attempt("get", "apps", "pods", "log"), True),
        (Rule("*", groups="*", resources="*"), Attempt("get", path="/healthz"), False),
        (Rule(("get",), groups=("",), resources=("pods/*",)), Attempt("get", "", "pods", "log"), False),
        (Rule(("get",), groups=("",), resources=("*/log",)), Attempt("get", "", "pods", "log"), True),
        (Rule(("get",), groups=("",), resources=("*/log",)), Attempt("get", "", "pods"), False),
        (Rule(("get",), groups=("",), resources=("pods",), names=("a",)), Attempt("get", "", "pods", name="a"), True),
        (Rule(("get",), groups=("",), resources=("pods",), names=("a",)), Attempt("get", "", "pods", name="b"), False),
        (Rule(("list",), groups=("",), resources=("pods",), names=("a",)), Attempt("list", "", "pods"), False),
        (Rule(("get",), urls=("/api/*",)), Attempt("get", path="/api/v1"), True),
        (Rule(("get",), urls=("/api/*",)), Attempt("get", path="/api"), False),
        (Rule(("get",), urls=("/api",)), Attempt("get", path="/api/"), False),
        (Rule(("get",), urls=("*",)), Attempt("get", path="/metrics"), True),
        (Rule(("get",), urls=("*",)), Attempt("post", path="/metrics"), False),
        (Rule(("get",), urls=("*",)), Attempt("get", "", "pods"), False),
    ],
)
def test_what_a_rule_allows(rule: Rule, attempt: Attempt, allowed: bool) -> None:
    assert rule.allows(attempt) is allowed


def test_what_rules_do_not_cover_is_told_in_parts_that_differ_in_more_than_their_verb() -> None:
    wanted = [
        Rule(("get", "list", "delete"), groups=("", "apps"), resources=("pods",)),
        Rule(("get",), groups=("",), resources=("nodes",), names=("a", "b")),
        Rule(("get",), urls=("/x", "/y/z")),
    ]
    held = [PODS, Rule(("get",), urls=("/y/*",)), Rule(("*",), groups=("",), resources=("nodes",), names=("a",))]
    assert [str(rule) for rule in compacted(uncovered(held, wanted))] == [
        '{NonResourceURLs:["/x"], Verbs:["get"]}',
        '{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}',
        '{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "list" "delete"]}',
        '{APIGroups:[""], Resources:["nodes"], ResourceNames:["b"], Verbs:["get"]}',
    ]


@pytest.mark.parametrize(
    ("held", "wanted", "covered"),
    [
        (Rule("*", groups="*", resources="*"), Rule(("x",), groups=("y",), resources=("z/w",), names=("n",)), True),
        (Rule("*", groups="*", resources="*"), Rule("*", urls="*"), False),
        (Rule("*", groups=("",), resources=("*/status",)), Rule("*", groups=("",), resources=("pods/status",)), True),
        (Rule("*", groups=("",), resources=("*/status",)), Rule("*", groups=("",), resources=("pods",)), False),
        (
            Rule("*", groups=("",), resources=("pods",), names=("a",)),
            Rule("*", groups=("",), resources=("pods",)),
            False,
        ),
        (PODS, Rule(("*",), groups=("",), resources=("pods",)), False),
    ],
)
def test_what_a_rule_covers(held: Rule, wanted: Rule, covered: bool) -> None:
    assert (uncovered([held], [wanted]) == []) is covered


@pytest.mark.parametrize(
    ("method", "path", "query", "attempt"),
    [
        ("GET", "/api/v1/pods", {}, Attempt("list", "", "pods")),
        ("GET", "/api/v1/pods", {"watch": "true"}, Attempt("watch", "", "pods")),
        ("GET", "/api/v1/watch/pods", {}, Attempt("watch", "", "pods")),
        ("GET", "/api/v1/pods", {"fieldSelector": "metadata.name=x"}, Attempt("list", "", "pods", name="x")),
        ("HEAD", "/api/v1/namespaces/a/pods/b", {}, Attempt("get", "", "pods", "", "a", "b")),
        ("POST", "/api/v1/namespaces/a/pods/b/eviction", {}, Attempt("create", "", "pods", "eviction", "a", "b")),
        (
            "DELETE",
            "/apis/apps/v1/namespaces/a/deployments",
            {},
            Attempt("deletecollection", "apps", "deployments", "", "a"),
        ),
        ("GET", "/api/v1/namespaces/a", {}, Attempt("get", "", "namespaces", "", "a", "a")),
        ("PUT", "/api/v1/namespaces/a/status", {}, Attempt("update", "", "namespaces", "status", "a", "a")),
        ("POST", "/api/v1/namespaces", {}, Attempt("create", "", "namespaces")),
        ("PATCH", "/apis/no.such/v1/things/x", {}, Attempt("patch", "no.such", "things", name="x")),
        ("GET", "/apis/apps/v1", {}, Attempt("get", path="/apis/apps/v1")),
        ("GET", "/", {}, Attempt("get", path="/")),
    ],
)
def test_what_a_request_tries(method: str, path: str, query: dict[str, str], attempt: Attempt) -> None:
    assert attempt_of(Request(method=method, path=path, query=query)) == attempt
