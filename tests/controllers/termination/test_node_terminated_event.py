"""The last Event of a node: that its termination is over, how long it took, and what became of its pods."""

from __future__ import annotations

from support.stage import Stage, a_pod_manifest, staged, the_settings

from gracectl.model import names


async def last_event(stage: Stage, node: str) -> str:
    await stage.clock.sleep(1)
    *_, (reason, message) = [(reason, message) for name, reason, message in await stage.events() if name == node]
    assert reason == "NodeTerminated"
    return message


async def test_a_node_that_is_gone_has_an_event_that_says_so() -> None:
    objects = [*(a_pod_manifest(f"web-{each}", "n1", behaviour={"stop-seconds": 5}) for each in range(3))]
    async with staged("n1", "n2", objects=objects) as stage, stage.settled():
        await stage.delete_node("n1")
        await stage.until_gone("n1")
        assert await last_event(stage, "n1") == "removed 5s after the request: pods: 3 evicted"
        await stage.delete_node("n2")
        await stage.until_gone("n2")
        assert (await last_event(stage, "n2")).endswith("s after the request: pods: none had to leave")


async def test_it_counts_pods_that_were_deleted_and_pods_that_were_left() -> None:
    settings = the_settings(nodeGroups=[{"selector": {}, "terminationGracePeriod": "60s"}])
    async with staged("n1", settings=settings) as stage:
        protected = {names.DO_NOT_DISRUPT: "true"}
        await stage.create(
            a_pod_manifest("polite", "n1", annotations=protected),
            a_pod_manifest("other", "n1", annotations=protected),
        )
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.until_gone("n1")
            assert "2 deleted for the deadline" in await last_event(stage, "n1")


async def test_a_finalizer_that_another_client_removes_is_a_warning() -> None:
    async with staged("n1", objects=[a_pod_manifest("job", "n1", annotations={names.DO_NOT_DISRUPT: "true"})]) as stage:
        async with stage.settled():
            await stage.delete_node("n1")
            await stage.clock.sleep(90)
            await stage.patch_node("n1", {"metadata": {"finalizers": None}})
            await stage.until_gone("n1")
            message = await last_event(stage, "n1")
        assert message == (
            "removed by another client before its termination was complete, 1m30s after the request: pods: 1 still "
            "there"
        )
