"""The evictor over a server that answers as told: lanes, the crowd, and who is asked when, on virtual time."""

from __future__ import annotations

import msgspec
import pytest
from support.builders import NOW, a_budget, a_pod
from support.eviction import PROCESSING, TWO_BUDGETS, EvictionStage, busy, evicting, loose, web

from gracectl.model.selectors import LabelSelector


async def test_a_lane_asks_once_per_freed_disruption_at_the_instant_it_is_freed() -> None:
    async with evicting(seconds=0.02) as stage:
        pods = web(3)
        stage.show(a_budget(), *pods)
        stage.set_pods("n1", pods[0], pods[2])
        stage.set_pods("n2", pods[1])  # one lane over all nodes
        for number, pod in enumerate(pods):
            await stage.clock.sleep(0.5)
            stage.show(a_budget(disruptions_allowed=0, disrupted_pods={pod.name: NOW}))
            stage.show_terminating(pod.name)
            await stage.clock.sleep(0.5)
            assert stage.server.asked[number:] == [(float(number), pod.name)]
            stage.show(a_budget())
        assert stage.evictor.statistics().results == {"Evicted": 3}


async def test_the_crowd_is_bounded_by_max_in_flight() -> None:
    async with evicting(seconds=0.9, max_in_flight=10, qps=0) as stage:
        pods = loose(35)
        stage.show(*pods)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(3.5)
        assert stage.server.most_in_flight == 10
        per_second = [sum(instant == second for instant, _ in stage.server.asked) for second in (0.0, 0.9, 1.8, 2.7)]
        assert per_second == [10, 10, 10, 5]


async def test_the_crowd_is_bounded_by_qps_and_burst() -> None:
    async with evicting(qps=10, burst=5) as stage:
        pods = loose(15)
        stage.show(*pods)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(2.0)
        instants = [instant for instant, _ in stage.server.asked]
        assert instants == pytest.approx([0.0] * 5 + [n / 10 for n in range(1, 11)])


async def test_a_storm_of_unbudgeted_pods_does_not_delay_a_lane() -> None:
    async with evicting(seconds=0.5, max_in_flight=5, qps=1, burst=5) as stage:
        storm = loose(200)
        stage.show(*storm)
        stage.set_pods("n1", *storm)
        await stage.clock.sleep(10.1)
        pod = web(1)[0]
        stage.show(a_budget(), pod)
        stage.set_pods("n2", pod)
        await stage.clock.sleep(0.001)
        assert stage.server.instants_of("web-1") == [10.1]


async def test_lanes_are_not_counted_by_the_limit_of_the_crowd() -> None:
    async with evicting(qps=1, burst=1) as stage:
        names = [f"app{n}" for n in range(20)]
        pods = [a_pod(f"{name}-1", labels={"app": name}) for name in names]
        stage.show(*(a_budget(name, selector=LabelSelector({"app": name})) for name in names), *pods)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.001)
        assert [instant for instant, _ in stage.server.asked] == [0.0] * 20


async def test_withdrawn_pods_are_not_asked_for_and_their_lane_is_forgotten() -> None:
    async with evicting() as stage:
        stage.show(a_budget(disruptions_allowed=0), *web(2))
        stage.set_pods("n1", *web(2))
        stage.evictor.remove_node("n1")
        assert (stage.evictor.statistics().waiting, stage.evictor.statistics().pdb_queues) == (0, 0)
        stage.show(a_budget())
        await stage.clock.sleep(120)
        assert stage.server.asked == []


async def test_a_pod_withdrawn_while_it_waits_for_a_token_is_not_evicted() -> None:
    async with evicting(qps=1, burst=1) as stage:
        pods = loose(3)
        stage.show(*pods)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.5)
        stage.set_pods("n1")  # all of them are protected now
        await stage.clock.sleep(10)
        assert stage.server.asked == [(0.0, "job-0")]


async def test_a_namesake_under_another_uid_is_never_asked_for_in_place_of_the_pod() -> None:
    async with evicting() as stage:
        pod = a_pod("db-0", labels={"app": "web"})
        stage.show(a_budget(disruptions_allowed=0), pod)
        stage.set_pods("n1", pod)
        await stage.clock.sleep(1)
        stage.show(msgspec.structs.replace(pod, uid="reborn", node_name="n2"))
        stage.show(a_budget())
        await stage.clock.sleep(120)
        assert stage.server.asked == []


async def test_an_agreed_pod_is_not_asked_for_again_when_a_stale_plan_offers_it() -> None:
    async with evicting() as stage:
        pods = loose(1)
        stage.show(*pods)
        stage.set_pods("n1", *pods)
        for _ in range(3):
            await stage.clock.sleep(1)
            stage.set_pods("n1", *pods)  # the watch has not shown the eviction yet
        assert stage.server.asked == [(0.0, "job-0")]
        stage.show_terminating("job-0")
        stage.pods.remove(("shop", "job-0"))
        stage.show(msgspec.structs.replace(pods[0], uid="reborn"))
        stage.set_pods("n1", msgspec.structs.replace(pods[0], uid="reborn"))
        await stage.clock.sleep(1)
        assert stage.server.asked == [(0.0, "job-0"), (3.0, "job-0")]


async def test_a_budget_that_appears_moves_its_pods_into_a_lane() -> None:
    async with evicting() as stage:
        pods = web(2)
        stage.show(*pods)
        stage.server.answers["web-1"].append(PROCESSING)
        stage.server.answers["web-2"].append(PROCESSING)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.01)
        stage.show(a_budget())
        stage.set_pods("n1", *pods)  # the node is looked at again, because a budget selects other pods
        await stage.clock.sleep(1)
        assert stage.server.asked[2:] == [(0.01, "web-1")]
        assert stage.evictor.statistics().pdb_queues == 1


