"""The value dryRun: a controller that may only read, and nothing beside it that acts."""

from __future__ import annotations

from support.chart import Release, needs_helm, refusal

from gracectl.controllers.rbac import CLAIM_RIGHTS, NODE_BUDGET_RIGHTS, NODE_DRAIN_RIGHTS, RIGHTS
from gracectl.kube.rbac import READS, Permission

needs_helm()

EVERYTHING = {
    "dryRun": True,
    "crds": {"nodeClaims": True},
    "settings": {"provider": {"name": "clusterapi"}},
}


def test_the_controller_has_no_right_to_write_and_all_that_it_reads_with() -> None:
    release = Release(values=EVERYTHING)
    granted = {
        Permission(verb, resource.partition("/")[0], group, resource.partition("/")[2])
        for role in release.of_kind("ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {each.verb for each in granted} <= set(READS)
    needed = {each for each in (*RIGHTS, *CLAIM_RIGHTS, *NODE_BUDGET_RIGHTS, *NODE_DRAIN_RIGHTS) if each.verb in READS}
    assert needed <= granted


def test_one_replica_is_told_and_contends_for_no_lease_and_answers_no_webhook() -> None:
    release = Release(values=EVERYTHING)
    deployment = release.one("Deployment")["spec"]
    [container] = deployment["template"]["spec"]["containers"]
    assert (deployment["replicas"], container["args"][-1]) == (1, "--dry-run")
    assert not {port["name"] for port in container["ports"]} & {"webhooks"}
    kinds = {each["kind"] for each in release.objects()}
    assert not kinds & {
        *("Job", "ValidatingAdmissionPolicy", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
    }
    roles = [each["metadata"]["name"] for each in release.objects() if each["kind"] == "Role"]
    assert [each.rpartition("-")[2] for each in roles] == ["freeze"]


def test_nothing_of_it_is_there_without_it() -> None:
    [container] = Release().one("Deployment")["spec"]["template"]["spec"]["containers"]
    assert "--dry-run" not in container["args"]


def test_agents_do_not_fit_to_it() -> None:
    message = refusal({**EVERYTHING, "agent": {"enabled": True}})
    assert "set agent.enabled to false" in message


def test_the_notes_say_that_nothing_is_drained() -> None:
    notes = Release(values=EVERYTHING).notes()
    assert "only observes" in notes
    assert "From now on" not in notes
