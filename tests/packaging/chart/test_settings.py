"""The settings in the values: they are the program's, reach it unchanged, and replace pods only if they must."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kubesim.server.api import JsonObject
from support.chart import AGENT, CERT_MANAGER, CHART, SETS, Release, Request, defaults, denial, needs_helm, refusal
from support.settings import EXAMPLES
from support.shutdowns import BY_KEP

from gracectl.admission.settings import AdmissionSettings, CertificateFiles, ServiceSettings
from gracectl.config import Settings, load_settings
from gracectl.config.changes import AGENT_SCOPE, CONTROLLER_SCOPE, ReloadScope, is_within
from gracectl.config.fields import fields
from gracectl.model import names

needs_helm()

NOTE = "gracectl.io/settings"
WITH_CONTROLLER = {name: release for name, release in SETS.items() if name != "agent-alone"}
WITH_AGENT = {name: each for name, each in SETS.items() if each.values.get("agent", {}).get("enabled")}


def merged(values: JsonObject, more: JsonObject) -> JsonObject:
    """As helm merges: mappings with each other, everything else is replaced."""
    made = dict(values)
    for key, value in more.items():
        is_mapping = isinstance(value, dict) and isinstance(made.get(key), dict)
        made[key] = merged(made[key], value) if is_mapping else value
    return made


def loaded(text: str, folder: Path) -> Settings:
    """A settings file as the program reads it."""
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def given(release: Release) -> JsonObject:
    """What the values of a release say."""
    return merged(defaults()["settings"], release.values.get("settings", {}))


def full_name(release: Release) -> str:
    name: str = release.values.get("fullnameOverride") or (
        "gracectl" if release.name == "gracectl" else "blue-gracectl"
    )
    return name


@pytest.mark.parametrize("release", WITH_CONTROLLER.values(), ids=WITH_CONTROLLER)
def test_the_controller_reads_the_settings_of_the_values_and_what_the_chart_alone_knows(
    release: Release, tmp_path: Path
) -> None:
    wanted = loaded(yaml.safe_dump(given(release)), tmp_path) if _is_whole(release) else _completed(release)
    settings = loaded(release.settings(), tmp_path)
    added = _of_the_chart(release, wanted.admission) if settings.admission.is_wanted else {}
    admission = msgspec.structs.replace(wanted.admission, **added)
    assert settings == msgspec.structs.replace(wanted, admission=admission)


def _of_the_chart(release: Release, wanted: AdmissionSettings) -> dict[str, Any]:
    """What only the chart knows of admission."""
    values, added = release.values.get("admission", {}), dict[str, Any]()
    if not (wanted.service or wanted.url):
        added["service"] = ServiceSettings(name=full_name(release), namespace=release.namespace)
    secret = values.get("existingSecret")
    issues = values.get("certManager", {}).get("enabled") or (CERT_MANAGER in release.apis and not secret)
    if (issues or secret) and not wanted.certificates.are_given:
        files = CertificateFiles("/tls/tls.crt", "/tls/tls.key", "" if issues else "/tls/ca.crt")
        certificate = f"{release.namespace}/{full_name(release)}-webhook-cert" if issues else ""
        added["certificates"] = msgspec.structs.replace(files, inject_from=certificate)
    if values.get("clientCAConfigMap"):
        clients = msgspec.structs.replace(wanted.client_certificates, ca_file="/client-ca/ca.crt")
        added["client_certificates"] = clients
    return added


def _is_whole(release: Release) -> bool:
    """Whether the program takes the values without what the chart adds."""
    admission = given(release)["admission"]
    return not admission["listen"] or bool(admission["service"] or admission["url"])


def _completed(release: Release) -> Settings:
    """The values, though they name no Service yet."""
    settings = given(release)
    # Names without a file: the chart knows the file.
    subjects = settings["admission"]["clientCertificates"].pop("names", ())
    read = msgspec.convert(settings, Settings)
    clients = msgspec.structs.replace(read.admission.client_certificates, names=tuple(subjects))
    return msgspec.structs.replace(read, admission=msgspec.structs.replace(read.admission, client_certificates=clients))


@pytest.mark.parametrize("release", WITH_CONTROLLER.values(), ids=WITH_CONTROLLER)
def test_the_command_line_finds_the_settings_of_the_controller_and_no_others(release: Release) -> None:
    labels = [each.split("=") for each in names.SETTINGS_SELECTOR.split(",")]
    selected = [
        each["metadata"]["name"]
        for each in release.of_kind("ConfigMap")
        if all(each["metadata"]["labels"].get(name) == value for name, value in labels)
    ]
    mounted = {
        each["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] for each in release.of_kind("Deployment")
    }
    assert set(selected) == mounted
    assert len(selected) == 1


def test_a_deep_change_of_priorities_arrives_as_whole_numbers(tmp_path: Path) -> None:
    # Helm's numbers are floats on the way, and 2e+09 is a word to YAML.
    (group,) = loaded(SETS["everything"].settings(), tmp_path).node_groups
    assert group.shutdown_grace_period_by_pod_priority is not None
    priorities = [each.priority for each in group.shutdown_grace_period_by_pod_priority]
    assert priorities == [2_000_000_000, -(2**31)]


SELECTORS = ("replaceFirst.namespaceSelector.", "replaceFirst.podSelector.")


def test_the_values_show_every_field_with_the_programs_own_default_but_for_four() -> None:
    shown = defaults()["settings"]
    fitting = msgspec.to_builtins(msgspec.convert(shown, Settings))
    own = msgspec.to_builtins(Settings())
    different = set()
    for path, field in fields().items():
        if field.is_section or path.startswith(("nodeSelector.", "admission.service.", *SELECTORS)):
            continue
        *sections, name = path.split(".")
        here, mine, its = shown, fitting, own
        for section in sections:
            here, mine, its = here[section], mine[section], its[section]
        assert name in here, f"values.yaml does not show settings.{path}"
        if mine[name] != its[name]:
            different.add(path)
    assert different == {"log.format", "metrics.listen", "probes.listen", "admission.listen"}


def test_the_values_say_of_every_field_what_it_is_for() -> None:
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    # The second of a pair, and what is plain by the section's own words.
    plain = {"burst", "backoffMaximumSeconds", "pollMaximumSeconds", "retryMaximumSeconds", "timeoutSeconds"}
    plain |= {"leaseDurationSeconds", "renewDeadlineSeconds", "retryPeriodSeconds", "shutdownGracePeriodCriticalPods"}
    plain |= {"retryInitialSeconds", "pollInitialSeconds"}
    begin = lines.index("settings:")
    for before, line in zip(lines[begin:], lines[begin + 1 :], strict=False):
        if line and not line.startswith(" "):
            break
        key, colon, value = line.strip().partition(":")
        if colon and value and not key.startswith(("#", "-")) and key not in plain:
            assert before.strip().startswith("#"), key


# -- agents ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", WITH_AGENT.values(), ids=WITH_AGENT)
def test_agents_read_the_controllers_settings_except_their_own_and_have_no_admission(
    release: Release, tmp_path: Path
) -> None:
    theirs = merged(given(release), release.values["agent"].get("settings", {}))
    del theirs["admission"]
    settings = loaded(release.settings(component="agent"), tmp_path)
    assert settings == loaded(yaml.safe_dump(theirs), tmp_path)
    assert settings.shutdown.knows_shutdowns


def test_agents_mount_where_they_write_and_nothing_if_they_write_nowhere() -> None:
    spec = SETS["agent-without-drop-ins"].one("DaemonSet")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["settings", "bus"]
    values = {"agent": AGENT, "settings": {"agent": {"logindDropInDirectory": "/usr/lib/systemd/logind.conf.d"}}}
    spec = Release(values=values).one("DaemonSet")["spec"]["template"]["spec"]
    assert spec["volumes"][-1]["hostPath"]["path"] == "/usr/lib/systemd/logind.conf.d"
    assert spec["containers"][0]["volumeMounts"][-1]["mountPath"] == "/usr/lib/systemd/logind.conf.d"


def test_agents_with_a_kubelets_kubeconfig_have_no_token_and_no_role() -> None:
    release = SETS["agent-as-kubelet"]
    spec = release.one("DaemonSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert not spec["automountServiceAccountToken"]
    assert container["args"][-2:] == ["--kubeconfig", "/etc/kubernetes/kubelet.conf"]
    volumes = {each["name"]: each.get("hostPath", {}).get("path") for each in spec["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    for path in ("/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/pki"):
        assert mounts[path]["readOnly"]
        assert volumes[mounts[path]["name"]] == path
    for kind in ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy"):
        assert not [each for each in release.of_kind(kind) if "-agent" in each["metadata"]["name"]]


READING = {f"impersonate-on:associated-node:{verb}" for verb in ("get", "list", "watch")}


def test_agents_that_impersonate_their_node_may_read_nothing_by_themselves() -> None:
    granted = {
        (group, resource, verb)
        for rule in SETS["agent-as-its-node"].one("ClusterRole", component="agent")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {(resource, verb) for _, resource, verb in granted if verb.startswith("impersonate")} == {
        *((resource, verb) for resource in ("nodes", "pods") for verb in READING),
        ("nodes", "impersonate:associated-node"),
    }
    assert not {verb for _, _, verb in granted} & {"get", "list", "watch"}


def test_agents_that_hear_of_interruptions_may_note_them_on_their_own_node_and_take_none_off() -> None:
    settings = {"agent": {"interruptionSource": "ec2"}}
    release = Release(values={"agent": {**AGENT, "hostNetwork": True}, "settings": settings})
    policies = release.of_kind("ValidatingAdmissionPolicy")
    user = "system:serviceaccount:gracectl:gracectl-agent"
    bare: JsonObject = {"metadata": {"name": "a", "annotations": {"note": "x"}}}
    noted: JsonObject = merged(bare, {"metadata": {"annotations": {names.INTERRUPTION: "spot unknown ec2"}}})

    def answer(old: JsonObject, new: JsonObject, node: str = "a") -> str:
        request = Request(user=user, node=node, operation="UPDATE", resource="nodes", name="a", old=old, new=new)
        return denial(policies, request)

    assert answer(bare, noted) == ""
    assert answer(noted, bare) == "an agent may take no notice of an interruption off a node"
    assert answer(bare, noted, node="b") == "the agent of node b may change that node only, not node a"
    other = merged(noted, {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "2020-01-01T00:00:00Z"}}})
    assert answer(bare, other).startswith("an agent may change nothing of a node's annotations but")
    spec = release.one("DaemonSet")["spec"]["template"]["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


@pytest.mark.parametrize(
    ("kubernetes", "agent", "why"),
    [
        ("1.35.9", {}, "Kubernetes v1.35.9 has no constrained impersonation (1.36): set it to false, or use"),
        ("1.37.2", {"kubeconfig": "/etc/kubernetes/kubelet.conf"}, "a kubelet impersonates no node; leave one of them"),
    ],
)
def test_agents_impersonate_no_node_where_it_cannot_work(kubernetes: str, agent: JsonObject, why: str) -> None:
    values = {"agent": {**AGENT, **agent}, "settings": {"agent": {"impersonateNode": True}}}
    assert why in refusal(values, kubernetes=kubernetes)


# -- which changes replace pods ----------------------------------------------------------------------------------------

ANOTHER_AGENT: JsonObject = {"agent": {**AGENT, "settings": {}}, "settings": BY_KEP, "replicaCount": 1}


def changes() -> dict[str, Any]:
    """For each field another value than that of values.yaml, as values have it."""
    made = {}
    for path, (text, _, _) in EXAMPLES.items():
        if not path.startswith(("nodeSelector.", "admission.service.")):
            made[path] = yaml.safe_load(text)
    made["log.format"], made["metrics.listen"], made["probes.listen"] = "text", ":9191", ":8181"
    made["admission.listen"], made["admission.url"] = ":9443", "https://gracectl.example.com:8443"
    made["shutdownGracePeriodByPodPriority"] = [{"priority": 0, "shutdownGracePeriodSeconds": 60}]
    return made


def at(path: str, value: Any) -> JsonObject:
    """Values with this field of the settings."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def counts_at_once(path: str, *scopes: ReloadScope) -> bool:
    """Whether running processes of these scopes need not be replaced for a field."""
    return all(is_within(path, each.live) or is_within(path, each.ignored) for each in scopes)


