"""gracectl beside a live Karpenter: neither a process nor a manager starts, and both do when it is gone."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from controllers.app.test_controller import EVERYTHING
from kubesim.faults import Refuse, Rule
from kubesim_support.accounts import RBAC, account_token, grant
from simulation.baseline import kept_by
from support.inprocess import InProcessTransport
from support.karpenter import A_POD, HOLDER, POD, RUNNING, karpenter_leads, karpenter_renews, leases_of, pods_of
from support.stage import Stage, a_budget_manifest, a_pod_manifest, finalizers_of, staged, the_settings

from gracectl.app.controller import Controller
from gracectl.cli.crds import shipped_definitions
from gracectl.config import Settings
from gracectl.controllers.karpenter import LiveKarpenter
from gracectl.kube.leader.settings import DEFAULT_NAMESPACE
from gracectl.model import names


def a_controller(stage: Stage, settings: Settings | None = None) -> Controller:
    return Controller(settings or stage.settings, stage.transport, stage.clock, stage.provider)


def writes(stage: Stage) -> list[str]:
    """What was changed so far; questions about rights change nothing."""
    asked = [each for each in stage.transport.executed if each.request.method != "GET"]
    found = [f"{each.operation.verb} {each.operation.resource}" for each in asked]
    return [each for each in found if "reviews" not in each]


@pytest.mark.parametrize("namespace", ["kube-system", "karpenter", "ours"])
async def test_a_start_beside_a_live_karpenter_is_refused_with_its_name_and_what_to_do(namespace: str) -> None:
    async with staged("n1") as stage:
        await karpenter_leads(stage, namespace)
        with pytest.raises(LiveKarpenter) as caught:
            await a_controller(stage, the_settings(leaderElection={"namespace": "ours"})).check()
        told = str(caught.value)
        assert f"{HOLDER} holds the Lease {namespace}/karpenter-leader-election since 2026-01-01T00:00:0" in told
        assert "Nothing was changed" in told
        assert f"kubectl -n {namespace} scale deployment karpenter --replicas=0" in told
        assert "15 s after" in told
        assert writes(stage) == []


async def test_a_lease_is_fresh_until_its_duration_is_over_and_not_longer() -> None:
    async with staged("n1") as stage:
        await karpenter_leads(stage)
        await stage.clock.sleep(14.9)
        with pytest.raises(LiveKarpenter):
            await a_controller(stage).check()
        await stage.clock.sleep(0.2)
        await a_controller(stage).check()


@pytest.mark.parametrize("duration", [61, 2**31 - 1])
async def test_a_lease_that_is_not_renewed_stops_nothing_for_longer_than_a_minute(duration: int) -> None:
    async with staged("n1") as stage:
        await karpenter_leads(stage, leaseDurationSeconds=duration)
        for instant in (0.0, 59.9):
            await stage.clock.sleep(instant)
            with pytest.raises(LiveKarpenter):
                await a_controller(stage).check()
        await stage.clock.sleep(0.2)
        await a_controller(stage).check()


async def test_a_lease_where_no_karpenter_is_installed_stops_nothing() -> None:
    async with staged("n1") as stage:
        await karpenter_leads(stage, is_installed=False)
        await a_controller(stage).check()


@pytest.mark.parametrize(
    "pod",
    [
        None,
        ("running", "kube-system", {"name": "coredns-5d78"}),
        ("pending", "karpenter", {"name": POD}),
        ("running", "kube-system", {"name": POD}),
    ],
    ids=["none", "another's", "pending", "elsewhere"],
)
async def test_a_lease_that_is_renewed_stops_nothing_without_a_running_pod_of_karpenters(
    pod: tuple[str, str, dict[str, Any]] | None,
) -> None:
    """The right to write Leases is enough to renew one; pods run in every namespace that is looked at."""
    async with staged("n1") as stage:
        holder = HOLDER
        await stage.call("POST", "/api/v1/namespaces", {"metadata": {"name": "karpenter"}})
        if pod is not None:
            state, namespace, metadata = pod
            path = f"{pods_of(namespace)}/{metadata['name']}"
            await stage.call("POST", pods_of(namespace), {"metadata": metadata, "spec": A_POD["spec"]})
            if state == "running":
                await stage.call("PATCH", f"{path}/status", RUNNING, "application/merge-patch+json")
            holder = f"{metadata['name']}_0c1e"
        for namespace in ("karpenter", "kube-system"):
            if pod is None or namespace != "kube-system" or pod[2]["name"] != POD:
                await karpenter_leads(stage, namespace, has_pod=False, holderIdentity=holder)
        await a_controller(stage).check()


@pytest.mark.parametrize("holder", ["tenant", "_x", "a=b,spec.nodeName!=_x", "n1_x", "../pods_x"])
async def test_a_holder_that_is_no_host_name_or_a_node_without_karpenter_stops_nothing(holder: str) -> None:
    async with staged("n1", objects=[a_pod_manifest("web", "n1")]) as stage:
        await karpenter_leads(stage, holderIdentity=holder)
        await a_controller(stage).check()


async def test_a_karpenter_on_the_network_of_its_node_leads_by_the_name_of_that() -> None:
    async with staged("n1") as stage:
        spec = {**A_POD["spec"], "nodeName": "n1", "hostNetwork": True}
        await stage.call("POST", pods_of("kube-system"), {**A_POD, "spec": spec})
        await stage.cluster.until_ready()
        await karpenter_leads(stage, holderIdentity="n1_0c1e")
        with pytest.raises(LiveKarpenter, match="n1_0c1e holds the Lease"):
            await a_controller(stage).check()


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": 2**31 - 1}, {"renewTime": "9999-12-31T23:59:59.000000Z"}])
async def test_a_forged_lease_pauses_a_controller_that_runs_for_a_minute_at_most_and_is_reported(
    spec: dict[str, Any],
) -> None:
    """Found with the role `edit` in a namespace called `karpenter`: every controller stood by indefinitely."""
    async with staged("n1", settings=Settings(), looks_for_karpenter=True) as stage, stage.controller() as controller:
        await controller.wait_live()
        await stage.settle(controller)
        await karpenter_leads(stage, "karpenter", **spec)
        await stage.delete_node("n1")
        begun = stage.clock.monotonic()
        gone = await stage.until_gone("n1")
        # Looked at every 15 s; a minute from when it was seen; a standby looks every two to 4.4 s; a drain takes two.
        assert gone - begun <= 15 + 60 + 4.4 + 2.1
        await stage.clock.sleep(300)
        assert controller.statistics().election is not None
        assert [check for check in controller.process.readiness() if check.name == "karpenter"] == []


async def test_a_released_lease_and_one_elsewhere_are_no_obstacle() -> None:
    async with staged("n1") as stage:
        await karpenter_leads(stage, holderIdentity="")
        await karpenter_leads(stage, "another")
        await a_controller(stage).check()
        with pytest.raises(LiveKarpenter, match="another/karpenter-leader-election"):
            await a_controller(stage, the_settings(karpenter={"namespaces": ["another"]})).check()


async def test_our_own_lease_is_no_karpenters_whatever_its_name() -> None:
    settings = the_settings(leaderElection={"name": names.KARPENTER_LEASE})
    async with staged("n1", settings=settings) as stage, stage.settled():
        await a_controller(stage).check()


@pytest.mark.parametrize("may_read", [True, False])
async def test_a_right_to_that_one_lease_is_enough_and_without_it_none_is_seen(
    may_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", definitions=shipped_definitions()[:0]) as stage:
        await karpenter_leads(stage, "karpenter")
        token = await account_token(stage.server, "gracectl", "kube-system")
        account = {"kind": "ServiceAccount", "name": "gracectl", "namespace": "kube-system"}
        await grant(stage.server, account, *EVERYTHING[:-1])
        if may_read:
            await allow_reading(stage, account)
        stage.transport = InProcessTransport(stage.server, stage.clock, token=token)
        if may_read:
            with pytest.raises(LiveKarpenter):
                await a_controller(stage).check()
            return
        controller = a_controller(stage)
        await controller.check()
        await controller.check()
        told = [each.message for each in caplog.records if "cannot read Karpenter's Lease" in each.message]
        assert [each.split(":")[0] for each in told] == [
            "cannot read Karpenter's Lease in namespace kube-system",
            "cannot read Karpenter's Lease in namespace karpenter",
        ]


async def allow_reading(stage: Stage, account: dict[str, str]) -> None:
    """Karpenter's Lease in its namespace, by name."""
    group, meta = "rbac.authorization.k8s.io", {"metadata": {"name": "sees-karpenter"}}
    one = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get"],
        "resourceNames": [names.KARPENTER_LEASE],
    }
    await stage.call("POST", f"{RBAC}/namespaces/karpenter/roles", {**meta, "rules": [one]})
    role = {"kind": "Role", "name": "sees-karpenter", "apiGroup": group}
    binding = {**meta, "roleRef": role, "subjects": [account]}
    await stage.call("POST", f"{RBAC}/namespaces/karpenter/rolebindings", binding)


