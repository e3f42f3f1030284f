"""Voluntary terminations that are held back: the condition and the metrics say why, and no longer than that is so."""

from __future__ import annotations

from typing import Any

import pytest
from support.collector import figures
from support.disruption import TERMINABLE, deletions, instant_of, lost_at, refusing
from support.stage import Stage, reasons, staged, the_settings

from gracectl.app.controller import Controller
from gracectl.model import names

TEN = tuple(f"n{n}" for n in range(10))
METRICS = ("voluntary_terminations_pending", "unhealthy_nodes", "health_circuit_breaker_open")


def hold(stage: Stage, node: str) -> str | None:
    """The reason of its condition."""
    reason: str | None = (stage.condition(node, names.TERMINATION_PENDING) or {}).get("reason")
    return reason


def counted(controller: Controller) -> dict[tuple[str, ...], float]:
    return figures(controller, *METRICS)


async def test_the_circuit_breaker_holds_nodes_from_the_instant_in_which_they_are_due() -> None:
    async with staged(*TEN) as stage, stage.settled() as controller:
        lost = TEN[:3]
        begins = [await lost_at(stage, node) for node in lost]
        await stage.clock.sleep(min(begins) + 899.9 - stage.clock.monotonic())
        assert hold(stage, "n0") is None
        assert counted(controller) == {
            ("unhealthy_nodes", "unhealthy"): 3,
            ("health_circuit_breaker_open",): 1,
        }
        await stage.clock.sleep(max(begins) + 900.1 - stage.clock.monotonic())
        for node, began in zip(lost, begins, strict=True):
            condition = stage.condition(node, names.TERMINATION_PENDING) or {}
            assert (condition["status"], condition["reason"]) == ("True", "CircuitBreaker")
            assert f"termination due (node {node} is unhealthy: " in condition["message"]
            assert (
                "but blocked: 3 of 10 managed nodes are unhealthy; 2 (20%) may be (health.maximumUnhealthy); "
                "terminated when fewer nodes are unhealthy, or delete it"
            ) in condition["message"]
            assert round(instant_of(stage, condition["lastTransitionTime"]), 3) == round(began, 3) + 900
        assert counted(controller)["voluntary_terminations_pending", "unhealthy", "CircuitBreaker"] == 3
        stage.cluster.kubelet.heal("n2")
        await stage.until(lambda: hold(stage, "n2") is None)
        await stage.clock.sleep(1)
        assert counted(controller) == {
            **{
                ("voluntary_terminations_pending", "unhealthy", "CircuitBreaker"): 2,
                ("unhealthy_nodes", "unhealthy"): 2,
            },
            **{("unhealthy_nodes", "recovering"): 1, ("health_circuit_breaker_open",): 1},
        }
        assert deletions(stage) == []


async def test_a_label_terminates_a_node_that_the_circuit_breaker_would_hold() -> None:
    async with staged(*TEN) as stage, stage.settled():
        for node in TEN[:3]:
            await lost_at(stage, node)
        await stage.until(lambda: hold(stage, "n0") == "CircuitBreaker")
        await stage.patch_node("n0", TERMINABLE)
        at = stage.clock.monotonic()
        await stage.until_gone("n0")
        assert deletions(stage) == [(at, "n0")]


async def test_a_refused_deletion_is_pending_until_it_is_accepted() -> None:
    async with staged("n0", "n1") as stage, stage.settled() as controller:
        async with refusing(stage, "/api/v1/nodes/n0") as asked:
            await stage.patch_node("n0", TERMINABLE)
            await stage.clock.sleep(30)
            assert len(asked) > 2
            condition = stage.condition("n0", names.TERMINATION_PENDING) or {}
            assert condition["reason"] == "DeletionRefused"
            assert "but its deletion was refused: " in condition["message"]
            assert 'budget "all" would be broken' in condition["message"]
            assert counted(controller) == {("voluntary_terminations_pending", "terminable", "DeletionRefused"): 1}
            writes = len(stage.status_writes("n0"))
            await stage.clock.sleep(100)
            assert len(stage.status_writes("n0")) == writes
        await stage.until_gone("n0")
        assert counted(controller) == {}


