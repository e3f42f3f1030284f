"""Whatever hangs in one namespace, pods of the others are asked in time: to the instant."""

from __future__ import annotations

import random
from collections.abc import Iterable

import anyio
import msgspec
import pytest
from support.builders import NOW, a_budget, a_pod, owned_by
from support.eviction import EvictionServer, a_candidate, a_status

from gracectl.controllers.termination.events import disruption_target
from gracectl.eviction.deleter import PodDeleter
from gracectl.eviction.deletions import ScheduledDeletion
from gracectl.eviction.evictor import Evictor
from gracectl.eviction.settings import EvictionSettings
from gracectl.kube.cache import Cache
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.transport import Response
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running

ONCE = ClientSettings(retry=RetrySettings(attempts=1))


def a_backoff() -> Backoff:
    return Backoff(0.1, 10.0, jitter=0.0)


def there(pod: Pod) -> Response:
    """A pod that runs, as a server has it."""
    meta = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "resourceVersion": "1"}
    return Response(status=200, body=msgspec.json.encode({"metadata": meta, "spec": {"nodeName": "n1"}}))


class Slow:
    """An evictor and a deleter as they are made by default, and their server, on the loop's time."""

    def __init__(self, **settings: float) -> None:
        self.clock = LoopClock(NOW)
        self.server = EvictionServer(self.clock, 0.01)
        self.pods: Cache[Pod] = Cache("pods")
        self.budgets: Cache[PodDisruptionBudget] = Cache("budgets")
        client = KubeClient(self.server, self.clock, settings=ONCE, rng=random.Random(1))
        chosen = EvictionSettings(**settings)  # type: ignore[arg-type]  # whole numbers are numbers
        self.evictor = Evictor(client, self.pods, self.budgets, self.clock, chosen, a_backoff)
        self.deleter = PodDeleter(client, self.pods, self.clock, chosen, a_backoff, disruption_target)

    def show(
        self, namespace: str, count: int, *, with_budgets: bool = False, workload: str = "", owner: str = ""
    ) -> list[Pod]:
        """Pods of a namespace, each with a budget of its own if wanted. `workload`: its name stands in their names;
        `owner`: they belong to this one all the same."""
        name = workload or namespace
        owners = owned_by("ReplicaSet", owner or workload) if workload else ()
        pods = [
            a_pod(f"{name}-{n}", namespace=namespace, labels={"app": f"{name}-{n}"}, owners=owners)
            for n in range(count)
        ]
        for pod in pods:
            self.pods.put(pod)
            if with_budgets:
                selector = LabelSelector(dict(pod.labels))
                self.budgets.put(a_budget(pod.name, namespace=namespace, selector=selector))
        return pods

    def set_pods(self, node: str, pods: Iterable[Pod]) -> None:
        self.evictor.set_pods(node, [a_candidate(p, self.budgets.values(), node) for p in pods])

    def doom(self, node: str, pods: Iterable[Pod], deadline: float) -> None:
        self.deleter.set_pods(node, [ScheduledDeletion(p.namespace, p.name, p.uid, node, NOW + deadline) for p in pods])

    def instants(self, namespace: str) -> list[float]:
        return [instant for instant, name in self.server.asked if name.startswith(f"{namespace}-")]


async def test_deletions_that_hang_do_not_cost_a_pod_elsewhere_its_grace() -> None:
    slow = Slow()
    slow.server.slow["bad"] = 9.0
    slow.doom("n1", slow.show("bad", 300), 60.0)
    slow.doom("n2", slow.show("good", 1), 60.0)
    async with while_running(slow.deleter.run):
        await anyio.sleep(55.0)
    assert slow.instants("good") == [30.0]
    assert slow.instants("bad") == [30.0] * 100 + [31.0] * 100 + [39.0] * 100  # no slower than by itself


async def test_deletions_that_hang_do_not_cost_another_workload_of_the_namespace_its_grace() -> None:
    """A webhook that matches the labels of two workloads; a third one, and pods without one on another node."""
    slow = Slow()
    for workload in ("bad", "ill"):
        pods = slow.show("shop", 300, workload=workload)
        slow.server.slow.update({pod.name: 9.0 for pod in pods})
        slow.doom(workload, pods, 60.0)
    for number in range(5):  # while nothing is known of them, when they have just hung, and later
        slow.doom(f"n{number}", slow.show("shop", 1, workload=f"good{number}"), 60.0 + 4.5 * number)
    slow.doom("n9", slow.show("shop", 1), 62.0)
    async with while_running(slow.deleter.run):
        await anyio.sleep(80.0)
    assert [slow.instants(f"good{number}")[0] for number in range(5)] == [30.0 + 4.5 * number for number in range(5)]
    assert slow.instants("shop")[0] == 32.0
    assert slow.instants("bad")[:100] == [30.0] * 100  # as if it were alone


@pytest.mark.parametrize("with_budgets", [True, False])
async def test_evictions_that_hang_do_not_delay_another_workload_of_the_namespace(with_budgets: bool) -> None:
    slow = Slow(qps=0)
    pods = slow.show("shop", 300, with_budgets=with_budgets, workload="bad")
    slow.server.slow.update({pod.name: 30.0 for pod in pods})
    slow.set_pods("n1", pods)
    slow.set_pods("n2", slow.show("shop", 1, with_budgets=with_budgets, workload="good"))
    async with while_running(slow.evictor.run):
        await anyio.sleep(70.0)
        slow.set_pods("n3", slow.show("shop", 1, with_budgets=with_budgets, workload="late"))
        await anyio.sleep(1.0)
    assert slow.instants("good") == [0.0]
    assert slow.instants("late") == [70.0]
    assert slow.instants("bad")[:150] == [0.0] * 50 + [1.0] * 50 + [30.0] * 50


