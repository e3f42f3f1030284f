"""Every remedy of the catalogue, pasted into a shell on a cluster in that state: the state is gone afterwards.

A remedy that only shows something prints what it is about. The commands come from `plan`, as people see them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_support import manifests
from e2e_support.names import LABEL
from e2e_support.target import embedded_cluster
from kubesim.controllers.objects import is_ready
from support.fleet import PODS, RUN, Fleet
from support.karpenter import installed

from gracectl.model import names
from gracectl.model.bounds import SELECTOR_BYTES
from gracectl.model.pod import UnknownPod
from gracectl.model.times import format_time
from gracectl.policy.plan import Blocker
from gracectl.policy.remedies import (
    CLAIM_DEADLINE,
    NO_DRAIN_DEADLINE,
    NO_SCALE,
    NODE_HOLD,
    OTHER_OWNER,
    POOL_HOLD,
    PROTECTED_JOB,
    REMEDIES,
    SET_ASIDE,
    UNREADY,
    VOLUME_LEFT_OVER,
    VOLUME_OF_SILENT_NODE,
    blocker_remedy,
    remedy,
)
from gracectl.policy.warnings import WarningKind
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time

PDBS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SERVICES = "/api/v1/namespaces/default/services"
APPS = "/apis/apps/v1/namespaces/default"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
NODE_BUDGETS = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets"
KIND = {"apiVersion": "termination.karpenter.sh/v1alpha2", "kind": "NodeDisruptionBudget"}
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
STAND_IN = "support.kubectl"
REPOSITORY = Path(__file__).parents[3]
COMMAND = re.compile(r"(?:^|: )((?:kubectl|gracectl) .*)$")
FOR_EVER = {names.DO_NOT_DISRUPT: "true"}
SICK = {"never-ready": "true"}

WITHOUT_COMMAND = {
    *(Blocker.UNOBSERVED, WarningKind.MACHINE_KEEPS_RUNNING, WarningKind.BUDGET_VIOLATED, WarningKind.GRACE_SHORTENED),
    *(
        WarningKind.LOCAL_VOLUME,
        WarningKind.PROTECTION_OVERRIDDEN,
        WarningKind.WAVES_TOO_LONG,
        WarningKind.OUT_OF_ORDER,
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A cluster without a controller, so that nothing moves but by a remedy."""
    folder = tmp_path_factory.mktemp("remedies")
    scripts = {"gracectl": "gracectl"} if shutil.which("kubectl") else {"gracectl": "gracectl", "kubectl": STAND_IN}
    (folder / "bin").mkdir()
    for name, module in scripts.items():
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        script.chmod(0o755)
    with embedded_cluster(folder, "--nodes", "2", "--pods", "1") as kubeconfig:
        yield Fleet(kubeconfig, folder)


def pasted(place: Fleet, text: str, *, editor: str = "") -> str:
    """What the command in a remedy prints. It must succeed; `doctor` may find something."""
    match = COMMAND.search(text)
    assert match is not None, f"no command: {text}"
    environment = {
        **os.environ, "PATH": f"{place.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests", REPOSITORY / "kubesim"))),
        "KUBECONFIG": str(place.kubeconfig), "HOME": str(place.folder), "KUBE_EDITOR": editor,
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", match[1]], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0 or (match[1] == "gracectl doctor" and done.returncode == 1), done.stderr
    return done.stdout


def planned(place: Fleet, node: str) -> dict[str, Any]:
    """The node in `plan -o json`."""
    result = place.run("plan", node, "-o", "json")
    assert result.exit_code == 0, result.output
    (node_object,) = json.loads(result.stdout)["nodes"]
    return dict(node_object)


def warned(place: Fleet, node: str, kind: str) -> str:
    """The remedy of its only warning of this kind; empty without one."""
    remedies = [each["remedy"] for each in planned(place, node)["warnings"] if each["kind"] == kind]
    assert len(remedies) <= 1, remedies
    return remedies[0] if remedies else ""