RELOADED = {path: value for path, value in changes().items() if counts_at_once(path, CONTROLLER_SCOPE, AGENT_SCOPE)}
OTHERS = {path: value for path, value in changes().items() if path not in RELOADED}
PARTS = (("controller", "Deployment", CONTROLLER_SCOPE), ("agent", "DaemonSet", AGENT_SCOPE))


def value_at(path: str, settings: Any) -> Any:
    """The value of a field; None if a section is missing."""
    return functools.reduce(lambda here, name: (here or {}).get(name), path.split("."), settings)


def note(release: Release, kind: str) -> str:
    """What replaces pods when it changes."""
    text: str = release.one(kind)["spec"]["template"]["metadata"]["annotations"][NOTE]
    return text


@pytest.mark.parametrize("path", OTHERS)
def test_a_change_of_what_counts_from_the_next_start_replaces_pods(path: str) -> None:
    before = Release(values=ANOTHER_AGENT, kubernetes="1.37.2")
    changed = {**ANOTHER_AGENT, "settings": merged(ANOTHER_AGENT["settings"], at(path, OTHERS[path]))}
    after = Release(values=changed, kubernetes="1.37.2")
    for component, kind, scope in PARTS:
        if component == "agent" and path.startswith("admission"):
            continue
        texts = [each.settings(component=component) for each in (before, after)]
        assert texts[0] != texts[1], "the change does not arrive"
        assert (note(before, kind) == note(after, kind)) == counts_at_once(path, scope), component


