"""What the chart renders, for the ways in which people install it: that a cluster takes it, and that its parts fit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubesim.server.api import JsonObject
from support.chart import AGENT, COMPONENT, MONITORED, SETS, Release, needs_helm, refusal, run
from support.chart import CHART as FOLDER
from support.schemas import misfits

from gracectl import __version__
from gracectl.cli.crds import manifests
from gracectl.cli.ui.command import ui
from gracectl.config import load_settings
from gracectl.model import names

needs_helm()

CLUSTER_WIDE = {
    *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
}
COMPONENTS = {"controller", "agent", "ui", "uninstall", "webhooks", "test", "definitions", "dashboard", "settings"}
WORKLOADS = ("Deployment", "DaemonSet", "Job", "Pod")
EACH_SET = pytest.mark.parametrize("release", SETS.values(), ids=SETS)


def pods(release: Release) -> Iterator[JsonObject]:
    """All pods of a release, each as metadata and spec."""
    for workload in release.objects():
        if workload["kind"] in WORKLOADS:
            yield workload if workload["kind"] == "Pod" else workload["spec"]["template"]


def is_within(selector: JsonObject, labels: JsonObject) -> bool:
    return selector.items() <= labels.items()


# -- what a cluster makes of it ----------------------------------------------------------------------------------------


def test_helm_has_nothing_to_find_fault_with() -> None:
    run("lint", "--strict", str(FOLDER), "--kube-version", Release().kubernetes)


@EACH_SET
def test_every_object_is_of_its_kind_and_has_no_field_too_many(release: Release) -> None:
    assert {each["metadata"]["name"]: faults for each in release.objects() if (faults := misfits(each))} == {}


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda spec: spec.update(replica=1), "Deployment.spec.replica: is no field"),
        (lambda spec: spec.update(replicas="2"), "Deployment.spec.replicas: '2' is no integer"),
        (lambda spec: spec.pop("selector"), "Deployment.spec.selector: is missing"),
        (lambda spec: spec["template"].update(spec=None), "Deployment.spec.template.spec: is null"),
        (
            lambda spec: spec["template"]["spec"]["containers"][0]["ports"][0].update(hostport=1),
            "Deployment.spec.template.spec.containers[0].ports[0].hostport: is no field",
        ),
        (
            lambda spec: spec["template"]["spec"]["containers"][0]["resources"]["limits"].update(memory="1 GB"),
            "Deployment.spec.template.spec.containers[0].resources.limits.memory: '1 GB' is no Quantity",
        ),
    ],
)
def test_what_is_not_would_be_found(spoil: Any, complaint: str) -> None:
    deployment = Release().one("Deployment")
    spoil(deployment["spec"])
    assert misfits(deployment) == [complaint]


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor", "PrometheusRule", "Certificate"])
def test_what_is_not_would_be_found_in_kinds_of_others(kind: str) -> None:
    values = {**MONITORED, "agent": AGENT, "admission": {"certManager": {"enabled": True}}}
    thing = Release(values=values).of_kind(kind)[0]
    thing["spec"]["selektor"] = {}
    assert misfits(thing) == [f"{kind}.spec.selektor: is no field"]


@EACH_SET
def test_every_object_says_where_it_belongs(release: Release) -> None:
    elsewhere = {
        "service-elsewhere": {"edge", "kube-system"},
        "clusterapi-in-a-namespace": {"machines"},
        "page-alone": {"kube-system"},
    }
    name = next(name for name, each in SETS.items() if each is release)
    places = {None, release.namespace, *elsewhere.get(name, set())}
    for each in release.objects():
        namespace = each["metadata"].get("namespace")
        assert (namespace is None) == (each["kind"] in CLUSTER_WIDE), each["metadata"]
        assert namespace in places


@EACH_SET
def test_every_object_is_labelled_and_no_two_have_one_name(release: Release) -> None:
    objects = release.objects()
    for each in objects:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == release.name
        assert labels["app.kubernetes.io/version"] == __version__
        assert labels[COMPONENT] in COMPONENTS
    known = Counter((each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects)
    assert max(known.values()) == 1


@EACH_SET
def test_it_is_rendered_the_same_again(release: Release) -> None:
    place = ("--namespace", release.namespace, "--kube-version", release.kubernetes)
    apis = [argument for api in release.apis for argument in ("--api-versions", api)]
    again = run("template", release.name, str(FOLDER), *place, *apis, "-f", "-", given=json.dumps(release.values))
    assert again == release.text()


def test_no_helm_is_too_old_for_a_template_that_names_the_cluster_it_cannot_run_on() -> None:
    assert "chart requires kubeVersion" in refusal({}, kubernetes="1.24.0")


# -- parts that have to fit --------------------------------------------------------------------------------------------


@EACH_SET
def test_everything_that_selects_pods_finds_its_own_and_no_others(release: Release) -> None:
    templates = [each["metadata"] for each in pods(release)]
    for each in release.objects():
        kind, spec = each["kind"], each.get("spec", {})
        selectors = {
            "Deployment": lambda spec: spec["selector"]["matchLabels"],
            "DaemonSet": lambda spec: spec["selector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
            "Service": lambda spec: spec["selector"],
            "PodMonitor": lambda spec: spec["selector"]["matchLabels"],
        }
        if kind in selectors:
            selector = selectors[kind](spec)
            selected = [labels for metadata in templates if is_within(selector, labels := metadata["labels"])]
            assert [labels[COMPONENT] for labels in selected] == [each["metadata"]["labels"][COMPONENT]], kind


@EACH_SET
def test_what_services_and_monitors_lead_to_is_there(release: Release) -> None:
    ports: dict[str, set[str]] = {}
    for metadata, spec in ((pod["metadata"], pod["spec"]) for pod in pods(release)):
        names_of_ports = {port["name"] for each in spec["containers"] for port in each.get("ports", [])}
        ports[metadata["labels"][COMPONENT]] = names_of_ports
    services = release.of_kind("Service")
    for service in services:
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[
            service["metadata"]["labels"][COMPONENT]
        ]
    for monitor in release.of_kind("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        (scraped,) = (each for each in services if is_within(selector, each["metadata"]["labels"]))
        assert {each["port"] for each in monitor["spec"]["endpoints"]} == {
            each["name"] for each in scraped["spec"]["ports"]
        }
    for monitor in release.of_kind("PodMonitor"):
        assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports["agent"]


@EACH_SET
def test_what_pods_mount_and_who_they_are_is_there(release: Release) -> None:
    objects = release.objects()
    made = {(each["kind"], each["metadata"]["name"]) for each in objects}
    brought = {"ends", "mine", "management", "of-mine", "page"} | {
        each["spec"]["secretName"] for each in objects if each["kind"] == "Certificate"
    }
    for spec in (pod["spec"] for pod in pods(release)):
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        mounted = [mount["name"] for each in spec["containers"] for mount in each.get("volumeMounts", [])]
        assert sorted(mounted) == sorted(volumes)
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in {*made, ("ConfigMap", "api-servers")}
            if "secret" in volume:
                assert volume["secret"]["secretName"] in brought
        account = spec.get("serviceAccountName")
        assert account in (None, "mine") or ("ServiceAccount", account) in made


@EACH_SET
def test_every_binding_binds_a_role_that_is_there_to_an_account_that_is(release: Release) -> None:
    objects = release.objects()
    accounts = {
        (each["metadata"]["name"], each["metadata"]["namespace"])
        for each in objects
        if each["kind"] == "ServiceAccount"
    }
    roles = {
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in objects
        if each["kind"] in ("Role", "ClusterRole")
    }
    bound = set()
    for each in (each for each in objects if each["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        bound.add((each["roleRef"]["kind"], each["metadata"].get("namespace"), each["roleRef"]["name"]))
        assert {(subject["name"], subject["namespace"]) for subject in each["subjects"]} <= accounts
    assert bound == roles


def test_what_a_hook_needs_is_made_before_it_and_goes_with_it() -> None:
    hooks: dict[str, list[tuple[int, str]]] = {}
    for each in Release().objects():
        notes = each["metadata"].get("annotations", {})
        if hook := notes.get("helm.sh/hook"):
            assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
            hooks.setdefault(hook, []).append((int(notes.get("helm.sh/hook-weight", 0)), each["kind"]))
    assert set(hooks) == {"pre-delete", "post-install,post-upgrade,post-rollback", "test"}
    for hook in set(hooks) - {"test"}:
        *before, last = sorted(hooks[hook])
        assert last == (0, "Job")
        assert all(weight < 0 for weight, _ in before)


def test_a_job_that_cannot_succeed_is_not_tried_again_and_says_why() -> None:
    for job in Release().of_kind("Job"):
        assert job["metadata"]["annotations"]["helm.sh/hook-output-log-policy"] == "hook-failed,hook-succeeded"
        (rule,) = job["spec"]["podFailurePolicy"]["rules"]
        assert rule == {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}


# -- how pods run ------------------------------------------------------------------------------------------------------


def unrestricted(spec: JsonObject) -> Iterator[str]:
    """What of the pod security standard "restricted" a pod does not keep. Source: kubernetes.io, Pod Security
    Standards."""
    kinds = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    yield from (f"volume {each['name']}" for each in spec.get("volumes", []) if not set(each) - {"name"} <= kinds)
    context = spec.get("securityContext", {})
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "seccomp"
    if not context.get("runAsNonRoot") or context.get("runAsUser") == 0:
        yield "root"
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        own = container["securityContext"]
        yield from (f"port {port['hostPort']}" for port in container.get("ports", []) if port.get("hostPort"))
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
            yield "privileges"
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            yield "capabilities"


@EACH_SET
def test_every_pod_but_the_agent_is_restricted(release: Release) -> None:
    for pod in pods(release):
        lacking = set(unrestricted(pod["spec"]))
        component = pod["metadata"]["labels"][COMPONENT]
        if component == "agent":
            assert lacking - {"volume kubeconfig", "volume kubeconfig-0"} <= {"root", "volume bus", "volume logind"}
            assert ("volume kubeconfig" in lacking) == bool(release.values["agent"].get("kubeconfig"))
            assert "root" in lacking
        else:
            assert lacking == (
                {"hostNetwork"} if release is SETS["host-network"] and component == "controller" else set()
            )


@EACH_SET
def test_every_container_writes_nothing_has_a_bound_on_memory_and_is_never_throttled(release: Release) -> None:
    for pod in pods(release):
        assert pod["spec"]["enableServiceLinks"] is False
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            resources = container["resources"]
            assert {"cpu", "memory"} <= set(resources["requests"])
            assert set(resources["limits"]) == {"memory"}


def test_a_controller_leaves_a_node_that_is_drained() -> None:
    # A pod that tolerates our cordon is skipped: the lead would end with the machine, not be handed over.
    for toleration in Release().one("Deployment")["spec"]["template"]["spec"]["tolerations"]:
        assert toleration["key"] not in ("", names.DISRUPTED_TAINT_KEY)


def test_a_digest_beats_the_tag() -> None:
    (container,) = SETS["everything"].one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com/tools/gracectl@sha256:{'0' * 64}"
    values = {"image": {"repository": "registry.example.com/gracectl", "tag": "edge"}}
    (container,) = Release(values=values).one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/gracectl:edge"


# -- several releases --------------------------------------------------------------------------------------------------


def test_two_releases_share_no_name() -> None:
    apart = {
        "admission": {"name": "blue", "secret": "blue-webhook-tls"},
        "leaderElection": {"name": "b"},
    }
    everything = {**MONITORED, "agent": AGENT, "priorityQuota": True, "networkPolicy": {"enabled": True}}
    first = Release(values=everything)
    second = Release(name="blue", values={**everything, "settings": apart, "crds": {"install": False}})
    taken = [
        {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in release.objects()}
        for release in (first, second)
    ]
    assert not taken[0] & taken[1]
    selected = second.one("Deployment")["spec"]["selector"]["matchLabels"]
    assert not is_within(selected, first.one("Deployment")["spec"]["template"]["metadata"]["labels"])


@pytest.mark.parametrize(
    ("release", "name"),
    [
        (Release(), "gracectl"),
        (Release(name="gracectl-blue"), "gracectl-blue"),
        (Release(name="blue"), "blue-gracectl"),
        (Release(name="blue", values={"fullnameOverride": "ender"}), "ender"),
        (Release(name="a" * 53), "a" * 40),
    ],
)
def test_names_are_made_of_the_releases_and_none_is_too_long(release: Release, name: str) -> None:
    assert release.one("Deployment")["metadata"]["name"] == name
    assert all(len(each["metadata"]["name"]) <= 63 for each in release.objects() if "crd" not in each["kind"].lower())


# -- definitions -------------------------------------------------------------------------------------------------------


def test_definitions_are_those_that_the_program_prints() -> None:

    printed = {each["metadata"]["name"]: each["spec"] for each in yaml.safe_load_all(manifests())}
    values = {"crds": {"nodeClaims": True}}
    made = Release(values=values).of_kind("CustomResourceDefinition")
    assert {each["metadata"]["name"]: each["spec"] for each in made} == printed
    assert {each["metadata"]["annotations"]["helm.sh/resource-policy"] for each in made} == {"keep"}


@pytest.mark.parametrize(
    ("values", "count"), [({"install": False, "nodeClaims": True}, 0), ({}, 2), ({"nodeClaims": True}, 3)]
)
def test_only_wanted_definitions_are_made(values: JsonObject, count: int) -> None:
    assert len(Release(values={"crds": values}).of_kind("CustomResourceDefinition")) == count


def test_definitions_are_removed_with_the_release_if_requested() -> None:
    for definition in Release(values={"crds": {"keep": False}}).of_kind("CustomResourceDefinition"):
        assert "helm.sh/resource-policy" not in definition["metadata"].get("annotations", {})


# -- monitoring --------------------------------------------------------------------------------------------------------


def test_alerts_and_dashboard_are_the_shipped_ones() -> None:

    release = SETS["everything"]
    alerts = yaml.safe_load((FOLDER / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    assert release.one("PrometheusRule")["spec"] == alerts
    shipped = json.loads((FOLDER / "files" / "dashboard.json").read_text(encoding="utf-8"))
    (text,) = release.one("ConfigMap", component="dashboard")["data"].values()
    assert json.loads(text) == shipped


def test_runbooks_are_where_the_values_say() -> None:
    rules = {"enabled": True, "runbookUrl": "https://runbooks.internal/gracectl/alerts.html"}
    release = Release(values={"prometheusRule": rules})
    (group,) = release.one("PrometheusRule")["spec"]["groups"]
    assert {rule["annotations"]["runbook_url"] for rule in group["rules"]} == {
        f"{rules['runbookUrl']}#{rule['alert'].lower()}" for rule in group["rules"]
    }
    assert "runbookUrl is a placeholder" not in release.notes()
    assert "runbookUrl is a placeholder" in Release(values={"prometheusRule": {"enabled": True}}).notes()


def test_components_that_are_not_scraped_have_no_monitor() -> None:
    kinds = {each["kind"] for each in SETS["agent-alone"].objects()}
    assert {"PodMonitor", "PrometheusRule"} <= kinds
    assert not {"ServiceMonitor", "Service", "Deployment", "Job"} & kinds


def test_nothing_in_the_chart_leads_out_of_it() -> None:
    # Flux takes links for nothing, and others refuse the chart because of them.
    assert [path for path in FOLDER.rglob("*") if path.is_symlink()] == []


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_reached_by_names_of_its_service_and_yours_and_only_there() -> None:
    release = SETS["page"]
    (container,) = release.one("Deployment", component="ui")["spec"]["template"]["spec"]["containers"]
    hosts = [each.partition("=")[2] for each in container["args"] if each.startswith("--allowed-host=")]
    service = release.one("Service", component="ui")["metadata"]["name"]
    ends = ("", ".gracectl", ".gracectl.svc", ".gracectl.svc.cluster.local")
    assert hosts == [*(service + end for end in ends), "board.example.com"]
    (rule,) = release.one("NetworkPolicy", component="ui")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchLabels": {"app": "proxy"}}}]
    policy = Release(values={"ui": {"enabled": True}, "networkPolicy": {"enabled": True}})
    assert policy.one("NetworkPolicy", component="ui")["spec"]["ingress"] == []


@pytest.mark.parametrize("name", ["page", "page-alone"])
def test_the_command_line_of_the_page_is_one_that_it_takes(name: str, tmp_path: Path) -> None:
    release = SETS[name]
    (container,) = release.one("Deployment", component="ui")["spec"]["template"]["spec"]["containers"]
    (tmp_path / "config.yaml").write_text(release.settings())
    (tmp_path / "token").write_text("a token of some length")
    given = [
        each.replace("/etc/gracectl", str(tmp_path)).replace("/token/token", str(tmp_path / "token"))
        for each in container["args"]
    ]
    assert given[0] == "ui"
    options = ui.make_context("ui", given[1:]).params
    assert options["base_path"] == ("/gracectl" if name == "page" else "")
    for each in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[each]["httpGet"]["path"] == f"{options['base_path']}/"
    variables = {each["name"]: each["value"] for each in container["env"]}
    loaded = load_settings(tmp_path / "config.yaml", variables)
    role = release.one("Role", component="ui")
    assert loaded.leader_election.namespace == role["metadata"]["namespace"]
    assert role["rules"][0]["resourceNames"] == [loaded.leader_election.name]


def test_without_a_token_or_a_policy_the_notes_warn() -> None:
    warning = "The page of ui needs no token"
    assert warning in Release(values={"ui": {"enabled": True}}).notes()
    assert "port-forward svc/gracectl-ui 8080:80" in Release(values={"ui": {"enabled": True}}).notes()
    assert warning not in SETS["page"].notes()
    assert "port-forward" not in Release().notes()
