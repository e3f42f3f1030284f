"""Deletions: which pods, at which instant and with how much grace; against the responses of an embedded server."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import msgspec
import pytest
from kubesim.faults import Latency, Rule
from support.builders import a_pod
from support.eviction import LOST, NAMESPACE, REFUSED, deleting

from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.kube.transport import Response
from gracectl.runtime.supervise import while_running


async def test_each_pod_is_deleted_its_own_grace_before_the_deadline() -> None:
    async with deleting() as stage:
        await stage.add(slow=600, web=30, one=1, none=0)
        stage.set_pods(900)
        await stage.until(899.9)
        assert stage.asked == [(300, "slow", 600), (870, "web", 30), (899, "one", 1)]
        await stage.until(1000)
        # At the deadline a pod that is still there gets a second; a grace of 0 would let go of the name too early.
        assert sorted(stage.asked[3:]) == [(900, "none", 1), (900, "slow", 1), (900, "web", 1)]


async def test_a_deletion_names_the_uid_that_is_meant() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.set_pods(100)
        await stage.until(100)
        pod = stage.pods.get(NAMESPACE, "web")
        assert pod is not None
        assert set(stage.wire.uids) == {pod.uid}


@pytest.mark.parametrize(("grace", "instant", "granted"), [(None, 70, 30), (-5, 99, 1), (0, 100, 1)])
async def test_a_pod_that_names_no_sensible_grace(grace: int | None, instant: float, granted: int) -> None:
    # A server fills these in, but its older objects may have them.
    async with deleting() as stage:
        await stage.add(odd=30)
        odd = stage.pods.get(NAMESPACE, "odd")
        assert odd is not None
        stage.wire.patch_refusal = REFUSED  # else the watch would show the pod as the server has it
        stage.pods.put(msgspec.structs.replace(odd, grace_seconds=grace, resource_version="cached"))
        stage.set_pods(100)
        await stage.until(100)
        assert stage.asked[0] == (instant, "odd", granted)


async def test_the_owner_is_told_what_is_asked_for_and_what_is_granted() -> None:
    async with deleting() as stage:
        await stage.add(web=30, slow=600)
        await stage.delete("slow")
        await stage.touch("slow")
        await stage.until(1)
        stage.set_pods(60)
        await stage.until(61)
        reported = [
            (d.pod.name, d.before and d.before.grace, d.granted, d.requested, d.late) for d in stage.ears.deletions
        ]
        assert reported == [
            ("slow", 600, 59, 600, 0), ("web", None, 30, 30, 0), ("slow", 59, 1, 600, 0), ("web", 30, 1, 30, 0),
        ]  # fmt: skip
        assert stage.ears.refusals == []


async def test_a_scheduled_pod_that_begins_to_terminate_is_judged_anew() -> None:
    async with deleting() as stage:
        await stage.add(slow=600, quick=600)
        stage.set_pods(1000)
        await stage.until(390)
        await stage.delete("quick", 20)
        await stage.delete("slow", 700)  # by hand
        await stage.until(999)
        # Within the deadline is well; beyond it, as much as is left.
        assert stage.asked == [(390, "slow", 610)]
        await stage.until(1001)
        assert sorted(stage.asked[1:]) == [(1000, "quick", 1), (1000, "slow", 1)]


async def test_a_pod_that_ends_before_its_time_is_not_asked_for() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.set_pods(100)
        await stage.until(50)
        await stage.delete("web", 0)
        await stage.until(200)
        assert stage.asked == []
        assert stage.deleter.statistics().armed == 0


async def test_a_namesake_is_another_pod() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        deletion = stage.deletion("web", 100)
        await stage.delete("web", 0)
        await stage.add(web=30)
        await stage.until(1)
        stage.deleter.set_pods("n1", [deletion])
        await stage.until(200)
        assert stage.asked == []


async def test_wanting_the_same_again_changes_nothing() -> None:
    async with deleting() as stage:
        await stage.add(web=30, slow=50)
        for second in range(100):
            await stage.until(second)
            stage.set_pods(100)
        assert stage.asked == [(50, "slow", 50), (70, "web", 30)]
        assert stage.deleter.statistics().wheel.armed == 4  # each once for its time, once for the deadline


async def test_a_pod_that_leaves_the_set_is_not_deleted() -> None:
    async with deleting() as stage:
        await stage.add(a=30, b=30, c=30)
        stage.set_pods(100)
        await stage.until(60)
        stage.set_pods(100, "a", "b")
        await stage.until(69.99)
        stage.set_pods(100, "b")
        await stage.until(80)
        assert stage.asked == [(70, "b", 30)]
        stage.deleter.remove_node("n1")
        await stage.until(200)
        assert len(stage.asked) == 1
        assert stage.deleter.statistics().scheduled == 0


async def test_nodes_do_not_meddle_with_each_other() -> None:
    async with deleting() as stage:
        await stage.add(a=30, b=30)
        stage.set_pods(100, "a")
        stage.set_pods(200, "b", node="n2")
        stage.set_pods(100, "a")
        stage.deleter.remove_node("n1")
        stage.deleter.remove_node("n3")
        await stage.until(180)
        assert stage.asked == [(170, "b", 30)]


async def test_a_new_process_repeats_nothing() -> None:
    async with deleting() as stage:
        await stage.add(slow=600, web=30)
        stage.set_pods(610)
        await stage.until(20)
        assert [each.name for each in stage.asked] == ["slow"]
        heir = stage.another()
        async with while_running(heir.run):
            heir.set_pods("n1", [stage.deletion("slow", 610), stage.deletion("web", 610)])
            stage.deleter.remove_node("n1")
            await stage.until(609)
            assert stage.asked[1:] == [(580, "web", 30)]


@pytest.mark.parametrize(("first", "expected"), [(30, []), (200, [(82.5, "web", 18)])])
async def test_a_new_process_reads_pods_possibly_deleted(first: int, expected: list[tuple[float, str, int]]) -> None:
    """Its watch lags: a second DELETE, with the seconds that are left, would cut the grace that the first one gave."""
    async with deleting() as stage:
        await stage.add(web=200)
        stage.let_the_watch_lag(1000)
        await stage.until(70)
        await stage.delete("web", first)
        await stage.until(82.5)
        heir = stage.another()
        heir.set_pods("n1", [stage.deletion("web", 100)])
        async with while_running(heir.run):
            await stage.until(99)
        assert stage.wire.looked_at == [(82.5, "web")]
        assert stage.asked == expected


async def test_a_new_process_that_cannot_read_a_pod_tries_again_until_the_deadline() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        await stage.until(80)
        heir = stage.another()
        heir.set_pods("n1", [stage.deletion("web", 100)])
        stage.wire.down = LOST
        async with while_running(heir.run):
            await stage.until(99)
            assert stage.asked == []
            stage.wire.down = None
            await stage.until(100)
        assert stage.asked == [(100, "web", 1)]


async def test_a_watch_that_lags_causes_no_second_deletion() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.let_the_watch_lag(20)
        stage.set_pods(100)
        await stage.until(72)
        await stage.touch("web")
        stage.deleter.remove_node("n1")
        stage.set_pods(100)
        await stage.until(80)
        stale = stage.pods.get(NAMESPACE, "web")
        assert stale is not None
        assert stale.deletion_timestamp is None
        stage.pods.put(msgspec.structs.replace(stale, labels={"late": "news"}, resource_version="stale"))
        stage.set_pods(100)
        await stage.until(99)
        assert stage.asked == [(70, "web", 30)]
        await stage.until(101)
        assert stage.asked[1:] == [(100, "web", 1)]


async def test_a_pod_that_is_gone_at_the_server_is_gone_whatever_the_watch_shows() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.set_pods(100)
        stage.let_the_watch_lag(60)
        await stage.until(50)
        await stage.delete("web", 0)
        await stage.until(105)
        assert stage.asked == [(70, "web", 30)]
        assert stage.ears.deletions == []
        assert stage.ears.refusals == []
        assert stage.deleter.statistics().results == {"NotFound": 1}


async def test_a_fast_watch_makes_no_pod_late() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.transport.behind.add(Rule(fault=Latency(2.0, 2.0), method="DELETE"))
        stage.set_pods(100)
        await stage.until(71)
        cached = stage.pods.get(NAMESPACE, "web")
        assert cached is not None
        assert cached.deletion_grace_seconds == 30  # and the answer has still to come
        await stage.until(99)
        assert [(d.granted, d.late) for d in stage.ears.deletions] == [(30, 0.0)]
        assert stage.asked == [(70, "web", 30)]


async def test_settling_waits_for_the_answers_of_what_is_due_and_for_nothing_else() -> None:
    async with deleting() as stage:
        await stage.add(web=30, slow=50, other=10)
        stage.set_pods(100)
        stage.wire.seconds = 0.25
        await stage.deleter.settle("n1")
        await stage.deleter.settle("n2")
        assert stage.now < 1
        await stage.until(69.9)
        await stage.deleter.settle("n1")
        assert stage.now == 69.9
        await anyio.sleep(70 - 69.9)
        await stage.deleter.settle("n1")
        assert stage.now == 70.25


async def test_settling_at_the_deadline() -> None:
    async with deleting() as stage:
        await stage.add(web=30, slow=50)
        stage.set_pods(100)
        await stage.until(99)
        stage.wire.seconds = 0.25
        await anyio.sleep(1)
        stage.set_pods(100)
        await stage.deleter.settle("n1")
        assert stage.now == 100.25
        assert sorted(stage.asked[2:]) == [(100, "slow", 1), (100, "web", 1)]


async def test_settling_does_not_wait_for_a_pod_that_goes() -> None:
    async with deleting() as stage:
        await stage.add(a=30, b=30)
        stage.wire.seconds = 4.0
        stage.set_pods(20)
        async with anyio.create_task_group() as group:
            group.start_soon(stage.deleter.settle, "n1")
            await anyio.sleep(1)
            await stage.delete("a", 0)
            await anyio.sleep(1)
            stage.deleter.remove_node("n1")
        assert stage.now < 3


async def test_thousands_at_once_leave_the_event_loop_its_turns() -> None:
    async with deleting(max_in_flight=25) as stage:
        deadline = stage.start + 100
        deletion = []
        for number in range(4_000):
            pod = a_pod(f"p{number}", namespace=NAMESPACE)
            stage.pods.put(pod)
            deletion.append(ScheduledDeletion(NAMESPACE, pod.name, pod.uid, "n1", deadline))
        stage.wire.seconds = 0.01
        stage.wire.down = Response(status=200)
        stage.deleter.set_pods("n1", deletion)
        await stage.until(69.99)
        assert stage.deleter.statistics().armed == 4_000
        assert stage.asked == []
        turns = 0
        most = 0
        while len(stage.asked) < 4_000:
            before = len(stage.asked)
            await anyio.lowlevel.checkpoint()
            turns += 1
            most = max(most, len(stage.asked) - before)
            if stage.wire.in_flight == 50 or turns % 10 == 0:
                await anyio.sleep(0.001)
        assert most <= 60
        assert stage.wire.most_in_flight == 50
        assert {each.name for each in stage.asked} == {pod.name for pod in deletion}
        # The server takes 50 in 10 ms, so the last ones are 0.8 s late, and say so.
        assert stage.asked[-1].at == pytest.approx(70.8, abs=0.2)


async def test_a_due_pod_is_deleted_with_its_whole_grace_and_once() -> None:
    async with deleting() as stage:
        await stage.add(quick=30, slow=600)
        await stage.until(2.5)
        stage.set_pods(60, begins=2.5)
        await stage.until(100)
        # Neither is asked again when the deadline comes: a pod that outlives its grace is not deleted again.
        assert stage.asked == [(2.5, "quick", 30), (2.5, "slow", 58)]


async def test_a_pod_is_deleted_when_it_is_due() -> None:
    async with deleting() as stage:
        await stage.add(quick=30, slow=600)
        stage.set_pods(900, begins=400)
        await stage.until(2000)
        assert stage.asked == [(300, "slow", 600), (400, "quick", 30)]


async def test_a_second_try_of_a_due_pod_takes_nothing_from_its_grace_that_there_is_time_for() -> None:
    async with deleting() as stage:
        await stage.add(quick=30, slow=600)
        await stage.until(600)
        stage.wire.down = REFUSED
        stage.set_pods(660, begins=600)
        await stage.until(606)
        stage.wire.down = None
        await stage.until(700)
        assert [round(each.at - 600, 3) for each in stage.asked] == [
            0, 0, 0.1, 0.1, 0.3, 0.3, 0.7, 0.7, 1.5, 1.5, 3.1, 3.1, 6.3, 6.3,
        ]  # fmt: skip
        assert [(deletion.pod.name, deletion.granted) for deletion in stage.ears.deletions] == [
            ("quick", 30),
            ("slow", 54),
        ]


async def test_the_deadline_is_no_instant_of_its_own_for_a_due_pod() -> None:
    """The owner of the deletion decides then whether the pod has more time."""
    async with deleting() as stage:
        await stage.add(slow=600)
        await stage.until(600)
        stage.wire.down = REFUSED
        stage.set_pods(660, begins=600)
        await stage.until(665)
        assert [round(each.at, 3) for each in stage.asked if each.at > 650] == [652.7, 662.7]


async def test_a_due_pod_with_a_lost_answer_is_looked_at_even_after_the_deadline() -> None:
    async with deleting() as stage:
        await stage.add(slow=600)
        stage.wire.losses["slow"].append(LOST)
        stage.let_the_watch_lag(1000)
        stage.wire.seconds = 1.0
        await stage.until(600)
        stage.set_pods(601, begins=600)
        await stage.until(650)
        assert stage.asked == [(600, "slow", 1)]
        assert stage.wire.looked_at == [(601.1, "slow")]


async def test_a_server_whose_clock_is_a_second_ahead_gets_one_request_for_a_due_pod() -> None:
    async with deleting() as stage:
        await stage.add(slow=600)
        stage.ours.offset = -1.0
        stage.set_pods(59, begins=-1)
        await stage.until(100)
        assert stage.asked == [(0, "slow", 60)]


async def test_other_settings_disturb_no_deletion() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.set_pods(100)
        await stage.until(50)
        stage.deleter.configure(stage.settings)
        await stage.until(100)
        assert stage.asked[0] == (70, "web", 30)
