"""Events about deletions for a deadline: their texts, and which failures make one."""

from __future__ import annotations

import pytest
from support.builders import NOW
from support.eviction import DENIED, FAULT, LOST, EvictionServer, busy

from gracectl.controllers.termination.events import deletion_message, is_cut
from gracectl.controllers.termination.pod_events import PodEventReporter
from gracectl.eviction.deleter import Deletion
from gracectl.eviction.deletions import PendingDeletion, ScheduledDeletion
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, error_for
from gracectl.kube.events import EventRecorder
from gracectl.kube.transport import Request, Response
from gracectl.runtime.clock import LoopClock

POD = ScheduledDeletion("shop", "web-1", "uid-1", "n1", NOW)
WHY = ": node n1 must be gone by 1970-01-12T13:46:40Z, regardless of budgets and protection"
DELETE = Request(method="DELETE", path="/api/v1/namespaces/shop/pods/web-1")


@pytest.mark.parametrize(
    ("deletion", "told"),
    [
        (
            Deletion(POD, 30, 30, None, 0.0),
            "deleted by gracectl with its whole grace (30 s)",
        ),
        (
            Deletion(POD, 1, 0, None, 0.0),  # none is given no grace at all
            "deleted by gracectl with its whole grace (1 s)",
        ),
        (
            Deletion(
                POD, 1, 600, PendingDeletion(600, NOW), 0.0
            ),  # it has used its last second, or its kubelet is gone
            "deleted again by gracectl with 1 s of grace, still running after 600 s",
        ),
        (
            Deletion(POD, 1, 600, PendingDeletion(290, NOW - 10), 0.0),  # the cut was reported then
            "deleted again by gracectl with 1 s of grace, still running after 290 s",
        ),
    ],
)
def test_a_pod_that_loses_nothing_is_no_warning(deletion: Deletion, told: str) -> None:
    assert (deletion_message(deletion), is_cut(deletion)) == (told + WHY, False)


@pytest.mark.parametrize(
    ("deletion", "told"),
    [
        (
            Deletion(POD, 12, 30, None, 0.0),
            "deleted by gracectl with 12 s of grace instead of 30 s",
        ),
        (
            Deletion(POD, 290, 3600, PendingDeletion(600, NOW + 309.5), 0.0),
            "grace cut by gracectl from 600 s, which would end 310 s after the deadline, to 290 s",
        ),
        (
            Deletion(
                POD, 1, 600, PendingDeletion(600, NOW + 200), 0.0
            ),  # in the second half, so that it waited until then
            "grace cut by gracectl from 600 s, which would end 200 s after the deadline, to 1 s",
        ),
        (
            Deletion(POD, 1, 600, PendingDeletion(600, NOW + 8e8), 0.0),  # the deadline is of long ago: an end by hand
            "grace cut by gracectl from 600 s, which would end after the deadline, to 1 s",
        ),
    ],
)
def test_a_pod_that_loses_grace_is_a_warning(deletion: Deletion, told: str) -> None:
    assert (deletion_message(deletion), is_cut(deletion)) == (told + WHY, True)


def refusal(answer: Response | ApiError) -> ApiError:
    return answer if isinstance(answer, ApiError) else error_for(DELETE, answer)


@pytest.mark.parametrize(("answer", "events"), [(DENIED, 1), (FAULT, 1), (busy(1), 0), (LOST, 0)])
async def test_a_failure_that_is_about_the_pod_is_an_event(answer: Response | ApiError, events: int) -> None:
    clock = LoopClock()
    recorder = EventRecorder(KubeClient(EvictionServer(clock), clock), clock)
    PodEventReporter(recorder).not_deleted(POD, refusal(answer))
    assert recorder.statistics().recorded == events
