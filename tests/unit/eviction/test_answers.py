"""What the evictor makes of every answer that a server gives to an eviction, on virtual time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_budget, a_pod
from support.eviction import (
    ANOTHER_UID,
    DENIED,
    FAULT,
    PROCESSING,
    SPENT,
    TERMINATING,
    TWO_BUDGETS,
    a_status,
    busy,
    evicting,
    gone,
    loose,
    web,
)

from gracectl.eviction.pdb_queue import EvictionCandidate
from gracectl.kube.errors import ApiError, Unreachable
from gracectl.kube.transport import Response
from gracectl.kube.transport.operation import Operation
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector

POST = Operation("create", "", "pods", "eviction", "shop", "web-1")


def as_json(pod: Pod, **metadata: Any) -> Response:
    """The answer to a GET of a pod."""
    whole = {
        "metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "resourceVersion": "9", **metadata}
    }
    return Response(status=200, body=msgspec.json.encode({"kind": "Pod", "apiVersion": "v1", **whole}))


class Listener:
    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def evicted(self, candidate: EvictionCandidate) -> None:
        self.heard.append((candidate.name, "evicted"))

    def refused(self, candidate: EvictionCandidate, refusal: ApiError) -> None:
        self.heard.append((candidate.name, type(refusal).__name__))


@pytest.mark.parametrize("answer", [ANOTHER_UID, gone("web-1")], ids=["another uid", "gone"])
async def test_gone_and_replaced_pods_are_done_and_not_asked_for_again_by_a_stale_plan(answer: Response) -> None:
    """Each refused precondition would spend the budget once more (recording eviction-of-another-uid)."""
    async with evicting() as stage:
        pod = web(1)[0]
        stage.show(a_budget(disruptions_allowed=3), pod)
        stage.server.answers["web-1"].append(answer)
        stage.set_pods("n1", pod)
        await stage.clock.sleep(1)
        stage.set_pods("n1", pod)
        await stage.clock.sleep(100)
        assert stage.server.asked == [(0.0, "web-1")]
        assert stage.evictor.statistics().waiting == 0


async def test_after_a_uid_conflict_the_lane_waits_until_the_watch_shows_what_it_has_cost() -> None:
    async with evicting() as stage:
        pods = web(2)
        stage.show(a_budget(), *pods)
        stage.server.answers["web-1"].append(ANOTHER_UID)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(1)
        assert stage.server.names == ["web-1"]
        stage.show(msgspec.structs.replace(pods[0], uid="reborn"))
        stage.show(a_budget(disruptions_allowed=0, disrupted_pods={"web-1": NOW}))
        await stage.clock.sleep(1)
        stage.show(a_budget())
        await stage.clock.sleep(1)
        assert stage.server.asked == [(0.0, "web-1"), (2.0, "web-2")]


async def test_a_spent_budget_puts_the_lane_to_sleep_and_news_wakes_it() -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(2))
        stage.server.answers["web-1"].extend([SPENT] * 20)
        stage.set_pods("n1", *web(2))
        await stage.clock.sleep(20)
        asked = stage.server.instants_of("web-1")
        assert asked == pytest.approx([0.0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7], abs=1e-4)
        assert stage.server.names == ["web-1"] * 8
        stage.server.answers.clear()
        stage.show(a_budget())
        await stage.clock.sleep(0.001)
        assert stage.server.asked[8:] == [(20.0, "web-1")]


@pytest.mark.parametrize("said", ["0", "-1"])
async def test_a_budget_that_may_be_asked_again_at_once_is_not_asked_without_end(said: str) -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(1))
        at_once = a_status(429, "processing", {"retry-after": said}, causes=[{"reason": "DisruptionBudget"}])
        stage.server.answers["web-1"].extend([at_once] * 50)
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(2)
        asked = stage.server.instants_of("web-1")
        assert asked == pytest.approx([0.0, 0.1, 0.3, 0.7, 1.5], abs=1e-4)


async def test_a_budget_that_asks_for_a_year_is_asked_after_half_a_minute() -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(1))
        year = a_status(429, "processing", {"retry-after": "31536000"}, causes=[{"reason": "DisruptionBudget"}])
        stage.server.answers["web-1"].append(year)
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(40)
        assert stage.server.asked == [(0.0, "web-1"), (30.0, "web-1")]


async def test_a_budget_just_edited_is_asked_when_it_was_observed() -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(1))
        stage.server.answers["web-1"].append(PROCESSING)
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(0.004)
        stage.show(a_budget(generation=2))
        await stage.clock.sleep(0.003)
        stage.show(a_budget(generation=2, observed_generation=2))
        await stage.clock.sleep(1)
        assert stage.server.asked == [(0.0, "web-1"), (0.007, "web-1")]


async def test_two_budgets_on_a_pod_are_told_and_tried_slowly() -> None:
    listener = Listener()
    async with evicting() as stage:
        stage.evictor.listen(listener)
        stage.show(a_budget(), a_budget("api"), *web(1))
        stage.server.answers["web-1"].extend([TWO_BUDGETS] * 3)
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(130)
        assert stage.server.instants_of("web-1") == [0.0, 60.0, 120.0]
        stage.show(a_budget("api", selector=LabelSelector({"app": "api"})))
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(0.001)
        assert stage.server.asked[3:] == [(130.0, "web-1")]
    assert listener.heard == [("web-1", "MultipleBudgets")] * 3 + [("web-1", "evicted")]


async def test_when_one_of_two_budgets_goes_its_pods_wait_to_be_moved() -> None:
    """Two lanes under one budget would ask for the same disruption."""
    async with evicting() as stage:
        pods = [a_pod("web-1", labels={"app": "web", "tier": "front"}), a_pod("web-2")]
        stage.show(a_budget(disruptions_allowed=0), *pods)
        stage.show(a_budget("front", selector=LabelSelector({"tier": "front"})))
        stage.server.answers["web-1"].append(TWO_BUDGETS)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(1)
        stage.budgets.remove(("shop", "front"))
        stage.show(a_budget())
        await stage.clock.sleep(1)
        assert stage.server.asked[1:] == [(1.0, "web-2")]
        stage.set_pods("n1", pods[0])
        stage.show(a_budget(disruptions_allowed=0, disrupted_pods={"web-2": NOW}))
        stage.show_terminating("web-2")
        stage.show(a_budget())
        await stage.clock.sleep(1)
        assert stage.server.asked[2:] == [(2.0, "web-1")]


async def test_a_busy_server_is_asked_again_when_it_has_said_and_all_pods_wait() -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(1), *loose(1))
        stage.server.answers["web-1"].append(busy(7))
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(1)
        stage.set_pods("n2", *loose(1))  # another lane: the whole client is paused
        await stage.clock.sleep(20)
        assert stage.server.instants_of("web-1") == [0.0, 7.0]
        assert stage.server.instants_of("job-0") == [7.0]


@pytest.mark.parametrize("failure", [FAULT, Unreachable(POST, "reset", sent=True)], ids=["500", "the connection broke"])
async def test_after_an_unknown_outcome_the_pod_is_read_first(failure: Response | ApiError) -> None:
    listener = Listener()
    async with evicting() as stage:
        stage.evictor.listen(listener)
        pod = web(1)[0]
        stage.show(a_budget(), pod)
        stage.server.answers["web-1"].append(failure)
        stage.server.pods["web-1"] = as_json(pod)
        stage.set_pods("n1", pod)
        await stage.clock.sleep(5)
        assert stage.server.looked_at == [(0.1, "web-1")]
        assert stage.server.asked == [(0.0, "web-1"), (0.1, "web-1")]
    assert [what for _, what in listener.heard[1:]] == ["evicted"]


async def test_an_eviction_that_happened_behind_a_failure_is_not_repeated() -> None:
    async with evicting() as stage:
        pods = web(2)
        stage.show(a_budget(), *pods)
        stage.server.answers["web-1"].append(FAULT)
        stage.server.pods["web-1"] = as_json(
            pods[0], deletionTimestamp="2026-01-01T00:00:30Z", deletionGracePeriodSeconds=30
        )
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(1)
        stage.set_pods("n1", *pods)  # the watch is late, the plan stale
        await stage.clock.sleep(20)
        assert stage.server.asked == [(0.0, "web-1")]  # and the disruption it took is not asked for twice
        stage.show(a_budget(disruptions_allowed=0, disrupted_pods={"web-1": NOW}))
        stage.show_terminating("web-1")
        stage.show(a_budget())
        await stage.clock.sleep(1)
        assert stage.server.asked[1:] == [(21.0, "web-2")]


async def test_a_refused_connection_needs_no_look_at_the_pod() -> None:
    async with evicting() as stage:
        stage.show(*loose(1))
        stage.server.answers["job-0"].append(Unreachable(POST, "refused", sent=False))
        stage.set_pods("n1", *loose(1))
        await stage.clock.sleep(5)
        assert stage.server.looked_at == []
        assert stage.server.asked == [(0.0, "job-0"), (0.1, "job-0")]


async def test_no_answer_in_time_is_unknown_outcome_and_the_pod_that_is_gone_is_done() -> None:
    async with evicting() as stage:
        stage.show(*loose(1))
        stage.server.seconds = 6.0
        stage.set_pods("n1", *loose(1))
        await stage.clock.sleep(5.05)
        stage.server.seconds = 0.0
        await stage.clock.sleep(60)
        assert stage.server.asked == [(0.0, "job-0")]
        assert stage.server.looked_at == [(5.1, "job-0")]
        assert stage.evictor.statistics().results == {"RequestTimeout": 1}


async def test_a_namespace_that_is_being_deleted_is_left_alone_for_a_while() -> None:
    async with evicting() as stage:
        stage.show(*loose(1))
        stage.server.answers["job-0"].append(TERMINATING)
        stage.set_pods("n1", *loose(1))
        await stage.clock.sleep(20)
        assert stage.server.instants_of("job-0") == [0.0, 5.0]


async def test_a_pod_that_a_webhook_keeps_does_not_hold_up_its_lane() -> None:
    async with evicting() as stage:
        pods = web(3)
        stage.show(a_budget(disruptions_allowed=3), *pods)
        stage.server.answers["web-1"].extend([DENIED] * 4)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.05)
        assert stage.server.asked == [(0.0, "web-1"), (0.0, "web-2"), (0.0, "web-3")]
        stage.show_terminating("web-2", "web-3")
        stage.show(a_budget(disruptions_allowed=1))
        await stage.clock.sleep(10.0)
        assert stage.server.instants_of("web-1") == pytest.approx([0.0, 0.1, 0.3, 0.7, 1.5], abs=1e-4)
        assert stage.server.names.count("web-2") == stage.server.names.count("web-3") == 1


POLICY = a_status(
    403,
    "pods \"web-1\" is forbidden: ValidatingAdmissionPolicy 'guard' with binding 'all' denied request: you cannot",
    name="web-1",
    kind="pods",
)


async def test_a_pod_that_a_policy_keeps_is_asked_for_once_a_minute_and_the_others_go() -> None:
    async with evicting() as stage:
        stage.show(a_budget(disruptions_allowed=3), *web(3))
        stage.server.answers["web-1"].extend([POLICY] * 1000)
        stage.set_pods("n1", *web(3))
        await stage.clock.sleep(0.05)
        assert stage.server.names == ["web-1", "web-2", "web-3"]
        await stage.clock.sleep(3600)
        asked = stage.server.instants_of("web-1")
        assert asked[:3] == pytest.approx([0.0, 0.1, 0.3], abs=1e-4)
        assert asked[-1] - asked[-2] == pytest.approx(60.0, abs=1e-4)
        assert len(asked) < 72


@pytest.mark.parametrize(("why", "asked"), [
    ("an admission plugin says no", ["web-1", "web-2", "web-3"]),
    (
            'User "system:serviceaccount:ops:gracectl" cannot create resource "pods/eviction" in API group "" in the '
            'namespace "shop"',
            ["web-1"],
        ),
], ids=["a plugin", "no right"])  # fmt: skip
async def test_a_forbidden_eviction_holds_up_its_lane_only_for_want_of_a_right(why: str, asked: list[str]) -> None:
    async with evicting() as stage:
        stage.show(a_budget(disruptions_allowed=3), *web(3))
        forbidden = a_status(403, f'pods "web-1" is forbidden: {why}', name="web-1", kind="pods")
        stage.server.answers["web-1"].append(forbidden)
        stage.set_pods("n1", *web(3))
        await stage.clock.sleep(0.05)
        assert stage.server.names == asked


async def test_a_budget_that_was_deleted_during_an_eviction_does_not_make_its_pod_forgotten() -> None:
    async with evicting() as stage:
        stage.show(a_budget(), *web(1))
        absent = a_status(404, 'poddisruptionbudgets.policy "web" not found', name="web", kind="poddisruptionbudgets")
        stage.server.answers["web-1"].append(absent)
        stage.set_pods("n1", *web(1))
        await stage.clock.sleep(1)
        assert stage.server.asked == [(0.0, "web-1"), (0.1, "web-1")]


async def test_a_pod_whose_eviction_fails_again_and_again_does_not_hold_up_its_lane() -> None:
    async with evicting() as stage:
        pods = web(2)
        stage.show(a_budget(disruptions_allowed=2), *pods)
        stage.server.pods["web-1"] = as_json(pods[0])
        stage.server.answers["web-1"].extend([FAULT] * 100)
        stage.set_pods("n1", *pods)
        await stage.clock.sleep(0.15)
        # It is looked at first, as the failure may have been a success; then the other one goes first.
        assert stage.server.asked[:2] == [(0.0, "web-1"), (0.1, "web-2")]
        assert stage.server.looked_at == [(0.1, "web-1")]
        await stage.clock.sleep(60.0)
        assert 10 <= stage.server.names.count("web-1") <= 20  # with growing pauses, up to 10 s


async def test_a_lane_that_a_pod_has_moved_to_goes_on_when_the_other_one_has_its_answer() -> None:
    async with evicting(seconds=1.0) as stage:
        moving, staying = web(2)
        stage.show(a_budget(disruptions_allowed=3), moving)
        stage.set_pods("n1", moving)
        await stage.clock.sleep(0.5)
        stage.budgets.remove(("shop", "web"))
        stage.show(a_budget("other", disruptions_allowed=3), staying)
        stage.set_pods("n1", moving, staying)
        await stage.clock.sleep(2.0)
        assert stage.server.asked == [(0.0, "web-1"), (1.0, "web-2")]


async def test_a_wall_clock_that_is_set_back_holds_up_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    async with evicting() as stage:
        pod = web(1)[0]
        stage.show(a_budget(), pod)
        stage.server.pods["web-1"] = as_json(pod)
        stage.server.answers["web-1"].append(FAULT)
        stage.set_pods("n1", pod)
        await stage.clock.sleep(0.05)
        past = stage.clock.now() - 3600
        monkeypatch.setattr(stage.clock, "now", lambda: past)
        await stage.clock.sleep(0.2)
        assert stage.server.instants_of("web-1") == pytest.approx([0.0, 0.1])


async def test_nothing_is_remembered_of_a_pod_that_was_gone_before_its_eviction_has_failed() -> None:
    async with evicting() as stage:
        stage.show(*loose(1))
        stage.server.seconds = 6.0
        stage.set_pods("n1", *loose(1))
        await stage.clock.sleep(1)
        stage.pods.remove(loose(1)[0].key)
        await stage.clock.sleep(60)
        assert stage.evictor.statistics().results == {"RequestTimeout": 1}
        assert not stage.evictor._unknown_outcome


async def test_behind_a_closed_fence_no_eviction_is_sent_and_the_pods_keep_their_turn() -> None:
    listener = Listener()
    async with evicting() as stage:
        stage.evictor.listen(listener)
        stage.fence.shut()
        stage.show(a_budget(), *web(1), *loose(1))
        stage.set_pods("n1", *web(1), *loose(1))
        await stage.clock.sleep(30)
        assert (stage.server.asked, listener.heard) == ([], [])
        assert stage.evictor.statistics().results == {}
        assert stage.fence.statistics().refused < 40  # and not in a tight loop
        stage.fence.open()
        await stage.clock.sleep(15)
        assert sorted(name for _, name in stage.server.asked) == ["job-0", "web-1"]


async def test_a_lane_goes_on_while_evictions_hang() -> None:
    """The second time it does not wait at all, and the pod that hangs waits for itself."""
    async with evicting() as stage:
        first, *others, late, later = web(6)
        stage.show(first, *others, late, later, a_budget(disruptions_allowed=20))
        stage.server.slow["web-1"] = 4.0
        stage.server.answers["web-1"] += [FAULT, FAULT]
        stage.server.pods["web-1"] = as_json(first)
        stage.set_pods("n1", first, *others)
        await stage.clock.sleep(4.05)
        stage.set_pods("n2", late)
        await stage.clock.sleep(4.05)  # the pod was read meanwhile, which has hung, and is evicted again
        stage.set_pods("n3", later)
        await stage.clock.sleep(10.0)
    others_left = [(1.0, pod.name) for pod in others] + [(4.05, "web-5"), (8.1, "web-6")]
    assert [each for each in stage.server.asked if each[1] != "web-1"] == others_left
    # After each failure it is read first, which takes 4 s as well.
    assert stage.server.instants_of("web-1") == [0.0, 8.1, 16.5]
