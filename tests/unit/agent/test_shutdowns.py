"""A whole agent on virtual time: from the signal of logind until the machine is let go, to the second."""

from __future__ import annotations

import pytest
from support.shutdowns import BY_KEP, STUBBORN, a_pod_of, an_agent, deletions
from support.stage import instants, reasons, staged, the_settings

from gracectl.config import ConfigError, Settings
from gracectl.model import names


async def test_the_example_of_the_kep_takes_eleven_minutes_if_every_pod_takes_all_it_gets() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        for name, priority in (("d", 200_000), ("c", 10_000), ("b", 1_500), ("a", 0)):
            await a_pod_of(stage, name, priority, grace=400, **STUBBORN)
        await played.live()
        start = played.logind.shut_down()
        await stage.clock.sleep(700)
        assert deletions(stage, start) == [("a", 0.0, 60), ("b", 60.0, 120), ("c", 180.0, 180), ("d", 360.0, 300)]
        assert played.logind.released_at == pytest.approx(start + 660, abs=1.5)
        assert not stage.pods_on("n1")


async def test_the_node_is_cordoned_before_the_first_pod_is_asked() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0)
        await played.live()
        start = played.logind.shut_down()
        await stage.clock.sleep(10)
        cordon = instants(stage, "patch", "nodes", start)
        assert cordon[-1] < deletions(stage, start)[0][1] + 0.05
        node = stage.node("n1")
        assert node is not None
        assert node["spec"]["unschedulable"]
        assert node["metadata"]["annotations"][names.SHUTDOWN_CORDONED] == "taint,label,unschedulable"


async def test_a_node_without_pods_is_let_go_at_once() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await played.live()
        start = played.logind.shut_down()
        await stage.clock.sleep(5)
        assert played.logind.released_at is not None
        assert played.logind.released_at - start < 1


async def test_the_machine_is_let_go_in_time_though_the_api_server_is_away_from_the_beginning() -> None:
    async with staged("n1") as stage, an_agent(stage, the_settings(shutdownGracePeriod="2m")) as played:
        await a_pod_of(stage, "a", 0, **STUBBORN)
        await played.live()
        stage.transport.is_listening = False
        start = played.logind.shut_down()
        await stage.clock.sleep(300)
        assert played.logind.released_at == pytest.approx(start + 120, abs=0.01)


async def test_a_shutdown_that_is_called_off_takes_no_further_pod_and_gives_the_node_back() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=60, **STUBBORN)
        await a_pod_of(stage, "b", 1_000)
        await played.live()
        start = played.logind.shut_down()
        await stage.clock.sleep(20)
        assert stage.condition("n1", names.SHUTTING_DOWN) is not None
        played.logind.call_off()
        await stage.clock.sleep(200)
        assert deletions(stage, start) == [("a", 0.0, 60)]
        assert played.logind.is_held
        node = stage.node("n1")
        assert node is not None
        assert "unschedulable" not in node["spec"]
        assert "taints" not in node["spec"]
        assert names.SHUTDOWN_CORDONED not in node["metadata"].get("annotations", {})
        assert names.EXCLUDE_FROM_LOAD_BALANCERS not in node["metadata"].get("labels", {})
        assert stage.condition("n1", names.SHUTTING_DOWN) is None
        assert "NodeShutdownCancelled" in await reasons(stage, "n1")


async def test_what_the_last_shutdown_has_left_on_a_node_comes_off_when_its_agent_is_back() -> None:
    async with staged("n1") as stage:
        await stage.patch_node("n1", {"spec": {"unschedulable": True}})  # a foreign cordon stays
        async with an_agent(stage) as played:
            await played.live()
            played.logind.shut_down()
            await stage.clock.sleep(10)
        assert stage.condition("n1", names.SHUTTING_DOWN) is not None
        async with an_agent(stage) as played:
            await played.live()
            await stage.clock.sleep(5)
            node = stage.node("n1")
            assert node is not None
            assert node["spec"] == {**node["spec"], "unschedulable": True}
            assert not node["spec"].get("taints") or all(
                taint["key"] != names.DISRUPTED_TAINT_KEY for taint in node["spec"]["taints"]
            )
            assert stage.condition("n1", names.SHUTTING_DOWN) is None


async def test_told_to_stop_in_the_middle_it_finishes_the_shutdown_first() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=30, **STUBBORN)
        await a_pod_of(stage, "b", 1_000, grace=30)
        await played.live()
        start = played.logind.shut_down()
        await stage.clock.sleep(5)
        played.stop.set()
        await stage.clock.sleep(100)
        assert [name for name, *_ in deletions(stage, start)] == ["a", "b"]
        assert played.logind.released_at is not None


async def test_other_settings_ask_for_another_delay_at_once_and_nonsense_changes_nothing() -> None:
    settings: list[Settings | ConfigError] = [the_settings(**BY_KEP)]

    def reread() -> Settings:
        newest = settings[-1]
        if isinstance(newest, ConfigError):
            raise newest
        return newest

    async with staged("n1") as stage, an_agent(stage, reread=reread) as played:
        await played.live()
        settings.append(the_settings(shutdownGracePeriod="90s"))
        await stage.clock.sleep(6)
        assert [seconds for seconds, _ in played.logind.wanted] == [660, 90]
        settings.append(ConfigError("settings file x: nonsense"))
        await stage.clock.sleep(20)
        assert played.logind.is_held
        assert [seconds for seconds, _ in played.logind.wanted] == [660, 90]