@pytest.mark.parametrize(("hanging", "late"), [(1, 0.0), (99, 0.0), (199, 1.0), (299, 9.0)])
async def test_deletions_that_hang_cost_another_pod_of_the_workload_a_second(hanging: int, late: float) -> None:
    """And pods of it that are due later nothing; more than 200 that hang at once wait for each other."""
    slow = Slow()
    pods = slow.show("shop", hanging, workload="web")
    slow.server.slow.update({pod.name: 9.0 for pod in pods})
    slow.doom("n1", [*pods, *slow.show("shop", 1, workload="good", owner="web")], 60.0)
    for number in range(4):
        slow.doom(f"m{number}", slow.show("shop", 1, workload=f"late{number}", owner="web"), 80.0 + 4.5 * number)
    async with while_running(slow.deleter.run):
        await anyio.sleep(75.0)
    assert slow.instants("good")[0] == 30.0 + late
    assert [slow.instants(f"late{number}")[0] for number in range(4)] == [50.0, 54.5, 59.0, 63.5]


@pytest.mark.parametrize("with_budgets", [True, False])
async def test_pods_that_hung_before_cost_others_of_their_workload_nothing(with_budgets: bool) -> None:
    """Their evictions fail after 10 s, and are repeated; each hangs again."""
    slow = Slow(qps=0)
    pods = slow.show("shop", 150, with_budgets=with_budgets, workload="web")
    slow.server.slow.update({pod.name: 10.0 for pod in pods})
    for pod in pods:
        slow.server.answers[pod.name] += [a_status(500, "failed calling webhook: context deadline exceeded")] * 100
        slow.server.pods[pod.name] = there(pod)
    slow.set_pods("n1", pods)
    async with while_running(slow.evictor.run):
        for number in range(20):
            await anyio.sleep(100.0 if not number else 0.75)
            name = f"good{number}"
            slow.set_pods(name, slow.show("shop", 1, with_budgets=with_budgets, workload=name, owner="web"))
        await anyio.sleep(1.0)
    assert [slow.instants(f"good{number}")[0] for number in range(20)] == [100.0 + 0.75 * n for n in range(20)]


async def test_a_queue_goes_on_while_ten_of_its_evictions_hang() -> None:
    slow = Slow()
    pods = slow.show("shop", 30)
    slow.budgets.put(a_budget(selector=LabelSelector(), disruptions_allowed=30))
    slow.server.slow["shop"] = 30.0
    slow.set_pods("n1", pods)
    async with while_running(slow.evictor.run):
        await anyio.sleep(29.0)
    assert slow.instants("shop") == [float(second) for second in range(11)]


async def test_a_namespace_that_hung_before_costs_nothing_at_all() -> None:
    """Every pod of a hundred namespaces hangs; they are known by the time that a pod elsewhere is due."""
    slow = Slow()
    slow.doom("n2", slow.show("good", 1), 200.0)
    for number in range(100):
        slow.server.slow[f"bad{number}"] = 35.0
        slow.doom(f"b{number}", slow.show(f"bad{number}", 5), 40.0)
    async with while_running(slow.deleter.run):
        await anyio.sleep(200.0)
    assert slow.instants("good") == [170.0]


@pytest.mark.parametrize("with_budgets", [True, False])
async def test_evictions_that_hang_in_one_namespace_do_not_delay_another(with_budgets: bool) -> None:
    slow = Slow(qps=0)
    slow.server.slow["bad"] = 30.0
    slow.set_pods("n1", slow.show("bad", 150, with_budgets=with_budgets))
    slow.set_pods("n2", slow.show("good", 2, with_budgets=with_budgets))
    async with while_running(slow.evictor.run):
        await anyio.sleep(70.0)
        slow.set_pods("n3", slow.show("late", 1, with_budgets=with_budgets))
        await anyio.sleep(1.0)
    assert slow.instants("good") == [0.0] * 2
    assert slow.instants("late") == [70.0]
    assert slow.instants("bad")[:150] == [0.0] * 50 + [1.0] * 50 + [30.0] * 50


@pytest.mark.parametrize("with_budgets", [True, False])
async def test_evictions_that_hang_in_many_namespaces_cost_another_a_second(with_budgets: bool) -> None:
    slow = Slow(qps=0)
    for number in range(150):
        slow.server.slow[f"bad{number}"] = 30.0
        slow.set_pods(f"n{number}", slow.show(f"bad{number}", 1, with_budgets=with_budgets))
    slow.set_pods("good", slow.show("good", 2, with_budgets=with_budgets))
    async with while_running(slow.evictor.run):
        await anyio.sleep(5.0)
    assert slow.instants("good") == [1.0] * 2


async def test_waiting_for_the_rate_limit_is_no_hanging() -> None:
    slow = Slow(qps=2, burst=1, max_in_flight=10)
    slow.set_pods("n1", slow.show("a", 20))
    async with while_running(slow.evictor.run):
        await anyio.sleep(20.0)
    assert slow.instants("a") == [number / 2 for number in range(20)]
    assert slow.server.most_in_flight == 1
