"""Two releases with different nodes: neither reports what the other one does, and each reports what no one does."""

from __future__ import annotations

from kubesim.controllers.nodeclaims import ClaimSpec
from support.stage import a_pod_manifest, reasons, staged, the_settings
from support.stories import gracectl_uncordon, is_at_rest, keep

from gracectl.config import Settings
from gracectl.model import names

SLOW = {"behaviour": {"stop-seconds": 50}, "terminationGracePeriodSeconds": 60}


def of_pool(pool: str) -> Settings:
    return the_settings(nodeSelector={"matchLabels": {"pool": pool}})


def silent(told: list[tuple[str, str, str]]) -> bool:
    silenced = ("UnmanagedNodeHeld", "UnmanagedNodeClaimHeld", "MaintenanceIgnored")
    return not [reason for _, reason, _ in told if reason in silenced]


async def test_a_release_is_silent_about_nodes_that_another_one_terminates() -> None:
    async with staged("a", labels={"pool": "a"}, claim=ClaimSpec(labels={"pool": "a"}), settings=of_pool("a")) as stage:
        await stage.create(a_pod_manifest("slow", "a", **SLOW))
        async with stage.settled() as first:
            stage.settings = of_pool("b")
            async with stage.controller() as second:
                await second.wait_live()
                await stage.delete_node("a")
                await stage.clock.sleep(40)
                assert (len(first.under_way()), second.under_way()) == (1, ())
                await stage.until_gone("a")
        assert silent(await stage.events())


async def test_a_release_is_silent_about_nodes_that_another_one_maintains() -> None:
    async with staged("a", labels={"pool": "a"}, settings=of_pool("a")) as stage:
        await stage.create(a_pod_manifest("slow", "a", **SLOW))
        async with stage.settled():
            stage.settings = of_pool("b")
            async with stage.controller() as second:
                await second.wait_live()
                await keep(stage, "a")
                await stage.until(lambda: is_at_rest(stage, "a"))
                await stage.clock.sleep(100)
                await gracectl_uncordon(stage, "a")
                await stage.clock.sleep(100)
        assert silent(await stage.events())


async def test_a_node_that_no_release_terminates_is_reported_after_twenty_seconds() -> None:
    async with staged("a", labels={"pool": "a"}, settings=of_pool("b")) as stage:
        await stage.patch_node("a", {"metadata": {"finalizers": [names.FINALIZER]}})
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.delete_node("a")
            await stage.clock.sleep(19.9)
            assert silent(await stage.events())
            await stage.clock.sleep(0.2)
            assert await reasons(stage, "a") == ["UnmanagedNodeHeld"]
            await stage.clock.sleep(1000)
            assert controller.statistics().events.recorded == 1
        (message,) = [message for _, _, message in await stage.events()]
        assert message == (
            "finalizer karpenter.sh/termination blocks this node, but it is not managed: nodeSelector does not match "
            "it; change nodeSelector or the node's labels; remove the finalizer by hand only if no other controller "
            "manages the node"
        )


async def test_a_maintenance_before_its_deletion_does_not_hide_a_node_that_no_release_terminates() -> None:
    async with staged("a", labels={"pool": "a"}, settings=of_pool("a")) as stage:
        async with stage.settled():
            await keep(stage, "a")
            await stage.until(lambda: is_at_rest(stage, "a"))
        stage.settings = of_pool("b")
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.delete_node("a")
            await stage.clock.sleep(21)
            assert "UnmanagedNodeHeld" in await reasons(stage, "a")


async def test_a_claim_that_no_release_terminates_is_reported_after_twenty_seconds() -> None:
    async with staged(settings=of_pool("b")) as stage:
        await stage.create_claim("held", labels={"pool": "a"})
        await stage.patch_claim("held", {"metadata": {"finalizers": [names.FINALIZER]}})
        async with stage.controller() as controller:
            await controller.wait_live()
            await stage.delete_claim("held")
            await stage.clock.sleep(19.9)
            assert silent(await stage.events())
            await stage.clock.sleep(0.2)
            assert await reasons(stage, "held") == ["UnmanagedNodeClaimHeld"]
