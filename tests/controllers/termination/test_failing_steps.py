"""Steps that keep failing: reported once for each cause, after a minute."""

from __future__ import annotations

from collections import Counter

import pytest
from kubesim.faults import Refuse, Rule
from support.stage import STOPS_AFTER_5, a_budget_manifest, a_pod_manifest, a_workload, staged
from support.stories import delete_at_start, told, until

from gracectl.controllers.termination.state import LASTING_SECONDS, Failures
from gracectl.model import names

FORBIDDEN = Refuse(403)


def test_a_failure_is_told_after_a_minute_once_for_each_cause() -> None:
    failures = Failures()
    reported = [(at, cause) for at in range(0, 200, 20) for cause in ("a", "b") if failures.failed("step", cause, at)]
    assert reported == [(60, "a"), (60, "b")]
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
        async with stage.settled():
            stage.transport.before.add(Rule(fault=FORBIDDEN, path="pods/refused/eviction"))
            await delete_at_start(stage, "n1")
            await until(stage, 300.0)
        warnings = [record for record in caplog.records if record.levelname == "WARNING" and hasattr(record, "pod")]
        assert Counter(record.pod.partition("-")[0] for record in warnings) == {"shop/refused": 1, "shop/web": 1}
        assert any("more than one PodDisruptionBudget selects this pod" in text for text in caplog.messages)


@pytest.mark.parametrize("path", ["/nodes/n1$", "/nodes/n1"], ids=["node", "node and its status"])
async def test_a_node_that_cannot_be_written_is_told_of(path: str) -> None:
    objects = [a_pod_manifest("a", "n1", **STOPS_AFTER_5)]
    async with staged("n1", objects=objects) as stage, stage.settled() as controller:
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
