"""Traces that a sampler does not want leave no trace: nothing is written onto the objects."""

from __future__ import annotations

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from support.stage import a_pod_manifest, staged
from support.traces import Collector

from gracectl.model import names

pytestmark = pytest.mark.anyio


async def test_of_a_node_and_its_claim() -> None:
    async with staged() as stage:
        collector = Collector(stage, wanted=False)
        await stage.add_nodes("n1", claim=ClaimSpec())
        await stage.create(a_pod_manifest("a", "n1"))
        async with stage.controller() as controller:
            await stage.settle(controller)
            await stage.delete_claim("n1-claim")
            await stage.until_gone("n1")
            await stage.until_claims_gone("n1-claim")
    written = [each.request.body or b"" for each in stage.transport.executed if each.operation.verb == "patch"]
    assert any(b"finalizers" in body for body in written)
    assert not any(names.TRACEPARENT.encode() in body for body in written)
    assert collector.spans == []
