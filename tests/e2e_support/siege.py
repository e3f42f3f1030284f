"""A siege: a controller that leads, a node that is attacked, and one that is not; both are deleted.

However the first fares, the second is drained, the process lives, leads on, and holds less than MOST_MEMORY. It has the
chart's memory, in a cgroup where this machine lets us make one, and an account with the chart's rights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import anyio
import msgspec
from kubesim.server.api import JsonObject

from e2e_support import manifests
from e2e_support.accounts import Access, access_with, account_with, token_of
from e2e_support.forger import Forger
from e2e_support.program import Program
from e2e_support.story import Story
from gracectl.controllers import rbac
from gracectl.kube.rbac import Permission
from gracectl.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from gracectl.runtime.supervise import while_running

MARK = "e2e-attack"
VICTIM = "e2e-victim"
"""A label of the pods that have nothing to do with an attack."""
PATIENCE = 120.0
"""Seconds for what takes a few on an idle machine."""
MOST_MEMORY = 400
"""MiB of the controller, of the 1,024 that the chart gives it."""
ADMISSION_RIGHTS = (
    *(Permission(verb, "secrets") for verb in ("get", "update", "create")),
    *(Permission("get", each.plural, each.group) for each in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)),
)
AGAIN = 5
"""So many of the objects come once more, in lines of watches."""


class Attack(NamedTuple):
    """What is on the attacked node. `forgeries`: what goes out in place of a mark. `pods`: how many; `pod` makes each
    of its number. `others`: further objects.
    """

    forgeries: Mapping[bytes, bytes]
    pods: int
    pod: Callable[[int], dict[str, Any]]
    others: tuple[JsonObject, ...] = ()


def marked(value: str, key: str = MARK) -> bytes:
    """A mark as it stands among labels or annotations."""
    return f'"{key}":"{value}"'.encode()


def annotated(value: str, key: str = MARK) -> Callable[[int], dict[str, Any]]:
    """Pods with a mark among their annotations."""
    return lambda number: {"annotations": {key: value}}


class Lead(msgspec.Struct, frozen=True):
    """Spec of a Lease."""

    holder: str
    transitions: int


class Siege(NamedTuple):
    """A controller that leads, a node that is attacked, and one that is not, with three pods under a budget.

    `node`, `pods`: the attacked node and what is on it, as they were.
    """

    story: Story
    forger: Forger
    program: Program
    attacked: str
    leaving: str
    lead: Lead
    node: JsonObject
    pods: list[JsonObject]

    async def end(self, *, is_same_term: bool = True) -> None:
        """Delete both nodes; the one that is not attacked must go, and nothing must have happened to the controller."""
        await self.story.delete("Node", self.attacked)
        await self.other_leaves(is_same_term=is_same_term)

    async def other_leaves(self, *, is_same_term: bool = True) -> None:
        """Delete the node that is not attacked; it must go."""
        began = anyio.current_time()
        await self.story.delete("Node", self.leaving)
        await self.unharmed(until=self.leaving, is_same_term=is_same_term)
        # Shown by `pytest -rP`; docs/trust.md has it.
        print(f"the other node: gone after {anyio.current_time() - began:.1f} s; peak {self.program.peak():.0f} MiB")

    async def unharmed(self, until: str, *, is_same_term: bool = True) -> None:
        """Wait until a node has gone; the process lives, leads and is no larger than it may be."""
        await until_told(self.story, f"{until} is gone", self.program, lambda: not self.story.sight.get("Node", until))
        assert self.program.exit_code is None
        now = await lead(self.story)
        assert now == self.lead if is_same_term else now.holder == self.lead.holder
        assert self.program.peak() < MOST_MEMORY


async def until_told(story: Story, what: str, program: Program, condition: Callable[[], object]) -> None:
    """Wait for a condition, or for the end of the process, which fails."""

    async def dead() -> None:
        code = await program.ended(PATIENCE)
        raise AssertionError(f"the controller has ended with {code} before {what}:\n{program.text()[-3000:]}")

    async with while_running(dead):
        await story.sight.until(what, condition, seconds=PATIENCE - 10)


async def lead(story: Story) -> Lead:
    """Spec of the Lease, once a controller leads."""
    with anyio.fail_after(PATIENCE):
        while True:
            path = f"/apis/coordination.k8s.io/v1/namespaces/{story.namespace}/leases/gracectl"
            status, lease = await story.api.call("GET", path)
            if status == 200 and lease["spec"].get("holderIdentity"):
                return Lead(lease["spec"]["holderIdentity"], lease["spec"].get("leaseTransitions", 0))
            await story.clock.sleep(0.1)


async def several(story: Story, pods: list[JsonObject]) -> None:
    """Create pods, ten at a time, and wait until they are Ready."""
    for begin in range(0, len(pods), 10):
        async with anyio.create_task_group() as group:
            for pod in pods[begin : begin + 10]:
                group.start_soon(story.create, pod)
    names = [pod["metadata"]["name"] for pod in pods]
    await story.sight.until("all pods are ready", lambda: all(map(story.ready, names)), seconds=PATIENCE)


async def node(story: Story, suffix: str) -> str:
    """A node that the controller will manage, once there is one."""
    name = f"{story.run}-{suffix}"
    story.adopt(name)
    await story.create(manifests.node(name, story.run))
    return name


async def untouched(story: Story, node: str) -> None:
    """Nothing is done to the attacked node itself."""


async def chart_access(story: Story) -> Access:
    """A way into the cluster with the chart's rights, which there are only on objects of certain names."""
    rights = {*rbac.lease_rights((story.namespace, "gracectl")), *rbac.freeze_rights(story.namespace)}
    for name, value in vars(rbac).items():
        if name.endswith("RIGHTS"):
            rights.update(value)
    rights.update(ADMISSION_RIGHTS)
    account = await story.enter(account_with(story, rights))
    return access_with(story, await token_of(story, account), "chart")


async def besieged(
    story: Story, attack: Attack, *, before: Callable[[Story, str], Awaitable[None]] = untouched, **settings: Any
) -> Siege:
    """All objects exist before the controller starts, which must cope with them. Then they come once more, by watches.

    `before`: what is done to the attacked node before that.
    """
    attacked, leaving = await node(story, "attacked"), await node(story, "leaving")
    for each in attack.others:
        await story.create(each)
    hostile = [manifests.pod(f"hostile-{n}", story.run, on=attacked, **attack.pod(n)) for n in range(attack.pods)]
    labels = {"app": "web", VICTIM: "true"}
    await several(story, [manifests.pod(f"web-{n}", story.run, on=leaving, labels=labels) for n in range(3)] + hostile)
    await story.budget("web", "web", minAvailable=0)

    await before(story, attacked)

    forger = await story.forger(attack.forgeries, await chart_access(story))
    # The three times of the Lease as they are shipped: they are what an attack runs against.
    election = {"namespace": story.namespace}
    program = await story.controller(through=forger, leaderElection=election, **settings)
    both = (attacked, leaving)
    await until_told(story, "both nodes are held", program, lambda: all(map(story.is_held, both)))
    objects = [story.sees("Pod", pod["metadata"]["name"]) for pod in hostile]
    found = story.sees("Node", attacked), objects
    held = Siege(story, forger, program, attacked, leaving, await lead(story), *found)
    listed = forger.sent.copy()
    for pod in hostile[:AGAIN]:
        await story.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": {"again": "true"}}})
    for mark in attack.forgeries:
        arrived = listed[mark]
        assert arrived >= max(1, len(attack.others) or attack.pods)
    return held
