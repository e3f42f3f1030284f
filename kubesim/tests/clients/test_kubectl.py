"""The real kubectl works against the embedded cluster, as the people who will use it type it."""

from __future__ import annotations

import re

import anyio
import pytest
from clients.place import Place, deployment
from kubesim_support.kubectl import Kubectl, needs_kubectl

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, needs_kubectl]


async def test_get_shows_tables_and_objects_in_every_form(kubectl: Kubectl, place: Place) -> None:
    await kubectl.apply(deployment("web"))
    await place.cluster.until_ready()
    table = await kubectl("get", "pods")
    assert table.splitlines()[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [line.split()[1:3] for line in table.splitlines()[1:]] == [["1/1", "Running"]] * 2
    wide = await kubectl("get", "pods", "-o", "wide", "--sort-by=.spec.nodeName")
    assert re.search(r" n[12] ", wide)
    assert "kind: Deployment" in await kubectl("get", "deployment", "web", "-o", "yaml")
    assert (await kubectl.json("get", "deployment", "web"))["status"]["readyReplicas"] == 2
    names = await kubectl("get", "pods", "-l", "app=web", "-o", "name")
    assert len(names.splitlines()) == 2
    assert await kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}") == "n1 n2"
    assert "deployment.apps/web" in await kubectl("get", "all")
    missing = await kubectl.run("get", "pod", "missing")
    assert (missing.code, missing.err) == (1, 'Error from server (NotFound): pods "missing" not found\n')


@pytest.mark.parametrize("command", [("logs", "one"), ("exec", "one", "--", "ls"), ("port-forward", "one", "8080:80")])
async def test_what_needs_a_container_says_that_there_is_none(kubectl: Kubectl, command: tuple[str, ...]) -> None:
    await kubectl("run", "one", "--image=pause")
    answer = await kubectl.run(*command)
    assert answer.code == 1
    assert "this is an embedded cluster: pods have no containers that could answer" in answer.err


async def test_budgets_are_shown_with_what_they_allow(kubectl: Kubectl, place: Place) -> None:
    await kubectl.apply(deployment("web"))
    await kubectl("create", "poddisruptionbudget", "web", "--selector=app=web", "--max-unavailable=1")
    await place.cluster.until_ready()
    heading, row = (await kubectl("get", "pdb")).splitlines()
    assert re.split(r" {2,}", heading.rstrip()) == [
        "NAME",
        "MIN AVAILABLE",
        "MAX UNAVAILABLE",
        "ALLOWED DISRUPTIONS",
        "AGE",
    ]
    assert row.split()[:4] == ["web", "N/A", "1", "1"]


