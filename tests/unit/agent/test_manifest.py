"""The manifests with which the agent is deployed: that they fit the program, and give it no more than it needs."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pytest
import yaml
from kubesim.apiserver import ApiServer
from kubesim.controllers.paths import path_of
from kubesim.server import api
from kubesim.server.api import JsonObject
from kubesim_support.accounts import ADMIN
from support.chart import NAME, NAMESPACE, PATHS, Request, agent_objects, denial, of_kind, policy_objects
from support.inprocess import ASKING
from support.shutdowns import BY_KEP, an_agent
from support.stage import staged

from gracectl.agent.agent import rights
from gracectl.agent.settings import BUS_ADDRESS, AgentSettings
from gracectl.cli.agent.command import agent
from gracectl.cli.root import root
from gracectl.config import Settings, load_settings
from gracectl.kube.rbac import Permission
from gracectl.model import names
from gracectl.policy.waves import by_priority
from gracectl.runtime.clock import SystemClock
from gracectl.telemetry.health import ALIVE, READY

OBJECTS = agent_objects()
POLICIES = policy_objects()
ROOT = Path(__file__).parents[3]
DAEMON_SET = of_kind(OBJECTS, "DaemonSet")
POD: JsonObject = DAEMON_SET["spec"]["template"]["spec"]
CONTAINER: JsonObject
(CONTAINER,) = POD["containers"]
ENVIRONMENT = {each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in CONTAINER["env"]}

LEEWAY_SECONDS = 30
"""Beside the longest shutdown, for what the agent itself needs to end."""


def hosted() -> dict[str, dict[str, Any]]:
    """What of the host is mounted, by where: the volume and the mount in one."""
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    return {mount["mountPath"]: {**volumes[mount["name"]], **mount} for mount in CONTAINER["volumeMounts"]}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Those of the ConfigMap."""
    (name, text), *others = of_kind(OBJECTS, "ConfigMap")["data"].items()
    assert not others
    file = tmp_path / name
    file.write_text(text)
    return load_settings(file)


# -- rights ------------------------------------------------------------------------------------------------------------


def test_the_role_grants_what_the_agent_asks_for_and_nothing_else() -> None:
    granted = []
    for rule in of_kind(OBJECTS, "ClusterRole")["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group, resource, verb in (
            (group, resource, verb)
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        ):
            plural, _, subresource = resource.partition("/")
            granted.append(Permission(verb, plural, group=group, subresource=subresource))
    assert sorted(map(str, granted)) == sorted(map(str, rights(impersonates=False)))


