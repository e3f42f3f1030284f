"""What keeps failing is told, once; what is undone is written again with patience, and does not stop a drain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.faults import Refuse, Rule
from support.deadlines import asked_to_end, delete_at_start, evictions, told, until, with_grace_period
from support.stage import STOPS_AFTER_5, Stage, a_budget_manifest, a_pod_manifest, a_workload, staged

from gracectl.controllers.termination.state import LASTING_SECONDS, Failures
from gracectl.model import names

pytestmark = pytest.mark.anyio

FORBIDDEN, FAILING = Refuse(403), Refuse(500)
LABEL, TAINT, UNSCHEDULABLE = "exclude-from-external-load-balancers", "taints", "unschedulable"


def node_patches(stage: Stage, name: str = "n1") -> list[float]:
    """When the node itself was patched."""
    path = f"/api/v1/nodes/{name}"
    return [e.instant - 100.0 for e in stage.transport.of("patch", "nodes") if e.request.path == path]


def test_a_failure_is_told_after_a_minute_once_for_each_cause() -> None:
    failures = Failures()
    told = [(at, cause) for at in range(0, 200, 20) for cause in ("a", "b") if failures.failed("step", cause, at)]
    assert told == [(60, "a"), (60, "b")]
    assert failures.lasts("step", 200)
    failures.succeeded("step")
    assert not failures.lasts("step", 200)
    assert not failures.failed("step", "a", 200)
    assert failures.failed("step", "a", 200 + LASTING_SECONDS)


async def test_an_eviction_that_fails_is_in_the_log_once_for_each_cause(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1", "n2") as stage:
        await stage.create(
            a_workload("Deployment", "web", 2),
            a_budget_manifest("web", maxUnavailable=1),
            {**a_budget_manifest("web", maxUnavailable=1), "metadata": {"name": "twin", "namespace": "shop"}},
            a_pod_manifest("refused", "n1"),
        )
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.transport.before.add(Rule(fault=FORBIDDEN, path="pods/refused/eviction"))
            await delete_at_start(stage, "n1")
            await until(stage, 300.0)
        warnings = [record for record in caplog.records if record.levelname == "WARNING" and hasattr(record, "pod")]
        assert Counter(record.pod.partition("-")[0] for record in warnings) == {"shop/refused": 1, "shop/web": 1}
        assert any("more than one PodDisruptionBudget selects this pod" in text for text in caplog.messages)


@pytest.mark.parametrize("path", ["/nodes/n1$", "/nodes/n1"], ids=["node", "node and its status"])
async def test_a_node_that_cannot_be_written_is_told_of(path: str) -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            stage.transport.before.add(rule := Rule(fault=FORBIDDEN, method="PATCH", path=path))
            await delete_at_start(stage, "n1")
            await until(stage, 55.0)
            assert await told(stage, "n1", "StepFailing") == []
            await until(stage, 600.0)
            (message,) = await told(stage, "n1", "StepFailing")
            assert message.startswith("step cordon failed: patch nodes n1: forbidden")
            drained = stage.condition("n1", names.DRAINED)
            if path.endswith("$"):
                assert drained is not None
                assert (drained["status"], drained["reason"]) == ("False", "StepFailing")
                assert drained["message"] == message
                (progress,) = controller.under_way()
                assert progress.waits_for == message
            stage.transport.before.remove(rule)
            await stage.until_gone("n1")


async def test_a_finalizer_that_cannot_be_taken_off_is_told_of() -> None:
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        await until(stage, -1.0)
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        await delete_at_start(stage, "n1")
        await until(stage, 2.0)
        stage.transport.before.add(rule := Rule(fault=FAILING, method="PATCH", path="/nodes/n1$"))
        await until(stage, 300.0)
        (message,) = await told(stage, "n1", "StepFailing")
        assert message.startswith("step finalizer failed")
        drained = stage.condition("n1", names.DRAINED)
        assert drained is not None
        assert drained["status"] == "True"
        stage.transport.before.remove(rule)
        await stage.until_gone("n1")


async def test_finalizers_that_cannot_be_put_on_are_told_of() -> None:
    async with staged() as stage:
        await stage.add_nodes("n1", claim=ClaimSpec())
        stage.transport.before.add(Rule(fault=FORBIDDEN, method="PATCH", path="/nodeclaims|/nodes/"))
        async with stage.controller() as controller:
            await controller.wait_live()
            await until(stage, 600.0)
            for name in ("n1", "n1-claim"):
                (message,) = await told(stage, name, "StepFailing")
                assert message.startswith("adding the finalizer failed: ")


# -- a cordon that is undone -------------------------------------------------------------------------------------------


def strip(stage: Stage, *words: str) -> Callable[[], None]:
    """A webhook that takes these parts of a cordon out of every write of ours; returns how it is taken away."""
    handle = stage.server.handle

    async def stripped(request: Any) -> Any:
        if request.method == "PATCH" and request.path.endswith("nodes/n1") and isinstance(request.body, bytes):
            operations = msgspec.json.decode(request.body)
            if isinstance(operations, list):
                left = [each for each in operations if not any(word in str(each["path"]) for word in words)]
                request = msgspec.structs.replace(request, body=msgspec.json.encode(left))
        return await handle(request)

    stage.server.handle = stripped  # type: ignore[method-assign]  # as a mutating webhook would

    def remove() -> None:
        stage.server.handle = handle  # type: ignore[method-assign]

    return remove


@pytest.mark.parametrize("stripped", [(LABEL,), (TAINT,), (LABEL, UNSCHEDULABLE)])
async def test_a_webhook_that_strips_a_part_of_the_cordon_does_not_stop_the_drain(stripped: tuple[str, ...]) -> None:
    async with staged("n1") as stage:
        protected = {names.DO_NOT_DISRUPT: "10m"}
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        await stage.create(a_pod_manifest("p", "n1", annotations=protected, **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            strip(stage, *stripped)
            await delete_at_start(stage, "n1")
            await until(stage, 60.0)
            assert [pod for pod, _ in evictions(stage)] == ["a"]
            (message,) = await told(stage, "n1", "CordonUndone")
            assert "removed by a webhook or another controller" in message
            assert message.endswith("and the drain continues")
            await stage.until_gone("n1")
            assert len(node_patches(stage)) < 40  # in ten minutes


async def test_a_webhook_that_strips_all_of_the_cordon_is_asked_with_patience_and_the_deadline_is_kept() -> None:
    async with staged("n1", settings=with_grace_period("10m")) as stage:
        await stage.create(a_pod_manifest("a", "n1", behaviour={"ignores-sigterm": "true"}))
        async with stage.controller() as controller:
            await stage.settle(controller)
            before = len(node_patches(stage))
            strip(stage, LABEL, TAINT, UNSCHEDULABLE)
            await delete_at_start(stage, "n1")
            await until(stage, 595.0)
            assert evictions(stage) == []
            # the deadline; then after 2, 4, ... ms, up to 60 s
            assert len(node_patches(stage)) - before <= 1 + 16 + 9 + 1
            (message,) = await told(stage, "n1", "CordonUndone")
            assert message.endswith("and no pod is evicted until the node takes no new ones")
            await stage.until_gone("n1")
            (asked,) = asked_to_end(stage)
            assert 600.0 <= asked <= 601.0


async def test_a_drain_goes_on_when_the_cordon_is_let_be() -> None:
    async with staged("n1") as stage:
        await stage.create(a_pod_manifest("a", "n1", **STOPS_AFTER_5))
        async with stage.controller() as controller:
            await stage.settle(controller)
            remove = strip(stage, LABEL, TAINT, UNSCHEDULABLE)
            await delete_at_start(stage, "n1")
            await until(stage, 30.0)
            assert evictions(stage) == []
            remove()
            await until(stage, 60.0)
            assert [pod for pod, _ in evictions(stage)] == ["a"]
            await stage.until_gone("n1")
