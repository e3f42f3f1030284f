"""What the owners of pods are told of deletions for a deadline."""

from __future__ import annotations

import pytest
from support.builders import NOW
from support.deletion import LOST
from support.eviction import DENIED, FAULT, EvictionServer, busy

from gracectl.eviction.deleter import Deletion, Doomed
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import ApiError, error_for
from gracectl.kube.events import EventRecorder
from gracectl.kube.transport import Request, Response
from gracectl.runtime.clock import LoopClock
from gracectl.termination.pods import PodAnnouncer, told_of

POD = Doomed("shop", "web-1", "uid-1", "n1", NOW)
DELETE = Request(method="DELETE", path="/api/v1/namespaces/shop/pods/web-1")


@pytest.mark.parametrize(
    ("deletion", "told"),
    [
        (
            Deletion(POD, 12, 30, None, 0.0),
            "deleted by gracectl with 12 s of the 30 s of grace that it asks for: node n1 must end by "
            "1970-01-12T13:46:40Z, whatever budgets and protection say",
        ),
        (
            Deletion(POD, 290, 3600, 600, 0.0),
            "was terminating already; its grace is cut by gracectl from 600 s to 290 s of the 3600 s of grace that it "
            "asks for: node n1 must end by 1970-01-12T13:46:40Z, whatever budgets and protection say",
        ),
    ],
)
def test_who_why_and_how_much(deletion: Deletion, told: str) -> None:
    assert told_of(deletion) == told


def refusal(answer: Response | ApiError) -> ApiError:
    return answer if isinstance(answer, ApiError) else error_for(DELETE, answer)


@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "events"), [(DENIED, 1), (FAULT, 1), (busy(1), 0), (LOST, 0)])
async def test_what_somebody_may_have_to_mend_is_an_event(answer: Response | ApiError, events: int) -> None:
    clock = LoopClock()
    recorder = EventRecorder(KubeClient(EvictionServer(clock), clock), clock)
    PodAnnouncer(recorder).not_deleted(POD, refusal(answer))
    assert recorder.statistics().recorded == events
