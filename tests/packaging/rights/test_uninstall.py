"""The role of the chart's hook, which takes gracectl off a cluster, is the least that works; and its test has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.campaigns import NODE_DRAINS, a_campaign, campaign
from support.clients import Leaving, configure, held, outcomes
from support.rights import Account, Installed, Place, component_of, grants_of
from support.rights_stories import (
    CONFIGURATIONS,
    NODE_CLAIMS_DEFINITION,
    NODE_DRAINS_DEFINITION,
    SETS,
    Story,
    ValueSet,
    all_told,
    each_is_missed,
    leading,
    replaces_first,
)
from support.stage import NAMESPACE, a_pod_manifest, a_workload

from gracectl.cli.uninstall.report import RemovalOutcome
from gracectl.kube.rbac import Permission
from gracectl.model import names
from gracectl.policy.release import Release, release_patch

HELD: Final = {"name": "c", "finalizers": [names.NODE_DRAIN]}
EVERY = [pytest.param(one, id=one.name) for one in SETS if one.values is not None]
"""Only the chart has the hook."""
MOST: Final = [each for each in SETS if each.name in ("definitions of claims", "replace first", "other names")]


def components_of_jobs(installed: Installed) -> list[str]:
    """The hooks: of the uninstallation, and, with admission, of the webhooks."""
    return [component_of(each) for each in installed.of_kind("Job")]


def hook_of(installed: Installed) -> Account:
    """The user name of the hook's requests."""
    return installed.account("Job", "uninstall")


