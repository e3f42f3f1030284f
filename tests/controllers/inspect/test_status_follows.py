"""Status over several reads: what is kept of earlier ones is what a first read would say."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from support.builders import NOW, a_budget, a_node, cluster, going, kept, replica

from gracectl.controllers.cluster.cache import ClusterCache
from gracectl.controllers.settings import TerminationSettings
from gracectl.inspect.budget_status import PodBudgetUsages, pod_budget_usages
from gracectl.inspect.progress import BlockingCause, Causes
from gracectl.inspect.status import NodeStatus, NodeStatuses, node_statuses
from gracectl.model import names
from gracectl.model.claim import NodeClaim
from gracectl.model.selectors import LabelSelector
from gracectl.model.times import format_time

SETTINGS = TerminationSettings()
NODES = ("n1", "n2", "n3", "n4")
APPS = ("web", "api")


class Churn:
    """Random changes of a cluster."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"follows/{seed}")
        self._version = 1
        self.cluster: ClusterCache = cluster()
        for _ in range(40):
            self.change()

    def change(self) -> None:
        chance, (kind, cache) = (
            self._chance,
            self._chance.choice(
                [
                    ("node", self.cluster.nodes),
                    ("pod", self.cluster.pods),
                    ("pod", self.cluster.pods),
                    ("pod", self.cluster.pods),
                    ("budget", self.cluster.budgets),
                    ("claim", self.cluster.claims),
                ]
            ),
        )
        target: Any = cache
        known = target.values()
        if known and chance.random() < 0.2:
            target.remove(chance.choice(known).key)
            return
        self._version += 1
        new = getattr(self, f"_{kind}")()
        target.put(msgspec.structs.replace(new, resource_version=str(self._version)))

    def _node(self) -> Any:
        chance, name = self._chance, self._chance.choice(NODES)
        uid = f"uid-{name}-{chance.randrange(2)}"
        kind = chance.choice([a_node, going, going, kept])
        more: dict[str, Any] = {} if kind is a_node else {"since": float(chance.randrange(1, 300))}
        if kind is going and chance.random() < 0.3:
            deadline = {names.TERMINATION_TIMESTAMP: format_time(NOW + chance.randrange(1, 200))}
            more["annotations"] = deadline
        node = kind(name, **more)
        return msgspec.structs.replace(node, uid=uid, provider_id=chance.choice(["", f"aws:///{name}"]))

    def _pod(self) -> Any:
        chance, number = self._chance, self._chance.randrange(25)
        more: dict[str, Any] = {"labels": {"app": chance.choice(APPS)}, "ready": chance.random() < 0.8}
        if chance.random() < 0.2:
            more |= {"deletion_timestamp": NOW + chance.randrange(60), "deletion_grace_seconds": 30}
        if chance.random() < 0.1:
            more |= {"annotations": {names.DO_NOT_DISRUPT: chance.choice(["20s", "1h2m", "true"])}}
        if chance.random() < 0.2:
            more |= {"priority": 2_000_000_000}
        namespace = chance.choice(["shop", "data"])
        return replica(f"p{number}", node_name=NODES[number % 4], namespace=namespace, **more)

    def _budget(self) -> Any:
        chance = self._chance
        app = chance.choice(APPS)
        return a_budget(
            chance.choice(["first", "second"]),
            namespace=chance.choice(["shop", "data"]),
            selector=LabelSelector({"app": app}),
            disruptions_allowed=chance.randrange(3),
        )

    def _claim(self) -> Any:
        chance, name = self._chance, self._chance.choice(NODES)
        deleted = NOW - chance.randrange(100) if chance.random() < 0.5 else None
        return NodeClaim(
            name,
            f"claim-{name}",
            deletion_timestamp=deleted,
            finalizers=(names.FINALIZER,),
            termination_grace_period=chance.choice([None, "2m", "10m"]),
            provider_id=f"aws:///{name}",
            node_name=name,
        )


@pytest.mark.seeds(12)
def test_what_is_kept_of_earlier_reads_is_what_a_first_read_says(seed: int) -> None:
    churn = Churn(seed)
    seen, at = churn.cluster, NOW
    statuses = NodeStatuses(seen, SETTINGS, follows=True)
    usages = PodBudgetUsages(seen, SETTINGS)
    steps = random.Random(f"steps/{seed}")
    for _ in range(60):
        for _ in range(steps.randrange(3)):
            churn.change()
        at += steps.choice([0.0, 0.3, 1.0, 17.0])
        followed, fresh = statuses.at(set(NODES), at), node_statuses(seen, SETTINGS, set(NODES), at)
        assert [_shown(each) for each in followed] == [_shown(each) for each in fresh]
        assert statuses.at(set(NODES), at)[: len(followed)] == followed
        assert usages.at(at) == pod_budget_usages(seen, SETTINGS, at)


@pytest.mark.seeds(4)
def test_causes_counted_over_several_reads_are_those_of_the_last(seed: int) -> None:
    churn, causes, at = Churn(seed), Causes(), NOW
    statuses = NodeStatuses(churn.cluster, SETTINGS, follows=True)
    for _ in range(60):
        churn.change()
        at += 1.0
        found = [each for each in statuses.at(set(NODES), at) if each.is_in_progress]
        kept, fresh = (each.at(found, churn.cluster.budgets.get, at) for each in (causes, Causes()))
        assert sorted(map(_counted, kept)) == sorted(map(_counted, fresh))


def _counted(cause: BlockingCause) -> tuple[object, ...]:
    """A cause without its example, which is any of its pods."""
    return cause.step, cause.pods, cause.nodes, round(cause.age, 3), cause.at_once or 0


def _shown(status: NodeStatus) -> object:
    """A status, but since when: only a reader of several knows. Of the pod ahead its name."""
    pods = []
    for each in status.pods or ():
        place = each.queue_position
        ahead = None if place is None or place.ahead is None else place.ahead.entry.pod.key
        position = None if place is None else (place.number, place.of, place.is_undecided, ahead)
        pods.append((each.entry, each.remedy, position))
    return msgspec.structs.replace(status, pods=()), pods, status.pods is None


def test_a_change_of_one_node_leaves_the_others_as_they_are() -> None:
    nodes = [going(name) for name in NODES]
    pods = [replica(f"{name}-{number}", node_name=name) for name in NODES for number in range(3)]
    free = [msgspec.structs.replace(pod, labels={"app": "free"}) for pod in pods]
    seen = cluster(*nodes, pods=tuple(free))
    statuses = NodeStatuses(seen, SETTINGS, follows=True)
    before = {each.name: each.pods for each in statuses.at(set(NODES), NOW)}
    seen.pods.remove(free[0].key)
    after = {each.name: each.pods for each in statuses.at(set(NODES), NOW)}
    assert len(after["n1"] or ()) == 2
    assert all(after[name] is before[name] for name in ("n2", "n3", "n4"))