def of_pod(place: Fleet, node: str, pod: str = "") -> str:
    """The remedy of its pod of this name, or of the only one with a remedy; empty if none is blocked."""
    pods = [each for each in planned(place, node)["pods"] if each["name"].startswith(pod) and each["remedy"]]
    return pods[0]["remedy"] if pods else ""


def create(place: Fleet, path: str, *objects: dict[str, Any]) -> None:
    for each in objects:
        place.ask("POST", path, each)


def a_deployment(place: Fleet, name: str, node: str, replicas: int, **extra: Any) -> None:
    """Its pods are on this node by the time of the return."""
    spec = {"nodeSelector": {LABEL: RUN, "pool": node}}
    create(
        place, f"{APPS}/deployments", manifests.workload("Deployment", name, RUN, replicas=replicas, spec=spec, **extra)
    )

    def running() -> bool:
        pods = place.ask("GET", f"{PODS}?labelSelector=app%3D{name}")["items"]
        is_sick = extra.get("behaviour") == SICK
        return len(pods) == replicas and all(
            is_ready(each) or (is_sick and each.get("status", {}).get("phase") == "Running") for each in pods
        )

    place.until(f"{name} runs", running)


def counted(place: Fleet, name: str, **status: int) -> None:
    """Wait until the status of a budget says so."""
    wanted = {"observedGeneration": 1, **status}
    place.until(
        f"{name} is counted", lambda: wanted.items() <= (place.ask("GET", f"{PDBS}/{name}").get("status") or {}).items()
    )


Scenario = Callable[[Fleet], None]
SCENARIOS: dict[str, Scenario] = {}


def state(*reasons: str) -> Callable[[Scenario], Scenario]:
    """Mark what tries the remedies of these reasons."""

    def mark(scenario: Scenario) -> Scenario:
        SCENARIOS.update(dict.fromkeys(reasons, scenario))
        return scenario

    return mark


# -- pods --------------------------------------------------------------------------------------------------------------


@state(Blocker.BUDGET)
def _other_pods_are_not_ready(place: Fleet) -> None:
    node = place.held("spent", pool="spent")
    a_deployment(place, "spent", node, 1)
    place.ask("POST", PODS, manifests.pod("spent-sick", RUN, on=node, labels={"app": "spent"}, behaviour=SICK))
    create(place, PDBS, manifests.budget("spent", "spent", minAvailable=1))
    counted(place, "spent", currentHealthy=1, disruptionsAllowed=0)
    assert of_pod(place, node, "spent-sick") == ""
    assert "spent-sick" in pasted(place, of_pod(place, node))


@state(Blocker.REPLACEMENT)
def _a_replacement_was_not_ready_in_time(place: Fleet) -> None:
    node = place.held("alone", pool="alone")
    a_deployment(place, "alone", node, 1)
    (pod,) = place.ask("GET", f"{PODS}?labelSelector=app%3Dalone")["items"]
    annotations = {names.REPLACE_FIRST: "true", names.REPLACEMENT_FAILED: format_time(SystemClock().now())}
    path = f"{PODS}/{pod['metadata']['name']}"
    place.ask("PATCH", path, {"metadata": {"annotations": annotations}}, "application/merge-patch+json")
    place.patch(node, {"spec": {"unschedulable": True}})
    place.delete(node)

    def shown() -> str:
        (node_object,) = json.loads(place.run("status", node, "-o", "json").stdout)["nodes"]
        return str(node_object["pods"][0]["remedy"])

    pasted(place, shown())
    assert shown() == "None"


