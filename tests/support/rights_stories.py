"""What each program asks of a cluster, run with exactly its rights, and with one less."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import msgspec
import yaml
from kubesim.auth.attributes import Attempt
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Reset, Rule
from kubesim.server.api import JsonObject

from gracectl.app.controller import Controller
from gracectl.cloud.provider import ProviderUnavailable, load_provider
from gracectl.model import names
from gracectl.model.times import format_time
from support.campaigns import campaign, create_campaign
from support.chart import KUBERNETES, Release, needs_helm
from support.disruption import (
    NODE_BUDGETS,
    POOL,
    TERMINABLE,
    a_node_budget_manifest,
    create_node_budget,
    figures,
    lost_at,
)
from support.instances import MACHINES as MACHINES_OF_FLEET
from support.instances import PLACE, ClusterApi
from support.rights import Account, Grant, Installed, Place, given_only_by, grants_of, place_for, without
from support.stage import (
    NAMESPACE,
    STOPS_AFTER_5,
    a_budget_manifest,
    a_pod_manifest,
    a_workload,
    finalizers_of,
)
from support.stories import gracectl_uncordon, keep

# What a controller does, story by story, so that between them nothing is left out: each runs to its end, on a stage
# where the account under test has exactly the rights that were rendered for it.

NODE_CLAIMS_DEFINITION = "nodeclaims.karpenter.sh"
NODE_DRAINS_DEFINITION = "nodedrains.gracectl.io"
NODE_BUDGETS_DEFINITION = "nodedisruptionbudgets.termination.karpenter.sh"

Story = Callable[[Place], Awaitable[None]]

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
A_DISK: JsonObject = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}


@asynccontextmanager
async def leading(place: Place) -> AsyncIterator[Controller]:
    """A controller that has begun: it has asked for its rights, sees everything and holds every node."""
    async with place.stage.controller() as controller:
        await controller.check()
        await place.stage.settle(controller)
        if place.stage.settings.admission.is_wanted:
            await place.register(controller)
        yield controller


def configuration(place: Place, kind: str) -> JsonObject | None:
    """A webhook configuration of ours, as the server has it."""
    table = place.stage.server.store.table(f"{kind}.admissionregistration.k8s.io")
    return table.get("", place.stage.settings.admission.name)


async def a_node_ends(place: Place) -> None:
    """Budgets, volumes that detach and one that stays, an instance whose termination fails first, with Events."""
    stage = place.stage
    await stage.add_nodes("n1", "n2")
    stays = [{"key": names.DISRUPTED_TAINT_KEY, "operator": "Exists"}]
    disks = ("logs", "cache")
    for name in disks:
        metadata = {"name": name, "namespace": NAMESPACE}
        await stage.cluster.create(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **A_DISK, "metadata": metadata}
        )
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in disks]
    await stage.create(
        a_workload("Deployment", "web", 4, behaviour={"stop-seconds": 3}),
        a_budget_manifest("web", maxUnavailable=1),
        a_workload("StatefulSet", "db", 2, volumeClaimTemplates=[{**A_DISK, "metadata": {"name": "data"}}]),
        a_pod_manifest("agent", "n1", tolerations=stays, volumes=volumes),
    )
    await stage.clock.sleep(5)
    stage.provider.moods.extend([ProviderUnavailable("not now"), None, ProviderUnavailable("nor now"), None])
    async with leading(place):
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert stage.instance_state("n1") == "terminated"
    assert stage.evictions
    reasons = {reason for _, reason, _ in await stage.events()}
    assert {names.EventReason.DRAINING, names.EventReason.INSTANCE_TERMINATED} <= reasons


async def a_deadline_comes(place: Place) -> None:
    """A pod whose budget allows nothing is deleted; an answer that is lost leaves an unknown outcome."""
    stage = place.stage
    await stage.add_nodes("n1")
    await stage.create(
        a_pod_manifest("stubborn", "n1", terminationGracePeriodSeconds=20, **STOPS_AFTER_5),
        a_budget_manifest("stubborn", maxUnavailable=0),
    )
    place.wire.behind.add(Rule(fault=Reset(), method="DELETE", path="/pods/", count=1))
    async with leading(place):
        at = format_time(stage.clock.now() + 120)
        await stage.patch_node("n1", {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: at}}})
        await stage.delete_node("n1")
        await stage.until_gone("n1")
    assert place.executed("delete", "pods")


async def somebody_writes_between(place: Place) -> None:
    """Answers are lost and writes collide: what is doubtful is read again."""
    stage = place.stage
    await stage.add_nodes("n1")
    await stage.create(a_pod_manifest("web", "n1", **STOPS_AFTER_5))
    place.wire.before.add(Rule(fault=Refuse(409), method="PATCH", path="/nodes/n1$", count=1))
    place.wire.before.add(Rule(fault=Refuse(500), method="POST", path="/eviction", count=1))
    async with leading(place):
        await stage.delete_node("n1")
        await stage.until_gone("n1")


async def claims_end(place: Place) -> None:
    """One that is deleted, one whose time is over, and that of a node that is deleted."""
    stage = place.stage
    await stage.add_nodes("deleted", "spare", claim=ClaimSpec())
    await stage.add_nodes("expired", claim=ClaimSpec(expire_after="10m"))
    await stage.add_nodes("node", claim=ClaimSpec())
    place.wire.before.add(Rule(fault=Refuse(409), method="PATCH", path="/nodeclaims/node-claim$", count=1))
    async with leading(place):
        await stage.delete_claim("deleted-claim")
        await stage.delete_node("node")
        await stage.until_gone("deleted", "node", "expired")
        await stage.until_claims_gone("deleted-claim", "node-claim", "expired-claim")
    assert place.executed("delete", "nodeclaims")
    assert place.executed("patch", "nodeclaims/status")


async def nodes_are_lost(place: Place) -> None:
    """One of several is not heard of for a minute."""
    stage = place.stage
    await stage.add_nodes("lost", *(f"n{number}" for number in range(4)))
    async with leading(place):
        await lost_at(stage, "lost")
        await stage.until_gone("lost")
    assert place.executed("delete", "nodes")


async def budgets_for_nodes_hold(place: Place) -> None:
    """One may be unavailable: voluntary terminations come one after the other."""
    stage = place.stage
    nodes = [f"n{number}" for number in range(6)]
    await stage.add_nodes(*nodes, labels=POOL)
    for budget in ("all", "also-all"):
        await create_node_budget(stage, budget, maxUnavailable=1)
    async with leading(place):
        # Another client writes it between.
        collision = Refuse(409)
        for budget in ("all", "also-all"):
            path = f"/nodedisruptionbudgets/{budget}/status"
            place.wire.before.add(Rule(fault=collision, method="PATCH", path=path, count=1))
        for name in nodes[:3]:
            await stage.patch_node(name, TERMINABLE)
        await stage.until_gone(*nodes[:3])
        await _until(place, lambda: figures(stage, "all")[0] == 3)
    assert place.executed("patch", "nodedisruptionbudgets/status")


async def a_campaign_runs(place: Place) -> None:
    """Its nodes are terminated, and it is deleted a minute later."""
    stage = place.stage
    await stage.add_nodes("n1", "n2", labels=POOL)
    async with leading(place):
        selector = {"matchLabels": POOL}
        await create_campaign(stage, nodeSelector=selector, waitForReplacement=False, ttlSecondsAfterFinished=60)
        await stage.until_gone("n1", "n2")
        await _until(place, lambda: campaign(stage) is None)


async def a_node_is_kept_and_given_back(place: Place) -> None:
    """For maintenance."""
    stage = place.stage
    await stage.add_nodes("n1", "n2")
    await stage.create(a_workload("Deployment", "web", 2))
    async with leading(place):
        await keep(stage, "n1")
        await stage.until(lambda: (stage.condition("n1", names.DRAINED) or {}).get("reason") == "Maintenance")
        await gracectl_uncordon(stage, "n1")
        await stage.until(lambda: not (stage.node("n1") or {})["spec"].get("unschedulable"))


async def leaders_follow_each_other(place: Place) -> None:
    """The first makes the Lease and is killed, the second takes it and gives it up, the third finds it free."""
    stage = place.stage
    await stage.add_nodes("n1", "n2", "n3")
    async with stage.mortal() as first:
        await stage.settle(first)
    for name in ("n1", "n2"):
        async with leading(place):
            await stage.delete_node(name)
            await stage.until_gone(name)
    if stage.settings.leader_election.enabled:
        assert place.executed("create", "leases")
        assert place.executed("update", "leases")


async def admission_is_asked(place: Place) -> None:
    """A node is created with the finalizer, a deletion is denied and another admitted; the Secret is repaired."""
    stage = place.stage
    admission = stage.settings.admission
    async with leading(place):
        await stage.add_nodes("n1", "n2", "n3", labels=POOL)
        born = stage.node("n1")
        assert born is not None
        assert names.FINALIZER in finalizers_of(born)
        if NODE_BUDGETS_DEFINITION in place.installed.definitions:
            await _a_budget_is_asked(place)
        secret = f"/api/v1/namespaces/{admission.namespace}/secrets/{admission.secret}"
        await stage.call("PATCH", secret, {"data": None}, "application/merge-patch+json")
        await stage.clock.sleep(120)
        assert (await stage.call("GET", secret))["data"]


async def _a_budget_is_asked(place: Place) -> None:
    """It admits the termination of one node, and not of a second one."""
    stage = place.stage
    await create_node_budget(stage, maxUnavailable=1)
    await _until(place, lambda: figures(stage)[0] == 3)
    await stage.delete_node("n1")
    status, answer = await stage.cluster.api.call("DELETE", "/api/v1/nodes/n2")
    assert status == 429, answer
    await stage.until_gone("n1")
    unreadable = a_node_budget_manifest("unreadable", maxUnavailable="-1")
    status, answer = await stage.cluster.api.call("POST", NODE_BUDGETS, unreadable)
    assert 400 <= status < 500, answer


async def _until(place: Place, condition: Callable[[], bool]) -> None:
    """Of other objects than pods and nodes."""
    while not condition():
        await place.stage.clock.sleep(0.5)


async def machines_end(place: Place) -> None:
    """Cluster API terminates the instances; another client writes a Machine at the same time."""
    stage = place.stage
    capi = ClusterApi(stage)
    await stage.add_nodes("n1", "n2")
    for node in ("n1", "n2"):
        await capi.add(node)
    stage.provider_of_controllers = load_provider(stage.settings.provider)
    place.wire.before.add(Rule(fault=Refuse(409), method="PATCH", path="/machines/m-n1$", count=1))
    async with capi.working(), leading(place):
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert stage.instance_state("n1") == "terminated"


async def machines_are_drained(place: Place) -> None:
    """Cluster API drains the node of a Machine, and gracectl evicts its pods."""
    stage = place.stage
    await stage.add_nodes("n1")
    capi = ClusterApi(stage)
    await capi.add("n1")
    await stage.create(a_pod_manifest("web", "n1"))
    await stage.call("DELETE", f"{MACHINES_OF_FLEET}/m-n1")
    async with leading(place):
        await capi.drains("m-n1", "n1")
        await stage.until(lambda: not stage.pods_on("n1"))


async def single_pods_are_replaced_first(place: Place) -> None:
    """One whose volume can be shared: its replacement is Ready before it is evicted."""
    stage = place.stage
    await stage.add_nodes("n1", "n2")
    core = "/api/v1"
    labels = {"metadata": {"labels": place.installed.settings["replaceFirst"]["namespaceSelector"]["matchLabels"]}}
    await stage.call("PATCH", f"{core}/namespaces/{NAMESPACE}", labels, "application/merge-patch+json")
    shared = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    files = {"name": "files", "namespace": NAMESPACE}
    await stage.cluster.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": files, "spec": shared})
    volume = {"name": "files", "persistentVolumeClaim": {"claimName": "files"}}
    await stage.create(
        a_workload("Deployment", "web", 1, behaviour={"ready-seconds": 3}, pod={"volumes": [volume]}),
        a_budget_manifest("web", minAvailable=1),
    )
    await stage.clock.sleep(10)
    async with leading(place):
        (pod,) = stage.server.store.table("pods")
        node = pod["spec"]["nodeName"]
        await stage.delete_node(node)
        await stage.until_gone(node)
    assert place.executed("patch", "pods")


STORIES: Mapping[str, Story] = {
    story.__name__: story
    for story in (
        a_node_ends,
        a_deadline_comes,
        somebody_writes_between,
        claims_end,
        nodes_are_lost,
        budgets_for_nodes_hold,
        a_campaign_runs,
        a_node_is_kept_and_given_back,
        leaders_follow_each_other,
        admission_is_asked,
        machines_end,
        machines_are_drained,
        single_pods_are_replaced_first,
    )
}


# Stories of an account, run with exactly the rights that were rendered for it, and with one less.

SECONDS: Final = 20_000.0
"""Virtual: no story takes so long."""

OPTIONAL_GROUPS: Final = ("karpenter.sh", "termination.karpenter.sh", "gracectl.io", "cluster.x-k8s.io")


class Retelling(NamedTuple):
    """What became of all stories of an account."""

    grants: list[Grant]
    needed: Mapping[Grant, list[Attempt]]
    """By right, what nothing else would have allowed."""
    story_of: Mapping[Grant, str]
    """By right, a story that cannot be told without it."""

    @property
    def unused(self) -> list[str]:
        """Rights that nothing needs."""
        return [str(each) for each in self.grants if each not in self.needed]


def is_served(installed: Installed, attempt: Attempt) -> bool:
    """A server refuses before it looks what it serves: what it has no definition of, is not missing."""
    return attempt.group not in OPTIONAL_GROUPS or f"{attempt.resource}.{attempt.group}" in installed.definitions


async def all_told(installed: Installed, account: Account, stories: Mapping[str, Story], folder: Path) -> Retelling:
    """Tell them all; nothing that the cluster serves may be refused."""
    grants = grants_of(installed.objects, account)
    attempts: dict[str, list[Attempt]] = {}
    for name, story in stories.items():
        async with place_for(installed, installed.objects, folder, account) as place:
            with anyio.fail_after(SECONDS):
                await story(place)
        forbidden = [each for each in place.wire.forbidden if is_served(installed, each)]
        assert not forbidden, f"{name}: {forbidden}"
        attempts[name] = place.wire.attempts
    needed = given_only_by(grants, [each for tried in attempts.values() for each in tried])
    needed_by = {name: given_only_by(grants, tried) for name, tried in attempts.items()}
    story_of = {grant: next(name for name, those in needed_by.items() if grant in those) for grant in needed}
    return Retelling(grants, needed, story_of)


async def each_is_missed(
    retold: Retelling, installed: Installed, account: Account, stories: Mapping[str, Story], folder: Path
) -> None:
    """Take each right away in turn: just what only it allows is refused, and nothing else has done the work."""
    for grant, name in retold.story_of.items():
        refused = await _refused_in(stories[name], installed, without(installed.objects, grant), account, folder)
        missed = [each for each in refused if is_served(installed, each)]
        assert missed, f"{name} went well without {grant}"
        assert all(grant.allows(each) for each in missed), f"without {grant}: {missed}"


async def _refused_in(
    story: Story, installed: Installed, objects: list[JsonObject], account: Account, folder: Path
) -> list[Attempt]:
    """Run a story with a program that assumes all rights, until the first refusal; what was refused."""
    async with place_for(installed, objects, folder, account) as place:
        place.wire.is_let_in = True

        async def tell() -> None:
            # Whatever comes of it then: a watch that may not be opened ends the process.
            with suppress(Exception):
                await story(place)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(SECONDS):
                group.start_soon(tell)
                while not any(is_served(installed, each) for each in place.wire.forbidden):
                    await place.stage.clock.sleep(0.5)
            group.cancel_scope.cancel()
        return place.wire.forbidden


# Installations that differ in what they may do: values of the chart, and what the cluster serves beside.

MANIFESTS = Path(__file__).parents[2] / "helm" / "manifests"
NEEDS: Mapping[str, str] = {
    "claims_end": NODE_CLAIMS_DEFINITION,
    "budgets_for_nodes_hold": NODE_BUDGETS_DEFINITION,
    "a_campaign_runs": NODE_DRAINS_DEFINITION,
}
"""Stories that need a cluster which serves this."""


def replaces_first(installed: Installed) -> bool:
    """Whether the settings choose pods that are replaced before their eviction."""
    return bool((installed.settings.get("replaceFirst") or {}).get("namespaceSelector"))


class ValueSet(msgspec.Struct, frozen=True):
    """A way to install. `values`: of `--set`; None: the file for kubectl, without helm."""

    name: str
    values: tuple[str, ...] | None = ()
    serves: tuple[str, ...] = ()
    """What the cluster has defined already, as helm is told: karpenter.sh/v1/NodeClaim."""

    def installed(self) -> Installed:
        """What it renders to."""
        return _rendered(self)

    @property
    def stories(self) -> Mapping[str, Story]:
        """Those that can be told with it."""
        installed = self.installed()
        left_out = {name for name, needed in NEEDS.items() if needed not in installed.definitions}
        if not installed.settings["admission"]["listen"]:
            left_out.add("admission_is_asked")
        if installed.settings["provider"]["name"] != "clusterapi":
            left_out.add("machines_end")
        if not installed.settings["assist"]["clusterAPI"]:
            left_out.add("machines_are_drained")
        if not replaces_first(installed):
            left_out.add("single_pods_are_replaced_first")
        return {name: story for name, story in STORIES.items() if name not in left_out}


@functools.cache
def _rendered(one: ValueSet) -> Installed:
    if one.values is None:
        return Installed.of((MANIFESTS / "gracectl.yaml").read_text())
    return rendered(one.values, one.serves)


def rendered(values: tuple[str, ...], serves: tuple[str, ...] = (), kubernetes: str = KUBERNETES) -> Installed:
    """The chart with these values, hooks and tests too; skips the test where there is no helm."""
    needs_helm()
    release = Release(values=_nested(values), apis=serves, kubernetes=kubernetes)
    return Installed(tuple(release.objects()), serves)


def _nested(values: tuple[str, ...]) -> JsonObject:
    """`a.b=c`, as `--set` would take it."""
    whole: JsonObject = {}
    for path, _, value in (each.partition("=") for each in values):
        *parents, last = path.split(".")
        place = whole
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = yaml.safe_load(value) if value else ""
    return whole


MACHINES = "cluster.x-k8s.io/v1beta2/Machine"
DRAIN_RULES = "cluster.x-k8s.io/v1beta2/MachineDrainRule"
PLAIN = ValueSet("the file for kubectl", None)
SETS = (
    ValueSet("default"),
    ValueSet("definitions of claims", ("crds.nodeClaims=true",)),
    ValueSet("definitions of others", ("crds.install=false",), ("karpenter.sh/v1/NodeClaim",)),
    ValueSet("no definitions", ("crds.install=false",)),
    ValueSet("no admission", ("settings.admission.listen=",)),
    ValueSet("webhooks of mine", ("admission.register=false",)),
    ValueSet("a certificate of others", ("admission.existingSecret=webhook-cert",)),
    ValueSet("cert-manager", (), ("cert-manager.io/v1/Certificate",)),
    ValueSet("no leader election", ("settings.leaderElection.enabled=false", "replicaCount=1")),
    ValueSet("drains of Cluster API", ("settings.assist.clusterAPI=true",), (MACHINES, DRAIN_RULES)),
    ValueSet("machines", ("settings.provider.name=clusterapi",), (MACHINES,)),
    ValueSet("replace first", ("settings.replaceFirst.namespaceSelector.matchLabels.replace=first",)),
    ValueSet(
        "machines of one namespace",
        ("settings.provider.name=clusterapi", f"settings.provider.options.namespace={PLACE}"),
        (MACHINES,),
    ),
    ValueSet(
        "other names",
        (
            "settings.leaderElection.name=our-lease",
            "settings.leaderElection.namespace=locks",
            "settings.admission.name=our-webhooks",
            "settings.admission.secret=our-certificate",
            "serviceAccount.name=our-account",
        ),
    ),
)
