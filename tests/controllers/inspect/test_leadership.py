"""Whether a controller runs, as its Lease shows it."""

from __future__ import annotations

from typing import Any

import pytest
from kubesim.apiserver import ApiServer
from kubesim.server import api
from kubesim_support.accounts import guarded, rule
from support.builders import NOW, a_node
from support.inprocess import InProcessTransport

from gracectl.inspect.leadership import (
    UNKNOWN_LEADERSHIP,
    Leadership,
    LeaderState,
    leadership_of,
    read_leadership,
    with_leadership,
)
from gracectl.inspect.status import IS_IT_RUNNING, NodePhase, NodeStatus
from gracectl.kube.client import KubeClient
from gracectl.kube.leader.settings import LeaderElectionSettings
from gracectl.model.meta import Lease
from gracectl.model.times import format_micro_time
from gracectl.policy.warnings import PlanWarning, WarningKind
from gracectl.runtime.clock import LoopClock


def a_lease(renewed: float | None, holder: str = "a", duration: int = 15, namespace: str = "kube-system") -> Lease:
    """One that was renewed so many seconds ago."""
    at = None if renewed is None else NOW - renewed
    return Lease(namespace, "gracectl", "u", holder=holder, duration_seconds=duration, renew_time=at)


@pytest.mark.parametrize(
    ("leases", "state", "holder"),
    [
        ([], LeaderState.UNKNOWN, ""),
        ([a_lease(1)], LeaderState.ACTIVE, "a"),
        ([a_lease(-600)], LeaderState.ACTIVE, "a"),  # its clock is ahead
        ([a_lease(-601)], LeaderState.UNKNOWN, "a"),  # any client may write a future
        ([a_lease(604, duration=2**31 - 1)], LeaderState.ACTIVE, "a"),
        ([a_lease(606, duration=2**31 - 1)], LeaderState.NONE, "a"),
        ([a_lease(20)], LeaderState.ACTIVE, "a"),  # or behind
        ([a_lease(20.001)], LeaderState.NONE, "a"),
        ([a_lease(64.9, duration=60)], LeaderState.ACTIVE, "a"),
        ([a_lease(4, holder="", duration=1)], LeaderState.UNKNOWN, ""),  # it may be taken over just now
        ([a_lease(5.001, holder="", duration=1)], LeaderState.NONE, ""),
        ([a_lease(None)], LeaderState.NONE, "a"),
        ([a_lease(500), a_lease(2, "b", namespace="x")], LeaderState.ACTIVE, "b"),
        ([a_lease(500), a_lease(400, "b", namespace="x")], LeaderState.NONE, "b"),
    ],
)
def test_a_lease_says_whether_a_controller_leads(leases: list[Lease], state: LeaderState, holder: str) -> None:
    leadership = leadership_of(leases, NOW)
    assert (leadership.state, leadership.holder) == (state, holder)


def a_status(state: NodePhase, *warnings: PlanWarning) -> NodeStatus:
    return NodeStatus(node=a_node(), state=state, since=NOW, warnings=warnings)


def told(status: NodeStatus, leadership: Leadership) -> list[tuple[WarningKind, str]]:
    (status_with_leadership,) = with_leadership([status], leadership)
    return [(each.kind, each.message) for each in status_with_leadership.warnings]


GONE = Leadership(LeaderState.NONE, "shop/gracectl", "host_1", 0.0)
HERE = Leadership(LeaderState.ACTIVE, "shop/gracectl", "host_1", NOW)
LATE = PlanWarning(WarningKind.NO_CONTROLLER, f"drain not started{IS_IT_RUNNING}")
SEVERAL = PlanWarning(WarningKind.SEVERAL_CLAIMS, "two of them")
STRANGE = PlanWarning(WarningKind.NOT_MANAGED, "not ours")


@pytest.mark.parametrize("state", [NodePhase.TERMINATING, NodePhase.MAINTENANCE, NodePhase.UNCORDONING])
def test_without_a_leader_every_node_under_way_is_reported_at_once(state: NodePhase) -> None:
    words = "no controller leads: host_1 last renewed Lease shop/gracectl at 1970-01-01T00:00:00Z"
    assert told(a_status(state), GONE) == [(WarningKind.NO_CONTROLLER, words)]
    assert told(a_status(state, SEVERAL, LATE), GONE) == [
        (WarningKind.NO_CONTROLLER, words),
        (WarningKind.SEVERAL_CLAIMS, "two of them"),
    ]


