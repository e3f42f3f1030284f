"""Check of pods that are replaced before their eviction: released ones that no drain needs, and missing rights.

docs/replace-first.md explains both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from gracectl.cli.doctor.deployments import visible_deployments
from gracectl.cli.doctor.report import SHOWN, CheckState, Finding
from gracectl.cli.output import command
from gracectl.controllers.rbac import replace_first_rights
from gracectl.kube.cache.reading import read_all
from gracectl.kube.client import KubeClient
from gracectl.kube.rbac import READS, missing_permissions
from gracectl.kube.resources import NODES, PODS
from gracectl.model import names
from gracectl.model.meta import natural_key
from gracectl.model.pod import Pod
from gracectl.policy.explain import agreed, listed
from gracectl.policy.maintenance import is_maintenance_requested
from gracectl.policy.release import release_of

REPLACEMENTS: Final = "replacements"


async def check_replacements(client: KubeClient) -> Sequence[Finding]:
    """Pods that are released although no drain needs it, and pods for which the controller has no rights."""
    pods = await read_all(client, PODS, keep=_is_concerned)
    if not pods:
        return (Finding(REPLACEMENTS, CheckState.OK, "no pod asks to be replaced before its eviction"),)
    staying = {
        node.name
        for node in await read_all(client, NODES)
        if node.deletion_timestamp is None and not is_maintenance_requested(node)
    }
    return (released_finding(pods, staying) or await _rights_finding(client, pods),)


def _is_concerned(pod: Pod) -> bool:
    return release_of(pod) is not None or _asks(pod)


def _asks(pod: Pod) -> bool:
    return pod.annotations.get(names.REPLACE_FIRST) == "true"


def released_finding(pods: Collection[Pod], staying: Collection[str]) -> Finding | None:
    """The finding about pods that are released on nodes of these names, which are not drained; None: there are none."""
    left = [pod for pod in pods if release_of(pod) is not None and pod.node_name in staying]
    if not left:
        return None
    found = _named(left)
    nodes = sorted({pod.node_name for pod in left}, key=natural_key)
    message = (
        f"{listed(found, SHOWN)}: released from {agreed(left, 'its', 'their')} ReplicaSet, but {listed(nodes, SHOWN)} "
        f"{agreed(nodes, 'is', 'are')} not drained; a controller that leads returns {agreed(left, 'it', 'them')}"
    )
    return Finding(REPLACEMENTS, CheckState.WARNING, message, command("uncordon", *nodes), found)


async def _rights_finding(client: KubeClient, pods: Sequence[Pod]) -> Finding:
    found = _named([pod for pod in pods if _asks(pod)])
    asking = f"{listed(found, SHOWN)} {agreed(found, 'asks', 'ask')}" if found else "no pod asks"
    message = f"{asking} to be replaced before {'its' if len(found) < 2 else 'their'} eviction"
    needed = await replace_first_rights(client)
    for deployment in await visible_deployments(client):
        rights = tuple(each for each in needed if each.verb in READS) if deployment.only_observes else needed
        if found and (missing := await missing_permissions(client, rights, deployment.account)):
            account = "/".join(deployment.account)
            message = f"{message}; service account {account}: missing permissions: {listed(tuple(map(str, missing)))}"
            help_ = "helm upgrade with rbac.replaceFirst=true, or grant them (docs/replace-first.md#rights)"
            return Finding(REPLACEMENTS, CheckState.FAILED, message, help_, found)
    return Finding(REPLACEMENTS, CheckState.OK, message)


def _named(pods: Collection[Pod]) -> tuple[str, ...]:
    return tuple(sorted((f"{pod.namespace}/{pod.name}" for pod in pods), key=natural_key))
