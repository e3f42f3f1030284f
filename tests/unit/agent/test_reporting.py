"""What people see of a shutdown: Events, the node's condition, metrics, probes, and one trace."""

from __future__ import annotations

import pytest
from kubesim.faults import Refuse, Rule
from support.shutdowns import STUBBORN, a_pod_of, an_agent, deletions
from support.stage import Stage, staged
from support.traces import Collector

from gracectl.agent.watch import WatchState
from gracectl.model import names
from gracectl.model.times import parse_time
from gracectl.telemetry.spans import Trace


async def told_of(stage: Stage, name: str) -> list[tuple[str, str]]:
    return [(reason, message) for object_, reason, message in await stage.events() if object_ == name]


async def test_events_tell_the_whole_story() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "stubborn", 0, grace=90, **STUBBORN)
        await a_pod_of(stage, "quick", 1_000, grace=30, behaviour={"stop-seconds": 5})
        await played.live()
        played.logind.shut_down()
        await stage.clock.sleep(80)
        events = await told_of(stage, "n1")
        assert [reason for reason, _ in events] == [
            "NodeShutdown", "NodeShutdown", "NodeShutdownOverdue", "NodeShutdown", "NodeShutdown",
        ]  # fmt: skip
        begun, first, overdue, second, over = (message for _, message in events)
        assert begun.startswith("shutting down: waiting for pods until 2026-")
        assert begun.endswith("(660 s) at the latest")
        assert first.startswith("priority below 1000: deleting 1 pod: shop/stubborn; until 2026-")
        assert overdue == (
            "priority below 1000: its period has expired; no longer waiting for 1 pod: shop/stubborn, left after 60 s"
        )
        assert second.startswith("priority 1000 to 9999: deleting 1 pod: shop/quick; until 2026-")
        assert over == "2 pods gone after 65 s; shutdown proceeds"
        ((reason, cut),) = await told_of(stage, "stubborn")
        assert reason == "DeletedForShutdown"
        assert cut.startswith(
            "deleted by gracectl with grace 60 s (requested: 90 s): node shutdown, range: the pods of priority below "
            "1000; waiting until 2026-"
        )
        ((_, whole),) = await told_of(stage, "quick")
        assert whole.startswith("deleted by gracectl with its full grace (30 s): node shutdown")


async def test_the_condition_of_the_node_says_how_it_stands_and_goes_with_the_shutdown() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
        await played.live()
        assert stage.condition("n1", names.SHUTTING_DOWN) is None
        played.logind.shut_down()
        await stage.clock.sleep(5)
        during = stage.condition("n1", names.SHUTTING_DOWN)
        assert during is not None
        assert (during["status"], during["reason"]) == ("True", "WaitingForPods")
        assert "deleting 1 pod: shop/a" in during["message"]
        await stage.clock.sleep(60)
        after = stage.condition("n1", names.SHUTTING_DOWN)
        assert after is not None
        assert (after["reason"], after["message"]) == ("PodsGone", "1 pod gone after 50 s; shutdown proceeds")
        assert after["lastTransitionTime"] == during["lastTransitionTime"]
        played.logind.call_off()
        await stage.clock.sleep(5)
        assert stage.condition("n1", names.SHUTTING_DOWN) is None


async def test_metrics_and_probes_say_whether_the_machine_would_wait() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        agent = played.agent.agent
        assert [check.is_ok for check in agent.readiness()] == [False]
        await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
        await played.live()
        assert (agent.statistics().is_locked, agent.statistics().granted, agent.statistics().wanted) == (True, 660, 660)
        assert all(check.is_ok for check in played.agent.process.readiness())
        played.logind.shut_down()
        await stage.clock.sleep(5)
        during = agent.statistics()
        assert during.began is not None
        assert during.ended is None
        assert during.waiting_pods == 1  # told, and not gone yet
        await stage.clock.sleep(60)
        after = agent.statistics()
        assert after.outcomes == {"finished": 1}
        assert after.waiting_pods == 0
        assert after.ended is not None
        assert after.ended - during.began == pytest.approx(50, abs=2)
        played.logind.call_off()
        assert agent.statistics().outcomes == {"finished": 1, "cancelled": 1}  # counters never fall


async def test_a_delay_that_is_too_short_is_an_event_and_no_machine_is_ready_with_it() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await played.live()
        problem = "logind grants 5 s and 660 s are wanted; raise InhibitDelayMaxSec in /etc/systemd/logind.conf"
        for _ in range(3):
            played.agent.agent.state_changed(WatchState(is_locked=True, delay=5, wanted=660, problem=problem))
        await stage.clock.sleep(10)
        assert await told_of(stage, "n1") == [("ShutdownDelayTooShort", problem)]
        assert [check.name for check in played.agent.process.readiness() if not check.is_ok] == ["logind"]


async def test_what_happens_before_the_node_is_known_is_told_when_it_is() -> None:
    async with staged("n1") as stage:
        stage.transport.is_listening = False
        async with an_agent(stage) as played:
            await stage.clock.sleep(5)
            played.agent.agent.state_changed(WatchState(is_locked=True, delay=5, wanted=660, problem="too short"))
            await stage.clock.sleep(5)
            stage.transport.is_listening = True
            await stage.clock.sleep(60)
            assert await told_of(stage, "n1") == [("ShutdownDelayTooShort", "too short")]


