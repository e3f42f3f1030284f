"""What webhooks are told of which requests, and what not. Checked on a server (1.33) where no recording says it."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim_support.caller import PODS
from kubesim_support.webhooks import CONFIGMAPS, CONFIGURATIONS, Stage, config_map, rule

pytestmark = pytest.mark.anyio

NAMESPACES = "/api/v1/namespaces"
EVENTS = "/api/v1/namespaces/default/events"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def place(group: str, version: str, resource: str) -> dict[str, str]:
    """A resource as reviews name it."""
    return {"group": group, "version": version, "resource": resource}


def kind(group: str, version: str, kind: str) -> dict[str, str]:
    """A kind as reviews name it."""
    return {"group": group, "version": version, "kind": kind}


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


async def labelled_namespaces(stage: Stage) -> None:
    """Namespaces `in` and `out`."""
    for name in ("in", "out"):
        await stage.create(NAMESPACES, {"metadata": {"name": name, "labels": {"watched": name}}})


IN = {"matchLabels": {"watched": "in"}}


async def test_a_namespace_selector_looks_at_a_namespace_itself() -> None:
    stage = Stage()
    hook = await stage.hook("validating", namespaceSelector=IN, rules=[rule("namespaces")])
    await labelled_namespaces(stage)
    assert [request["name"] for request in hook.requests] == ["in"]
    for name in ("in", "out"):
        await stage.ok("DELETE", f"{NAMESPACES}/{name}")
    assert [request["operation"] for request in hook.requests] == ["CREATE", "DELETE"]


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


async def test_a_configuration_counts_from_the_moment_it_is_there() -> None:
    stage = Stage()
    hook = await stage.hook("validating")
    path = f"{CONFIGURATIONS.format('validating')}/rec"
    await stage.patch(path, {"webhooks": []})
    await stage.create(CONFIGMAPS, config_map("one"))
    assert hook.requests == []