async def test_a_standby_does_not_take_over_while_a_karpenter_lives_and_does_when_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with staged("n1", settings=Settings()) as stage:
        async with stage.controller() as first:
            await stage.settle(first)
        stage.transport.executed.clear()
        await stage.patch_node("n1", {"metadata": {"finalizers": None}})
        await karpenter_leads(stage)
        async with stage.controller() as second:
            await second.wait_live()
            await karpenter_renews(stage, 60)
            assert writes(stage) == []
            (told,) = [check.reason for check in second.process.readiness() if check.name == "karpenter"]
            assert HOLDER in told
            assert all(check.is_ok for check in second.process.readiness())
            node = stage.node("n1")
            assert node is not None
            assert finalizers_of(node) == []
            gone = stage.clock.monotonic()
            await stage.settle(second)
            # It counts from when its last renewal was seen, up to 4.4 s after it; a standby looks every two to 4.4 s.
            assert 14 <= stage.clock.monotonic() - gone <= 14 + 2 * 4.4
            assert [check for check in second.process.readiness() if check.name == "karpenter"] == []
    told_of = [each.message for each in caplog.records if "Karpenter" in each.message]
    assert len(told_of) == 2
    assert "on standby" in told_of[0]
    assert told_of[1] == "no Karpenter leads now: this process may lead again"


