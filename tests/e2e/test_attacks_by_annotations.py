"""Attacks by accounts that may write pods or services of a namespace, and by kubelets, with what came later: pods that
are replaced first, notices of interruptions, deadlines of drains.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import anyio
import pytest
from e2e_support import manifests
from e2e_support.siege import PATIENCE, Attack, Siege, annotated, besieged, until_told
from e2e_support.story import Story
from kubesim.controllers.client import ask
from kubesim.controllers.objects import annotations_of, is_terminating
from kubesim.controllers.paths import PODS, path_of

from gracectl.model import names

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.real_time,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc"),
]

HASH = names.POD_TEMPLATE_HASH
ASKS = {names.REPLACE_FIRST: "true"}
SERVICES = "/api/v1/namespaces/{}/services"


async def with_a_single_pod(story: Story, node: str) -> None:
    """A Deployment of one pod, which cannot run on another node."""
    here = {"nodeSelector": {"kubernetes.io/hostname": node}}
    await story.workload("Deployment", "single", 1, replicas=1, annotations=ASKS, spec=here)
    await story.budget("single", "single", minAvailable=1)


def is_replacing(siege: Siege) -> bool:
    message: str = siege.story.condition(siege.attacked, names.DRAINED).get("message", "")
    return "replace first: its replacement" in message


@pytest.mark.thorough
async def test_services_of_megabytes_around_a_pod_that_is_replaced_first(story: Story) -> None:
    """60 of them; what must be known of the pod's workload is read through them."""

    async def crowded(story: Story, node: str) -> None:
        await with_a_single_pod(story, node)
        labels = {f"l{number:06}": "" for number in range(60_000)}
        for number in range(60):
            spec = {"selector": labels, "ports": [{"port": 80}]}
            service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"large-{number}"}, "spec": spec}
            await ask(story.api, "POST", SERVICES.format(story.namespace), service)

    siege = await besieged(story, Attack({}, 1, annotated("true")), before=crowded)
    await siege.end()
    await until_told(story, "the pod is being replaced", siege.program, partial(is_replacing, siege))
    print(f"peak {siege.program.peak():.0f} MiB")
    await siege.unharmed(until=siege.leaving)


CHANGES = 400


async def test_a_pod_that_is_replaced_first_and_changes_all_the_time(story: Story) -> None:
    siege = await besieged(story, Attack({}, 1, annotated("true")), before=with_a_single_pod)
    await story.delete("Node", siege.attacked)
    await until_told(story, "the pod is being replaced", siege.program, partial(is_replacing, siege))
    (single,) = (pod for pod in story.sight.all("Pod", app="single") if names.RELEASED_FROM in annotations_of(pod))
    before, began = len(reads(siege)), anyio.current_time()
    for number in range(CHANGES):
        await story.patch("Pod", single["metadata"]["name"], {"metadata": {"annotations": {"owner": f"n{number}"}}})
    lasted = anyio.current_time() - began
    assert len(reads(siege)) - before < 10 + 2 * lasted
    await siege.end()


def reads(siege: Siege) -> list[str]:
    return [path for path in siege.forger.asked if "/replicasets/" in path]


FORGED = [
    f"9999-12-31T23:59:59Z ReplicaSet/none {HASH} a",
    f"2026-01-01T00:00:00Z Deployment/web {HASH} a,app=web",
    f"2026-01-01T00:00:00Z Deployment/../../nodes {HASH} a",
    f"2026-01-01T00:00:00Z Deployment/\x1b[2J\u202e {HASH} a",
    f"2026-01-01T00:00:00Z Deployment/web {HASH} " + "a" * 200_000,
    "\x00" * 1_000,
]


def forged(number: int) -> Any:
    """A pod that claims to have been released, and when its replacement failed."""
    text = FORGED[number % len(FORGED)]
    annotations = {names.RELEASED_FROM: text, names.REPLACEMENT_FAILED: "9999-12-31T23:59:59Z", **ASKS}
    return {"labels": {"app": f"h{number}", HASH: names.RELEASED}, "annotations": annotations}


async def test_pods_that_claim_to_be_released(story: Story) -> None:
    """One that names a ReplicaSet that does not exist is deleted, as the pods of a deleted one are."""
    siege = await besieged(story, Attack({}, 0, forged))
    pods = [manifests.pod(f"hostile-{n}", story.run, on=siege.attacked, **forged(n)) for n in range(30)]
    for pod in pods:
        await ask(story.api, "POST", path_of(PODS, story.namespace), pod)
    await siege.end()
    await siege.unharmed(until=siege.attacked)
    assert len(siege.program.text()) < 300_000
    assert len(reads(siege)) < 30


async def test_hostile_notices_and_deadlines_on_a_node_of_a_kubelet(story: Story) -> None:
    """Its own node goes; its texts are cut and escaped, and the pods of another node have their whole time."""
    siege = await besieged(story, Attack({}, 1, annotated("true", names.DO_NOT_DISRUPT)))
    hostile = {
        names.INTERRUPTION: "spot 9999-12-31T23:59:59Z aws \x1b[31m\u202e" + "y" * 60_000,
        names.DRAIN_DEADLINE: "\x1b[2J" + "0" * 60_000,
        names.KEEP_DRAINED: "10000-01-01T00:00:00Z",
        names.TERMINATION_TIMESTAMP: "9999-12-31T23:59:59-23:59",
    }
    await story.patch("Node", siege.attacked, {"metadata": {"annotations": hostile}})
    shown = partial(story.condition, siege.attacked, names.INTERRUPTED)
    await until_told(story, "the notice is shown", siege.program, shown)
    assert shown()["message"].isprintable()
    assert len(shown()["message"]) < 500
    await siege.end()
    assert not is_terminating(story.sees("Pod", "hostile-0"))
    with anyio.fail_after(PATIENCE):
        await story.patch("Node", siege.attacked, {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: None}}})
        await story.patch("Pod", "hostile-0", {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None}}})
    await siege.unharmed(until=siege.attacked)
    assert siege.program.entries()
    assert all(line.isprintable() for line in siege.program.text().splitlines())
    assert len(siege.program.text()) < 300_000
