"""What the deleter makes of a server that refuses, fails, is busy, or whose answers get lost."""

from __future__ import annotations

import itertools

import anyio
import pytest
from kubesim.faults import Latency, Rule
from support.eviction import ANOTHER_UID, DENIED, FAULT, LOST, REFUSED, Answer, a_status, busy, deleting

from gracectl.kube import errors

FORBIDDEN = a_status(403, 'pods "web" is forbidden: User "x" cannot delete resource "pods"', name="web")
CONFLICT = a_status(409, "the object has been modified", name="web")


@pytest.mark.parametrize(("answer", "error"), [
    (DENIED, errors.AdmissionDenied), (FORBIDDEN, errors.Forbidden), (CONFLICT, errors.Conflict),
    (FAULT, errors.ServerError), (REFUSED, errors.Unreachable), (LOST, errors.Unreachable),
])  # fmt: skip
async def test_a_refused_deletion_is_repeated_with_the_time_left(answer: Answer, error: type[errors.ApiError]) -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.refusals["web"].extend([answer] * 5)
        stage.set_pods(100)
        await stage.until(99)
        # After 0.1, 0.2, 0.4, 0.8 and 1.6 s.
        instants = [70, 70.1, 70.3, 70.7, 71.5, 73.1]
        assert stage.asked == list(zip(instants, ["web"] * 6, [30, 30, 30, 30, 29, 27], strict=True))
        assert [(name, type(refusal)) for name, refusal in stage.ears.refusals] == [("web", error)] * 5
        [deletion] = stage.ears.deletions
        assert deletion.granted == 27
        assert deletion.late == pytest.approx(3.1)
        assert stage.deleter.statistics().results == {error.__name__: 5, "Deleted": 1}
        assert stage.deleter.statistics().failing == 0


async def test_it_is_never_given_up_and_tried_every_ten_seconds_at_least() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.down = DENIED
        stage.set_pods(100)
        await stage.until(3600)
        assert stage.deleter.statistics().failing == 1
        instants = [each.at for each in stage.asked]
        assert max(after - before for before, after in itertools.pairwise(instants)) <= 10.000001
        assert len(instants) < 370
        # Whatever the backoff says, at the deadline itself as well.
        assert (100, "web", 1) in stage.asked
        stage.wire.down = None
        await stage.until(3610)
        assert stage.grace_at_the_server("web") == 1
        stage.deleter.remove_node("n1")
        await stage.until(7200)
        assert stage.asked[-1].at <= 3610


async def test_a_deletion_that_waits_after_a_failure_is_tried_at_once_when_it_is_to_be_settled() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.down = DENIED
        stage.set_pods(100)
        await stage.until(105)
        assert stage.asked[-1].at == 100  # and again after 10 s
        await stage.deleter.settle("n1")
        assert stage.asked[-1].at == 105


async def test_a_cancelled_deletion_is_not_tried_again() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.down = REFUSED
        stage.set_pods(100)
        await stage.until(75)
        tries = len(stage.asked)
        stage.deleter.remove_node("n1")
        stage.wire.down = None
        await stage.until(200)
        assert len(stage.asked) == tries
        assert stage.grace_at_the_server("web") is None


async def test_a_pod_that_cannot_be_deleted_holds_up_no_other() -> None:
    async with deleting(max_in_flight=1) as stage:
        await stage.add(bad=30, worse=30, good=30, late=28)
        for name in ("bad", "worse"):
            stage.wire.refusals[name].extend([DENIED] * 1000)
        stage.set_pods(100)
        await stage.until(99)
        assert (70, "good", 30) in stage.asked
        assert (72, "late", 28) in stage.asked


async def test_news_of_the_pod_do_not_make_it_be_asked_for_before_its_backoff_is_over() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.down = DENIED
        stage.set_pods(100)
        for tenth in range(700, 900):
            await stage.until(tenth / 10 + 0.05)
            await stage.touch("web")
            stage.set_pods(100)
        assert [each.at for each in stage.asked] == [70, 70.1, 70.3, 70.7, 71.5, 73.1, 76.3, 82.7]


@pytest.mark.parametrize("answer", [LOST, FAULT, a_status(504, "request timed out")])
async def test_a_lost_answer_takes_nothing_from_what_was_promised(answer: Answer) -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.let_the_watch_lag(1000)
        stage.wire.losses["web"].append(answer)
        stage.set_pods(100)
        await stage.until(99)
        assert stage.asked == [(70, "web", 30)]
        assert stage.wire.looked_at == [(70.1, "web")]
        assert stage.grace_at_the_server("web") == 30
        assert [d.granted for d in stage.ears.deletions] == [30]
        await stage.until(101)
        assert stage.asked[1:] == [(100, "web", 1)]


async def test_a_lost_answer_that_the_watch_makes_up_for() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.losses["web"].append(LOST)
        stage.set_pods(100)
        await stage.until(99)
        assert stage.asked == [(70, "web", 30)]
        assert stage.wire.looked_at == []
        assert [d.granted for d in stage.ears.deletions] == [30]


