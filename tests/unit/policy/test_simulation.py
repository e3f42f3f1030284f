"""A simulation looks again only at nodes and queues that may have changed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.builders import NOW, a_budget, a_pod, ending, owned_by

from gracectl.model import names
from gracectl.model.meta import Condition
from gracectl.model.pod import VolumeAttachment
from gracectl.policy.eviction_queues import EvictionRate
from gracectl.policy.forecast import Assumptions, forecast
from gracectl.policy.observations import Observations
from gracectl.policy.planner import plan
from gracectl.policy.scenario import Beginning, DrainingNode, Scenario
from gracectl.policy.settings import PolicySettings
from gracectl.policy.simulation import _Simulation, simulate
from gracectl.policy.waves import by_priority

OWNERS = (owned_by("ReplicaSet"), owned_by("StatefulSet"), owned_by("DaemonSet"), ())
PRIORITIES = (0, 0, 0, 1000, 2_000_000_000)
RATES = (EvictionRate(), EvictionRate(1.0, 1), EvictionRate(100.0, 100))
RANGES = PolicySettings(order=by_priority([(0, 60.0), (1000, 300.0)]))
UNREACHABLE = (Condition("Ready", "Unknown"),)


def nodes_of(chance: random.Random) -> list[DrainingNode]:
    """Up to four nodes with pods of all kinds, under a few budgets."""
    budgets = []
    for number in range(chance.randint(1, 4)):
        expected = chance.randint(1, 6)
        healthy, desired = expected - chance.choice([0, 0, 1]), expected - chance.randint(0, 2)
        fields = {"expected_pods": expected, "current_healthy": healthy, "desired_healthy": max(desired, 0)}
        budgets.append(a_budget(f"b{number}", disruptions_allowed=max(healthy - desired, 0), **fields))
    nodes = []
    for number in range(chance.randint(1, 4)):
        pods = [_pod(f"p{number}-{each}", chance) for each in range(chance.randint(0, 8))]
        of = {pod.name: (chance.choice(budgets),) for pod in pods if chance.random() < 0.7}
        more: dict[str, Any] = {"settings": RANGES} if chance.random() < 0.3 else {}
        if chance.random() < 0.2:
            attached = VolumeAttachment(name="v", uid="v", resource_version="1", volume_name="v", attached=True)
            more["attachments"] = (attached,)
        if chance.random() < 0.1:
            more["conditions"] = UNREACHABLE
        more |= {"deadline": chance.choice([None, 5, 60, 900])} if chance.random() < 0.8 else {"is_maintenance": True}
        nodes.append(ending(f"n{number}", *pods, budgets=of, since=NOW - chance.choice([0, 30]), **more))
    return nodes


def _pod(name: str, chance: random.Random) -> Any:
    grace = chance.choice([0, 1, 5, 30, 30, 400])
    more: dict[str, Any] = {}
    if chance.random() < 0.15:
        more["annotations"] = {names.DO_NOT_DISRUPT: chance.choice(["90s", "2h", "true"])}
    if chance.random() < 0.15:
        more |= {"deletion_timestamp": NOW + chance.randint(-90, grace), "deletion_grace_seconds": grace}
    return a_pod(
        name,
        owners=chance.choice(OWNERS),
        priority=chance.choice(PRIORITIES),
        ready=chance.random() < 0.9,
        phase=chance.choice(["Running"] * 6 + ["Pending"]),
        grace_seconds=grace,
        **more,
    )


@pytest.mark.parametrize("seed", range(60))
def test_a_node_is_planned_only_when_more_changes_than_one_pod(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    nodes = nodes_of(chance)
    assumptions = Assumptions(replacement_seconds=chance.choice([0.0, 30.0]), rate=chance.choice(RATES))
    quick = forecast(nodes, NOW, assumptions)
    monkeypatch.setattr(_Simulation, "_awaited_in", lambda *_: frozenset())
    assert forecast(nodes, NOW, assumptions) == quick


@pytest.mark.parametrize("deadline", [None, 40.0])
def test_pods_are_tried_again_only_when_their_budget_has_changed(deadline: float | None) -> None:
    """The deletion of a pod that is not Ready gives a budget nothing: the order in its queue stays reversed."""
    budget = a_budget("web", expected_pods=4, desired_healthy=3, current_healthy=2, disruptions_allowed=0)
    pods = {f"n{each}": a_pod(f"p{each}", owners=owned_by("ReplicaSet")) for each in (1, 2)}
    nodes = [ending(name, pod, budgets={pod.name: (budget,)}) for name, pod in pods.items()]
    broken = a_pod("broken", owners=owned_by("ReplicaSet"), ready=False, grace_seconds=30)
    nodes.append(ending("n3", broken, budgets={"broken": (budget,)}, deadline=deadline))
    observed = Observations(missing_since={budget.key: (NOW, NOW)})
    scenario = Scenario(
        uses_grace=True, replacement_seconds=30.0, pods_recover=False, observed=observed, last_first=True
    )
    beginning = Beginning(nodes, [plan(each.view, NOW) for each in nodes], NOW, EvictionRate())
    removals = simulate(beginning, scenario).removals
    first = min(pods.values(), key=lambda pod: removals[pod.uid][0].at)
    assert (first.name, removals[first.uid][0].at) == ("p2", NOW + 30)
    assert (broken.uid in removals and removals[broken.uid][0].at == NOW + 10) is (deadline is not None)