async def test_of_two_that_stood_by_the_one_that_does_not_lead_then_tells_nothing_of_karpenter_either() -> None:
    async with staged("n1", settings=Settings()) as stage:
        await karpenter_leads(stage)
        async with stage.controller() as first, stage.controller() as second:
            for each in (first, second):
                await each.wait_live()
            await stage.clock.sleep(5)
            for each in (first, second):
                assert "karpenter" in [check.name for check in each.process.readiness()]
            await stage.clock.sleep(30)
            for each in (first, second):
                assert "karpenter" not in [check.name for check in each.process.readiness()]


async def test_without_permission_to_look_for_karpenter_it_does_not_take_over() -> None:
    async with staged("n1", settings=Settings()) as stage:
        blind = Rule(fault=Refuse(500), path=names.KARPENTER_LEASE)
        stage.transport.before.add(blind)
        async with stage.controller() as controller:
            await stage.clock.sleep(30)
            assert writes(stage) == []
            stage.transport.before.remove(blind)
            await stage.settle(controller)


async def test_a_karpenter_that_never_held_its_lease_has_none() -> None:
    async with staged("n1") as stage:
        await stage.call("POST", leases_of("kube-system"), {"metadata": {"name": names.KARPENTER_LEASE}, "spec": {}})
        await a_controller(stage).check()