def test_changes_of_what_counts_at_once_replace_no_pods() -> None:
    settings: JsonObject = {}
    for path, value in RELOADED.items():
        settings = merged(settings, at(path, value))
    before = Release(values=ANOTHER_AGENT, kubernetes="1.37.2")
    after = Release(values={**ANOTHER_AGENT, "settings": settings}, kubernetes="1.37.2")
    for component, kind, _ in PARTS:
        texts = [yaml.safe_load(each.settings(component=component)) for each in (before, after)]
        for path in RELOADED:
            old, new = (value_at(path, each) for each in texts)
            assert old != new, f"the change of {path} does not arrive"
        assert note(before, kind) == note(after, kind), component


def test_every_field_is_changed_once() -> None:
    wanted = {
        path
        for path, field in fields().items()
        if not field.is_section and not path.startswith(("nodeSelector.", "admission.service."))
    }
    assert set(changes()) == wanted


# -- ports -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listen", [":7070", "0.0.0.0:7070", "[::]:7070"])
def test_ports_follow_the_addresses(listen: str) -> None:
    values = {
        "settings": {
            "metrics": {"listen": listen},
            "probes": {"listen": listen.replace("7", "6")},
            "admission": {"listen": listen.replace("7", "5")},
        },
        "networkPolicy": {"enabled": True},
    }
    release = Release(values=values)
    (container,) = release.one("Deployment")["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"metrics": 7070, "probes": 6060, "webhooks": 5050}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == 6060
    ingress = release.one("NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in ingress for port in rule["ports"]} == {7070, 6060, 5050}


def test_one_address_for_metrics_and_probes_is_one_port() -> None:
    values = {"settings": {"probes": {"listen": ":9090"}}, "agent": AGENT}
    for kind in ("Deployment", "DaemonSet"):
        (container,) = Release(values=values).one(kind)["spec"]["template"]["spec"]["containers"]
        numbers = [each["containerPort"] for each in container["ports"]]
        assert len(numbers) == len(set(numbers))
        assert container["livenessProbe"]["httpGet"]["port"] == 9090


def test_what_is_served_nowhere_has_no_port_no_probe_and_no_service() -> None:
    release = SETS["minimal"]
    (container,) = release.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert not {"ports", "startupProbe", "livenessProbe", "readinessProbe"} & set(container)
    assert release.of_kind("Service") == []


# -- interruptions -----------------------------------------------------------------------------------------------------

NOTICES: dict[str, Any] = {
    "settings": {
        "interruption": {
            "sources": [{"name": "taints"}, {"name": "http", "options": {"listen": ":8090", "secretFile": "/s/secret"}}]
        }
    },
    "networkPolicy": {"enabled": True, "notifiers": [{"namespaceSelector": {"matchLabels": {"team": "racks"}}}]},
}


def test_the_webhook_for_interruptions_has_a_port_a_service_and_its_peers() -> None:
    release = Release(values=NOTICES)
    (container,) = release.one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert {"name": "interruptions", "containerPort": 8090} in container["ports"]
    [service] = [each for each in release.of_kind("Service") if each["metadata"]["name"].endswith("-interruptions")]
    assert service["spec"]["ports"] == [{"name": "interruptions", "port": 8090, "targetPort": "interruptions"}]
    ingress = release.one("NetworkPolicy")["spec"]["ingress"]
    assert {
        "ports": [{"protocol": "TCP", "port": 8090}],
        "from": NOTICES["networkPolicy"]["notifiers"],
    } in ingress


def test_without_the_webhook_nothing_of_it_is_there() -> None:
    for values in ({}, {**NOTICES, "dryRun": True}):
        release = Release(values=values)
        assert not [each for each in release.of_kind("Service") if each["metadata"]["name"].endswith("-interruptions")]