@pytest.mark.parametrize(
    ("leadership", "words"),
    [
        (
            Leadership(LeaderState.NONE, "n/g", "", 60.0),
            "Lease n/g was released at 1970-01-01T00:01:00Z",
        ),
        (Leadership(LeaderState.NONE, "n/g", "", None), "Lease n/g has no holder"),
    ],
)
def test_the_warning_says_why_no_controller_leads(leadership: Leadership, words: str) -> None:
    assert told(a_status(NodePhase.TERMINATING), leadership) == [
        (WarningKind.NO_CONTROLLER, f"no controller leads: {words}")
    ]


def test_nodes_that_wait_for_no_controller_are_not_told() -> None:
    assert told(a_status(NodePhase.IDLE), GONE) == []
    assert told(a_status(NodePhase.TERMINATING, STRANGE), GONE) == [(WarningKind.NOT_MANAGED, "not ours")]


def test_where_the_leader_does_nothing_the_warning_names_it() -> None:
    assert told(a_status(NodePhase.TERMINATING), HERE) == []
    words = "drain not started; host_1 leads: check its nodeSelector and its log"
    assert told(a_status(NodePhase.TERMINATING, SEVERAL, LATE), HERE) == [
        (WarningKind.NO_CONTROLLER, words),
        (WarningKind.SEVERAL_CLAIMS, "two of them"),
    ]


def test_where_nothing_is_known_nothing_is_added() -> None:
    assert told(a_status(NodePhase.TERMINATING, LATE), UNKNOWN_LEADERSHIP) == [
        (WarningKind.NO_CONTROLLER, LATE.message)
    ]


async def with_lease(server: ApiServer, clock: LoopClock, namespace: str) -> None:
    """A controller has led there once."""
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "renewTime": format_micro_time(clock.now()),
    }
    request = api.Request(
        method="POST",
        path=f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases",
        headers={"authorization": "Bearer of-the-admin"},
        body={"metadata": {"name": "gracectl"}, "spec": spec},
    )
    assert (await server.handle(request)).status == 201


LEASES: dict[str, Any] = rule("get list", "leases", "coordination.k8s.io")
GET_ONLY: dict[str, Any] = rule("get", "leases", "coordination.k8s.io")
NOTHING: dict[str, Any] = rule("get", "nodes")


@pytest.mark.parametrize(
    ("right", "namespace", "settings", "state"),
    [
        pytest.param(LEASES, "default", {}, LeaderState.ACTIVE, id="in whichever namespace"),
        pytest.param(LEASES, "default", {"namespace": "default"}, LeaderState.ACTIVE, id="where the settings say"),
        pytest.param(LEASES, "default", {"namespace": "kube-system"}, LeaderState.UNKNOWN, id="not there"),
        pytest.param(LEASES, "default", {"name": "other"}, LeaderState.UNKNOWN, id="another name"),
        pytest.param(LEASES, "default", {"enabled": False}, LeaderState.UNKNOWN, id="it leads without one"),
        pytest.param(GET_ONLY, "kube-system", {}, LeaderState.ACTIVE, id="by the usual namespace"),
        pytest.param(GET_ONLY, "default", {}, LeaderState.UNKNOWN, id="in another, which it may not look for"),
        pytest.param(NOTHING, "kube-system", {}, LeaderState.UNKNOWN, id="no right"),
    ],
)
async def test_it_is_found_where_it_may_be_read(
    right: dict[str, Any], namespace: str, settings: dict[str, Any], state: LeaderState
) -> None:
    clock = LoopClock()
    server = await guarded(clock, "reader", right)
    await with_lease(server, clock, namespace)
    client = KubeClient(InProcessTransport(server, clock, token="t"), clock)
    assert (await read_leadership(client, LeaderElectionSettings(**settings), clock)).state is state
    await clock.sleep(20.5)
    later = (await read_leadership(client, LeaderElectionSettings(**settings), clock)).state
    assert later is (LeaderState.NONE if state is LeaderState.ACTIVE else LeaderState.UNKNOWN)


async def test_a_server_that_does_not_answer_says_nothing() -> None:
    clock = LoopClock()
    transport = InProcessTransport(ApiServer(clock), clock)
    transport.is_listening = False
    assert await read_leadership(KubeClient(transport, clock), LeaderElectionSettings(), clock) == UNKNOWN_LEADERSHIP
