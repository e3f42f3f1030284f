"""Ten incidents of docs/symptoms.md on a node of Karpenter: after five seconds blocker and remedy are named.

Nothing of gracectl is installed: `status` reads, and the model of Karpenter drains.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kubesim.controllers.karpenter import LEASE, LEASE_NAMESPACE
from kubesim.controllers.paths import ATTACHMENTS
from kubesim.server.api import JsonObject
from support.karpenter import karpenter_stage, status_of
from support.stage import a_budget_manifest, a_pod_manifest, a_workload

from gracectl.cli.status.messages import headline, pod_reason

HERE = {"nodeSelector": {"kubernetes.io/hostname": "k1"}}
MERGE = "application/merge-patch+json"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """`objects`: with it. `claim`: fields of the NodeClaim. `requests`: before the deletion. `says`: the blocker;
    `remedy`: the command, as far as it is pinned."""

    objects: tuple[JsonObject, ...] = ()
    claim: dict[str, Any] = {}
    requests: tuple[tuple[str, str, JsonObject], ...] = ()
    says: str
    remedy: str


def web(replicas: int = 1, **behaviour: str) -> JsonObject:
    return a_workload("Deployment", "web", replicas, pod=HERE, behaviour=behaviour)


def kept(value: str, **more: Any) -> JsonObject:
    return a_pod_manifest("kept", "k1", annotations={"karpenter.sh/do-not-disrupt": value}, **more)


SECOND_BUDGET = {
    **a_budget_manifest("web", maxUnavailable=1),
    "metadata": {"name": "again", "namespace": "shop"},
}
STOLEN = {"spec": {"holderIdentity": "another", "renewTime": "2099-01-01T00:00:00.000000Z"}}
ATTACHED = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "VolumeAttachment",
    "metadata": {"name": "csi-1", "finalizers": ["example.com/attacher"]},
    "spec": {"attacher": "csi.example.com", "nodeName": "k1", "source": {"persistentVolumeName": "pv-1"}},
}
INCIDENTS = {
    "a budget that allows nothing": Incident(
        objects=(web(), a_budget_manifest("web", maxUnavailable=0)),
        says="budget shop/web allows no disruption",
        remedy="run more pods, or widen it: kubectl patch pdb -n shop web --type merge -p ",
    ),
    "a budget that is spent": Incident(
        objects=(web(3), a_budget_manifest("web", minAvailable=3)),
        says="budget shop/web allows no disruption",
        remedy="kubectl patch pdb -n shop web --type merge -p ",
    ),
    "two budgets": Incident(
        objects=(web(), a_budget_manifest("web", maxUnavailable=1), SECOND_BUDGET),
        says="both select it: the eviction API refuses the eviction",
        remedy="change the selector of one of them: kubectl edit pdb -n shop ",
    ),
    "a pod that is never ready": Incident(
        objects=(a_budget_manifest("web", minAvailable=1), web(1, **{"never-ready": "true"})),
        says="budget shop/web allows no disruption",
        remedy="let pods that are not Ready go: kubectl patch pdb -n shop web --type merge -p ",
    ),
    "protected indefinitely": Incident(
        objects=(kept("true"),),
        says="protected by do-not-disrupt",
        remedy="end its protection: kubectl annotate pod -n shop kept karpenter.sh/do-not-disrupt-",
    ),
    "protected for a time": Incident(
        objects=(kept("4h"),),
        says='protected by do-not-disrupt "4h" until ',
        remedy="end its protection: kubectl annotate pod -n shop kept karpenter.sh/do-not-disrupt-",
    ),
    "protected until the deadline": Incident(
        objects=(kept("true", terminationGracePeriodSeconds=30),),
        claim={"termination_grace_period": "10m"},
        says="; deleted within 9:36",
        remedy="end its protection: kubectl annotate pod -n shop kept karpenter.sh/do-not-disrupt-",
    ),
    "a deadline that is no instant": Incident(
        claim={"annotations": {"karpenter.sh/nodeclaim-termination-timestamp": "tomorrow"}},
        says='annotation karpenter.sh/nodeclaim-termination-timestamp of NodeClaim k1-claim is no instant: "tomorrow"',
        remedy="write it as an instant: kubectl annotate nodeclaim k1-claim --overwrite ",
    ),
    "a volume that stays attached": Incident(
        requests=(("POST", ATTACHMENTS, ATTACHED),),
        says="Karpenter waits for volumes to detach: ",
        remedy="kubectl delete volumeattachment csi-1",
    ),
    "a Karpenter that does not lead": Incident(
        requests=(("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE}", STOLEN),),
        says="drain not started: Karpenter has not put the taint karpenter.sh/disrupted on it",
        remedy="see whether a Karpenter leads, and renews its Lease: kubectl get leases -A -o yaml",
    ),
}


@pytest.mark.parametrize("incident", INCIDENTS.values(), ids=INCIDENTS)
async def test_after_five_seconds_blocker_and_remedy_are_named(incident: Incident) -> None:
    async with karpenter_stage("k1", claim=incident.claim) as (stage, karpenter):
        for each in incident.objects:
            await stage.cluster.create(each)
        await stage.clock.sleep(5)
        for method, path, body in incident.requests:
            await stage.call(method, path, body, MERGE if method == "PATCH" else "application/json")
        if any(path.endswith(LEASE) for _, path, _ in incident.requests):
            karpenter.kill()
        await stage.delete_node("k1")
        await stage.clock.sleep(5)
        status = await status_of(stage, "k1")
        now = stage.clock.now()
        reasons = [pod_reason(pod, now) for pod in status.pods or ()]
        said = [first := headline(status, now), *(each.message for each in status.warnings), *reasons]
        assert any(incident.says in each for each in said), said
        assert "Karpenter drains it (label karpenter.sh/nodepool=default)" in first
        remedies = [*(each.remedy for each in status.warnings), *(pod.remedy for pod in status.pods or ())]
        assert any(incident.remedy in each for each in remedies), remedies