async def test_a_budget_that_loses_its_pods_frees_them() -> None:
    async with evicting() as stage:
        pods = web(2)
        stage.show(a_budget(disruptions_allowed=0), *pods)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(1)
        stage.show(a_budget(selector=LabelSelector({"app": "nothing"}), disruptions_allowed=0))
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(1)
        assert sorted(stage.server.asked) == [(1.0, "web-1"), (1.0, "web-2")]


async def test_a_pod_that_changes_lanes_while_its_answer_is_out_is_asked_for_once() -> None:
    async with evicting(seconds=1.0) as stage:
        pods = web(1)
        stage.show(*pods)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.5)
        stage.show(a_budget())
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(30)
        assert stage.server.asked == [(0.0, "web-1")]
        assert stage.evictor.statistics().waiting == 0


async def test_a_pod_that_changes_lanes_and_is_refused_is_asked_for_in_its_new_lane_at_once() -> None:
    async with evicting(seconds=1.0) as stage:
        pods = web(1)
        stage.show(*pods)
        stage.server.answers["web-1"].append(PROCESSING)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.5)
        stage.show(a_budget())
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(30)
        assert stage.server.asked == [(0.0, "web-1"), (1.0, "web-1")]


async def test_a_lane_whose_last_pod_leaves_while_its_answer_is_out_remembers_the_cost() -> None:
    """The pod's event overtakes the answer, and a second node's pod joins: the disruption is taken already."""
    async with evicting(seconds=1.0) as stage:
        pods = web(2)
        stage.show(a_budget(), *pods)
        stage.set_pods("n1", pods[0])
        await stage.clock.sleep(0.2)
        stage.show_terminating("web-1")
        await stage.clock.sleep(0.2)
        stage.set_pods("n2", pods[1])
        await stage.clock.sleep(1.0)
        assert stage.server.names == ["web-1"]
        stage.show(a_budget(disruptions_allowed=0, disrupted_pods={"web-1": NOW}))
        stage.show(a_budget(disruptions_allowed=0))
        await stage.clock.sleep(1.0)
        stage.show(a_budget())
        await stage.clock.sleep(0.1)
        assert stage.server.asked[1:] == [(2.4, "web-2")]


async def test_nothing_is_asked_before_it_runs() -> None:
    stage = EvictionStage()
    stage.show(*loose(1))
    stage.set_pods("n1", *loose(1))
    await stage.clock.sleep(5)
    assert stage.server.asked == []


async def test_an_eviction_names_the_uid_that_is_meant() -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(1), *loose(1))
        stage.set_pods("n1", *web(1), *loose(1))
        await stage.clock.sleep(0.1)
        assert sorted(stage.server.uids) == ["uid-job-0", "uid-web-1"]


async def test_the_end_of_an_evicted_pod_wakes_its_queue() -> None:
    """Its budget does not change: the pod had just become unready, and cost nothing."""
    async with evicting() as stage:
        stage.show(a_budget(), *web(2))
        stage.set_pods("n1", *web(2))
        await stage.clock.sleep(5)
        assert stage.server.asked == [(0.0, "web-1")]
        stage.show_terminating("web-1")
        await stage.clock.sleep(0.1)
        assert stage.server.asked[1:] == [(5.0, "web-2")]


async def test_a_pod_that_ends_before_the_response_is_decided_about_once() -> None:
    async with evicting(seconds=0.2) as stage:
        pods = loose(20)
        stage.show(*pods)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.1)
        stage.show_terminating(*(pod.name for pod in pods))
        await stage.clock.sleep(1)
        assert stage.evictor.statistics().results == {"Evicted": 20}
        assert stage.evictor.queues()["evictions-unbudgeted"].handed_out == 20


async def test_what_becomes_of_an_evicted_pod_is_no_news_once_its_cost_is_known() -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(2))
        stage.set_pods("n1", *web(2))
        await stage.clock.sleep(1)
        stage.show(a_budget(disruptions_allowed=0, disrupted_pods={"web-1": NOW}))
        stage.show_terminating("web-1")
        await stage.clock.sleep(1)
        decided = stage.evictor.queues()["evictions-budgeted"].handed_out
        leaving = stage.pods.get("shop", "web-1")
        assert leaving is not None
        stage.show(msgspec.structs.replace(leaving, ready=False))
        await stage.clock.sleep(1)
        stage.pods.remove(("shop", "web-1"))
        await stage.clock.sleep(1)
        assert stage.evictor.queues()["evictions-budgeted"].handed_out == decided
        stage.show(a_budget())
        await stage.clock.sleep(1)
        assert stage.server.asked[1:] == [(4.0, "web-2")]


async def test_an_eviction_that_waits_behind_a_busy_server_is_not_sent_once_its_pod_has_left_the_queue() -> None:
    async with evicting(seconds=1.0) as stage:
        first, second = loose(2)
        stage.show(first, second)
        stage.server.answers["job-0"].append(busy(5))
        stage.set_pods("n1", first)
        await stage.clock.sleep(1.5)
        stage.set_pods("n1", second)  # its request waits until 6 s
        await stage.clock.sleep(1.5)
        stage.set_pods("n1")
        await stage.clock.sleep(10)
        assert stage.server.names == ["job-0"]


async def test_a_change_of_one_of_two_budgets_wakes_their_common_queue() -> None:
    async with evicting() as stage:
        budgets = a_budget(), a_budget("also")
        stage.show(*budgets, *web(1))
        stage.server.answers["web-1"].append(TWO_BUDGETS)
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(5)
        stage.show(budgets[1])
        await stage.clock.sleep(0.1)
        assert stage.server.instants_of("web-1") == [0.0, 5.0]