def test_the_role_is_that_of_the_pods() -> None:
    account = of_kind(OBJECTS, "ServiceAccount")["metadata"]
    binding = of_kind(OBJECTS, "ClusterRoleBinding")
    assert binding["roleRef"]["name"] == of_kind(OBJECTS, "ClusterRole")["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account["name"], "namespace": account["namespace"]}
    assert POD["serviceAccountName"] == account["name"]
    assert POD["automountServiceAccountToken"] is True
    assert {each["metadata"].get("namespace") for each in OBJECTS} == {None, NAMESPACE}


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_settings_are_read_where_the_command_looks_for_them(settings: Settings) -> None:
    command, *arguments = CONTAINER["args"]
    assert command == agent.name
    given = agent.make_context("agent", list(arguments), **root.context_settings).params
    (file,) = of_kind(OBJECTS, "ConfigMap")["data"]
    path = PurePosixPath(given["config"])
    mount = hosted()[str(path.parent)]
    assert path.name == file
    assert mount["configMap"]["name"] == of_kind(OBJECTS, "ConfigMap")["metadata"]["name"]
    # A file that is mounted by itself would stay as it was when the ConfigMap changes.
    assert "subPath" not in mount
    ranges = [
        (each["priority"], each["shutdownGracePeriodSeconds"]) for each in BY_KEP["shutdownGracePeriodByPodPriority"]
    ]
    assert settings.shutdown.order_of({}) == by_priority(ranges)


def test_a_pod_that_is_told_to_end_has_the_time_to_finish_a_shutdown(settings: Settings) -> None:
    assert POD["terminationGracePeriodSeconds"] >= settings.shutdown.order.total + LEEWAY_SECONDS


def test_probes_and_metrics_are_where_the_settings_serve_them(settings: Settings) -> None:
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert settings.metrics.address() == (None, ports["metrics"])
    assert settings.probes.address() == (None, ports["probes"])
    for probe, path in (("livenessProbe", ALIVE), ("readinessProbe", READY)):
        assert CONTAINER[probe]["httpGet"] == {"path": path, "port": ports["probes"]}


def test_the_agent_is_told_its_node_and_its_pod() -> None:
    wanted = {parameter.envvar for parameter in agent.params if parameter.envvar}
    assert set(ENVIRONMENT) == wanted
    assert ENVIRONMENT == {"NODE_NAME": "spec.nodeName", "POD_UID": "metadata.uid"}


def test_the_host_is_mounted_where_the_settings_look_for_it(settings: Settings) -> None:
    assert settings.agent == AgentSettings()
    socket = PurePosixPath(BUS_ADDRESS.removeprefix("unix:path="))
    bus = hosted()[str(socket.parent)]
    # The directory: a bus that is started again makes another socket in it.
    assert bus["hostPath"] == {"path": str(socket.parent), "type": "Directory"}
    assert bus["readOnly"] is True
    drop_ins = hosted()[settings.agent.logind_drop_in_directory]
    assert drop_ins["hostPath"] == {"path": settings.agent.logind_drop_in_directory, "type": "DirectoryOrCreate"}
    assert not drop_ins.get("readOnly")


# -- what the pod may do -----------------------------------------------------------------------------------------------


def test_the_pod_is_root_and_nothing_more() -> None:
    # logind and systemd obey root; polkit asks about other users.
    assert (POD["securityContext"]["runAsUser"], POD["securityContext"]["seccompProfile"]["type"]) == (
        0,
        "RuntimeDefault",
    )
    assert CONTAINER["securityContext"] == {
        "privileged": False, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers", "initContainers", "shareProcessNamespace"} & set(POD)
    on_host = [mount["mountPath"] for mount in hosted().values() if "hostPath" in mount]
    assert sorted(on_host) == ["/etc/systemd/logind.conf.d", "/run/dbus"]
    assert [mount["mountPath"] for mount in hosted().values() if not mount.get("readOnly")] == [
        "/etc/systemd/logind.conf.d"
    ]


def test_it_is_on_every_linux_node_and_stays_there() -> None:
    assert POD["tolerations"] == [{"operator": "Exists"}]
    assert POD["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert POD["priorityClassName"] == "system-node-critical"


def test_an_update_leaves_no_machine_without_a_lock() -> None:
    assert DAEMON_SET["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert not any("hostPort" in port for port in CONTAINER["ports"])


def test_the_image_is_the_one_that_is_built() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert CONTAINER["image"] == services["controller"]["image"]


@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda each: each["kind"])
async def test_a_server_takes_it_as_it_is(manifest: JsonObject) -> None:
    server = ApiServer(SystemClock(), tokens={"of-the-admin": "admin"})
    path = path_of(PATHS[manifest["kind"]], manifest["metadata"].get("namespace", ""))
    request = api.Request(method="POST", path=path, headers=ADMIN, query={"fieldValidation": "Strict"}, body=manifest)
    answer = await server.handle(request)
    assert answer.status == 201, answer.body


# -- each agent on its own node ----------------------------------------------------------------------------------------


def ends(pod: str, on: str | None, **more: Any) -> Request:
    spec = {} if on is None else {"nodeName": on}
    request = {"node": "a", "operation": "DELETE", "resource": "pods", "namespace": "shop", "old": {"spec": spec}}
    return Request(**{**request, "name": pod, **more})


def marks(on: str, patch: JsonObject, **more: Any) -> Request:
    """A patch of the status of a pod on this node."""
    running: JsonObject = {
        "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {}, "resourceVersion": "1"},
        "spec": {"nodeName": on},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    new = merged(running, {"metadata": {"resourceVersion": "2"}, **patch})
    request = {"node": "a", "operation": "UPDATE", "resource": "pods/status", "name": "web", "namespace": "shop"}
    return Request(**{**request, "old": running, "new": new, **more})


TARGET = {"type": "DisruptionTarget", "status": "True"}
MARKED: JsonObject = {"status": {"conditions": [{"type": "Ready", "status": "True"}, TARGET]}}


def a_node_of(name: str, **more: Any) -> JsonObject:
    """As a server has it, with what others have put on it."""
    foreign = {"key": "dedicated", "value": "gpu", "effect": "NoExecute"}
    whole: JsonObject = {
        "metadata": {
            "name": name, "labels": {"pool": "a"}, "annotations": {"note": "by hand"},
            "finalizers": [names.FINALIZER], "resourceVersion": "1",
        },
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [foreign]},
        "status": {"capacity": {"pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip
    return merged(whole, more)


def merged(whole: JsonObject, patch: JsonObject) -> JsonObject:
    """A merge patch (RFC 7386)."""
    result = {key: value for key, value in whole.items() if not (key in patch and patch[key] is None)}
    for key, value in patch.items():
        if value is not None:
            result[key] = merged(result.get(key, {}), value) if isinstance(value, dict) else value
    return result


def changes(changed: str, patch: JsonObject | None = None, **more: Any) -> Request:
    old = more.pop("old", a_node_of(changed))
    new = merged(old, {"metadata": {"resourceVersion": "2"}, **(patch or {})})
    request = {"node": "a", "operation": "UPDATE", "resource": "nodes", "name": changed, "old": old, "new": new}
    return Request(**{**request, **more})


@pytest.mark.parametrize("request_", [
    ends("web", "a"), changes("a"), changes("a", resource="nodes/status"), marks("a", MARKED),
    # The policies are about agents only.
    ends("web", "b", user="system:serviceaccount:kube-system:daemon-set-controller"),
    ends("web", "b", user="system:serviceaccount:shop:gracectl-agent", node=None),
    changes("b", user="system:node:b", node=None),
])  # fmt: skip
def test_an_agent_may_do_on_its_own_node_what_it_is_for_and_others_whatever_they_may(request_: Request) -> None:
    assert denial(POLICIES, request_) == ""


OF_A_POD = "an agent may change nothing of a pod but the condition DisruptionTarget"
NAMES_NONE = "and this token names none: it must be that of a pod, on Kubernetes 1.30 or newer"


@pytest.mark.parametrize(("request_", "why"), [
    (ends("web", "b"), "the agent of node a may delete pods of that node only, and pod shop/web is on node b"),
    (ends("web", None), "the agent of node a may delete pods of that node only, and pod shop/web is on none"),
    (ends("web", "a", node=None), f"an agent may delete pods of its own node only, {NAMES_NONE}"),
    (ends("web", None, node=None), f"an agent may delete pods of its own node only, {NAMES_NONE}"),
    (marks("b", MARKED), "the agent of node a may delete pods of that node only, and pod shop/web is on node b"),
    (marks("a", {"status": {"conditions": [TARGET]}}), OF_A_POD),
    (marks("a", {**MARKED, "metadata": {"labels": {"app": "other"}}}), OF_A_POD),
    (marks("a", {**MARKED, "metadata": {"annotations": {"a": "b"}}}), OF_A_POD),
    (marks("a", {**MARKED, "metadata": {"finalizers": ["a/b"]}}), OF_A_POD),
    (marks("a", {"status": {"phase": "Failed"}}), OF_A_POD),
    (marks("a", {"status": {"podIP": "10.0.0.1"}}), OF_A_POD),
    (changes("b"), "the agent of node a may change that node only, not node b"),
    (changes("b", resource="nodes/status"), "the agent of node a may change that node only, not node b"),
    (changes("a", node=None), f"an agent may change its own node only, {NAMES_NONE}"),
])  # fmt: skip
def test_elsewhere_an_agent_may_nothing_and_is_told_why(request_: Request, why: str) -> None:
    assert denial(POLICIES, request_) == why


FOREIGN = a_node_of("a")["spec"]["taints"]
OURS = {"key": names.DISRUPTED_TAINT_KEY, "effect": "NoSchedule"}
CORDON: JsonObject = {
    "metadata": {
        "labels": {names.EXCLUDE_FROM_LOAD_BALANCERS: ""},
        "annotations": {names.SHUTDOWN_CORDONED: "taint,label,unschedulable"},
    },
    "spec": {"unschedulable": True, "taints": [*FOREIGN, OURS]},
}
GOING = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
IS_READY = {"type": "Ready", "status": "True"}
SHUTTING_DOWN = {"type": names.SHUTTING_DOWN, "status": "True"}


@pytest.mark.parametrize("patch", [
    CORDON,
    {"metadata": {"annotations": {names.CORDONED: "taint"}}},
    {"status": {"conditions": [IS_READY, SHUTTING_DOWN]}},
])  # fmt: skip
def test_of_its_own_node_an_agent_may_change_cordon_and_condition_and_change_them_back(patch: JsonObject) -> None:
    there = changes("a", patch)
    assert denial(POLICIES, there) == ""
    assert there.new is not None
    back = msgspec.structs.replace(there, old=there.new, new=there.old)
    assert denial(POLICIES, back) == ""


def test_a_node_that_has_nothing_on_it_yet_is_cordoned_all_the_same() -> None:
    patch = {**CORDON, "spec": {"unschedulable": True, "taints": [OURS]}, "status": {"conditions": [SHUTTING_DOWN]}}
    assert denial(POLICIES, changes("a", patch, old={"metadata": {"name": "a"}})) == ""


LABELS = f"an agent may change nothing of a node's labels but {names.EXCLUDE_FROM_LOAD_BALANCERS}"
NOTES = f"an agent may change nothing of a node's annotations but {names.SHUTDOWN_CORDONED} and {names.CORDONED}"
SPEC = "an agent may change nothing of a node's spec but taints and unschedulable"
TAINTS = "an agent may put no taint on a node but karpenter.sh/disrupted:NoSchedule, and take off no other"
OWNERS = "an agent may change neither finalizers nor owners of a node"
STATUS = "an agent may change nothing of a node's status but the condition ShuttingDown"


@pytest.mark.parametrize(("patch", "why"), [
    ({"metadata": {"labels": {"node-restriction.kubernetes.io/tier": "secret"}}}, LABELS),
    ({"metadata": {"labels": {"pool": "b"}}}, LABELS),
    ({"metadata": {"labels": {"pool": None}}}, LABELS),
    ({"metadata": {"labels": {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}}}, LABELS),
    ({"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: "2020-01-01T00:00:00Z"}}}, NOTES),
    ({"metadata": {"annotations": {"note": None}}}, NOTES),
    ({"metadata": {"annotations": {names.INTERRUPTION: "spot unknown ec2"}}}, NOTES),
    ({"metadata": {"finalizers": None}}, OWNERS), ({"metadata": {"finalizers": []}}, OWNERS),
    ({"metadata": {"ownerReferences": [{"kind": "NodeClaim", "name": "a", "uid": "1"}]}}, OWNERS),
    ({"spec": {"podCIDR": "10.0.1.0/24"}}, SPEC),
    ({"spec": {"providerID": "aws:///us-east-1a/i-1"}}, SPEC),
    ({"spec": {"yetUnknown": True}}, SPEC), ({"spec": {"podCIDR": None}}, SPEC), ({"spec": {"taints": None}}, TAINTS),
    ({"spec": {"taints": [OURS]}}, TAINTS),
    ({"spec": {"taints": [*FOREIGN, {**OURS, "effect": "NoExecute"}]}}, TAINTS),
    ({"spec": {"taints": [{**FOREIGN[0], "value": "cpu"}]}}, TAINTS),
    ({"status": {"capacity": {"pods": "1000"}}}, STATUS),
    ({"status": {"conditions": [{**IS_READY, "status": "False"}]}}, STATUS),
    ({"status": {"conditions": []}}, STATUS), ({"status": {"phase": "Running"}}, STATUS),
])  # fmt: skip
def test_what_is_not_the_agents_it_may_not_change(patch: JsonObject, why: str) -> None:
    assert denial(POLICIES, changes("a", patch)) == why


@pytest.mark.parametrize("kept", ["metadata", "spec"])
def test_the_cordon_of_a_node_that_is_being_deleted_stays(kept: str) -> None:
    """Of label and taint each alone."""
    going = a_node_of("a", **merged(CORDON, GOING))
    bare = merged(going, {"metadata": {"labels": {names.EXCLUDE_FROM_LOAD_BALANCERS: None}}})
    if kept == "metadata":
        bare = {**going, "spec": a_node_of("a")["spec"]}
    request = changes("a", old=going, new=bare)
    assert denial(POLICIES, request) == "an agent may take the cordon off no node that is being deleted"


async def test_all_that_an_agent_writes_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    async with staged() as stage:
        await stage.add_nodes("n1", labels={"pool": "a"})
        handle = stage.server.handle

        async def looked_at(request: api.Request) -> api.Response:
            if ASKING.get() is None or request.method != "PATCH" or not request.path.startswith("/api/v1/nodes/"):
                return await handle(request)
            old = deepcopy(stage.node("n1"))
            answer = await handle(request)
            assert old is not None
            if answer.status < 300:
                resource = "nodes/status" if request.path.endswith("/status") else "nodes"
                asked = changes("n1", node="n1", resource=resource, old=old, new=deepcopy(stage.node("n1")))
                seen.append((resource, denial(POLICIES, asked)))
            return answer

        monkeypatch.setattr(stage.server, "handle", looked_at)
        async with an_agent(stage) as played:
            await played.live()
            for _ in range(2):
                played.logind.shut_down()
                await stage.clock.sleep(30)
                played.logind.call_off()
                await stage.until(lambda: not (stage.node("n1") or {})["spec"].get("unschedulable"))
            # While a human works on it, the cordon becomes that of the maintenance.
            played.logind.shut_down()
            await stage.clock.sleep(30)
            await stage.patch_node("n1", {"metadata": {"annotations": {names.KEEP_DRAINED: ""}}})
            played.logind.call_off()
            await stage.clock.sleep(30)
            assert names.CORDONED in (stage.node("n1") or {})["metadata"]["annotations"]
    assert {resource for resource, _ in seen} == {"nodes", "nodes/status"}
    assert {why for _, why in seen} == {""}


def test_every_write_to_pods_and_nodes_that_the_role_allows_is_looked_at() -> None:
    operations = {"delete": "DELETE", "patch": "UPDATE"}
    policies = [each for each in POLICIES if each["kind"] == "ValidatingAdmissionPolicy"]
    rules = [rule for policy in policies for rule in policy["spec"]["matchConstraints"]["resourceRules"]]
    looked_at = {(verb, resource) for rule in rules for verb in rule["operations"] for resource in rule["resources"]}
    writes = {
        (operations[right.verb], "/".join(filter(None, (right.plural, right.subresource))))
        for right in rights(impersonates=False)
        if right.verb in operations and right.plural != "events"
    }
    assert looked_at == writes


def test_every_policy_is_bound_and_denies() -> None:
    names = [each["metadata"]["name"] for each in POLICIES if each["kind"] == "ValidatingAdmissionPolicy"]
    bindings = [each["spec"] for each in POLICIES if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert bindings == [{"policyName": name, "validationActions": ["Deny"]} for name in names]
    assert all(name.startswith(NAME) for name in names)
    failing = {each["spec"]["failurePolicy"] for each in POLICIES if each["kind"] == "ValidatingAdmissionPolicy"}
    assert failing == {"Fail"}
