"""What webhooks are told of which requests, and what not. Checked on a server (1.33) where no recording says it."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim_support.caller import LEASES, NODES, PODS
from kubesim_support.webhooks import CONFIGMAPS, CONFIGURATIONS, Hook, Stage, config_map, rule

pytestmark = pytest.mark.anyio

THINGS = "/apis/c.example/v1/things"

NAMESPACES = "/api/v1/namespaces"
EVENTS = "/api/v1/namespaces/default/events"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def place(group: str, version: str, resource: str) -> dict[str, str]:
    """A resource as reviews name it."""
    return {"group": group, "version": version, "resource": resource}


def kind(group: str, version: str, kind: str) -> dict[str, str]:
    """A kind as reviews name it."""
    return {"group": group, "version": version, "kind": kind}


async def test_a_review_is_whole() -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    headers = {"user-agent": "test"}
    await stage.call("POST", CONFIGMAPS, config_map("one", a="b"), headers=headers, fieldManager="me", dryRun="All")
    [request] = hook.requests
    created = request.pop("object")
    assert created["metadata"]["name"] == "one"
    assert created["metadata"].keys() >= {"uid", "creationTimestamp", "namespace", "labels"}
    del request["uid"]
    assert request == {
        "kind": kind("", "v1", "ConfigMap"),
        "resource": place("", "v1", "configmaps"),
        "requestKind": kind("", "v1", "ConfigMap"),
        "requestResource": place("", "v1", "configmaps"),
        "name": "one",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {
            "username": "alice",
            "uid": "1",
            "groups": ["system:masters", "system:authenticated"],
            "extra": {"team": ["a", "b"]},
        },
        "oldObject": None,
        "dryRun": True,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me", "dryRun": ["All"]},
    }


async def test_a_mutating_webhook_sees_a_new_object_before_the_server_has_touched_it() -> None:
    stage = Stage()
    hook = await stage.hook("mutating", rules=[rule("pods")])
    spec = {"containers": [{"name": "c", "image": "i"}]}
    created = await stage.create(PODS, {"metadata": {"generateName": "web-"}, "spec": spec})
    request = hook.last
    assert "name" not in request
    seen = request["object"]
    metadata = {key: value for key, value in seen["metadata"].items() if key != "managedFields"}
    assert metadata == {"generateName": "web-", "namespace": "default", "creationTimestamp": None}
    assert seen["status"] == {}
    assert seen["spec"]["tolerations"] == created["spec"]["tolerations"]
    assert created["status"]["phase"] == "Pending"


async def test_a_validating_webhook_sees_it_as_it_will_be_stored() -> None:
    stage = Stage()
    hook = await stage.hook("validating", rules=[rule("pods")])
    spec = {"containers": [{"name": "c", "image": "i"}]}
    created = await stage.create(PODS, {"metadata": {"generateName": "web-"}, "spec": spec})
    assert hook.last["name"] == created["metadata"]["name"]
    assert hook.last["object"]["status"] == created["status"]


async def test_an_update_shows_both() -> None:
    stage = Stage()
    before = await stage.create(CONFIGMAPS, config_map("one"))
    hook = await stage.hook("validating")
    await stage.patch(f"{CONFIGMAPS}/one", {"data": {"a": "b"}})
    request = hook.last
    assert request["operation"] == "UPDATE"
    assert request["options"] == {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"}
    assert request["oldObject"] == before
    assert request["object"]["data"] == {"a": "b"}


async def test_a_change_of_nothing_is_told_too() -> None:
    stage = Stage()
    created = await stage.create(CONFIGMAPS, config_map("one"))
    hook = await stage.hook("validating")
    assert await stage.patch(f"{CONFIGMAPS}/one", {}) == created
    assert hook.last["object"] == hook.last["oldObject"] == created


async def test_a_subresource_is_asked_for_by_name() -> None:
    stage = Stage()
    await stage.pod("one")
    whole = await stage.hook("validating", configuration="whole", rules=[rule("pods")])
    status = await stage.hook("validating", name="b.rec.example", rules=[rule("pods/status")])
    await stage.patch(f"{PODS}/one/status", {"status": {"phase": "Failed"}})
    assert whole.requests == []
    assert (status.last["subResource"], status.last["requestSubResource"]) == ("status", "status")
    assert status.last["kind"] == kind("", "v1", "Pod")


async def test_an_eviction_is_the_creation_of_an_eviction_and_no_deletion() -> None:
    stage = Stage()
    await stage.pod("one")
    hook = await stage.hook("validating", rules=[rule("pods", "pods/*")])
    assert (await stage.evict("one")).status == 201
    [request] = hook.requests
    assert request["operation"] == "CREATE"
    assert request["kind"] == request["requestKind"] == kind("policy", "v1", "Eviction")
    assert request["resource"] == place("", "v1", "pods")
    assert (request["subResource"], request["name"]) == ("eviction", "one")
    assert request["object"] == {
        "kind": "Eviction",
        "apiVersion": "policy/v1",
        "metadata": {"name": "one", "namespace": "default", "creationTimestamp": None},
    }
    assert request["options"] == {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}


async def test_a_denied_eviction_costs_no_budget() -> None:
    stage = Stage()
    await stage.pod("one")
    await stage.budget(allowed=1)
    hook = await stage.hook("validating", rules=[rule("pods/eviction")])
    hook.denies(code=429, message="not now")
    response = await stage.evict("one")
    assert (response.status, response.body["message"]) == (
        429,
        'admission webhook "a.rec.example" denied the request: not now',
    )
    budgets = await stage.get("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web")
    assert budgets["status"]["disruptionsAllowed"] == 1


async def test_a_wrong_name_is_refused_between_mutating_and_validating() -> None:
    stage = Stage()
    await stage.pod("one")
    mutating = await stage.hook("mutating", rules=[rule("pods/eviction")])
    validating = await stage.hook("validating", rules=[rule("pods/eviction")])
    body = {"metadata": {"name": "other"}}
    response = await stage.call("POST", f"{PODS}/one/eviction", body)
    assert response.status == 400
    assert (len(mutating.requests), len(validating.requests)) == (1, 0)


async def test_a_binding_is_told_and_may_be_changed() -> None:
    stage = Stage()
    await stage.create(PODS, {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    hook = await stage.hook("mutating", rules=[rule("pods/binding")])
    hook.patches({"op": "replace", "path": "/target/name", "value": "n2"})
    body = {"metadata": {"name": "one"}, "target": {"kind": "Node", "name": "n1"}}
    await stage.create(f"{PODS}/one/binding", body)
    assert hook.last["kind"] == kind("", "v1", "Binding")
    assert (await stage.get(f"{PODS}/one"))["spec"]["nodeName"] == "n2"


async def test_a_scale_is_shown_as_a_scale() -> None:
    stage = Stage()
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    await stage.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
    hook = await stage.hook("mutating", rules=[rule("deployments/scale")])
    hook.patches({"op": "replace", "path": "/spec/replicas", "value": 2})
    scale = await stage.patch(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 5}})
    assert hook.last["kind"] == kind("autoscaling", "v1", "Scale")
    assert (hook.last["object"]["spec"], hook.last["oldObject"]["spec"]) == ({"replicas": 5}, {"replicas": 1})
    assert scale["spec"]["replicas"] == 2


async def test_a_namespace_lies_in_itself() -> None:
    stage = Stage()
    hook = await stage.hook("validating", rules=[rule("namespaces")])
    created = await stage.create(NAMESPACES, {"metadata": {"name": "team"}})
    assert (hook.last["name"], hook.last["namespace"]) == ("team", "team")
    await stage.ok("DELETE", f"{NAMESPACES}/team")
    assert hook.last["options"]["preconditions"] == {"uid": created["metadata"]["uid"]}


async def test_a_put_that_creates_is_a_creation() -> None:
    stage = Stage()
    hook = await stage.hook("mutating", rules=[rule("leases")])
    lease = {"metadata": {"name": "one"}, "spec": {}}
    await stage.ok("PUT", f"{LEASES}/one", lease)
    assert (hook.last["operation"], hook.last["options"]["kind"]) == ("CREATE", "CreateOptions")


async def test_a_stale_put_is_told_to_mutating_webhooks_only() -> None:
    stage = Stage()
    await stage.create(CONFIGMAPS, config_map("one"))
    mutating, validating = await stage.hook("mutating"), await stage.hook("validating")
    body = {"metadata": {"name": "one", "resourceVersion": "1"}}
    assert (await stage.call("PUT", f"{CONFIGMAPS}/one", body)).status == 409
    assert (len(mutating.requests), len(validating.requests)) == (1, 0)


async def test_old_webhooks_are_asked_in_v1beta1() -> None:
    stage = Stage()
    reviews: list[Any] = []

    async def old(review: Any) -> Any:
        reviews.append(review)
        return {"response": {"allowed": False}}

    url = "https://old.example/"
    stage.webhooks.register(url, old)
    await stage.hook("validating", admissionReviewVersions=["v2", "v1beta1", "v1"], clientConfig={"url": url})
    assert (await stage.call("POST", CONFIGMAPS, config_map("one"))).status == 400
    assert reviews[0]["apiVersion"] == "admission.k8s.io/v1beta1"


# -- who is asked ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "is_asked"),
    [
        (rule(operations=("CREATE",)), True),
        (rule(operations=("UPDATE", "DELETE")), False),
        (rule(groups=("",)), True),
        (rule(groups=("apps",)), False),
        (rule(apiVersions=["v1"]), True),
        (rule(apiVersions=["v2"]), False),
        (rule("*"), True),
        (rule("*/*"), True),
        (rule("*/status"), False),
        (rule("configmaps/*"), True),
        (rule("pods", "configmaps"), True),
        (rule(scope="Namespaced"), True),
        (rule(scope="Cluster"), False),
    ],
    ids=str,
)
async def test_rules(raw: Any, is_asked: bool) -> None:
    stage = Stage()
    hook = await stage.hook("validating", rules=[raw])
    await stage.create(CONFIGMAPS, config_map("one"))
    assert bool(hook.requests) is is_asked


@pytest.mark.parametrize(("scope", "is_asked"), [("Namespaced", False), ("Cluster", True), ("*", True)])
async def test_a_namespace_is_cluster_scoped(scope: str, is_asked: bool) -> None:
    stage = Stage()
    hook = await stage.hook("validating", rules=[rule("namespaces", scope=scope)])
    await stage.create(NAMESPACES, {"metadata": {"name": "team"}})
    assert bool(hook.requests) is is_asked


async def labelled_namespaces(stage: Stage) -> None:
    """Namespaces `in` and `out`."""
    for name in ("in", "out"):
        await stage.create(NAMESPACES, {"metadata": {"name": name, "labels": {"watched": name}}})


IN = {"matchLabels": {"watched": "in"}}


async def test_a_namespace_selector_looks_at_the_namespace_of_the_object() -> None:
    stage = Stage()
    await labelled_namespaces(stage)
    hook = await stage.hook("validating", namespaceSelector=IN, rules=[rule("configmaps", "nodes", "namespaces")])
    for name in ("in", "out"):
        await stage.create(f"{NAMESPACES}/{name}/configmaps", config_map("one"))
    assert [request["namespace"] for request in hook.requests] == ["in"]
    await stage.create(NODES, {"metadata": {"name": "n1"}})
    assert hook.last["name"] == "n1"  # what has no namespace is never exempt


async def test_a_namespace_selector_looks_at_a_namespace_itself() -> None:
    stage = Stage()
    hook = await stage.hook("validating", namespaceSelector=IN, rules=[rule("namespaces")])
    await labelled_namespaces(stage)
    assert [request["name"] for request in hook.requests] == ["in"]
    for name in ("in", "out"):
        await stage.ok("DELETE", f"{NAMESPACES}/{name}")
    assert [request["operation"] for request in hook.requests] == ["CREATE", "DELETE"]


async def test_an_object_selector_looks_at_the_object_before_and_after() -> None:
    stage = Stage()
    hook = await stage.hook("validating", objectSelector={"matchLabels": {"a": "b"}})
    await stage.create(CONFIGMAPS, config_map("one"))
    assert hook.requests == []
    path = f"{CONFIGMAPS}/one"
    await stage.patch(path, {"metadata": {"labels": {"a": "b"}}})
    await stage.patch(path, {"metadata": {"labels": {"a": None}}})
    await stage.patch(path, {"data": {"x": "y"}})
    assert len(hook.requests) == 2
    await stage.patch(path, {"metadata": {"labels": {"a": "b"}}})
    await stage.ok("DELETE", path)
    assert hook.last["operation"] == "DELETE"


async def event(stage: Stage, name: str) -> None:
    """A core event."""
    about = {"kind": "Pod", "namespace": "default", "name": "x"}
    metadata = {"name": name, "namespace": "default"}
    await stage.create(EVENTS, {"metadata": metadata, "involvedObject": about, "reason": "R", "message": "m"})


async def test_an_equivalent_rule_shows_the_object_in_its_own_version() -> None:
    stage = Stage()
    hook = await stage.hook("mutating", rules=[rule("events", groups=("events.k8s.io",))])
    hook.patches({"op": "replace", "path": "/note", "value": "changed"})
    await event(stage, "one")
    request = hook.last
    assert request["kind"] == kind("events.k8s.io", "v1", "Event")
    assert request["resource"] == place("events.k8s.io", "v1", "events")
    assert request["requestResource"] == place("", "v1", "events")
    assert (request["object"]["apiVersion"], request["object"]["note"]) == ("events.k8s.io/v1", "m")
    assert (await stage.get(f"{EVENTS}/one"))["message"] == "changed"


async def test_an_exact_rule_does_not() -> None:
    stage = Stage()
    hook = await stage.hook("mutating", matchPolicy="Exact", rules=[rule("events", groups=("events.k8s.io",))])
    await event(stage, "one")
    assert hook.requests == []


async def test_webhook_configurations_are_not_reviewed() -> None:
    stage = Stage()
    hook = await stage.hook("validating", rules=[rule("*/*")])
    hook.denies(message="never")
    await stage.configure("mutating", name="other")
    await stage.ok("DELETE", f"{CONFIGURATIONS.format('validating')}/rec")
    assert hook.requests == []
    await stage.create(CONFIGMAPS, config_map("one"))


async def test_a_configuration_counts_from_the_moment_it_is_there() -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    path = f"{CONFIGURATIONS.format('validating')}/rec"
    await stage.patch(path, {"webhooks": []})
    await stage.create(CONFIGMAPS, config_map("one"))
    assert hook.requests == []


async def test_matching_looks_at_what_earlier_webhooks_made() -> None:
    stage = Stage()
    first = await stage.hook("mutating", configuration="1")
    second: Hook = await stage.hook(
        "mutating", configuration="2", name="b.rec.example", objectSelector={"matchLabels": {"a": "b"}}
    )
    first.patches({"op": "add", "path": "/metadata/labels", "value": {"a": "b"}})
    await stage.create(CONFIGMAPS, config_map("one"))
    assert len(second.requests) == 1
