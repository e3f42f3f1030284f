"""The timeline of a scenario: steps at instants after the cluster is ready.

Invariant: steps run one after another, by instant, then by position; random choices depend only on `seed`, the step and
the candidates. A failed step is reported, and the next one runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec

from kubesim.cluster import USER, EmbeddedCluster
from kubesim.controllers.client import MERGE, Disconnected, Refused, ask
from kubesim.controllers.objects import key_of
from kubesim.controllers.paths import NODES, path_of
from kubesim.faults import Rule
from kubesim.scenarios.manifests import node_specs
from kubesim.scenarios.objects import collection, create, served
from kubesim.scenarios.parser import ScenarioError
from kubesim.scenarios.scenario import Some, Step, Target
from kubesim.server.api import JsonObject

T = TypeVar("T")
Tell = Callable[[float, str], None]
"""Called with the simulated seconds since the timeline began, and what has happened."""

MANY = 4
"""Of more things than these, an account names the first ones and the number of the others."""


OUTSIDERS = f"^(?!{re.escape(USER)})"
"""Every client but the controllers of the cluster."""


class FaultBook:
    """The fault rules in force, by name. A rule that names no client is for all but the controllers of the cluster."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._faults = cluster.server.faults
        self._rules: dict[str, Rule] = {}

    def add(self, rules: Mapping[str, Rule]) -> None:
        """Put rules in force; one of the same name is replaced."""
        for name, rule in rules.items():
            self.remove((name,))
            meant = rule if rule.client else msgspec.structs.replace(rule, client=OUTSIDERS)
            self._rules[name] = meant
            self._faults.add(meant)

    def remove(self, names: Sequence[str]) -> None:
        """Take rules out of force; those that are not in force, are not."""
        for name in names:
            rule = self._rules.pop(name, None)
            if rule is not None:
                self._faults.remove(rule)


class Timeline:
    """The steps of a scenario in a cluster that runs."""

    def __init__(self, cluster: EmbeddedCluster, steps: Sequence[Step], faults: FaultBook, tell: Tell) -> None:
        self._cluster = cluster
        self._pace = cluster.pace
        self._steps = steps
        self._faults = faults
        self._tell = tell

    async def run(self) -> None:
        """Let all of it happen, the instants counted from now."""
        began = self._pace.clock.monotonic()
        for at, index, turn in occasions(self._steps):
            await self._pace.clock.sleep(max(0.0, began + self._pace.real(at) - self._pace.clock.monotonic()))
            try:
                for what in await self._happen(self._steps[index], (index, turn)):
                    self._tell(at, what)
            except (Refused, Disconnected, ScenarioError) as error:
                self._tell(at, f"timeline[{index}] failed: {error}")

    async def _happen(self, step: Step, place: tuple[int, int]) -> list[str]:
        """Do one step, at its place (index, which time); returns what has been done."""
        done = [f"fault {name} begins" for name in step.add_faults]
        done += [f"fault {name} ends" for name in step.remove_faults]
        self._faults.add(step.add_faults)
        self._faults.remove(step.remove_faults)
        if step.clock_offset is not None:
            self._cluster.server_clock.offset = step.clock_offset
            done.append(f"the server's clock is wrong by {step.clock_offset:g} s")
        return [*done, *await self._write(step, place), *await self._strike(step, place)]

    async def _write(self, step: Step, place: tuple[int, int]) -> list[str]:
        """What a step does to objects."""
        done = []
        created = [await create(self._cluster, manifest) for manifest in step.create]
        done += [f"created {_named(object_)}" for object_ in created]
        for group in step.add_nodes:
            specs = list(node_specs(group))
            for spec in specs:
                await self._cluster.add_node(spec)
            done.append(f"added nodes {_listed([spec.name for spec in specs])}")
        if step.patch is not None:
            change = (step.patch.patch, step.patch.subresource)
            done.append(f"patched {_listed(await self._each(step.patch, place, 'PATCH', change))}")
        if step.delete is not None:
            done.append(f"deleted {_listed(await self._each(step.delete, place, 'DELETE', (None, '')))}")
        return done

    async def _strike(self, step: Step, place: tuple[int, int]) -> list[str]:
        """What a step does to machines and kubelets."""
        kubelet, cloud, done = self._cluster.kubelet, self._cluster.cloud, []
        for some, act, word in (
            (step.end_instances, self._running(cloud.terminate), "ended the instances of"),
            (step.protect_instances, self._running(cloud.protect), "protected the instances of"),
            (step.unprotect_instances, self._running(cloud.unprotect), "took the protection off the instances of"),
            (step.crash_nodes, kubelet.kill, "crashed"),
            (step.revive_nodes, kubelet.revive, "revived"),
            (step.restart_kubelets, kubelet.restart, "restarted the kubelets of"),
            (step.partition_nodes, kubelet.partition, "cut off"),
            (step.heal_nodes, kubelet.heal, "healed"),
        ):
            if some is not None:
                names = await self._nodes(some, place)
                for name in names:
                    act(name)
                done.append(f"{word} {_listed(names)}")
        return done

    async def _each(self, target: Target, place: tuple[int, int], method: str, with_: tuple[object, str]) -> list[str]:
        """Send a request for each object of a target; returns the names of the objects."""
        path = collection(served(self._cluster, target.kind))
        body, subresource = with_
        names = []
        for object_ in await self._found(target, path, place):
            where = path_of(path, *key_of(object_), subresource)
            # 404: gone since it was found.
            await ask(self._cluster.api, method, where, body, content_type=MERGE, allow=(404,))
            names.append(f"{target.kind} {'/'.join(filter(None, key_of(object_)))}")
        return names

    async def _found(self, target: Target, path: str, place: tuple[int, int]) -> list[JsonObject]:
        query = {"labelSelector": target.selector} if target.selector else {}
        where = path_of(path, target.namespace)
        status, answer = await self._cluster.api.call("GET", where, query=query)
        if status != 200:
            raise Refused(f"GET {where}", status, answer)
        fitting = [item for item in answer["items"] if fnmatchcase(item["metadata"]["name"], target.name)]
        return self._picked(fitting, target.count, place)

    async def _nodes(self, some: Some, place: tuple[int, int]) -> list[str]:
        target = Target(kind="Node", name=some.names, count=some.count)
        return [node["metadata"]["name"] for node in await self._found(target, NODES, place)]

    def _picked(self, found: list[T], count: int | None, place: tuple[int, int]) -> list[T]:
        if count is None or count >= len(found):
            return found
        chosen = self._pace.chance("timeline", *place).sample(range(len(found)), count)
        return [found[position] for position in sorted(chosen)]

    def _running(self, act: Callable[[str], None]) -> Callable[[str], None]:
        """What does `act` with the id of each running instance of a node, given the name of that."""

        def strike(node: str) -> None:
            for instance in self._cluster.cloud.instances:
                if instance.node == node and instance.state == "running":
                    act(instance.id)

        return strike


def occasions(steps: Sequence[Step]) -> list[tuple[float, int, int]]:
    """When each step happens: (simulated seconds, index of the step, which time), in order."""
    return sorted(
        (step.at + turn * step.every, index, turn) for index, step in enumerate(steps) for turn in range(step.times)
    )


def _named(object_: JsonObject) -> str:
    return f"{object_['kind']} {'/'.join(filter(None, key_of(object_)))}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > MANY:
        return f"{', '.join(names[: MANY - 1])} and {len(names) - MANY + 1} more"
    return ", ".join(names) or "none"
