"""Circuit breaker: when many nodes are unhealthy at once, none is terminated for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubesim.controllers.cloud import CloudSettings
from support.builders import NOW, a_node
from support.disruption import AT_ONCE, TERMINABLE
from support.stage import Stage, a_pod_manifest, staged, the_settings

from gracectl.controllers.disruption.pace import CircuitBreaker
from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.node import Node
from gracectl.model.selectors import LabelSelector, Requirement
from gracectl.policy.health import UnhealthyNodes, unhealthy_until
from gracectl.policy.owners import ManagedNodes
from gracectl.policy.settings import HealthSettings

TEN = tuple(f"n{n}" for n in range(10))


def deleted(stage: Stage) -> dict[str, float]:
    """The nodes for which we have sent a DELETE, and when."""
    return {each.operation.name: round(each.instant, 3) for each in stage.transport.of("delete", "nodes")}


def status(stage: Stage, node: str) -> str | None:
    """Of the node's condition Ready."""
    status_of_ready: str | None = (stage.condition(node, "Ready") or {}).get("status")
    return status_of_ready


async def cut_off(stage: Stage, *nodes: str) -> None:
    """Cut their kubelets off; return when Kubernetes has noticed."""
    for node in nodes:
        stage.cluster.kubelet.partition(node)
    await stage.until(lambda: all(status(stage, n) == "Unknown" for n in nodes))


def recount(nodes: dict[str, Node], settings: HealthSettings, now: float) -> UnhealthyNodes:
    counted = [unhealthy_until(node, settings) for node in nodes.values() if "pool" in node.labels]
    return UnhealthyNodes(
        unhealthy=sum(until == math.inf for until in counted),
        recovering=sum(now < until < math.inf for until in counted),
        managed=len(counted),
        maximum=settings.maximum_unhealthy,
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"),
            st.sampled_from(["True", "False", "Unknown", "silent", "gone", "unmanaged"]),
            st.integers(0, 400),
        ),
        max_size=60,
    )
)
def test_the_count_equals_a_recount(changes: list[tuple[str, str, int]]) -> None:
    settings = HealthSettings(maximum_unhealthy="30%")
    managed = ManagedNodes(LabelSelector(match_expressions=(Requirement(key="pool", operator="Exists"),)))
    brake, nodes, now = CircuitBreaker(managed.includes, settings), dict[str, Node](), NOW
    for name, what, seconds in changes:
        now += seconds
        conditions = () if what == "silent" else (Condition("Ready", what, last_transition=now),)
        labels = {} if what == "unmanaged" else {"pool": "a"}
        old = nodes.pop(name, None)
        new = a_node(name, created=NOW - 1000, conditions=conditions, labels=labels) if what != "gone" else None
        if new is not None:
            nodes[name] = new
        brake.note(old, new)
        assert brake.counts(now) == recount(nodes, settings, now)
        loosens = brake.closes_at(now)
        ends = {unhealthy_until(node, settings) for node in nodes.values()}
        instants = sorted(at for at in ends if now < at < math.inf)
        first = next((at for at in instants if not recount(nodes, settings, at).excess), None)
        assert loosens == (first if recount(nodes, settings, now).excess else None)


async def held(stage: Stage) -> dict[str, str]:
    return {name: words for name, reason, words in await stage.events() if reason == "UnhealthyNodesHeld"}


async def test_the_partition_of_a_whole_zone_terminates_no_node() -> None:
    zones = {f"{zone}-{n}": f"zone-{zone}" for zone in "abc" for n in range(5)}
    async with staged() as stage:
        for name, zone in zones.items():
            await stage.add_nodes(name, zone=zone)
        async with stage.settled() as controller:
            lost = [name for name, zone in zones.items() if zone == "zone-b"]
            await cut_off(stage, *lost)
            await stage.clock.sleep(920)
            before = controller.statistics().queues["voluntary"].handed_out
            messages = await held(stage)
            assert messages.keys() == set(lost)
            assert all("5 of 15 managed nodes are unhealthy; 3 (20%) may be" in words for words in messages.values())
            await stage.clock.sleep(2000)
            assert deleted(stage) == {}
            assert controller.statistics().queues["voluntary"].handed_out == before  # no polling
            for name in lost:
                stage.cluster.kubelet.heal(name)
                await stage.clock.sleep(25)  # one after the other: the last ones are not ended for being the last
            await stage.clock.sleep(1500)
            assert deleted(stage) == {}
            assert {stage.instance_state(name) for name in zones} == {"running"}


async def test_as_many_as_may_be_are_ended_in_one_instant() -> None:
    async with staged(*TEN, settings=the_settings(**AT_ONCE)) as stage, stage.settled():
        await cut_off(stage, "n0", "n1")
        start = stage.clock.monotonic()
        await stage.until_gone("n0", "n1")
        assert deleted(stage) == {"n0": start + 900.0, "n1": start + 900.0}