async def test_a_node_with_a_finalizer_goes_when_it_is_removed(kubectl: Kubectl) -> None:
    await kubectl("patch", "node", "n2", "--type=merge", "-p", '{"metadata":{"finalizers":["example.org/hold"]}}')
    await kubectl("delete", "node", "n2", "--wait=false")
    assert "deletionTimestamp" in (await kubectl.json("get", "node", "n2"))["metadata"]
    await kubectl("patch", "node", "n2", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    assert (await kubectl.run("get", "node", "n2")).code == 1


async def test_a_watch_shows_pods_come_and_go(kubectl: Kubectl) -> None:
    async with kubectl.running("get", "pods", "--watch", "-o", "wide") as lines:
        slow = deployment("web", replicas=1)
        # In simulated seconds, of which ten pass in one.
        slow["spec"]["template"]["metadata"]["annotations"] = {"kubesim/start-seconds": "5"}
        await kubectl.apply(slow)
        await lines.until("web-", "Pending")
        await lines.until("web-", "Running")
        await kubectl("delete", "deployment", "web")
        await lines.until("web-", "Terminating")


async def test_describe_tells_about_nodes_and_pods(kubectl: Kubectl, place: Place) -> None:
    await kubectl.apply(deployment("web", replicas=1))
    await place.cluster.until_ready()
    node = await kubectl("describe", "node", "n1")
    assert "Unschedulable:      false" in node
    assert re.search(r"Ready +True", node)
    pod = await kubectl("describe", "pod", "-l", "app=web")
    assert re.search(r"Status: +Running", pod)
    assert "Controlled By:  ReplicaSet/web-" in pod


async def test_labels_annotations_and_taints_are_put_on_and_taken_off(kubectl: Kubectl) -> None:
    await kubectl("label", "node", "n1", "tier=front")
    refused = await kubectl.run("label", "node", "n1", "tier=back")
    assert refused.code == 1
    await kubectl("label", "node", "n1", "tier=back", "--overwrite")
    await kubectl("annotate", "node", "n1", "note=hello")
    await kubectl("taint", "node", "n1", "k=v:NoSchedule", "other:NoExecute")
    node = await kubectl.json("get", "node", "n1")
    assert (node["metadata"]["labels"]["tier"], node["metadata"]["annotations"]["note"]) == ("back", "hello")
    assert {taint["key"] for taint in node["spec"]["taints"]} == {"k", "other"}
    await kubectl("taint", "node", "n1", "k-", "other-")
    await kubectl("label", "node", "n1", "tier-")
    node = await kubectl.json("get", "node", "n1")
    assert "taints" not in node["spec"]
    assert "tier" not in node["metadata"]["labels"]


async def test_apply_changes_what_changed_and_keeps_what_others_wrote(kubectl: Kubectl) -> None:
    assert "created" in await kubectl.apply(deployment("web"))
    await kubectl("scale", "deployment", "web", "--replicas=3")
    await kubectl("label", "deployment", "web", "owner=another")
    assert "configured" in await kubectl.apply(deployment("web", replicas=4))
    assert "unchanged" in await kubectl.apply(deployment("web", replicas=4))
    live = await kubectl.json("get", "deployment", "web")
    assert (live["spec"]["replicas"], live["metadata"]["labels"]["owner"]) == (4, "another")


async def test_patches_of_every_kind(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web"))
    image = '{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"pause:4"}]}}}}'
    await kubectl("patch", "deployment", "web", "-p", image)
    await kubectl("patch", "deployment", "web", "--type=merge", "-p", '{"spec":{"replicas":1}}')
    change = '[{"op":"replace","path":"/spec/replicas","value":5}]'
    await kubectl("patch", "deployment", "web", "--type=json", "-p", change)
    live = await kubectl.json("get", "deployment", "web")
    container = live["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["terminationMessagePolicy"]) == ("pause:4", "File")
    assert live["spec"]["replicas"] == 5
    await kubectl("edit", "deployment", "web", editor="sed -i s/replicas:.5/replicas:\\ 6/")
    assert (await kubectl.json("get", "deployment", "web"))["spec"]["replicas"] == 6


async def test_cordon_drain_and_uncordon(kubectl: Kubectl, place: Place) -> None:
    await kubectl.apply(deployment("web", replicas=4))
    await place.cluster.until_ready()
    assert "cordoned" in await kubectl("cordon", "n1")
    assert "Ready,SchedulingDisabled" in await kubectl("get", "node", "n1")
    drained = await kubectl("drain", "n1", "--ignore-daemonsets", "--timeout=100s")
    assert "node/n1 drained" in drained
    await place.cluster.until_ready()
    assert "n1" not in await kubectl("get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}")
    await kubectl("uncordon", "n1")
    assert "unschedulable" not in (await kubectl.json("get", "node", "n1"))["spec"]


async def test_delete_waits_or_does_not_and_shortens_the_grace(kubectl: Kubectl, place: Place) -> None:
    stubborn = {"kubesim/ignores-sigterm": "true"}
    for name in ("a", "b", "c"):
        pod = deployment(name)["spec"]["template"]
        pod["metadata"] = {"name": name, "namespace": "default", "annotations": stubborn}
        await kubectl.apply({"apiVersion": "v1", "kind": "Pod", **pod})
    await place.cluster.until_ready()
    await kubectl("delete", "pod", "a", "--wait=false")
    assert (await kubectl.json("get", "pod", "a"))["metadata"]["deletionGracePeriodSeconds"] == 30
    await kubectl("delete", "pod", "b", "--grace-period=1")
    assert (await kubectl.run("get", "pod", "b")).code == 1
    await kubectl("delete", "pod", "c", "--grace-period=0", "--force")
    assert (await kubectl.run("get", "pod", "c")).code == 1


async def test_wait_sees_conditions_and_ends(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web"))
    await kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=100s")
    await kubectl("wait", "pod", "-l", "app=web", "--for=condition=Ready", "--timeout=100s")
    await kubectl("wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=2", "--timeout=100s")
    async with anyio.create_task_group() as group:
        group.start_soon(kubectl, "wait", "deployment/web", "--for=delete", "--timeout=100s")
        await anyio.sleep(0.2)
        await kubectl("delete", "deployment", "web", "--wait=false")


async def test_a_rollout_is_followed_and_undone(kubectl: Kubectl) -> None:
    await kubectl.apply(deployment("web"))
    assert "successfully rolled out" in await kubectl("rollout", "status", "deployment/web", "--timeout=100s")
    await kubectl("set", "image", "deployment/web", "main=pause:4")
    await kubectl("rollout", "status", "deployment/web", "--timeout=100s")
    images = await kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[0].image}")
    assert "pause:4" in images
    await kubectl("rollout", "undo", "deployment/web")
    await kubectl("rollout", "status", "deployment/web", "--timeout=100s")
    live = await kubectl.json("get", "deployment", "web")
    assert live["spec"]["template"]["spec"]["containers"][0]["image"] == "pause:3.9"
    await kubectl("rollout", "restart", "deployment/web")
    await kubectl("rollout", "status", "deployment/web", "--timeout=100s")


async def test_things_are_created_from_the_command_line(kubectl: Kubectl, place: Place) -> None:
    await kubectl("create", "namespace", "team")
    await kubectl("create", "deployment", "web", "--image=pause", "--replicas=2", "-n", "team")
    await kubectl("create", "configmap", "settings", "--from-literal=a=b", "-n", "team")
    await kubectl("create", "secret", "generic", "word", "--from-literal=pass=word", "-n", "team")
    await kubectl("create", "serviceaccount", "robot", "-n", "team")
    await kubectl("create", "poddisruptionbudget", "web", "--selector=app=web", "--max-unavailable=1", "-n", "team")
    await kubectl("run", "lonely", "--image=pause", "-n", "team")
    await place.cluster.until_ready()
    shown = await kubectl.json("get", "pdb", "web", "-n", "team")
    assert (shown["spec"]["maxUnavailable"], shown["status"]["disruptionsAllowed"]) == (1, 1)
    assert (await kubectl.json("get", "configmap", "settings", "-n", "team"))["data"] == {"a": "b"}
    assert (await kubectl.json("get", "secret", "word", "-n", "team"))["data"] == {"pass": "d29yZA=="}
    await kubectl("delete", "namespace", "team", "--timeout=100s")
    assert (await kubectl.run("get", "namespace", "team")).code == 1


async def test_events_are_listed_for_one_object(kubectl: Kubectl, place: Place) -> None:
    await kubectl.apply(deployment("web", replicas=1))
    await place.cluster.until_ready()
    name = (await kubectl("get", "pods", "-o", "name")).strip().removeprefix("pod/")
    assert "Scheduled" in await kubectl("get", "events", f"--field-selector=involvedObject.name={name}")
    assert "Scheduled" in await kubectl("events", "--for", f"pod/{name}")


async def test_an_unknown_field_is_refused_before_anything_changes(kubectl: Kubectl) -> None:
    wrong = deployment("web", terminationGracePeriodSecond=5)
    refused = await kubectl.run("apply", "-f", "-", stdin=str(wrong).replace("'", '"'))
    assert refused.code == 1
    assert 'unknown field "spec.template.spec.terminationGracePeriodSecond"' in refused.err
    assert (await kubectl.run("get", "deployment", "web")).code == 1