async def test_a_bus_that_is_started_anew_is_no_event_and_one_that_stays_away_is() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await played.live()
        away = WatchState(is_locked=True, delay=660, wanted=660, problem="the bus is away")
        played.agent.agent.state_changed(away)
        await stage.clock.sleep(3)
        played.logind.say()
        await stage.clock.sleep(30)
        assert await told_of(stage, "n1") == []
        assert played.agent.agent.statistics().is_locked
        played.agent.agent.state_changed(away)
        await stage.clock.sleep(30)
        assert await told_of(stage, "n1") == [("ShutdownUnwatched", "the bus is away")]
        assert not played.agent.agent.statistics().is_locked


async def test_no_range_loses_a_second_to_the_way_of_the_signal() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        for name, priority in (("a", 0), ("d", 100_000)):
            await a_pod_of(stage, name, priority, grace=400, **STUBBORN)
        await played.live()
        played.logind.most = 659.99
        start = played.logind.shut_down()
        await stage.clock.sleep(700)
        assert [grace for *_, grace in deletions(stage, start)] == [60, 300]


async def test_a_node_that_does_not_exist_is_told_of_once_and_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1") as stage, an_agent(stage, node="missing") as played:
        await stage.clock.sleep(30)
        assert [text for text in caplog.messages if "node missing" in text] == [
            "node missing: not found; set --node-name or $NODE_NAME to its name in the cluster"
        ]
        assert ("node", False) in [(check.name, check.is_ok) for check in played.agent.process.readiness()]
        await stage.add_nodes("missing")
        await stage.clock.sleep(30)
        assert all(check.is_ok for check in played.agent.process.readiness())


async def test_a_kubelet_that_does_the_same_is_told_of_once() -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await played.live()
        for _ in range(3):
            played.logind.say(kubelet=812)
        await stage.clock.sleep(5)
        ((reason, message),) = await told_of(stage, "n1")
        assert reason == "ShutdownHandledTwice"
        assert message.startswith("the kubelet (process 812) also terminates pods of this node at shutdown; disable")


async def test_a_shutdown_is_a_trace_of_its_own_with_ranges_and_pods() -> None:
    async with staged("n1") as stage:
        collector = Collector(stage)
        async with an_agent(stage, spans=collector.outlet()) as played:
            await a_pod_of(stage, "stubborn", 0, grace=90, **STUBBORN)
            await a_pod_of(stage, "quick", 1_000, grace=30, behaviour={"stop-seconds": 5})
            await played.live()
            played.logind.shut_down()
            await stage.clock.sleep(80)
        node = stage.node("n1")
        assert node is not None
        spans = {span.name: span for span in collector.exact}
        assert set(spans) == {
            "shut down node", "range priority below 1000", "range priority 1000 to 9999", "pod deleted",
            "pod left behind",
        }  # fmt: skip
        root = spans["shut down node"]
        assert root.parent is None
        assert root.trace == Trace.of(node["metadata"]["uid"], root.start)
        assert {span.parent for span in collector.exact if span.name.startswith("range")} == {root.id}
        assert "1 of 1 pods left" in spans["range priority below 1000"].error
        of_pods = {
            str(span.attributes["k8s.pod.name"]): span for span in collector.exact if span.name.startswith("pod")
        }
        assert of_pods["quick"].parent == spans["range priority 1000 to 9999"].id
        assert of_pods["quick"].attributes["gracectl.grace.granted_seconds"] == 30
        assert of_pods["stubborn"].attributes["gracectl.grace.granted_seconds"] == 60


async def test_a_pod_that_comes_late_has_its_span_as_well() -> None:
    async with staged("n1") as stage:
        collector = Collector(stage)
        async with an_agent(stage, spans=collector.outlet()) as played:
            await a_pod_of(stage, "early", 0, grace=40, **STUBBORN)
            await played.live()
            played.logind.shut_down()
            await stage.clock.sleep(10)
            await a_pod_of(stage, "late", 0, grace=5, **STUBBORN)
            await stage.clock.sleep(50)
        of_pods = {str(span.attributes["k8s.pod.name"]): span for span in collector.exact if span.name == "pod deleted"}
        assert of_pods.keys() == {"early", "late"}
        assert of_pods["late"].parent == of_pods["early"].parent


async def test_a_refusal_is_told_once_and_again_in_the_next_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    async with staged("n1") as stage, an_agent(stage) as played:
        await a_pod_of(stage, "a", 0, grace=40, **STUBBORN)
        await played.live()
        stage.transport.before.add(Rule(fault=Refuse(status=500), method="DELETE"))
        for times in (1, 2):
            played.logind.shut_down()
            await stage.clock.sleep(30)
            messages = [text for text in caplog.messages if "not deleted at shutdown" in text]
            assert len(messages) == times
            played.logind.call_off()
            await stage.clock.sleep(5)


async def test_a_shutdown_of_a_node_that_is_being_terminated_is_in_the_trace_of_that() -> None:
    async with staged("n1") as stage, stage.controller() as controller:
        await stage.settle(controller)
        collector = Collector(stage)
        async with an_agent(stage, spans=collector.outlet()) as played:
            await a_pod_of(stage, "a", 0, grace=50, **STUBBORN)
            await played.live()
            await stage.delete_node("n1")
            await stage.clock.sleep(3)
            node = stage.node("n1")
            assert node is not None
            played.logind.shut_down()
            await stage.clock.sleep(80)
        (whole,) = (span for span in collector.exact if span.name == "shut down node")
        trace = Trace.of(node["metadata"]["uid"], parse_time(node["metadata"]["deletionTimestamp"]))
        assert whole.trace == trace
        assert whole.parent == trace.root
        assert {span.trace for span in collector.exact} == {trace}
