"""Voluntary terminations that are held back: the condition and the metrics say why, and no longer than that is so."""

from __future__ import annotations

import pytest
from support.metrics import figures
from support.stage import Stage, staged
from support.voluntary import NOT_TERMINABLE, TERMINABLE, deletions, instant_of, lost_at, refusing

from gracectl.app.controller import Controller
from gracectl.model import names

pytestmark = pytest.mark.anyio

TEN = tuple(f"n{n}" for n in range(10))
METRICS = ("voluntary_terminations_pending", "unhealthy_nodes", "health_circuit_breaker_open")


def hold(stage: Stage, node: str) -> str | None:
    """The reason of its condition."""
    found: str | None = (stage.condition(node, names.TERMINATION_PENDING) or {}).get("reason")
    return found


def counted(controller: Controller) -> dict[tuple[str, ...], float]:
    return figures(controller, *METRICS)


async def test_the_circuit_breaker_holds_nodes_from_the_instant_in_which_they_are_due() -> None:
    async with staged(*TEN) as stage, stage.controller() as controller:
        await stage.settle(controller)
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
                "terminated when fewer nodes are unhealthy, or when you delete it"
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
    async with staged(*TEN) as stage, stage.controller() as controller:
        await stage.settle(controller)
        for node in TEN[:3]:
            await lost_at(stage, node)
        await stage.until(lambda: hold(stage, "n0") == "CircuitBreaker")
        await stage.patch_node("n0", TERMINABLE)
        at = stage.clock.monotonic()
        await stage.until_gone("n0")
        assert deletions(stage) == [(at, "n0")]


async def test_a_refused_deletion_is_pending_until_it_is_accepted() -> None:
    async with staged("n0", "n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
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


async def test_what_is_due_no_more_is_pending_no_more() -> None:
    async with staged("n0", "n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        async with refusing(stage, "/api/v1/nodes/n0"):
            await stage.patch_node("n0", TERMINABLE)
            await stage.until(lambda: hold(stage, "n0") == "DeletionRefused")
            await stage.patch_node("n0", NOT_TERMINABLE)
            await stage.clock.sleep(0.1)
            assert hold(stage, "n0") is None
            assert counted(controller) == {}
