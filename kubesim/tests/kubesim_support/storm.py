"""Random requests by seed, half of them nonsense: what no list of cases thinks of.

A value is *shaken* by putting something else in some of its places. A place is the path of keys and indexes to it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson
from kubesim.server.api import Json, Request

from kubesim_support.caller import BUDGETS, LEASES, MERGE, NODES, PODS, STRATEGIC
from kubesim_support.definitions import DEFINITIONS, definition, version

JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
CONFIGMAPS: Final = "/api/v1/namespaces/default/configmaps"
POD: Final = {
    "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}], "ports": [{"containerPort": 80}]}],
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}],
}
WEB: Final = {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}
TEMPLATE: Final = {"metadata": {"labels": {"app": "web"}}, "spec": POD}
THING: Final = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "default": 3},
                "s": {"type": "string", "maxLength": 5},
                "p": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
    },
}
THINGS: Final = definition(
    "things",
    [
        version(name, THING, storage=name == "v1", subresources={"status": {}})
        | {"selectableFields": [{"jsonPath": ".spec.s"}]}
        for name in ("v1", "v2")
    ],
    scope="Namespaced",
)


class Served(NamedTuple):
    """A collection, and an object for it. `extra`: subresources beside status, and what is sent to them."""

    kind: str
    api_version: str
    path: str
    name: str
    body: dict[str, Any]
    extra: Mapping[str, Json] = {}

    @property
    def whole(self) -> dict[str, Any]:
        """The object with its kind and name."""
        metadata = {"labels": {"app": "web"}, **self.body.get("metadata", {}), "name": self.name}
        return {"kind": self.kind, "apiVersion": self.api_version, **self.body, "metadata": metadata}


SHRUNK: Final = {"spec": {"replicas": 1}}
EVICTION: Final = {"metadata": {"name": "p"}, "deleteOptions": {"gracePeriodSeconds": 1, "preconditions": {"uid": "a"}}}
BINDING: Final = {"target": {"name": "n1"}}
WORKLOAD: Final = {"spec": {"replicas": 1, "selector": WEB, "template": TEMPLATE}}
THING_BODY: Final = {"spec": {"n": 2, "s": "ab", "p": {"z": [1]}}, "status": {"replicas": 1}}
EVENT: Final = {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"}, "reason": "r", "count": 1}
BUDGET: Final = {
    "spec": {"selector": WEB, "minAvailable": 1},
    "status": {"disruptedPods": {"a": "2026-01-01T00:00:00Z"}},
}
RULES: Final = {"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]}
SERVED: Final = (
    Served("Pod", "v1", PODS, "p", {"spec": {**POD, "nodeName": "n1"}}, {"eviction": EVICTION, "binding": BINDING}),
    Served("Node", "v1", NODES, "n1", {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
    Served("Namespace", "v1", "/api/v1/namespaces", "ns1", {"spec": {}}, {"finalize": {"metadata": {"name": "ns1"}}}),
    Served("ConfigMap", "v1", CONFIGMAPS, "cm", {"data": {"a": "b"}}),
    Served("Secret", "v1", "/api/v1/namespaces/default/secrets", "s", {"stringData": {"c": "d"}}),
    Served("Event", "v1", "/api/v1/namespaces/default/events", "e", EVENT),
    Served("Lease", "coordination.k8s.io/v1", LEASES, "l", {"spec": {"leaseDurationSeconds": 1}}),
    Served("PodDisruptionBudget", "policy/v1", BUDGETS, "b", BUDGET),
    Served("PodDisruptionBudget", "policy/v1beta1", BUDGETS.replace("/v1/", "/v1beta1/"), "b", BUDGET),
    Served("Deployment", "apps/v1", "/apis/apps/v1/namespaces/default/deployments", "d", WORKLOAD, {"scale": SHRUNK}),
    Served("Job", "batch/v1", "/apis/batch/v1/namespaces/default/jobs", "j", WORKLOAD),
    Served(
        "ClusterRole", "rbac.authorization.k8s.io/v1", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "r", RULES
    ),
    Served("Thing", "c.example/v1", "/apis/c.example/v1/namespaces/default/things", "t", THING_BODY),
    Served("Thing", "c.example/v2", "/apis/c.example/v2/namespaces/default/things", "t", THING_BODY),
)
DEFINING: Final = Served("CustomResourceDefinition", "apiextensions.k8s.io/v1", DEFINITIONS, "things.c.example", THINGS)
ASKING: Final = (
    ("/apis/authorization.k8s.io/v1/subjectaccessreviews", {"user": "j", "resourceAttributes": {"verb": "get"}}),
    ("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"namespace": "default"}),
    ("/apis/authentication.k8s.io/v1/tokenreviews", {"token": "t", "audiences": ["a"]}),
)
JUNK: Final[tuple[Json, ...]] = (
    *(None, True, 0, -1, 2**63, 1.5, "", "a", "x" * 300, "10%", "a/b", "\x00", "é", "1Gi", "2026-01-01T00:00:00Z"),
    *(
        [],
        [None],
        ["a"],
        [[]],
        [{}],
        {},
        {"a": None},
        {"a": 1},
        {"": ""},
        {"$patch": "delete"},
        {"matchLabels": {"a": "b"}},
    ),
)
QUERIES: Final[Mapping[str, tuple[str, ...]]] = {
    "dryRun": ("All", "x"),
    "fieldManager": ("a", "\x00", "x" * 200),
    "fieldValidation": ("Strict", "Warn", "x"),
    "force": ("true",),
    "gracePeriodSeconds": ("0", "5", "-1", "x"),
    "propagationPolicy": ("Foreground", "Orphan", "x"),
    "labelSelector": ("app=web", "app in (web)", "!a", "((", "=", "a>x"),
    "fieldSelector": ("metadata.name=p", "spec.nodeName=n1", "spec.s=ab", "x", "x=y"),
    "limit": ("1", "-1", "x"),
    "continue": ("x", "e30", "bnVsbA", "W10"),
    "resourceVersion": ("0", "1", "1010", "999999999", "x"),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "x"),
    "watch": ("true", "x"),
    "timeoutSeconds": ("1", "-5", "x"),
    "sendInitialEvents": ("true", "x"),
}
PATHS: Final = (
    "/",
    "/api",
    "/apis/apps",
    "/apis/x/y/z",
    "/openapi/v3",
    "/version",
    "/api/v1/watch/pods",
    f"{PODS}/p/x/y",
)

Place = tuple[str | int, ...]


def places(value: Json, at: Place = ()) -> Iterator[Place]:
    """All places of a value."""
    yield at
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, key))


def with_value(value: Json, place: Place, new: Json) -> Json:
    """The value with something else in one place."""
    if not place:
        return new
    key, rest = place[0], place[1:]
    if isinstance(value, list):
        return [with_value(item, rest, new) if index == key else item for index, item in enumerate(value)]
    return {**value, key: with_value(value[key], rest, new)}


class Storm:
    """Makes requests."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def shaken(self, value: Json) -> Json:
        """A copy of the value, perhaps with junk in some places."""
        for _ in range(self.rng.choice((0, 0, 1, 1, 2))):
            value = with_value(value, self.rng.choice([*places(value)]), self.rng.choice(JUNK))
        return orjson.loads(orjson.dumps(value))

    def request(self) -> Request:
        """Any request."""
        rng = self.rng
        if rng.random() < 0.05:
            return Request(method=rng.choice(("GET", "POST", "HEAD")), path=rng.choice(PATHS), query=self._query())
        if rng.random() < 0.05:
            path, spec = rng.choice(ASKING)
            return Request(method="POST", path=path, body=self.shaken({"spec": spec}))
        return self.write(rng.choice((*SERVED, DEFINING))) if rng.random() < 0.8 else self._read()

    def write(self, served: Served) -> Request:
        """A request that may change an object of the kind."""
        rng, path, whole = self.rng, f"{served.path}/{served.name}", served.whole
        if rng.random() < 0.2:
            subresource = rng.choice(("status", *served.extra))
            path, whole = f"{path}/{subresource}", served.extra.get(subresource, whole)
        match rng.choice(("POST", "POST", "PUT", "PATCH", "PATCH", "PATCH", "DELETE")):
            case "POST":
                path = path if path.endswith(("eviction", "binding")) else served.path
                return self._sent("POST", path, self.shaken(whole))
            case "PUT":
                return self._sent("PUT", path, self.shaken(whole))
            case "PATCH":
                media = rng.choice((MERGE, STRATEGIC, JSON_PATCH, APPLY))
                patch = self._operations(whole) if media == JSON_PATCH else self.shaken(whole)
                return self._sent("PATCH", path, patch, media)
        path = served.path if rng.random() < 0.1 else f"{served.path}/{served.name}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": "x"}, "propagationPolicy": "Foreground"}
        return self._sent("DELETE", path, rng.choice((None, None, {}, self.shaken(options))))

    def _sent(self, method: str, path: str, body: Json, media: str = "application/json") -> Request:
        raw = body if body is None or self.rng.random() < 0.7 else orjson.dumps(body)
        return Request(method=method, path=path, query=self._query(), headers={"content-type": media}, body=raw)

    def _operations(self, whole: Json) -> Json:
        rng, known = self.rng, [*places(whole)]
        pointers = ["".join(f"/{key}" for key in place) for place in rng.sample(known, 2)]
        kind = rng.choice(("add", "replace", "remove", "test", "copy", "move", "x"))
        return self.shaken([{"op": kind, "path": pointers[0], "from": pointers[1], "value": rng.choice(JUNK)}])

    def _read(self) -> Request:
        served = self.rng.choice(SERVED)
        path = self.rng.choice((served.path, f"{served.path}/{served.name}", f"{served.path}/{served.name}/scale"))
        accept = self.rng.choice(("*/*", "application/json;as=Table;v=v1;g=meta.k8s.io", "text/html"))
        return Request(method="GET", path=path, query=self._query(), headers={"accept": accept})

    def _query(self) -> dict[str, str]:
        names = self.rng.sample([*QUERIES], self.rng.choice((0, 0, 0, 1, 2)))
        return {name: self.rng.choice(QUERIES[name]) for name in names}
