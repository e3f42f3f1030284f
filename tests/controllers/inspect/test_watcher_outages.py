"""A sight through broken watches, lost history and silent servers: late, but never wrong, and it says so."""

from __future__ import annotations

import random

import pytest
from kubesim.faults import DropWatch, Expire, FreezeWatch, Refuse, Reset, Rule
from support.clients import a_client, asked_pods, named, pods_seen, seeing
from support.inprocess import Stutter
from support.stage import NAMESPACE, SILENT, Stage, a_pod_manifest, staged

from gracectl.controllers.cluster.informers import MANY
from gracectl.inspect.watcher import ClusterWatcher, ConnectionLoss
from gracectl.model.node import Node
from gracectl.model.pod import Pod
from gracectl.runtime.supervise import while_running

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
AT_ONCE = {"gracePeriodSeconds": 0}


def is_labelled(node: Node) -> bool:
    return node.labels.get("chosen") == "yes"


async def label(stage: Stage, node: str, value: str | None) -> None:
    await stage.patch_node(node, {"metadata": {"labels": {"chosen": value}}})


@pytest.mark.parametrize("fault", [DropWatch(1.0), FreezeWatch(1.0)], ids=["broken", "silent"])
async def test_what_happens_while_a_watch_is_away_is_seen_when_it_is_back(fault: DropWatch | FreezeWatch) -> None:
    objects = [a_pod_manifest("a", "n1"), a_pod_manifest("b", "n1")]
    async with staged("n1", objects=objects, kubelet=SILENT) as stage, seeing(stage, named("n1")) as sight:
        await stage.clock.sleep(1)
        stage.transport.before.add(Rule(fault=fault, path="pods", count=1))
        stage.transport.before.add(Rule(fault=Refuse(500), path="pods", count=5))
        await stage.clock.sleep(1)
        await stage.call("DELETE", f"{PODS}/a", AT_ONCE)
        await stage.create(a_pod_manifest("c", "n1"))
        await stage.clock.sleep(100 if isinstance(fault, FreezeWatch) else 10)
        assert pods_seen(sight, "n1") == {"n1": ["b", "c"]}


async def test_lost_history_is_listed_anew_for_that_node_only() -> None:
    objects = [a_pod_manifest("a", "n1"), a_pod_manifest("b", "n2")]
    async with staged("n1", "n2", objects=objects, kubelet=SILENT) as stage, seeing(stage, named("n1", "n2")) as sight:
        await stage.clock.sleep(1)
        stage.transport.before.add(Rule(fault=DropWatch(1.0), path="pods", count=1))
        stage.transport.before.add(Rule(fault=Expire(), path="pods", count=1))
        before = len(asked_pods(stage))
        await stage.call("DELETE", f"{PODS}/a", AT_ONCE)
        await stage.call("DELETE", f"{PODS}/b", AT_ONCE)
        await stage.clock.sleep(10)
        assert pods_seen(sight, "n1", "n2") == {"n1": [], "n2": []}
        (node,) = {each.partition(" ")[2] for each in asked_pods(stage)[before:]}
        assert asked_pods(stage)[before:] == [f"watch {node}", f"list {node}", f"watch {node}"]


async def test_a_view_can_say_as_of_when_it_is_true() -> None:
    async with staged("n1", kubelet=SILENT) as stage, seeing(stage, named("n1")) as sight:
        await stage.clock.sleep(30)
        assert sight.connection_loss() is None
        stage.transport.is_listening = False
        stage.transport.before.add(Rule(fault=DropWatch(0.0)))  # each after its next line
        last_line_of_nodes = stage.clock.now()
        await label(stage, "n1", "yes")
        await stage.clock.sleep(10)
        await stage.create(a_pod_manifest("a", "n1"))
        await stage.clock.sleep(10)
        loss = sight.connection_loss()
        assert loss is not None
        assert loss.since == last_line_of_nodes
        assert loss.latest is None  # the watches that have had no line since are still open
        assert "connection refused" in loss.error
        stage.transport.before.clear()
        stage.transport.is_listening = True
        await stage.clock.sleep(6)
        assert sight.connection_loss() is None


async def test_a_stream_that_was_silent_until_it_broke_was_current_until_then() -> None:
    async with staged("n1", kubelet=SILENT) as stage:
        stage.transport.before.add(Rule(fault=DropWatch(48.0)))  # without a line: bookmarks come once a minute
        async with seeing(stage, named("n1")) as sight:
            died = stage.clock.now() + 48
            await stage.clock.sleep(47)
            stage.transport.is_listening = False
            await stage.clock.sleep(7)
            loss = sight.connection_loss()
            assert loss is not None
            assert loss.since == pytest.approx(died)
            assert loss.latest == pytest.approx(died)


