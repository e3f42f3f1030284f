"""What helps against each cause of blocking: the command, and the owner to ask."""

from __future__ import annotations

from typing import Any

import pytest
from support.builders import NOW, a_budget, a_pod, ending, owned_by

from gracectl.model import names
from gracectl.model.budget import UnknownBudget
from gracectl.model.meta import Condition
from gracectl.model.pod import Pod, UnknownPod, VolumeAttachment
from gracectl.model.selectors import LabelSelector
from gracectl.policy.forecast import Assumptions, forecast
from gracectl.policy.plan import Blocker
from gracectl.policy.remedies import OTHER_REASONS, REMEDIES, owner_of, pod_remedy, remedy
from gracectl.policy.warnings import WarningKind, warnings_of

UNCOUNTED = Condition(names.DISRUPTION_ALLOWED, "False", names.SYNC_FAILED, "found no controller")
WIDEN = "run more pods, or widen it: kubectl patch pdb -n shop web --type merge -p"
LET_GO = (
    "let pods that are not Ready go: kubectl patch pdb -n shop web --type merge -p "
    """'{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}'"""
)
END = "end its protection: kubectl annotate pod -n shop web-1 karpenter.sh/do-not-disrupt-"


def web(**fields: Any) -> Pod:
    return a_pod("web-1", **{"owners": owned_by("ReplicaSet"), **fields})


def told(pod: Pod, *budgets: Any, **world: Any) -> str:
    (node,) = forecast([ending("n1", pod, budgets=budgets, **world)], NOW, Assumptions()).nodes
    (planned,) = node.plan.pods
    return pod_remedy(planned, node.draining.view.budgets.get(pod.uid, ()))


def test_what_a_daemon_waits_for_is_an_attachment_to_look_at() -> None:
    attached = (VolumeAttachment("csi-1", "u", volume_name="v1", driver="d"),)
    plugin = a_pod("plugin", owners=owned_by("DaemonSet"), annotations={names.A8R_OWNER: "storage"})
    assert told(plugin, attachments=attached) == "see why it is still attached: kubectl describe volumeattachment csi-1"


def test_the_table_has_only_reasons_that_exist_and_all_that_block_for_ever() -> None:
    assert set(REMEDIES) <= {*Blocker, *WarningKind, *OTHER_REASONS}
    ends_by_itself = {WarningKind.OVERDUE, WarningKind.MAY_NEVER_DRAIN}  # the latter has the remedy of its pod
    assert {kind for kind in WarningKind if kind.is_blocking} - ends_by_itself <= set(REMEDIES)
    named_by_reason = {Blocker.RETURNED, Blocker.REFUSED, Blocker.SETTLING}
    follows_another = {Blocker.NEIGHBOUR, Blocker.WAVE, Blocker.OWNER, Blocker.MISCONFIGURATION}
    assert set(Blocker) - named_by_reason - follows_another <= set(REMEDIES)


