"""What takes gracectl off a cluster, in virtual time: beside controllers that run, broken off, refused, repeated."""

from __future__ import annotations

import anyio
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Latency, Refuse, Rule
from kubesim_support.accounts import account_token, grant, rule
from support.clients import LEASE, WEBHOOKS, Leaving, configure, held, outcomes
from support.disruption import TERMINABLE
from support.karpenter import karpenter_runs
from support.stage import Stage, a_pod_manifest, a_workload, finalizers_of, staged, the_settings
from support.stories import keep

from gracectl.cli.uninstall.report import RemovalOutcome, removal_rows
from gracectl.config import ConfigError, Settings
from gracectl.kube.errors import Forbidden
from gracectl.model import names
from gracectl.policy.release import Release, release_patch

SECRETS = "/api/v1/namespaces/kube-system/secrets"
SECRET = {"metadata": {"name": "gracectl-webhook-tls", "labels": {names.MANAGED_BY: "gracectl"}}}


async def test_beside_a_controller_that_runs_no_finalizer_comes_back() -> None:
    async with staged("n1", "n2", settings=Settings()) as stage:
        await stage.add_nodes("claimed", claim=ClaimSpec())
        async with stage.controller() as first, stage.controller() as second:
            await stage.settle(first)
            await second.wait_live()
            began = stage.clock.monotonic()
            leaving = Leaving(stage)
            report = await leaving.run()
            # What the leader had sent may arrive until its Lease would have run out.
            assert 15 <= stage.clock.monotonic() - began <= 17
            assert held(stage) == []
            removed = outcomes(report, "Node", "NodeClaim")
            assert removed == dict.fromkeys(["n1", "n2", "claimed", "claimed-claim"], RemovalOutcome.REMOVED)
            assert report.failures == ()
            await stage.add_nodes("late")
            await stage.clock.sleep(590)
            assert held(stage) == []
            assert not first.statistics().fence.is_open
            assert report.lease is not None
            assert report.lease.held_until == "2026-01-01T00:10:15Z"
            # A controller that still runs then is not told to stop.
            await stage.clock.sleep(15)
            assert held(stage) == ["claimed", "claimed-claim", "late", "n1", "n2"]


async def test_the_lease_is_kept_however_long_it_takes() -> None:
    nodes = [f"n{number}" for number in range(60)]
    async with staged(*nodes, settings=Settings()) as stage, stage.controller() as first, stage.controller() as second:
        await stage.settle(first)
        await second.wait_live()
        began = stage.clock.monotonic()
        leaving = Leaving(stage)
        leaving.wire.before.add(Rule(fault=Latency(9.0, 9.0), method="PATCH"))
        await leaving.run()
        assert stage.clock.monotonic() - began > 25
        assert held(stage) == []
        elections = [each.statistics().election for each in (first, second)]
        assert sum(each.terms for each in elections if each is not None) == 1


async def test_what_is_being_deleted_vanishes_and_is_named_with_its_instance_and_pods() -> None:
    settings = the_settings(drain={"minimumSeconds": 0}, leaderElection={"enabled": True})
    async with staged("n1", "staying", settings=settings) as stage:
        await stage.add_nodes("claimed", claim=ClaimSpec())
        protected = {names.DO_NOT_DISRUPT: "true"}
        await stage.create(*(a_pod_manifest(name, "n1", annotations=protected) for name in ("a", "b")))
        await stage.create(a_pod_manifest("c", "claimed", annotations=protected))
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.patch_node("claimed", {"metadata": {"finalizers": [names.FINALIZER, "example.com/x"]}})
            await stage.delete_node("n1")
            await stage.delete_claim("claimed-claim")
            await stage.clock.sleep(5)
            report = await Leaving(stage).run()
        assert stage.node("n1") is None
        assert stage.claim("claimed-claim") is None
        staying = stage.node("staying")
        claimed = stage.node("claimed")
        assert staying is not None
        assert claimed is not None
        assert finalizers_of(claimed) == ["example.com/x"]
        ends = {each.node: each for each in report.orphaned_instances}
        assert (ends["n1"].pods, ends["n1"].claim, ends["n1"].held_by) == (2, None, ())
        assert ends["n1"].instance is not None
        assert ends["n1"].instance.endswith(stage.instances["n1"])
        assert (ends["claimed"].pods, ends["claimed"].claim) == (1, "claimed-claim")
        assert ends["claimed"].held_by == ("example.com/x",)
        assert stage.provider.calls == []