async def test_a_server_that_never_answered_leaves_nothing_to_date() -> None:
    async with staged("n1") as stage:
        stage.transport.is_listening = False
        sight = ClusterWatcher(a_client(stage), named("n1"), stage.clock)
        async with while_running(sight.run):
            await stage.clock.sleep(10)
            loss = sight.connection_loss()
            assert loss == ConnectionLoss(None, "list nodes: the server cannot be reached: connection refused")
            stage.transport.is_listening = True
            start = stage.clock.monotonic()
            await sight.wait_live()
            assert stage.clock.monotonic() - start <= 5.0
            assert sight.connection_loss() is None


class Storm:
    """Nodes that are chosen and not, that go and come back, pods that come up again elsewhere; and a bad network."""

    def __init__(self, stage: Stage, nodes: list[str], rng: random.Random) -> None:
        self._stage = stage
        self._nodes = nodes
        self._rng = rng
        self._acts = [self.choose] * 4 + [self.move_pod] * 6 + [self.bring_back] + [self.trouble] * 2

    async def rage(self, acts: int) -> None:
        for _ in range(acts):
            await self._rng.choice(self._acts)()
            await self._stage.clock.sleep(self._rng.choice([0.0, 0.0, 0.01, 0.5, 3.0]))

    async def choose(self) -> None:
        for node in self._rng.sample(self._nodes, self._rng.randint(1, len(self._nodes))):
            await label(self._stage, node, self._rng.choice(["yes", "yes", None]))

    async def move_pod(self) -> None:
        """A pod of a StatefulSet goes, and comes up somewhere."""
        name = f"web-{self._rng.randrange(8)}"
        if self._stage.server.store.table("pods").get(NAMESPACE, name) is not None:
            await self._stage.call("DELETE", f"{PODS}/{name}", AT_ONCE)
        if self._rng.random() < 0.8:
            await self._stage.cluster.create(a_pod_manifest(name, self._rng.choice(self._nodes)))

    async def bring_back(self) -> None:
        """Another node of the same name."""
        node = self._rng.choice(self._nodes)
        await self._stage.delete_node(node)
        await self._stage.clock.sleep(self._rng.choice([0.0, 0.0, 1.0, 10.0]))
        await self._stage.add_nodes(node)

    async def trouble(self) -> None:
        chance = self._rng.uniform(0.05, 0.3)
        faults = (DropWatch(self._rng.uniform(0.0, 5.0)), Expire(), Reset(), Reset(carried_out=True), Refuse(500))
        fault = self._rng.choice(faults)
        self._stage.transport.before.add(Rule(fault=fault, probability=chance, count=self._rng.randint(1, 20)))


@pytest.mark.parametrize("count", [5, MANY + 3])
@pytest.mark.seeds(3)
async def test_when_a_storm_has_passed_what_is_seen_is_what_there_is(seed: int, count: int) -> None:
    rng = random.Random(f"sight/{seed}/{count}")
    nodes = [f"n{number}" for number in range(count)]
    async with staged(*nodes, seed=seed, parts=frozenset()) as stage, seeing(stage, is_labelled) as sight:
        stage.transport.stutter = Stutter(0.3, 2.0)
        mirror: dict[tuple[str, str], Pod] = {}

        def follow(old: Pod | None, new: Pod | None) -> None:
            if old is not None:
                assert mirror.pop(old.key) is old
            if new is not None:
                mirror[new.key] = new

        sight.cluster.pods.subscribe(follow)
        await Storm(stage, nodes, rng).rage(60)
        stage.transport.before.clear()
        stage.transport.stutter = Stutter()
        await stage.clock.sleep(200)  # longer than a silent stream is believed
        await sight.wait_live()
        assert sight.connection_loss() is None
        chosen = [node["metadata"]["name"] for node in stage.nodes() if "chosen" in node["metadata"]["labels"]]
        connection = {node: sorted(pod["metadata"]["uid"] for pod in stage.pods_on(node)) for node in chosen}
        seen = {node: sorted(pod.uid for pod in sight.cluster.pods_on(node)) for node in chosen}
        assert seen == connection
        assert [sight.has_pods_of(node) for node in nodes] == [node in chosen for node in nodes]
        assert {pod.key: pod for pod in sight.cluster.pods.values()} == mirror
        if "list" not in asked_pods(stage):  # those of chosen nodes only
            assert {pod.node_name for pod in sight.cluster.pods.values()} <= set(chosen)