NO_PROVIDER: Any = {"provider": {"name": "none"}}


def is_cordoned(stage: Stage, node: str) -> bool:
    return bool((stage.node(node) or {})["spec"].get("unschedulable"))


async def test_with_provider_none_an_unhealthy_node_is_cordoned_and_reported_until_it_recovers() -> None:
    async with staged(*TEN, settings=the_settings(**NO_PROVIDER)) as stage, stage.settled() as controller:
        began = await lost_at(stage, "n0")
        await stage.clock.sleep(began + 899.9 - stage.clock.monotonic())
        assert hold(stage, "n0") is None
        assert not is_cordoned(stage, "n0")
        await stage.clock.sleep(0.2)
        assert hold(stage, "n0") == "ProviderNone"
        assert is_cordoned(stage, "n0")
        message = (stage.condition("n0", names.TERMINATION_PENDING) or {})["message"]
        assert "provider none terminates no machine" in message
        assert "set provider.name or health.enabled: true" in message
        assert counted(controller) == {
            ("voluntary_terminations_pending", "unhealthy", "ProviderNone"): 1,
            ("unhealthy_nodes", "unhealthy"): 1,
        }
        await stage.clock.sleep(2000)
        assert deletions(stage) == []
        assert (await reasons(stage, "n0")).count("NodeUnhealthy") == 1
        stage.cluster.kubelet.heal("n0")
        await stage.until(lambda: not is_cordoned(stage, "n0"))
        await stage.clock.sleep(1)
        assert hold(stage, "n0") is None
        assert counted(controller) == {("unhealthy_nodes", "recovering"): 1}
        assert (await reasons(stage, "n0")).count("Uncordoned") == 1


async def test_force_alone_ends_no_node_with_provider_none() -> None:
    settings = the_settings(**NO_PROVIDER, health={"force": True})
    async with staged(*TEN, settings=settings) as stage, stage.settled():
        await lost_at(stage, "n0")
        await stage.clock.sleep(1000)
        assert hold(stage, "n0") == "ProviderNone"
        assert deletions(stage) == []
        assert names.TERMINATION_TIMESTAMP not in (stage.node("n0") or {})["metadata"].get("annotations", {})


async def test_many_unhealthy_nodes_are_not_cordoned_even_with_provider_none() -> None:
    async with staged(*TEN, settings=the_settings(**NO_PROVIDER)) as stage, stage.settled():
        for node in TEN[:3]:
            stage.cluster.kubelet.partition(node)
        await stage.until(lambda: hold(stage, "n0") == "CircuitBreaker")
        await stage.clock.sleep(1000)
        assert [node for node in TEN if is_cordoned(stage, node)] == []
        message = (stage.condition("n0", names.TERMINATION_PENDING) or {})["message"]
        assert "cordoned when fewer nodes are unhealthy, or delete it" in message
        stage.cluster.kubelet.heal("n2")
        healed = await stage.until(lambda: hold(stage, "n2") is None)
        at = await stage.until(lambda: is_cordoned(stage, "n0"))
        assert at == pytest.approx(healed + 300, abs=1.001)
        await stage.clock.sleep(0.1)
        assert hold(stage, "n0") == "ProviderNone"


async def test_a_provider_that_is_chosen_while_nodes_wait_ends_them() -> None:
    """The settings are read again by a restart: the new controller finds condition and cordon of the one before."""
    async with staged(*TEN, settings=the_settings(**NO_PROVIDER)) as stage:
        async with stage.settled(mortal=True):
            await lost_at(stage, "n0")
            await stage.until(lambda: hold(stage, "n0") == "ProviderNone" and is_cordoned(stage, "n0"))
        stage.settings = the_settings()
        async with stage.controller():
            await stage.until_gone("n0")
            assert [name for _, name in deletions(stage)] == ["n0"]