async def test_one_that_falls_ill_later_holds_the_others_though_it_is_still_tolerated() -> None:
    async with staged(*TEN) as stage, stage.settled():
        await cut_off(stage, "n0", "n1")
        start = stage.clock.monotonic()
        await stage.clock.sleep(700)
        await cut_off(stage, "n2")
        await stage.clock.sleep(start + 1200.5 - stage.clock.monotonic())
        assert deleted(stage) == {}
        assert (await held(stage)).keys() == {"n0", "n1"}
        # One of them recovers: when that has lasted a while, the rest is ended.
        stage.cluster.kubelet.heal("n0")
        back = await stage.until(lambda: status(stage, "n0") == "True")
        await stage.until_gone("n1")
        assert deleted(stage) == {"n1": pytest.approx(back + 300.0, abs=1.0)}


async def test_a_node_that_is_being_deleted_counts_until_it_is_gone() -> None:
    """Or an outage that spreads would take the cluster fifth by fifth."""
    slow = CloudSettings(terminate_delay=1500.0)
    async with staged(*TEN, cloud=slow, settings=the_settings(**AT_ONCE)) as stage, stage.settled():
        await cut_off(stage, "n0", "n1")
        start = stage.clock.monotonic()
        await stage.clock.sleep(1000)
        assert deleted(stage) == {"n0": start + 900.0, "n1": start + 900.0}
        await cut_off(stage, "n2", "n3")
        await stage.clock.sleep(1000)
        assert deleted(stage).keys() == {"n0", "n1"}
        gone = await stage.until_gone("n0", "n1")
        await stage.until_gone("n2", "n3")
        # Eight are left, two of them unhealthy; the first one to go does not make room, the second does.
        assert deleted(stage) == {
            "n0": start + 900,
            "n1": start + 900,
            "n2": pytest.approx(gone),
            "n3": pytest.approx(gone),
        }


@pytest.mark.parametrize(
    ("maximum", "lost", "are_ended"), [(0, 1, False), (3, 3, True), (3, 4, False), ("100%", 6, True)]
)
async def test_the_maximum_is_the_administrators(maximum: int | str, lost: int, are_ended: bool) -> None:
    settings = the_settings(health={"maximumUnhealthy": maximum})
    async with staged(*TEN[:6], settings=settings) as stage, stage.settled():
        await cut_off(stage, *TEN[:lost])
        await stage.clock.sleep(1000)
        assert deleted(stage).keys() == (set(TEN[:lost]) if are_ended else set())


async def test_the_circuit_breaker_is_for_health_alone() -> None:
    async with staged(*TEN[:4]) as stage, stage.settled():
        await cut_off(stage, "n0", "n1", "n2")
        await stage.clock.sleep(1000)
        assert deleted(stage) == {}
        await stage.patch_node("n1", TERMINABLE)
        await stage.until_gone("n1")
        assert deleted(stage).keys() == {"n1"}
        reasons = [reason for name, reason, _ in await stage.events() if name == "n1"]
        assert "NodeTerminable" in reasons
        assert "NodeUnhealthy" not in reasons


async def test_force_does_not_close_the_circuit_breaker() -> None:
    async with (
        staged(*TEN[:5], settings=the_settings(health={"force": True})) as stage,
        stage.controller() as controller,
    ):
        await stage.settle(controller)
        await stage.create(a_pod_manifest("job", "n3", annotations={names.DO_NOT_DISRUPT: "true"}))
        await cut_off(stage, "n0", "n1")
        await stage.clock.sleep(1000)
        assert deleted(stage) == {}
        assert all(names.TERMINATION_TIMESTAMP not in node["metadata"].get("annotations", {}) for node in stage.nodes())


async def test_a_node_that_does_not_recover_with_the_others_is_terminated_in_the_end() -> None:
    async with staged(*TEN) as stage, stage.settled():
        await cut_off(stage, *TEN[:6])
        await stage.clock.sleep(1500)
        for node in TEN[:3]:
            stage.cluster.kubelet.heal(node)
        first = await stage.until(lambda: all(status(stage, node) == "True" for node in TEN[:3]))
        await stage.clock.sleep(100)
        for node in TEN[3:5]:
            stage.cluster.kubelet.heal(node)
        second = await stage.until(lambda: all(status(stage, node) == "True" for node in TEN[3:5]))
        await stage.until_gone(TEN[5])
        # Two may be: the last one, and one of those that have come back.
        assert second > first + 90
        assert deleted(stage) == {TEN[5]: pytest.approx(second + 300.0, abs=1.0)}
