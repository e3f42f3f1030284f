"""Shutdowns that cross what is still under way: a write that hangs, a view that is old, a signal just now."""

from __future__ import annotations

from kubesim.faults import LateWatch, Partition, Reset, Rule
from support.shutdowns import STUBBORN, a_pod_of, an_agent, deletions
from support.stage import Stage, staged, the_settings
from support.virtual import ShiftedClock

from gracectl.agent.watch import WatchState
from gracectl.model import names

NOBODY_ANSWERS_PATCHES = Rule(fault=Partition(), method="PATCH", path="/nodes/n1$")


def is_cordoned(stage: Stage) -> bool:
    node = stage.node("n1")
    assert node is not None
    return bool(node["spec"].get("unschedulable")) and names.SHUTDOWN_CORDONED in node["metadata"]["annotations"]


def is_as_before(stage: Stage) -> bool:
    node = stage.node("n1")
    assert node is not None
    return not (
        node["spec"].get("unschedulable")
        or node["spec"].get("taints")
        or names.SHUTDOWN_CORDONED in node["metadata"].get("annotations", {})
        or names.EXCLUDE_FROM_LOAD_BALANCERS in node["metadata"].get("labels", {})
    )


async def test_a_shutdown_that_is_called_off_while_its_last_words_are_written_is_counted_once() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await played.live()
        stage.transport.before.add(Rule(fault=Partition(), method="POST", path="/events"))
        played.logind.shut_down()
        await stage.clock.sleep(1.5)
        assert played.logind.released_at is None  # Events wait to be written
        played.logind.call_off()
        await stage.clock.sleep(5)
        assert played.agent.agent.statistics().outcomes == {"finished": 1, "cancelled": 1}


async def test_a_write_that_hangs_while_the_node_is_given_back_does_not_hold_up_the_next_shutdown() -> None:
    async with staged("n1") as stage, an_agent(stage, the_settings(shutdownGracePeriod="20s")) as played:
        await a_pod_of(stage, "a", 0, grace=15, **STUBBORN)
        await played.live()
        played.logind.shut_down()
        await stage.clock.sleep(3)
        stage.transport.before.add(NOBODY_ANSWERS_PATCHES)
        played.logind.call_off()
        await stage.clock.sleep(1)
        await a_pod_of(stage, "b", 0, grace=15, **STUBBORN)
        start = played.logind.shut_down()
        await stage.clock.sleep(60)
        assert [(name, grace) for name, at, grace in deletions(stage, start) if at < 2] == [("b", 15)]
        assert played.logind.released_at is not None
        assert played.logind.released_at - start < 20.1


async def test_a_second_shutdown_cordons_what_the_first_one_has_given_back_though_the_view_is_old() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
        await played.live()
        played.logind.shut_down()
        await stage.clock.sleep(5)
        stage.transport.before.add(Rule(fault=LateWatch(2.0, 2.0), path="/nodes$"))
        await stage.clock.sleep(5)
        played.logind.call_off()
        await stage.clock.sleep(0.3)
        assert is_as_before(stage)
        played.logind.shut_down()
        await stage.clock.sleep(10)
        assert is_cordoned(stage)
        played.logind.call_off()
        await stage.clock.sleep(60)
        assert is_as_before(stage)


async def test_nothing_says_that_a_machine_shuts_down_which_does_not_after_all() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
        await played.live()
        stage.transport.before.add(Rule(fault=Reset(), method="PATCH", path="/nodes/n1/status"))
        played.logind.shut_down()
        await stage.clock.sleep(5)
        played.logind.call_off()
        off = stage.clock.monotonic()
        stage.transport.before.clear()
        await stage.clock.sleep(60)
        written = [each for each in stage.transport.of("patch", "nodes/status") if each.instant >= off]
        assert not any(b"WaitingForPods" in (each.request.body or b"") for each in written)
        assert stage.condition("n1", names.SHUTTING_DOWN) is None


async def test_a_node_that_takes_the_place_of_ours_in_mid_shutdown_is_cordoned_too() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
        await played.live()
        stage.transport.before.add(Rule(fault=LateWatch(3.0, 3.0), path="/nodes$"))
        await stage.patch_node("n1", {"metadata": {"annotations": {"a": "b"}}})
        await stage.clock.sleep(5)
        node = stage.node("n1")
        assert node is not None
        await stage.call("DELETE", "/api/v1/nodes/n1")
        metadata = {"name": "n1", "labels": node["metadata"]["labels"]}
        await stage.call("POST", "/api/v1/nodes", {"metadata": metadata, "spec": {}})
        played.logind.shut_down()
        await stage.clock.sleep(20)
        assert is_cordoned(stage)


async def test_settings_without_an_order_in_mid_shutdown_leave_nothing_on_the_node() -> None:
    settings = [the_settings(shutdownGracePeriod="100s")]
    async with staged("n1") as stage, an_agent(stage, settings[0], reread=lambda: settings[-1]) as played:
        await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
        await played.live()
        played.logind.shut_down()
        await stage.clock.sleep(5)
        settings.append(the_settings())
        await stage.clock.sleep(10)
        played.logind.call_off()
        await stage.clock.sleep(30)
        assert played.has_ended
        assert is_as_before(stage)
        assert stage.condition("n1", names.SHUTTING_DOWN) is None


async def test_a_write_of_a_shutdown_that_is_called_off_does_not_hold_up_the_next_one() -> None:
    async with staged("n1") as stage, an_agent(stage, the_settings(shutdownGracePeriod="8s")) as played:
        await a_pod_of(stage, "a", 0, grace=5, **STUBBORN)
        await played.live()
        stage.transport.before.add(NOBODY_ANSWERS_PATCHES)
        played.logind.shut_down()
        await stage.clock.sleep(0.5)
        played.logind.call_off()
        await stage.clock.sleep(0.1)
        start = played.logind.shut_down()
        await stage.clock.sleep(60)
        assert [(name, grace) for name, at, grace in deletions(stage, start) if at < 2] == [("a", 5)]
        assert played.logind.released_at is not None
        assert played.logind.released_at - start < 8.1


async def test_what_waits_for_a_node_that_never_comes_is_told_once_and_kept_once() -> None:
    async with staged("n1") as stage, an_agent(stage, node="late") as played:
        for _ in range(50):
            played.agent.agent.state_changed(WatchState(is_locked=True, delay=5, wanted=660, problem="too short"))
            await stage.clock.sleep(10)
            played.logind.say()
        await stage.add_nodes("late")
        await stage.clock.sleep(10)
        listed = (await stage.call("GET", "/api/v1/events"))["items"]
        messages = [(each["message"], each["count"]) for each in listed if each["involvedObject"]["name"] == "late"]
        assert messages == [("too short", 1)]


async def test_how_long_a_shutdown_took_is_told_by_a_clock_that_does_not_jump() -> None:
    async with staged("n1") as stage:
        clock = ShiftedClock(stage.clock)
        stage.clock = clock  # type: ignore[assignment]  # as its agents have it
        async with an_agent(stage) as played:
            await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
            await played.live()
            played.logind.shut_down()
            await stage.clock.sleep(10)
            clock.offset = -3600
            played.logind.call_off()
            await stage.clock.sleep(5)
        messages = [message for _, reason, message in await stage.events() if reason == "NodeShutdownCancelled"]
        assert [message.partition(":")[0] for message in messages] == ["shutdown cancelled after 10 s"]