async def test_terminations_under_way_are_waited_for_and_no_longer_than_was_said() -> None:
    settings = the_settings(drain={"minimumSeconds": 0}, leaderElection={"enabled": True})
    async with staged("n1", "n2", settings=settings) as stage:
        await stage.create(a_pod_manifest("quick", "n1", behaviour={"stop-seconds": 20}))
        await stage.create(a_pod_manifest("stuck", "n2", annotations={names.DO_NOT_DISRUPT: "true"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.delete_node("n2")
            began = stage.clock.monotonic()
            leaving = Leaving(stage, wait=60.0)
            report = await leaving.run()
            assert 75 <= stage.clock.monotonic() - began <= 77
        assert stage.instance_state("n1") == "terminated"
        assert [each.node for each in report.orphaned_instances] == ["n2"]
        assert leaving.said[:2] == ["waiting for the termination of n1, n2", "waiting for the termination of n2"]
        assert "still terminating after 60 s: n2" in report.notes


async def test_without_a_leader_nothing_is_waited_for() -> None:
    async with staged("n1", settings=Settings()) as stage:
        async with stage.mortal() as controller:
            await stage.settle(controller)
        await stage.delete_node("n1")
        await stage.clock.sleep(60)
        began = stage.clock.monotonic()
        report = await Leaving(stage, wait=600.0).run()
        assert stage.clock.monotonic() - began <= 17
        assert "no controller leads: nothing was waited for" in report.notes


async def test_a_dry_run_says_the_same_and_writes_nothing() -> None:
    async with staged("n1", "n2", settings=Settings()) as stage:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await stage.call("POST", SECRETS, SECRET)
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_node("n1")
            await stage.clock.sleep(1)
            leaving = Leaving(stage, dry_run=True, wait=60.0)
            predicted = await leaving.run()
            assert {each.request.method for each in leaving.wire.executed} == {"GET"}
            assert held(stage) == ["n1", "n2"]
            done = await Leaving(stage).run()
        assert dict.fromkeys(outcomes(predicted), RemovalOutcome.REMOVED) == outcomes(done)
        assert set(outcomes(predicted).values()) == {RemovalOutcome.WOULD_BE_REMOVED}
        assert predicted.orphaned_instances == done.orphaned_instances
        assert predicted.lease is not None
        assert done.lease is not None
        assert (predicted.lease.previous_holder, predicted.lease.held_until) == (done.lease.previous_holder, None)


@pytest.mark.parametrize("after", [0.0, 0.4, 3.0, 9.0])
async def test_broken_off_at_any_moment_and_begun_again_nothing_is_left(after: float) -> None:
    async with staged(*(f"n{number}" for number in range(40)), settings=Settings()) as stage:
        await stage.call("POST", SECRETS, SECRET)
        async with stage.controller() as controller:
            await stage.settle(controller)
            first = Leaving(stage)
            first.wire.before.add(Rule(fault=Latency(0.05, 0.3)))
            line = first.wire.line()
            with anyio.move_on_after(after):
                await first.run(line)
            line.cut()
            await stage.clock.sleep(7)
            report = await Leaving(stage).run()
            assert report.failures == ()
            assert held(stage) == []
            await stage.clock.sleep(300)
            assert held(stage) == []


async def test_webhooks_that_do_not_answer_hinder_nothing_and_those_of_others_stay() -> None:
    async with staged("n1", settings=Settings()) as stage:
        await stage.call("POST", SECRETS, SECRET)
        async with stage.controller() as controller:
            await stage.settle(controller)
            await configure(stage, "validating", names.NODE_DELETION_WEBHOOK, labeled=False)
            await configure(stage, "mutating", "whatever.example.com")
            report = await Leaving(stage).run()
        assert held(stage) == []
        assert report.failures == ()
        kinds = {each.kind for each in report.removals if each.outcome is RemovalOutcome.REMOVED}
        assert kinds == {"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "Secret", "Node"}


async def test_a_namesake_that_is_not_ours_is_left_and_said_to_be() -> None:
    async with staged("n1", settings=Settings()) as stage:
        await configure(stage, "mutating", "other.example.com", labeled=False)
        await stage.call("POST", SECRETS, {"metadata": {"name": "gracectl-webhook-tls"}})
        report = await Leaving(stage).run()
        assert outcomes(report) == {
            "gracectl": RemovalOutcome.SKIPPED,
            "kube-system/gracectl-webhook-tls": RemovalOutcome.SKIPPED,
        }
        assert report.failures == ()
        await stage.call("GET", WEBHOOKS.format(kind="mutating") + "/gracectl")


async def test_maintenance_nodes_are_named_with_what_gives_them_back() -> None:
    async with staged("n1", settings=the_settings(leaderElection={"enabled": True})) as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
            await keep(stage, "n1")
            await stage.until(lambda: stage.condition("n1", names.DRAINED) is not None)
            report = await Leaving(stage).run()
        (kept,) = report.cordoned_nodes
        assert kept.commands == (
            "kubectl uncordon n1",
            "kubectl label node n1 node.kubernetes.io/exclude-from-external-load-balancers-",
            "kubectl annotate node n1 gracectl.io/keep-drained- gracectl.io/cordoned-",
        )


async def test_nodes_that_were_cordoned_while_they_waited_are_named_with_what_opens_them() -> None:
    async with staged("n1", "n2", "n3", settings=the_settings(leaderElection={"enabled": True})) as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.create(a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
            await stage.patch_node("n1", TERMINABLE)
            await stage.until(lambda: bool((stage.node("n1") or {})["spec"].get("unschedulable")))
            report = await Leaving(stage).run()
        (cordoned,) = report.cordoned_nodes
        assert cordoned.commands == ("kubectl uncordon n1", "kubectl annotate node n1 gracectl.io/pending-cordoned-")


async def test_next_to_karpenter_its_nodes_and_claims_keep_their_finalizer() -> None:
    async with staged("n1", settings=Settings()) as stage, karpenter_runs(stage, "k1"):
        async with stage.controller() as controller:
            await stage.settle(controller)
            (node,) = [each for each in stage.nodes() if each["metadata"]["name"] == "n1"]
            assert finalizers_of(node) == [names.OWN_FINALIZER]
        report = await Leaving(stage).run()
        assert [(each.kind, each.name) for each in report.removals if each.kind in ("Node", "NodeClaim")] == [
            ("Node", "n1")
        ]
        assert {each["metadata"]["name"]: finalizers_of(each) for each in (*stage.nodes(), *stage.claims())} == {
            "n1": [],
            "k1": [names.FINALIZER],
            "k1-claim": [names.FINALIZER],
        }


async def test_both_finalizers_of_gracectl_are_removed_and_from_others_nodes_its_own() -> None:
    async with staged("n1", "n2", settings=Settings()) as stage:
        await stage.patch_node("n1", {"metadata": {"finalizers": [*names.FINALIZERS, "other.io/hold"]}})
        theirs = {"labels": {names.NODE_POOL: "general"}, "finalizers": [*names.FINALIZERS]}
        await stage.patch_node("n2", {"metadata": theirs})
        await Leaving(stage).run()
        assert [finalizers_of(node) for node in stage.nodes()] == [["other.io/hold"], [names.FINALIZER]]


async def test_without_a_lease_it_goes_on_and_says_what_that_means() -> None:
    async with staged("n1") as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
        report = await Leaving(stage).run()
        assert held(stage) == []
        assert report.lease is None
        assert "leader election is disabled in the settings" in report.notes[0]
        stage.settings = Settings()
        report = await Leaving(stage).run()
        assert "no Lease gracectl found" in report.notes[0]


async def test_a_finalizer_that_always_comes_back_is_no_endless_loop() -> None:
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        report = await Leaving(stage).run()
        (failure,) = report.failures
        assert (failure.kind, failure.name) == ("Node", "n1")
        assert "another client adds the finalizer again" in failure.reason
        assert stage.clock.monotonic() < 30


async def test_a_lease_elsewhere_is_found_and_two_of_them_are_not_guessed() -> None:
    async with staged("n1", settings=the_settings(leaderElection={"namespace": "default"})) as stage:
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.settings = Settings()
            report = await Leaving(stage).run()
            assert report.lease is not None
            assert report.lease.namespace == "default"
            assert held(stage) == []
        other = {"metadata": {"name": "gracectl"}, "spec": {"holderIdentity": "other"}}
        await stage.call("POST", LEASE.rpartition("/")[0], other)
        with pytest.raises(ConfigError, match=r"default, kube-system.*--namespace"):
            await Leaving(stage).run()
        again = await Leaving(stage, namespace="default").run()
        assert again.lease is not None
        assert again.lease.namespace == "default"


LOOKING = (
    rule("list", "nodes pods"), rule("list", "nodeclaims", "karpenter.sh"),
    rule("get list update", "leases", "coordination.k8s.io"), rule("get delete", "secrets"),
    rule("get delete", "validatingwebhookconfigurations mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
)  # fmt: skip
ENOUGH = (
    *LOOKING,
    rule("get patch", "nodes"),
    rule("get patch", "nodeclaims", "karpenter.sh"),
    rule("list patch", "nodedrains", "gracectl.io"),
)
"""As docs/uninstall.md lists them."""


async def asked_by(stage: Stage, *rules: dict[str, object]) -> str:
    """The token of an account with these rights."""
    token = await account_token(stage.server, "leaver", "kube-system")
    await grant(stage.server, {"kind": "ServiceAccount", "name": "leaver", "namespace": "kube-system"}, *rules)
    return token


async def test_the_documented_rights_are_enough() -> None:
    async with staged("n1", settings=Settings()) as stage:
        await stage.add_nodes("claimed", claim=ClaimSpec())
        await stage.call("POST", SECRETS, SECRET)
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
            await stage.delete_node("n1")
            leaving = Leaving(stage, token=await asked_by(stage, *ENOUGH))
            report = await leaving.run()
        assert report.failures == ()
        assert report.orphaned_instances[0].pods == 1
        assert held(stage) == []
        # 409: the controller has written the node in between; it is read and written again.
        assert {each.status for each in leaving.wire.executed} <= {200, 201, 404, 409}


async def test_what_one_may_not_do_is_named_with_the_right_and_the_rest_is_done() -> None:
    async with staged("n1", settings=Settings()) as stage:
        await stage.add_nodes("claimed", claim=ClaimSpec())
        await stage.call("POST", SECRETS, SECRET)
        async with stage.controller() as controller:
            await stage.settle(controller)
            few = [each for each in ENOUGH if each["resources"] not in (["secrets"], ["nodes"])]
            report = await Leaving(stage, token=await asked_by(stage, *few)).run()
        why = {(each.kind, each.name): each.reason for each in report.failures}
        assert set(why) == {("Secret", "kube-system/gracectl-webhook-tls"), ("Node", "n1"), ("Node", "claimed")}
        assert "add the verb patch on nodes to the role" in why["Node", "n1"]
        assert held(stage) == ["claimed", "n1"]


async def a_released_pod(stage: Stage, name: str = "web") -> str:
    """The pod of a Deployment whose controller was killed between the release and the eviction; its name."""
    await stage.create(a_workload("Deployment", name, 1))
    await stage.clock.sleep(5)
    (pod,) = (each for each in stage.server.store.table("pods") if each["metadata"]["labels"].get("app") == name)
    value = pod["metadata"]["labels"][names.POD_TEMPLATE_HASH]
    release = Release(stage.clock.now(), "Deployment", name, names.POD_TEMPLATE_HASH, value)
    path = f"/api/v1/namespaces/shop/pods/{pod['metadata']['name']}"
    await stage.call("PATCH", path, release_patch(release), "application/merge-patch+json")
    await stage.clock.sleep(5)
    return str(pod["metadata"]["name"])


async def test_released_pods_return_and_their_replacements_go() -> None:
    async with staged("n1", "n2", settings=Settings()) as stage:
        name = await a_released_pod(stage)
        assert len(stage.server.store.table("pods")) == 2
        predicted = await Leaving(stage, dry_run=True).run()
        assert [*removal_rows(predicted)] == [("1 released pod", "would be returned")]
        report = await Leaving(stage).run()
        assert [*removal_rows(report)] == [("1 released pod", "returned")]
        await stage.clock.sleep(5)
        (left,) = stage.server.store.table("pods")
        assert left["metadata"]["name"] == name
        assert left["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
        assert names.RELEASED_FROM not in left["metadata"].get("annotations", {})


async def test_a_released_pod_that_may_not_be_returned_is_named() -> None:
    async with staged("n1", "n2", settings=Settings()) as stage:
        name = await a_released_pod(stage)
        report = await Leaving(stage, token=await asked_by(stage, *ENOUGH)).run()
        (row,) = removal_rows(report)
        assert row[0] == f"released pod shop/{name}"
        assert row[1].startswith("FAILED: ")
        assert "add the verb get on pods to the role" in row[1]


async def test_a_pod_that_is_written_again_and_again_is_given_up_with_the_reason() -> None:
    async with staged("n1", "n2", settings=Settings()) as stage:
        name = await a_released_pod(stage)
        leaving = Leaving(stage)
        leaving.wire.before.add(Rule(fault=Refuse(409), method="PATCH", path=f"/pods/{name}$"))
        report = await leaving.run()
        assert [each.name for each in report.failures] == [f"shop/{name}"]


@pytest.mark.parametrize("missing", ["leases", "nodes pods"])
async def test_without_permission_on_the_lease_nothing_is_changed(missing: str) -> None:
    async with staged("n1", settings=Settings()) as stage, stage.controller() as controller:
        await stage.settle(controller)
        few = [each for each in ENOUGH if each["resources"] != missing.split()]
        leaving = Leaving(stage, token=await asked_by(stage, *few))
        with pytest.raises(Forbidden):
            await leaving.run()
        assert held(stage) == ["n1"]
        assert {each.request.method for each in leaving.wire.executed} == {"GET"}