@pytest.mark.parametrize(("pod", "budgets", "expected"), [
    (web(), (a_budget(),), ""),
    (web(), (a_budget(disruptions_allowed=0, current_healthy=2),), REMEDIES[Blocker.BUDGET]),
    (web(), (a_budget(disruptions_allowed=0, desired_healthy=3),),
     f'{WIDEN} \'{{"spec":{{"minAvailable":null,"maxUnavailable":1}}}}\''),
    (web(), (a_budget(disruptions_allowed=0, desired_healthy=3, min_available=5),),
     f'{WIDEN} \'{{"spec":{{"minAvailable":2}}}}\''),
    (web(), (a_budget(disruptions_allowed=0, desired_healthy=3, max_unavailable="0%"),),
     f'{WIDEN} \'{{"spec":{{"maxUnavailable":1}}}}\''),
    (web(owners=owned_by("Job")), (a_budget(disruptions_allowed=0, desired_healthy=3, max_unavailable=0),),
     f'wait for its Job, or {WIDEN} \'{{"spec":{{"maxUnavailable":1}}}}\''),
    (web(ready=False), (a_budget(disruptions_allowed=0, current_healthy=1),), LET_GO),
    (web(ready=False), (a_budget(disruptions_allowed=0, desired_healthy=3, current_healthy=0),), LET_GO),
    (web(ready=False), (a_budget(disruptions_allowed=0, verdict=UNCOUNTED, current_healthy=0),), LET_GO),
    (web(owners=()), (a_budget(disruptions_allowed=0, expected_pods=0, desired_healthy=0, max_unavailable=1),),
     "give it a controller, or delete it: kubectl delete pod -n shop web-1"),
    (web(owners=()), (a_budget(disruptions_allowed=0, expected_pods=0, desired_healthy=0, min_available=1),),
     REMEDIES[Blocker.BUDGET]),
    (web(), (a_budget(disruptions_allowed=0, verdict=UNCOUNTED),),
     "see its condition, then fix or delete it: kubectl get pdb -n shop web -o yaml"),
    (web(ready=False), (a_budget(), UnknownBudget("shop", "large", "u", selector=LabelSelector(), error="too large")),
     "give it a smaller selector, or delete it: kubectl delete pdb -n shop large"),
    (web(), (a_budget(generation=2),), REMEDIES[Blocker.UNOBSERVED]),
    (web(), (a_budget("also"), a_budget()), "change the selector of one of them: kubectl edit pdb -n shop also"),
    (web(annotations={names.DO_NOT_DISRUPT: "4h"}), (), END),
    (web(annotations={names.DO_NOT_DISRUPT: "4h"}, owners=owned_by("Job")), (),
     f"wait for its Job, or end its protection, which kills the Job's pod: {END.partition(': ')[2]}"),
    (web(annotations={names.DO_NOT_DISRUPT: "4 hours"}), (),
     "give it a duration: kubectl annotate pod -n shop web-1 --overwrite karpenter.sh/do-not-disrupt=4h"),
    (web(annotations={names.DO_NOT_EVICT: "true"}), (),
     "end its protection: kubectl annotate pod -n shop web-1 karpenter.sh/do-not-evict-"),
    (web(labels={names.DO_NOT_EVICT: "true"}), (),
     "end its protection: kubectl label pod -n shop web-1 karpenter.sh/do-not-evict-"),
    (UnknownPod("shop", "web-1", "u", "7", "n1", error="no `int`"), (),
     "fix or delete it: kubectl delete pod -n shop web-1"),
])  # fmt: skip
def test_each_cause_has_its_command(pod: Pod, budgets: tuple[Any, ...], expected: str) -> None:
    assert told(pod, *budgets) == expected.replace("{namespace}", "shop")


@pytest.mark.parametrize(("fields", "owner"), [
    ({}, ""),
    ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, ""),
    ({"labels": {"team": "payments"}}, "payments (label team)"),
    ({"labels": {"team": "a"}, "annotations": {"team": "b"}}, "b (annotation team)"),
    ({"labels": {"owner": "a"}, "annotations": {"contact": "b", "team": "c"}}, "a (label owner)"),
    ({"annotations": {names.A8R_OWNER: "x@example.com", "owner": "y"}}, "x@example.com (annotation a8r.io/owner)"),
    ({"annotations": {"owner": " "}, "labels": {"team": "t"}}, "t (label team)"),
    ({"annotations": {"owner": "\x1b[31mred\n"}}, r"\x1b[31mred (annotation owner)"),
    ({"annotations": {"owner": "x" * 61}}, "x" * 59 + "… (annotation owner)"),
])  # fmt: skip
def test_the_owner_is_named_by_the_first_key_and_cannot_control_a_terminal(fields: Any, owner: str) -> None:
    assert owner_of(web(**fields)) == owner


def test_the_owner_is_asked_first_and_only_where_something_blocks() -> None:
    annotations = {names.DO_NOT_DISRUPT: "true", "owner": "payments"}
    assert told(web(annotations=annotations)) == f"ask payments (annotation owner), or {END}"
    assert told(web(annotations={"owner": "payments"})) == ""


def test_names_are_quoted_for_a_shell() -> None:
    assert remedy(WarningKind.NOT_READY, node="$(reboot)") == "see why: kubectl describe node '$(reboot)'"
    assert remedy("Unheard of", node="n1") == ""


def test_a_node_that_never_drains_has_the_remedy_of_its_pod_and_a_deadline() -> None:
    protected = web(annotations={names.DO_NOT_DISRUPT: "true"})
    for world, deadline in (({}, True), ({"is_maintenance": True}, False)):
        (node,) = forecast([ending("n1", protected, **world)], NOW, Assumptions()).nodes
        (never,) = [each for each in warnings_of(node) if each.kind is WarningKind.NEVER_DRAINS]
        command = "kubectl annotate node n1 --overwrite karpenter.sh/nodeclaim-termination-timestamp=$(date "
        helps = f"; or give the node a deadline, which overrides budgets and protection: {command}"
        assert never.remedy.startswith(f"{END}{helps}" if deadline else END)