@state(SET_ASIDE)
def _too_large_a_selector(place: Fleet) -> None:
    node = place.held("set-aside")
    place.pod("set-aside", node, labels={"app": "set-aside"})
    values = [f"value-{number}" for number in range(SELECTOR_BYTES // 8)]
    budget = manifests.budget("set-aside", "set-aside", minAvailable=0)
    budget["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "In", "values": values}]}
    create(place, PDBS, budget)
    pasted(place, of_pod(place, node))
    assert of_pod(place, node) == ""


@state(Blocker.PROTECTION)
def _protected(place: Fleet) -> None:
    node = place.held("protected")
    place.pod("annotated", node, annotations=FOR_EVER)
    place.pod("labeled", node, annotations={})
    place.ask(
        "PATCH", f"{PODS}/labeled", {"metadata": {"labels": {names.DO_NOT_EVICT: "true"}}},
        "application/merge-patch+json",
    )  # fmt: skip
    for pod in ("labeled", "annotated"):
        pasted(place, of_pod(place, node, pod))
    assert planned(place, node)["drained"] is not None


@state(PROTECTED_JOB)
def _a_protected_job(place: Fleet) -> None:
    node = place.held("working", pool="working")
    template = manifests.template(
        RUN, {"app": "working"}, annotations=FOR_EVER, spec={"nodeSelector": {"pool": node}, "restartPolicy": "Never"}
    )
    create(place, JOBS, {"metadata": {"name": "working"}, "spec": {"template": template}})
    place.until("the Job runs", lambda: of_pod(place, node, "working"))
    text = of_pod(place, node, "working")
    assert "kills the Job's pod" in text
    pasted(place, text)
    assert of_pod(place, node, "working") == ""


@state(Blocker.UNDECODABLE)
def _a_pod_that_cannot_be_decoded(place: Fleet) -> None:
    place.pod("odd", place.held("odd"))
    pasted(place, blocker_remedy(UnknownPod("default", "odd", "u-1", error="no `int`"), None, ()))
    place.until("it is gone", lambda: not place.pod_is_there("odd"))


@state(Blocker.VOLUME)
def _a_volume_that_stays_attached(place: Fleet) -> None:
    node = place.held("attached")
    spec = {"attacher": "csi.example.com", "nodeName": node, "source": {"persistentVolumeName": "kept"}}
    create(place, ATTACHMENTS, {"metadata": {"name": "csi-kept"}, "spec": spec})
    shown = pasted(place, remedy(Blocker.VOLUME, attachment="csi-kept"))
    assert "csi.example.com" in shown
    assert node in shown


@state(VOLUME_LEFT_OVER)
def _a_volume_that_is_left_over(place: Fleet) -> None:
    spec = {"attacher": "csi.example.com", "nodeName": place.held("clean"), "source": {"persistentVolumeName": "over"}}
    create(place, ATTACHMENTS, {"metadata": {"name": "csi-over"}, "spec": spec})
    pasted(place, remedy(VOLUME_LEFT_OVER, attachment="csi-over"))
    assert "csi-over" not in {each["metadata"]["name"] for each in place.ask("GET", ATTACHMENTS)["items"]}


@state(VOLUME_OF_SILENT_NODE)
def _a_volume_of_a_node_that_is_off(place: Fleet) -> None:
    node = place.held("off")
    pasted(place, remedy(VOLUME_OF_SILENT_NODE, node=node))
    taints = place.ask("GET", f"/api/v1/nodes/{node}")["spec"]["taints"]
    assert {"key": names.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"} in taints


@state(WarningKind.STUCK_PODS)
def _a_pod_that_does_not_stop(place: Fleet) -> None:
    """A drain waits a minute for such a pod before it says so; the command is the same."""
    place.pod("stuck-pod", place.held("stays"))
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    place.ask("PATCH", f"{PODS}/stuck-pod", held, "application/merge-patch+json")
    place.ask("DELETE", f"{PODS}/stuck-pod")
    assert "stuck-pod" in pasted(place, remedy(WarningKind.STUCK_PODS, namespace="default", pod="stuck-pod"))
    place.ask("PATCH", f"{PODS}/stuck-pod", {"metadata": {"finalizers": None}}, "application/merge-patch+json")


@state(UNREADY, WarningKind.BUDGET_UNHEALTHY)
def _no_pod_is_ready(place: Fleet) -> None:
    finds: dict[str, Callable[[str], str]] = {
        "sick": lambda node: of_pod(place, node),
        "ill": lambda node: warned(place, node, "BudgetUnhealthy"),
    }
    for name, find in finds.items():
        node = place.held(name, pool=name)
        a_deployment(place, name, node, 2, behaviour=SICK)
        create(place, PDBS, manifests.budget(name, name, maxUnavailable=1))
        counted(place, name, expectedPods=2, currentHealthy=0)
        pasted(place, find(node))
        assert find(node) == ""
        assert {each["outcome"] for each in planned(place, node)["pods"]} == {"evict"}


@state(NO_SCALE)
def _a_pod_without_a_controller(place: Fleet) -> None:
    node = place.held("bare")
    place.pod("bare", node)
    create(place, PDBS, manifests.budget("bare", "bare", maxUnavailable=1))
    counted(place, "bare", currentHealthy=1, expectedPods=0)
    assert "no pods without a controller" in planned(place, node)["pods"][0]["reason"]
    pasted(place, of_pod(place, node))
    place.until("it is gone", lambda: not place.pod_is_there("bare"))


# -- budgets -----------------------------------------------------------------------------------------------------------


@state(WarningKind.MULTIPLE_BUDGETS)
def _two_budgets(place: Fleet) -> None:
    node = place.held("twice", pool="twice")
    a_deployment(place, "twice", node, 2)
    create(place, PDBS, *(manifests.budget(name, "twice", maxUnavailable=1) for name in ("twice", "again")))
    counted(place, "twice", disruptionsAllowed=1)
    counted(place, "again", disruptionsAllowed=1)
    text = warned(place, node, "MultipleBudgets")
    assert text == of_pod(place, node)
    pasted(place, text, editor="sed -i 's/app: twice/app: other/'")
    assert of_pod(place, node) == warned(place, node, "MultipleBudgets") == ""


@state(WarningKind.BUDGET_NOT_COUNTED)
def _a_budget_that_cannot_be_counted(place: Fleet) -> None:
    node = place.held("strange")
    create(place, PDBS, manifests.budget("strange", "strange", maxUnavailable=1))
    counted(place, "strange")
    owner = {"apiVersion": "example.com/v1", "kind": "Thing", "name": "x", "uid": "u-1", "controller": True}
    manifest = manifests.pod("strange", RUN, on=node)
    manifest["metadata"]["ownerReferences"] = [owner]
    place.ask("POST", PODS, manifest)
    place.until("it fails", lambda: of_pod(place, node).startswith("see its condition"))
    assert "SyncFailed" in pasted(place, of_pod(place, node))
    assert "SyncFailed" in pasted(place, warned(place, node, "BudgetNotCounted"))


@state(WarningKind.BUDGET_ALLOWS_NOTHING)
def _a_budget_that_never_allows_anything(place: Fleet) -> None:
    bounds: dict[str, dict[str, Any]] = {
        "least": {"minAvailable": 2}, "all": {"minAvailable": "100%"}, "none": {"maxUnavailable": 0},
    }  # fmt: skip
    for name, bound in bounds.items():
        node = place.held(name, pool=name)
        a_deployment(place, name, node, 2)
        create(place, PDBS, manifests.budget(name, name, **bound))
        counted(place, name, expectedPods=2, desiredHealthy=2, currentHealthy=2)
        text = warned(place, node, "BudgetAllowsNothing")
        assert text == of_pod(place, node)
        pasted(place, text)
        counted(place, name, observedGeneration=2, disruptionsAllowed=1)
        assert warned(place, node, "BudgetAllowsNothing") == ""


@state(WarningKind.INVALID_PROTECTION)
def _an_invalid_protection(place: Fleet) -> None:
    node = place.held("invalid")
    place.pod("invalid", node, annotations={names.DO_NOT_DISRUPT: "4 hours"})
    pasted(place, of_pod(place, node))
    assert warned(place, node, "InvalidProtection") == ""
    assert planned(place, node)["pods"][0]["protection"]["value"] == "4h"


# -- around pods -------------------------------------------------------------------------------------------------------


@state(WarningKind.REPLACEMENT_PENDING, WarningKind.NO_OTHER_NODE)
def _a_pod_that_fits_nowhere(place: Fleet) -> None:
    node = place.held("only", pool="only")
    a_deployment(place, "only", node, 1)
    assert "pool: only" in pasted(place, warned(place, node, "NoOtherNode"))
    place.patch(node, {"spec": {"unschedulable": True}})
    place.ask("PATCH", f"{APPS}/deployments/only", {"spec": {"replicas": 2}}, "application/merge-patch+json")
    place.until("one is Pending", lambda: warned(place, node, "ReplacementPending"))
    assert "Pending" in pasted(place, warned(place, node, "ReplacementPending"))


@state(WarningKind.LOCAL_TRAFFIC)
def _a_load_balancer(place: Fleet) -> None:
    node = place.held("front")
    place.pod("front", node)
    spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": {"app": "front"}}
    create(place, SERVICES, {"metadata": {"name": "front"}, "spec": {**spec, "ports": [{"port": 80}]}})
    pasted(place, warned(place, node, "LocalTraffic"))
    assert warned(place, node, "LocalTraffic") == ""


@state(WarningKind.NO_BUDGET)
def _a_workload_without_a_budget(place: Fleet) -> None:
    node = place.held("loose", pool="loose")
    a_deployment(place, "loose", node, 2)
    pasted(place, warned(place, node, "NoBudget"))
    assert warned(place, node, "NoBudget") == ""
    counted(place, "loose", expectedPods=2, disruptionsAllowed=1)


# -- nodes -------------------------------------------------------------------------------------------------------------


@state(WarningKind.NEVER_DRAINS)
def _a_node_that_never_drains(place: Fleet) -> None:
    node = place.held("stuck")
    place.pod("stuck", node, annotations=FOR_EVER)
    text = warned(place, node, "NeverDrains").rpartition("; or ")[2]
    assert "which overrides budgets and protection" in text
    pasted(place, text)
    report = planned(place, node)
    assert 800 < report["deadline"]["atSeconds"] <= 900
    assert report["drained"] is not None


@state(NO_DRAIN_DEADLINE)
def _a_drain_that_never_ends(place: Fleet) -> None:
    node = place.held("kept-busy")
    place.pod("kept-busy", node, annotations=FOR_EVER)
    shown = place.run("drain", node, "--dry-run").stdout
    text = " ".join(shown.split()).partition("; or give the drain ")[2]
    assert text.startswith(f"a deadline, which overrides budgets and protection: gracectl drain {node} --deadline 15m")
    result = place.run("drain", node, "--deadline", "15m", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "drained in" in result.stdout
    assert "never" not in result.stdout


@state(WarningKind.INVALID_DEADLINE)
def _an_invalid_deadline(place: Fleet) -> None:
    node = place.held("someday")
    place.patch(node, {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "tomorrow"}}})
    pasted(place, warned(place, node, "InvalidDeadline"))
    assert warned(place, node, "InvalidDeadline") == ""
    assert 800 < planned(place, node)["deadline"]["atSeconds"] <= 900


@state(WarningKind.NOT_MANAGED)
def _a_node_that_is_not_managed(place: Fleet) -> None:
    node = place.held("master", **{names.CONTROL_PLANE_ROLE: ""})
    assert names.CONTROL_PLANE_ROLE in pasted(place, warned(place, node, "NotManaged"))


@state(WarningKind.FINALIZER_MISSING, WarningKind.NO_CONTROLLER)
def _no_controller(place: Fleet) -> None:
    node = place.add("free")
    for text in (warned(place, node, "FinalizerMissing"), remedy(WarningKind.NO_CONTROLLER)):
        assert "there is no Lease gracectl" in pasted(place, text)


@state(WarningKind.NOT_READY)
def _a_node_that_is_not_ready(place: Fleet) -> None:
    node = place.held("down")
    assert node in pasted(place, remedy(WarningKind.NOT_READY, node=node))


@state(WarningKind.NODE_BUDGET_BLOCKS)
def _a_budget_for_nodes(place: Fleet) -> None:
    node = place.held("kept", pool="kept")
    spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"pool": "kept"}}}
    create(place, NODE_BUDGETS, {**KIND, "metadata": {"name": "kept"}, "spec": spec})
    assert "kept" in pasted(place, warned(place, node, "NodeBudgetBlocks"))


