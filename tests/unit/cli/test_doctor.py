"""`gracectl doctor`: what it finds in a cluster before, with and without a controller, and that it changes nothing."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import yaml
from click.testing import Result
from e2e_support.target import embedded_cluster
from rich.console import Console
from support.builders import a_budget, a_node, a_pod
from support.fleet import Fleet, overheard
from support.karpenter import installed
from support.servers import mute

from gracectl.admission.settings import AdmissionSettings
from gracectl.admission.webhooks import WEBHOOKS, manifest
from gracectl.cli.console import text_of
from gracectl.cli.doctor.checks import certificate_finding, run_check
from gracectl.cli.doctor.deployments import COMPONENT
from gracectl.cli.doctor.objects import annotation_finding, budget_finding, node_findings
from gracectl.cli.doctor.replacements import released_finding
from gracectl.cli.doctor.report import CheckState, Finding, doctor_table, summary
from gracectl.cli.doctor.surroundings import (
    attachment_finding,
    balancer_finding,
    scheduling_finding,
    volume_finding,
    workload_finding,
)
from gracectl.cloud.provider import ProviderSettings
from gracectl.config import Settings
from gracectl.kube.errors import Forbidden
from gracectl.kube.transport.operation import Operation
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.meta import Condition
from gracectl.model.pod import VolumeAttachment
from gracectl.model.times import format_micro_time
from gracectl.model.workloads import PendingPod, PersistentVolume, Service, Workload
from gracectl.policy.release import Release
from gracectl.runtime.certificates import issue
from gracectl.runtime.clock import SystemClock

pytestmark = pytest.mark.real_time

NAMESPACES = "/api/v1/namespaces"
LABELS = dict(each.split("=") for each in names.SETTINGS_SELECTOR.split(","))
PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
NOW = 1_000_000.0
DAY = 86_400.0
HELD = (names.FINALIZER,)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("doctor")
    with embedded_cluster(folder, "--nodes", "2", "--pods", "1", "--rbac") as admin:
        fleet = Fleet(admin, folder)
        fleet.ask("POST", NAMESPACES, {"metadata": {"name": "gracectl"}})
        yield fleet


@contextmanager
def existing(place: Fleet, path: str, manifest: dict[str, Any]) -> Iterator[None]:
    place.ask("POST", path, manifest)
    try:
        yield
    finally:
        place.ask("DELETE", f"{path}/{manifest['metadata']['name']}")


def config_map(place: Fleet, text: str) -> Any:
    manifest = {"metadata": {"name": "gracectl", "labels": LABELS}, "data": {names.SETTINGS_KEY: text}}
    return existing(place, f"{NAMESPACES}/gracectl/configmaps", manifest)


def lease(place: Fleet, **spec: Any) -> Any:
    path = "/apis/coordination.k8s.io/v1/namespaces/gracectl/leases"
    manifest = {"metadata": {"name": "gracectl"}, "spec": {"leaseDurationSeconds": 15, **spec}}
    return existing(place, path, manifest)


def checked(result: Result) -> dict[str, dict[str, Any]]:
    """By name what was found; the exit code fits."""
    report = msgspec.json.decode(result.stdout)
    is_healthy = not any(each["state"] in ("failed", "unknown") for each in report["checks"])
    assert (result.exit_code, report["healthy"]) == ((0, True) if is_healthy else (1, False)), result.output
    assert all(each["remedy"] for each in report["checks"] if each["state"] == "failed")
    return {each["check"]: each for each in report["checks"]}


def found_in(place: Fleet, *arguments: str, as_: Path | None = None) -> dict[str, dict[str, Any]]:
    return checked(place.run("doctor", "-o", "json", *arguments, as_=as_))


# -- a cluster ---------------------------------------------------------------------------------------------------------


def test_before_the_installation_it_says_what_is_missing(place: Fleet) -> None:
    checks = found_in(place)
    assert list(checks) == [
        *("API server", "credentials", "settings", "definitions", "controller", "permissions", "webhooks", "Karpenter"),
        *("clocks", "finalizers", "machines", "owners", "budgets", "annotations", "replacements"),
        *("workloads", "volumes", "attachments", "load balancers", "scheduling"),
    ]
    assert checks["API server"]["state"] == "ok"
    assert checks["credentials"]["message"] == "accepted, as kubernetes-admin"
    assert (checks["controller"]["state"], checks["controller"]["message"]) == (
        "failed",
        "not installed: there is no Lease gracectl",
    )
    assert checks["controller"]["remedy"].startswith("helm install gracectl ")
    assert checks["finalizers"]["state"] == "warning"
    assert checks["permissions"]["state"] == "ok"


ADMITS = 'admission: {listen: ":8443", service: {name: gracectl, namespace: gracectl}}\n'
HOOKS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations"


@contextmanager
def registered(place: Fleet, bundle: bytes) -> Iterator[None]:
    """Configurations of webhooks that no API server reaches, and settings that want them."""
    settings = AdmissionSettings(listen=":8443", url="https://127.0.0.1:1")
    with config_map(place, ADMITS), ExitStack() as stack:
        for kind in ("mutating", "validating"):
            hooks = [manifest(each, settings, b64encode(bundle), "") for each in WEBHOOKS if each.kind == kind]
            for hook in hooks:
                hook["failurePolicy"] = "Ignore"
            stack.enter_context(
                existing(place, HOOKS.format(kind), {"metadata": {"name": "gracectl"}, "webhooks": hooks})
            )
        yield


def test_webhooks_are_tried_without_a_trace(place: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = issue(["a.example"], SystemClock().now(), 90 * DAY).authority
    with registered(place, authority):
        asked = overheard(monkeypatch)
        checks = found_in(place)
        written = [request for request in asked if request.method != "GET"]
        monkeypatch.undo()
    assert (checks["webhooks"]["state"], checks["certificate"]["state"]) == ("failed", "ok")
    assert checks["webhooks"]["message"] == (
        "registered, but API servers get no answer: no budget limits deletions of nodes"
    )
    assert checks["certificate"]["message"].endswith(" (89 days left)")
    tried = [request for request in written if "/nodedisruptionbudgets" in request.path]
    assert [("dryRun", "All") in request.query for request in tried] == [True]
    others = {request.path.split("/")[2] for request in written if request not in tried}
    assert others == {"authorization.k8s.io", "authentication.k8s.io"}  # questions, which are not stored
    assert place.ask("GET", "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets")["items"] == []


def test_a_table_has_a_line_for_each_and_what_helps(place: Fleet) -> None:
    result = place.run("doctor")
    assert result.exit_code == 1
    assert re.search(r"^✓  API server +Kubernetes v1\.\d+\.\d+ ", result.stdout, re.M)
    assert re.search(
        r"^✗  controller +not installed: there is no Lease gracectl\n +-> helm install ", result.stdout, re.M
    )
    assert re.search(r"^1 check failed, \d+ with a warning, \d+ passed$", result.stdout, re.M)


def test_a_leader_that_is_gone(place: Fleet) -> None:
    with lease(place, holderIdentity="gracectl-0", renewTime="2026-01-01T00:00:00.000000Z"):
        controller = found_in(place)["controller"]
    assert controller["state"] == "failed"
    assert controller["message"] == (
        "no controller leads: gracectl-0 last renewed Lease gracectl/gracectl at 2026-01-01T00:00:00Z"
    )


def a_deployment(*arguments: str, replicas: int = 0) -> dict[str, Any]:
    labels = dict(each.split("=") for each in COMPONENT.split(","))
    container = {"name": "a", "image": "a", "args": [*arguments]}
    pod = {"serviceAccountName": "weak", "containers": [container], "tolerations": [{"operator": "Exists"}]}
    return {
        "metadata": {"name": "gracectl", "labels": labels},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "a"}},
            "template": {"metadata": {"labels": {"app": "a"}}, "spec": pod},
        },
    }


DEPLOYMENTS = "/apis/apps/v1/namespaces/gracectl/deployments"


def test_the_account_of_the_deployment_is_asked_for(place: Fleet) -> None:
    with existing(place, DEPLOYMENTS, a_deployment()):
        checks = found_in(place)
    assert checks["permissions"]["state"] == "failed"
    assert checks["permissions"]["message"].startswith(
        "service account gracectl/weak: missing permissions: get nodes, "
    )
    assert "create pods/eviction" in checks["permissions"]["objects"]
    assert checks["controller"]["message"] == "no replica is Ready; 0 of 0 replicas Ready"
    assert checks["controller"]["remedy"] == "see why: kubectl -n gracectl logs deployment/gracectl"


def test_a_controller_that_only_observes_needs_no_lease_and_no_webhooks(place: Fleet) -> None:
    settings = "admission: {listen: ':8443', url: 'https://gracectl.example.com'}"
    observer = a_deployment("controller", "--dry-run", replicas=1)
    with config_map(place, settings), existing(place, DEPLOYMENTS, observer):
        place.until("it is Ready", lambda: place.ask("GET", f"{DEPLOYMENTS}/gracectl")["status"].get("readyReplicas"))
        checks = found_in(place)
    assert checks["controller"]["state"] == "warning"
    assert checks["controller"]["message"].startswith("dry run: no node is protected or drained; 1 of 1 ")
    assert checks["webhooks"]["message"] == "none: the controller runs with --dry-run"
    assert {each.split()[0] for each in checks["permissions"]["objects"]} <= {"get", "list", "watch"}


def test_the_settings_of_the_controller_against_a_file(place: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("eviction: {qps: 7}\n")
    with config_map(place, "eviction: {qps: 7}\nplan: {}\n"):
        assert found_in(place)["settings"]["message"] == "valid, from configmap gracectl/gracectl"
        assert found_in(place, "--config", str(file))["settings"]["state"] == "ok"
        file.write_text("eviction: {qps: 8}\n")
        differing = found_in(place, "--config", str(file))["settings"]
    assert differing["state"] == "failed"
    assert differing["objects"] == ["eviction.qps (7 on the cluster, 8 in the file)"]
    with config_map(place, "eviction: {qsp: 7}\n"):
        result = place.run("doctor")
    assert "✗  settings" in result.stdout
    assert "unknown field `qsp`" in result.stdout
    file.write_text("eviction: {qps: soon}\n")
    assert place.run("doctor", "--config", str(file)).exit_code == 2


def test_the_finalizer_follows_karpenter_and_the_setting(place: Fleet) -> None:
    assert found_in(place)["Karpenter"]["message"] == (
        "not installed; finalizer of all others: karpenter.sh/termination (setting finalizer: auto)"
    )
    with installed(place):
        check = found_in(place)["Karpenter"]
        assert (check["state"], check["message"]) == (
            "ok",
            (
                "installed: its nodes and node claims are left to it; finalizer of all others: gracectl.io/termination "
                "(setting finalizer: auto)"
            ),
        )
        with config_map(place, "finalizer: karpenter.sh/termination\n"):
            assert found_in(place)["Karpenter"]["message"].endswith(
                "karpenter.sh/termination (setting finalizer: karpenter.sh/termination)"
            )


def test_clocks_that_a_controller_has_reported_are_a_fault_for_a_while(place: Fleet) -> None:
    event = {
        "metadata": {"name": "clocks"},
        "involvedObject": {"kind": "Lease", "namespace": "gracectl", "name": "gracectl"},
        "reason": names.EventReason.CLOCKS_DISAGREE,
        "message": "deadlines are paused",
        "type": "Warning",
        "firstTimestamp": "2001-01-01T00:00:00Z",  # by the clock that is wrong
        "lastTimestamp": "2001-01-01T00:00:00Z",
        "source": {"component": names.EVENT_COMPONENT},
    }
    with lease(place, holderIdentity="a", renewTime=format_micro_time(SystemClock().now())):
        assert found_in(place)["clocks"]["state"] == "ok"
        with existing(place, f"{NAMESPACES}/gracectl/events", {**event, "source": {"component": "tenant"}}):
            assert found_in(place)["clocks"]["state"] == "ok"
        with existing(place, f"{NAMESPACES}/gracectl/events", event):
            check = found_in(place)["clocks"]
    assert check["state"] == "failed"
    assert check["message"].startswith("a controller has reported at 20")
    assert check["message"].endswith(": deadlines are paused")
    assert "restart the controller" in check["remedy"]


def test_what_it_may_not_see_is_not_checked_and_fails(place: Fleet) -> None:
    result = place.run("doctor", "-o", "json", as_=place.user("stranger"))
    checks = checked(result)
    assert result.exit_code == 1
    assert {each["state"] for each in checks.values()} == {"ok", "unknown"}
    assert {name for name, each in checks.items() if each["state"] == "unknown"} == {
        *(
            "settings",
            "controller",
            "clocks",
            "permissions",
            "webhooks",
            "nodes",
            "budgets",
            "annotations",
            "replacements",
        ),
        *("workloads", "volumes", "attachments", "load balancers", "scheduling"),
    }
    assert checks["nodes"]["message"] == "not checked: missing permission: list nodes"
    assert checks["nodes"]["remedy"] == "grant the verb list on nodes"


def test_webhooks_that_are_not_registered(place: Fleet) -> None:
    with config_map(place, ADMITS):
        check = found_in(place)["webhooks"]
    assert check["state"] == "failed"
    assert check["message"].startswith("mutating webhook configuration gracectl missing")
    assert check["remedy"] == "gracectl webhooks --apply"


def test_a_server_that_is_not_there_and_credentials_that_are_refused(place: Fleet, tmp_path: Path) -> None:
    config = yaml.safe_load(place.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": "bad"}
    (tmp_path / "refused").write_text(yaml.safe_dump(config))
    refused = found_in(place, as_=tmp_path / "refused")
    assert [(name, each["state"]) for name, each in refused.items()] == [("credentials", "failed")]
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "missing").write_text(yaml.safe_dump(config))
    missing = found_in(place, as_=tmp_path / "missing")
    assert [(name, each["state"]) for name, each in missing.items()] == [("API server", "failed")]


def test_the_help_and_the_page_name_every_field_and_check(place: Fleet) -> None:
    shown = place.run("doctor", "--help").output
    page = PAGE.read_text(encoding="utf-8")
    report = json.loads(place.run("doctor", "-o", "json").stdout)
    for field in {*report, *report["checks"][0], *report["cluster"]}:
        assert re.search(rf"\b{field}\b", shown), field
        assert f"`{field}`" in page, field
    for check in (*(each["check"] for each in report["checks"]), "certificate"):
        assert f"| {check} |" in page, check
    for state in CheckState:
        assert f"`{state}`" in page, state


def test_a_silent_server_is_reported_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gracectl.cli.doctor.checks.CHECK_SECONDS", 0.5)
    with mute(tmp_path, deaf=True) as (_, kubeconfig):
        checks = found_in(Fleet(kubeconfig, tmp_path))
    assert [(name, each["message"]) for name, each in checks.items()] == [("API server", "no answer within 0.5 s")]


# -- checks that cannot be done ----------------------------------------------------------------------------------------


def test_a_check_without_an_answer_or_a_right_is_a_finding() -> None:
    async def slow() -> Sequence[Finding]:
        await anyio.sleep(60)
        raise AssertionError("not reached")

    async def refused() -> Sequence[Finding]:
        raise Forbidden(Operation("list", "policy", "poddisruptionbudgets", "", "", ""))

    (finding,) = anyio.run(run_check, "a", slow, 0.01)
    assert (finding.state, finding.message) == (CheckState.UNKNOWN, "not checked: no answer within 0.01 s")
    (finding,) = anyio.run(run_check, "a", refused, 1.0)
    assert finding.remedy == "grant the verb list on poddisruptionbudgets.policy"


# -- objects -----------------------------------------------------------------------------------------------------------


def test_finalizers_on_nodes_that_are_not_managed() -> None:
    ours, master = a_node("n1", finalizers=HELD), a_node("n2", labels={names.CONTROL_PLANE_ROLE: ""}, finalizers=HELD)
    finding, *_ = node_findings((master, ours), (), Settings())
    assert (finding.state, finding.objects) == (CheckState.FAILED, ("n2",))
    assert finding.message == (
        "n2 is not managed, but has the finalizer karpenter.sh/termination: deleted, it stays indefinitely"
    )
    finding, *_ = node_findings((ours,), (), Settings())
    assert (finding.state, finding.message) == (CheckState.OK, "on all managed nodes (1), and on no other")
    finding, *_ = node_findings((ours, a_node("n10"), a_node("n9")), (), Settings())
    assert (finding.state, finding.objects) == (CheckState.WARNING, ("n9", "n10"))
    finding, *_ = node_findings((a_node("n10", labels={names.CONTROL_PLANE_ROLE: ""}),), (), Settings())
    assert finding.message == "no node is managed: nodeSelector matches none"


@pytest.mark.parametrize(("provider", "provider_id", "state", "message"), [
    ("none", "", "ok", "provider none terminates no machine"),
    ("none", "kind://docker/kind/n1", "ok", "provider none terminates no machine"),
    ("none", "aws:///eu-1a/i-1", "warning", "provider none terminates no machine: n1 keeps running"),
    ("aws", "aws:///eu-1a/i-1", "ok", "all managed nodes (1) have a providerID for aws"),
    ("aws", "gce://a/b/c", "failed", "n1: spec.providerID is none of aws, which cannot terminate the machine"),
    ("exec", "", "failed", "n1: no spec.providerID, without which provider exec terminates nothing"),
    ("exec", "gce://a/b/c", "ok", "all managed nodes (1) have a providerID for exec"),
])  # fmt: skip
def test_machines_that_the_provider_does_not_know(provider: str, provider_id: str, state: str, message: str) -> None:
    settings = Settings(provider=ProviderSettings(provider))
    _, finding, _ = node_findings((a_node("n1", finalizers=HELD, provider_id=provider_id),), (), settings)
    assert (finding.state, finding.message) == (state, message)


def test_budgets_that_never_allow_a_disruption() -> None:
    never = a_budget("never", expected_pods=3, desired_healthy=3, disruptions_allowed=0)
    finding = budget_finding((a_budget("web"), never))
    assert (finding.state, finding.objects) == (CheckState.FAILED, ("shop/never",))
    assert (
        finding.message == "shop/never: never allows a disruption; its pods leave only for a deadline or when they end"
    )
    patch = """'{"spec":{"minAvailable":null,"maxUnavailable":1}}'"""
    widen = f"kubectl patch pdb -n shop never --type merge -p {patch}"
    assert finding.remedy == f"run more pods, or widen it: {widen}"
    assert budget_finding(()).message == "there is none"
    spent = a_budget("spent", current_healthy=2, disruptions_allowed=0)
    assert budget_finding((a_budget("web"), spent)).message == "2 budgets, each can allow a disruption"


def test_of_a_budget_that_is_being_counted_nothing_is_claimed() -> None:
    edited = a_budget("edited", generation=2, expected_pods=3, desired_healthy=3, disruptions_allowed=0)
    finding = budget_finding((a_budget("web"), edited))
    assert finding.state is CheckState.OK
    assert finding.message == "1 budget can allow a disruption; unknown what shop/edited allows: being counted"
    assert budget_finding((edited,)).message == "unknown what shop/edited allows: being counted"


def test_pods_with_an_invalid_annotation() -> None:
    pods = [a_pod(f"web-{n}", annotations={names.DO_NOT_DISRUPT: "soon"}) for n in (10, 9, 1, 2)]
    finding = annotation_finding(pods)
    assert (finding.state, finding.objects) == (
        CheckState.FAILED,
        ("shop/web-1", "shop/web-2", "shop/web-9", "shop/web-10"),
    )
    assert finding.message.startswith("shop/web-1, shop/web-2, shop/web-9, and 1 more: karpenter.sh/do-not-disrupt is ")
    assert annotation_finding(()).state is CheckState.OK


def test_workloads_of_several_pods_without_a_budget() -> None:
    labels = {"app": "web"}
    replica_set = Workload("shop", "web-5d", "u1", workload="web", replicas=3, selector=labels, labels=labels)
    finding = workload_finding([replica_set], [a_budget(namespace="elsewhere")])
    assert (finding.state, finding.objects) == (CheckState.WARNING, ("shop/web",))
    assert finding.remedy == "create one: kubectl create pdb web -n shop --selector=app=web --max-unavailable=1"
    assert workload_finding([replica_set], [a_budget()]).state is CheckState.OK


def test_volumes_that_are_left_attached() -> None:
    used = VolumeAttachment("csi-1", "u1", node_name="n1", volume_name="v1", driver="d")
    over = VolumeAttachment("csi-2", "u2", node_name="n2", volume_name="v2", driver="d")
    assert attachment_finding([used], [a_node("n1")], {"n1"}).state is CheckState.OK
    finding = attachment_finding([used, over], [a_node("n1"), a_node("n2")], {"n1"})
    assert (finding.state, finding.objects) == (CheckState.WARNING, ("csi-2",))
    assert finding.message == "v2 (attachment csi-2, driver d): attached to n2, where no pod uses a volume"
    assert finding.remedy == "once nothing on the node uses the volume: kubectl delete volumeattachment csi-2"
    silent = a_node("n2", conditions=(Condition("Ready", "Unknown"),))
    helps = attachment_finding([over], [silent], ()).remedy
    assert helps is not None
    assert helps.endswith("kubectl taint node n2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
    deleted = msgspec.structs.replace(over, deletion_timestamp=1.0)
    for nodes in ([silent], []):
        helps = attachment_finding([deleted], nodes, ()).remedy
        assert helps == "see why it is still attached: kubectl describe volumeattachment csi-2"


def test_what_a_drain_would_meet() -> None:
    for none in (volume_finding(()), balancer_finding(()), scheduling_finding(())):
        assert (none.state, none.remedy) == (CheckState.OK, None)
    volume = volume_finding([PersistentVolume("pv-10", "u"), PersistentVolume("pv-9", "u")])
    assert (volume.state, volume.objects) == (CheckState.WARNING, ("pv-9", "pv-10"))
    balancer = balancer_finding([Service("shop", "web", "u")])
    assert (balancer.state, balancer.objects) == (CheckState.WARNING, ("shop/web",))
    pending = scheduling_finding([PendingPod("shop", "web-1", "u", reason="0/3 nodes are available: \x1b[31m")])
    assert (pending.state, pending.message) == (
        CheckState.WARNING,
        "shop/web-1: Pending: 0/3 nodes are available: \\x1b[31m",
    )


@pytest.mark.parametrize(("days", "state", "words"), [
    (90, "ok", "(89 days left)"), (3, "warning", "(2 days left)"), (-1, "failed", "its authority has expired"),
])  # fmt: skip
def test_the_life_of_thecertificate_finding(days: float, state: str, words: str) -> None:
    bundle = issue(["a.example"], NOW - 10 * DAY, 10 * DAY + days * DAY).authority
    finding = certificate_finding([bundle, bundle], NOW + 60)
    assert (finding.state, words in finding.message) == (state, True)
    assert bool(finding.remedy) == (state != "ok")


@pytest.mark.parametrize("bundle", [b"", b"-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"])
def test_authorities_that_cannot_be_read(bundle: bytes) -> None:
    assert certificate_finding([bundle], NOW).state is CheckState.FAILED


# -- the table ---------------------------------------------------------------------------------------------------------

FINDINGS = [
    Finding("API server", CheckState.OK, "Kubernetes v1.33.4"),
    Finding("nodes", CheckState.UNKNOWN, "not checked: missing permission: list nodes", "grant the verb list on nodes"),
    Finding("budgets", CheckState.FAILED, "shop/" + "x" * 63 + ": never allows a disruption " * 3, "widen it"),
    Finding("machines", CheckState.WARNING, "\x1b[31mred"),
]


@pytest.mark.parametrize("width", [80, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = text_of(Console(width=width), doctor_table(FINDINGS))
    assert all(len(line) <= width and line == line.rstrip() for line in text.splitlines())
    assert text.splitlines()[-1] == "1 check failed, 1 with a warning, 1 not checked, 1 passed"
    assert "x" * 63 in text


def test_without_unicode_marks_are_ascii() -> None:
    text = text_of(Console(width=100), doctor_table(FINDINGS, is_plain=True))
    assert [line[0] for line in text.splitlines()[1:] if line[:1].strip()][:4] == ["+", "?", "x", "!"]
    assert text.isascii()


def test_checks_are_counted() -> None:
    ok = Finding("a", CheckState.OK, "")
    assert summary([ok]) == "1 check passed"
    assert summary([ok, ok, msgspec.structs.replace(ok, state=CheckState.FAILED)]) == "1 check failed, 2 passed"


def test_nodes_of_another_owner_are_counted_with_the_reason() -> None:
    theirs = a_node("n1", labels={names.NODE_POOL: "general"}, finalizers=HELD)
    claimed = a_node("n2", provider_id="kwok://n2", finalizers=HELD)
    claim = NodeClaim("c2", "uid-c2", provider_id="kwok://n2", node_class="EC2NodeClass.karpenter.k8s.aws")
    finalizers, machines, owners = node_findings((claimed, theirs, a_node("n3", finalizers=HELD)), (claim,), Settings())
    assert (owners.state, owners.objects) == (CheckState.OK, ("n1", "n2"))
    assert owners.message == "2 nodes not managed: drained by Karpenter (n1: label karpenter.sh/nodepool=general)"
    assert finalizers.message == "on all managed nodes (1), and on no other"
    assert machines.state == CheckState.OK


def test_released_pods_of_nodes_that_are_not_drained() -> None:
    release = Release(NOW, "Deployment", "web", names.POD_TEMPLATE_HASH, "6d4cf56db6")
    labels = {names.POD_TEMPLATE_HASH: names.RELEASED}
    pods = [
        a_pod(f"web-{n}", node_name=f"n{n}", labels=labels, annotations={names.RELEASED_FROM: release.text})
        for n in (10, 2, 1)
    ]
    asking = a_pod("db-0", node_name="n1", annotations={names.REPLACE_FIRST: "true"})
    finding = released_finding([*pods, asking], {"n1", "n10"})
    assert finding is not None
    assert (finding.state, finding.objects) == (CheckState.WARNING, ("shop/web-1", "shop/web-10"))
    assert finding.message == (
        "shop/web-1, shop/web-10: released from their ReplicaSet, but n1, n10 are not drained; a controller that leads "
        "returns them"
    )
    assert finding.remedy == "gracectl uncordon n1 n10"
    assert released_finding([*pods, asking], {"n3"}) is None


def test_a_pod_that_asks_for_its_replacement_needs_rights_of_the_controller(place: Fleet) -> None:
    pod = {
        "metadata": {"name": "asks", "annotations": {names.REPLACE_FIRST: "true"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "c", "image": "pause"}]},
    }
    spec = {"containers": [{"name": "c", "image": "gracectl"}]}
    labels = dict(each.split("=") for each in COMPONENT.split(","))
    controller = {
        "metadata": {"name": "gracectl", "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }
    deployments = "/apis/apps/v1/namespaces/gracectl/deployments"
    with existing(place, f"{NAMESPACES}/default/pods", pod), existing(place, deployments, controller):
        check = found_in(place)["replacements"]
    assert (check["state"], check["objects"]) == ("failed", ["default/asks"])
    assert check["message"].startswith(
        "default/asks asks to be replaced before its eviction; service account gracectl/default: missing permissions: "
        "patch pods, get replicasets in API group apps, get deployments in API group apps, and 5 more"
    )
    assert check["remedy"].startswith("helm upgrade with rbac.replaceFirst=true")
