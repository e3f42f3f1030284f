"""A response that says that an object is gone counts, however late the watch shows that."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.controllers.nodeclaims import ClaimSpec
from support.stage import SILENT, a_pod_manifest, reasons, staged

from gracectl.kube.cache.reflector import Reflector
from gracectl.model.envelope import WatchEvent


def hide(monkeypatch: pytest.MonkeyPatch, types: dict[str, set[str]]) -> None:
    """Events of these types, by kind, are not shown, as after crashes of the API server, until all is listed again."""
    take = Reflector._take

    def taken(self: Reflector[Any], event: WatchEvent[Any]) -> None:
        if event.type not in types.get(self.resource.kind, ()):
            take(self, event)

    monkeypatch.setattr(Reflector, "_take", taken)


@pytest.mark.parametrize("deleted", ["node", "claim"])
async def test_a_node_whose_finalizer_is_off_is_over_and_so_is_its_claim(
    monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    hide(monkeypatch, {"Node": {"DELETED"}, "NodeClaim": {"DELETED"}})
    async with staged("n1", claim=ClaimSpec(), kubelet=SILENT) as stage:
        async with stage.settled() as controller:
            start = await (stage.delete_node("n1") if deleted == "node" else stage.delete_claim("n1-claim"))
            assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.01)
            assert await stage.until_claims_gone("n1-claim") - start == pytest.approx(2.0, abs=0.01)
            await stage.settle(controller)
            assert (controller.under_way(), controller.claims_under_way()) == ((), ())
        assert "NodeTerminated" in await reasons(stage, "n1")


async def test_a_pod_that_an_eviction_does_not_find_holds_its_node_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, {"Pod": {"MODIFIED", "DELETED"}})
    async with staged("n1", objects=[a_pod_manifest("a", "n1")], kubelet=SILENT) as stage, stage.settled():
        await stage.call("DELETE", "/api/v1/namespaces/shop/pods/a", {"gracePeriodSeconds": 0})
        start = await stage.delete_node("n1")
        assert await stage.until_gone("n1") - start == pytest.approx(2.0, abs=0.01)
        assert len(stage.transport.of("create", "pods/eviction")) == 1


async def test_a_node_that_another_client_released_is_over_with_the_next_write(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, {"Node": {"DELETED"}})
    objects = [a_pod_manifest("a", "n1", behaviour={"stop-seconds": 20})]
    async with staged("n1", "n2", objects=objects, kubelet=SILENT) as stage, stage.settled() as controller:
        await stage.delete_node("n1")
        await stage.clock.sleep(1.0)
        await stage.patch_node("n1", {"metadata": {"finalizers": None}})
        assert stage.node("n1") is None
        await stage.clock.sleep(30.0)
        assert controller.under_way() == ()
