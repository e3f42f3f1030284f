"""What kubectl does only when a server describes itself and takes protobuf: create, explain, diff, patches of lists."""

from __future__ import annotations

import pytest
from clients.place import settings
from kubesim_support.definitions import definition, version, whole
from kubesim_support.kubectl import Kubectl, needs_kubectl

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, needs_kubectl]

WIDGETS = definition(
    "widgets", [version("v1", whole({"expireAfter": {"type": "string", "description": "When it goes."}}))]
)


@pytest.fixture
def kubectl(lonely_kubectl: Kubectl) -> Kubectl:
    return lonely_kubectl


async def test_what_is_created_in_protobuf_is_what_was_meant(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "shop")
    await kubectl("create", "configmap", "settings", "--from-literal=a=b")
    await kubectl("create", "serviceaccount", "bot")
    await kubectl("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=50%")
    await kubectl("create", "deployment", "web", "--image=nginx:1", "--replicas=0", "--port=80")
    await kubectl("create", "job", "once", "--image=busybox", "--", "true")
    budget = await kubectl.json("get", "poddisruptionbudget", "web")
    assert budget["spec"] == {"minAvailable": "50%", "selector": {"matchLabels": {"app": "web"}}}
    deployment = await kubectl.json("get", "deployment", "web")
    assert deployment["spec"]["replicas"] == 0
    assert deployment["spec"]["template"]["spec"]["containers"][0]["ports"] == [
        {"containerPort": 80, "protocol": "TCP"}
    ]
    job = await kubectl.json("get", "job", "once")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["true"]


async def test_kinds_are_explained_custom_ones_too(kubectl: Kubectl) -> None:
    assert "FIELD: containers <[]Container>" in await kubectl("explain", "pod.spec.containers")
    assert "maxUnavailable <IntOrString>" in await kubectl("explain", "pdb.spec.maxUnavailable")
    await kubectl.apply(WIDGETS)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.c.example", "--timeout=100s")
    explained = await kubectl("explain", "widgets.spec.expireAfter")
    assert "KIND:       Widget" in explained
    assert "When it goes." in explained


async def test_a_difference_is_shown_and_changes_nothing(kubectl: Kubectl) -> None:
    await kubectl.apply(settings(a="1"))
    difference = await kubectl.run("diff", "-f", "-", stdin=str(settings(a="2")).replace("'", '"'))
    assert (difference.code, difference.err) == (1, "")
    assert '-  a: "1"\n+  a: "2"' in difference.out
    assert (await kubectl.json("get", "configmap", "settings"))["data"] == {"a": "1"}


async def test_one_container_of_two_is_changed(kubectl: Kubectl) -> None:
    await kubectl("create", "deployment", "web", "--image=nginx:1", "--image=redis:1", "--replicas=0")
    await kubectl("set", "image", "deployment/web", "redis=redis:2")
    await kubectl("set", "env", "deployment/web", "--containers=nginx", "A=1", "B=2")
    await kubectl("set", "env", "deployment/web", "--containers=nginx", "A-")
    containers = (await kubectl.json("get", "deployment", "web"))["spec"]["template"]["spec"]["containers"]
    assert [each["image"] for each in containers] == ["nginx:1", "redis:2"]
    assert [each.get("env") for each in containers] == [[{"name": "B", "value": "2"}], None]


async def test_who_insists_is_only_warned(kubectl: Kubectl) -> None:
    manifest = str({**settings(a="1"), "dta": 1}).replace("'", '"')
    made = await kubectl.run("create", "-f", "-", "--validate=warn", stdin=manifest)
    assert (made.code, made.err) == (0, 'Warning: unknown field "dta"\n')