async def it_is_taken_off(place: Place) -> None:
    """While a controller leads that has a node to end, and what it has registered is there."""
    stage, hook = place.stage, place.wire
    stage.transport = await place.as_(place.installed.account())
    await stage.add_nodes("n1", "n2")
    if NODE_CLAIMS_DEFINITION in place.installed.definitions:
        await stage.add_nodes("claimed", claim=ClaimSpec())
    await stage.create(a_pod_manifest("stays", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
    if NODE_DRAINS_DEFINITION in place.installed.definitions:
        await stage.call("POST", NODE_DRAINS, {**a_campaign(action="Drain"), "metadata": HELD})
    for path in ("/nodes/n2$", "/nodeclaims/claimed-claim$"):
        hook.before.add(Rule(fault=Refuse(409), method="PATCH", path=path, count=1))
    async with leading(place):
        await stage.delete_node("n1")
        if stage.settings.leader_election.enabled:
            await _leave(place)
    if not stage.settings.leader_election.enabled:  # a person has stopped it
        await _leave(place)
    assert held(stage) == []
    assert stage.node("n1") is None
    if NODE_DRAINS_DEFINITION in place.installed.definitions:
        assert "finalizers" not in (campaign(stage) or {})["metadata"]


async def _leave(place: Place) -> None:
    stage, settings = place.stage, place.stage.settings
    secrets = f"/api/v1/namespaces/{settings.admission.namespace}/secrets"
    ours = {names.MANAGED_BY: names.EVENT_COMPONENT}
    if not settings.admission.is_wanted:  # any more: before a change of the settings it was
        for kind in ("mutating", "validating"):
            await configure(stage, kind, name=settings.admission.name)
    if not settings.admission.is_wanted:
        await stage.call("POST", secrets, {"metadata": {"name": settings.admission.secret, "labels": ours}})
    command = place.installed.one("Job", "uninstall")["spec"]["template"]["spec"]["containers"][0]["args"]
    namespace = command[command.index("--namespace") + 1]
    report = await Leaving(stage, namespace=namespace).run(place.wire)
    assert report.failures == ()
    assert [each.pods for each in report.orphaned_instances] == [1]
    for kind in CONFIGURATIONS:
        table = stage.server.store.table(f"{kind}.admissionregistration.k8s.io")
        assert table.get("", settings.admission.name) is None
    status, _ = await stage.cluster.api.call("GET", f"{secrets}/{settings.admission.secret}")
    assert status == 404


async def released_pods_return(place: Place) -> None:
    """One of a ReplicaSet, and one of a ReplicaSet that is gone; their controller was killed."""
    stage = place.stage
    await stage.add_nodes("n1")
    await stage.create(a_workload("Deployment", "web", 1), a_pod_manifest("orphan", "n1"))
    await stage.clock.sleep(5)
    (web,) = (pod for pod in stage.server.store.table("pods") if pod["metadata"]["labels"].get("app") == "web")
    name, value = web["metadata"]["name"], web["metadata"]["labels"][names.POD_TEMPLATE_HASH]
    for pod, digest in ((name, value), ("orphan", "gone")):
        release = Release(stage.clock.now(), "Deployment", "web", names.POD_TEMPLATE_HASH, digest)
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}"
        await stage.call("PATCH", path, release_patch(release), "application/merge-patch+json")
    await stage.clock.sleep(5)
    place.wire.before.add(Rule(fault=Refuse(409), method="PATCH", path=f"/pods/{name}$", count=1))
    namespace = place.stage.settings.admission.namespace
    report = await Leaving(stage, namespace=namespace).run(place.wire)
    assert outcomes(report, "Pod") == dict.fromkeys(("shop/orphan", f"shop/{name}"), RemovalOutcome.REMOVED)
    await stage.clock.sleep(5)
    assert [pod["metadata"]["name"] for pod in stage.server.store.table("pods")] == [name]


def stories_of(installed: Installed) -> Mapping[str, Story]:
    """What the hook does with these values."""
    stories: dict[str, Story] = {"it is taken off": it_is_taken_off}
    return {**stories, "released pods return": released_pods_return} if replaces_first(installed) else stories


@pytest.mark.parametrize("value_set", EVERY)
async def test_nothing_is_left_with_these_rights_and_each_of_them_is_needed(
    value_set: ValueSet, tmp_path: Path
) -> None:
    installed = value_set.installed()
    retold = await all_told(installed, hook_of(installed), stories_of(installed), tmp_path)
    assert retold.unused == []


@pytest.mark.parametrize("value_set", MOST, ids=lambda one: one.name)
async def test_with_one_right_less_just_that_is_refused(value_set: ValueSet, tmp_path: Path) -> None:
    """What several of them have is taken from one."""
    installed = value_set.installed()
    retold = await all_told(installed, hook_of(installed), stories_of(installed), tmp_path)
    others = [each.installed() for each in MOST[: MOST.index(value_set)]]
    tried = {grant for each in others for grant in grants_of(each.objects, hook_of(each))}
    rest = retold._replace(story_of={key: story for key, story in retold.story_of.items() if key not in tried})
    assert rest.story_of
    await each_is_missed(rest, installed, hook_of(installed), stories_of(installed), tmp_path)


@pytest.mark.parametrize("value_set", EVERY)
def test_no_other_account_has_permissions(value_set: ValueSet) -> None:
    installed = value_set.installed()
    known = {installed.account(), *(installed.account("Job", each) for each in components_of_jobs(installed))}
    given = {
        Account(subject["namespace"], subject["name"])
        for binding in installed.of_kind("RoleBinding", "ClusterRoleBinding")
        for subject in binding["subjects"]
        if subject["kind"] == "ServiceAccount"
    }
    assert given == known
    (test,) = installed.of_kind("Pod")
    assert test["spec"]["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in test["spec"]


@pytest.mark.parametrize("value_set", EVERY)
def test_no_account_may_read_all_secrets(value_set: ValueSet) -> None:
    installed = value_set.installed()
    for account in (installed.account(), *(installed.account("Job", each) for each in components_of_jobs(installed))):
        granted = [each.right for each in grants_of(installed.objects, account) if each.resource == "secrets"]
        assert all(each.namespace for each in granted)
        assert {each.verb for each in granted if not each.name} <= {"create"}
        assert Permission("list", "secrets") not in granted