async def test_after_an_unknown_outcome_no_deletion_is_sent_until_the_pod_was_seen() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.let_the_watch_lag(1000)
        stage.wire.losses["web"].append(LOST)
        stage.set_pods(100)
        await stage.until(70)
        stage.wire.down = FAULT
        await stage.until(80)
        stage.wire.down = None
        await stage.until(99)
        assert stage.asked == [(70, "web", 30)]
        assert len(stage.wire.looked_at) > 5
        assert stage.grace_at_the_server("web") == 30
        assert [name for name, _ in stage.ears.refusals] == ["web"]


async def test_at_the_deadline_doubts_count_no_more() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.let_the_watch_lag(1000)
        stage.wire.down = LOST
        stage.set_pods(100)
        await stage.until(99.9)
        assert len(stage.asked) == 1
        stage.wire.down = None
        await stage.until(101)
        assert stage.asked[1:] == [(100, "web", 1)]
        assert stage.wire.looked_at[-1][0] < 100


async def test_in_doubt_the_watch_may_be_faster_than_the_look() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.let_the_watch_lag(0.15)
        stage.transport.behind.add(Rule(fault=Latency(0.1, 0.1), method="GET"))
        stage.wire.losses["web"].append(LOST)
        stage.set_pods(100)
        await stage.until(99)
        assert stage.wire.looked_at == [(70.1, "web")]
        assert [d.granted for d in stage.ears.deletions] == [30]


async def test_in_doubt_a_pod_that_is_gone_or_replaced_is_done() -> None:
    async with deleting() as stage:
        await stage.add(gone=30, replaced=30)
        stage.let_the_watch_lag(1000)
        stage.wire.losses["gone"].append(LOST)
        stage.wire.losses["replaced"].append(LOST)
        stage.set_pods(100)
        await stage.until(70.05)
        await stage.delete("gone", 0)
        await stage.delete("replaced", 0)
        manifest = {"metadata": {"name": "replaced"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        await stage.call("POST", "/api/v1/namespaces/default/pods", manifest)
        await stage.until(200)
        assert [each.at for each in stage.asked] == [70, 70]


async def test_a_shortening_that_was_lost_before_it_was_carried_out_is_asked_for_again() -> None:
    async with deleting() as stage:
        await stage.add(slow=600)
        await stage.delete("slow")
        await stage.until(10)
        stage.wire.refusals["slow"].append(LOST)
        stage.set_pods(300)
        await stage.until(20)
        assert stage.asked == [(10, "slow", 290), (10.1, "slow", 290)]
        assert stage.grace_at_the_server("slow") == 290


async def test_a_uid_that_no_longer_holds_is_done() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.refusals["web"].append(ANOTHER_UID)
        stage.set_pods(100)
        await stage.until(200)
        assert len(stage.asked) == 1
        assert stage.ears.refusals == []


async def test_a_busy_server_is_given_the_time_it_asks_for_and_the_grace_is_right_afterwards() -> None:
    async with deleting() as stage:
        await stage.add(web=30, other=29)
        stage.wire.refusals["web"].append(busy(5))
        stage.set_pods(100)
        await stage.until(99)
        assert sorted(stage.asked) == [(70, "web", 30), (75, "other", 25), (75, "web", 25)]


@pytest.mark.parametrize("code", [503, 504])
async def test_a_failing_server_is_given_the_time_it_asks_for(code: int) -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.refusals["web"].append(a_status(code, "later", {"retry-after": "5"}))
        stage.set_pods(100)
        await stage.until(99)
        assert stage.asked == [(70, "web", 30), (75, "web", 25)]


async def test_a_deletion_cancelled_while_the_client_waits_for_a_busy_server_is_not_sent() -> None:
    async with deleting() as stage:
        await stage.add(web=30, other=29)
        stage.wire.refusals["web"].append(busy(10))
        stage.set_pods(100)
        await stage.until(72)
        stage.set_pods(100, "web")
        await stage.until(99)
        assert [each.name for each in stage.asked] == ["web", "web"]


async def test_a_request_in_flight_is_finished_when_the_process_ends() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.seconds = 2.0
        stage.set_pods(100)
        await stage.until(71)
    assert [d.granted for d in stage.ears.deletions] == [30]
    assert stage.grace_at_the_server("web") == 30


async def test_a_server_that_hangs_is_left_and_asked_again() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.wire.seconds = 1000.0
        stage.set_pods(100)
        await stage.until(71)
        stage.wire.seconds = 0.0
        await stage.until(99)
        assert stage.asked == [(70, "web", 30), (75.1, "web", 25)]
        assert stage.wire.looked_at == [(75.1, "web")]
        with anyio.fail_after(1):
            await stage.deleter.settle("n1")


async def test_behind_a_closed_fence_no_deletion_is_sent_and_none_is_reported() -> None:
    async with deleting() as stage:
        await stage.add(web=30)
        stage.fence.shut()
        stage.set_pods(100)
        await stage.until(80)
        assert (stage.asked, stage.ears.refusals, stage.deleter.statistics().results) == ([], [], {})
        # The condition, and seven deletions: 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 and 6.4 s after each other.
        assert stage.fence.statistics().refused == 8
        stage.fence.open()
        await stage.until(99)
        assert stage.asked == [(82.7, "web", 18)]