@state(WarningKind.SEVERAL_CLAIMS)
def _several_claims(place: Fleet) -> None:
    node = place.held("shared")
    place.patch(node, {"spec": {"providerID": "kind://shared"}})
    for name in ("claim-a", "claim-b"):
        create(place, CLAIMS, manifests.claim(name, RUN))
        status = {"status": {"providerID": "kind://shared", "nodeName": node}}
        place.ask("PATCH", f"{CLAIMS}/{name}/status", status, "application/merge-patch+json")
    shown = pasted(place, warned(place, node, "SeveralNodeClaims"))
    assert "claim-a" in shown
    assert "claim-b" in shown


@state(CLAIM_DEADLINE, NODE_HOLD, WarningKind.OWNER_WAITS, WarningKind.OWNER_REPORTS)
def _a_node_of_karpenter(place: Fleet) -> None:
    node = place.held("pooled", **{names.NODE_POOL: "default"})
    place.patch(node, {"metadata": {"annotations": FOR_EVER}, "spec": {"providerID": "kwok://pooled"}})
    place.pod("pooled", node, annotations=FOR_EVER)
    create(place, CLAIMS, manifests.claim("pooled", RUN))
    status = {"status": {"providerID": "kwok://pooled", "nodeName": node}}
    place.ask("PATCH", f"{CLAIMS}/pooled/status", status, "application/merge-patch+json")
    pasted(place, warned(place, node, "OwnerHolds"))
    assert warned(place, node, "OwnerHolds") == ""
    pasted(place, warned(place, node, "NeverDrains").rpartition("; or ")[2])
    report = planned(place, node)
    assert 800 < report["deadline"]["atSeconds"] <= 900
    assert report["owner"]["name"] == "Karpenter"
    assert "holderIdentity" in pasted(place, remedy(WarningKind.OWNER_WAITS))
    assert "pooled" in pasted(place, remedy(WarningKind.OWNER_REPORTS, kind="nodeclaim", name="pooled"))