# -- one that is installed later ---------------------------------------------------------------------------------------


async def reported(stage: Stage) -> dict[str, list[str]]:
    """By reason KarpenterLeads, what is told, by object."""
    found: dict[str, list[str]] = {}
    for name, reason, message in await stage.events():
        if reason == "KarpenterLeads":
            found.setdefault(name, []).append(message)
    return found


@pytest.mark.parametrize("has_lease", [True, False])
async def test_a_karpenter_that_comes_later_is_left_alone_and_the_work_goes_on_when_it_is_gone(
    has_lease: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = Settings() if has_lease else the_settings()
    cluster = staged("n1", "n2", settings=settings, looks_for_karpenter=True)
    async with cluster as stage, stage.controller() as controller:
        await stage.create(a_pod_manifest("a", "n1", annotations={names.DO_NOT_DISRUPT: "true"}))
        await controller.wait_live()
        begun = stage.clock.monotonic()
        await stage.settle(controller)
        await stage.delete_node("n1")
        await stage.clock.sleep(begun + 14.9 - stage.clock.monotonic())
        await karpenter_leads(stage)
        assert [each.name for each in controller.under_way()] == ["n1"]
        assert "karpenter" not in [check.name for check in controller.process.readiness()]
        await stage.clock.sleep(0.2)
        assert controller.under_way() == ()
        await karpenter_renews(stage, 3)
        stage.transport.executed.clear()
        await stage.delete_node("n2")
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/a")
        await karpenter_renews(stage, 60)
        assert [each for each in writes(stage) if not each.endswith(" events")] == []
        (told,) = [check for check in controller.process.readiness() if check.name == "karpenter"]
        assert told.is_ok
        assert HOLDER in told.reason
        assert all(stage.node(name) for name in ("n1", "n2"))
        if has_lease:
            ours = await stage.call("GET", f"{leases_of(DEFAULT_NAMESPACE)}/{settings.leader_election.name}")
            assert ours["spec"]["holderIdentity"] == ""
        events = await reported(stage)
        assert events.keys() == {"n1", names.KARPENTER_LEASE}
        assert "gracectl is on standby; uninstall Karpenter" in events["n1"][0]
        gone = stage.clock.monotonic()
        await stage.until_gone("n1", "n2")
        # Its Lease counts from when its last renewal was seen, and is looked at every two to 4.4 s; a drain takes two.
        assert 14 <= stage.clock.monotonic() - gone <= 14 + 2 * 4.4 + 2.1
        assert [check for check in controller.process.readiness() if check.name == "karpenter"] == []
    told_of = [
        each.message for each in caplog.records if "Karpenter leads" in each.message and "Event" not in each.message
    ]
    assert [each.split(":")[0] for each in told_of] == [
        "a Karpenter leads on this cluster",
        "no Karpenter leads now",
    ]


async def test_a_leader_that_cannot_ask_goes_on() -> None:
    async with staged("n1", settings=Settings()) as stage, stage.settled():
        stage.transport.before.add(Rule(fault=Refuse(500), path=names.KARPENTER_LEASE))
        await stage.clock.sleep(100)
        await stage.delete_node("n1")
        start = stage.clock.monotonic()
        assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.01)


async def test_a_standby_keeps_nothing_of_the_terminations_that_it_worked_on() -> None:
    """Found by the baseline of the simulation's invariants (seeds 5006 and 5007): it kept them until it led again."""
    async with staged("n1", looks_for_karpenter=True) as stage, stage.controller() as controller:
        await stage.create(a_budget_manifest("a", minAvailable=1), a_pod_manifest("a", "n1"))
        await stage.settle(controller)
        await stage.delete_node("n1")
        await stage.clock.sleep(5)
        assert kept_by(controller)["NodeState"] == 1
        await karpenter_leads(stage)
        await karpenter_renews(stage, 30)
        assert kept_by(controller) == {}
        assert controller.statistics().evictor.waiting == 0