@state(OTHER_OWNER)
def _a_node_of_karpenter_that_is_kept(place: Fleet) -> None:
    node = place.held("idle", **{names.NODE_POOL: "default"})
    pasted(place, remedy(OTHER_OWNER, node=node))
    assert place.ask("GET", f"/api/v1/nodes/{node}")["spec"]["unschedulable"]


@state(POOL_HOLD)
def _a_pool_that_is_not_disrupted(place: Fleet) -> None:
    with installed(place):
        pool = {"metadata": {"name": "quiet"}, "spec": {"disruption": {"budgets": [{"nodes": "0"}]}}}
        create(place, "/apis/karpenter.sh/v1/nodepools", {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **pool})
        node = place.held("calm", **{names.NODE_POOL: "quiet"})
        assert "budgets" in pasted(place, warned(place, node, "OwnerHolds"))


# -- all of them -------------------------------------------------------------------------------------------------------


def test_every_remedy_with_a_command_is_tried() -> None:
    with_command = {reason for reason, text in REMEDIES.items() if COMMAND.search(text)}
    assert with_command == set(SCENARIOS)
    assert set(REMEDIES) - with_command == WITHOUT_COMMAND


@pytest.mark.parametrize("scenario", list(dict.fromkeys(SCENARIOS.values())), ids=lambda each: each.__name__.strip("_"))
def test_a_remedy_works_when_pasted(place: Fleet, scenario: Scenario) -> None:
    scenario(place)
