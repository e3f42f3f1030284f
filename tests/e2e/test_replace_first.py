"""A single replica is replaced before its eviction: at every moment one pod is Ready, and its Deployment unchanged."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from e2e_support.accounts import access_with, account_with, token_of
from e2e_support.deadlines import until_deadline
from e2e_support.names import LABEL
from e2e_support.program import running
from e2e_support.story import Story
from kubesim.controllers.client import MERGE, ask, follow
from kubesim.controllers.objects import annotations_of, controller_of, is_ready, is_terminating
from kubesim.controllers.paths import DEPLOYMENTS, ENDPOINT_SLICES, path_of
from kubesim.server.api import JsonObject
from support.thorough import thorough

from gracectl.app.drainer import EVENTS, RIGHTS
from gracectl.controllers.rbac import REPLACE_FIRST_RIGHTS
from gracectl.model import names
from gracectl.runtime.supervise import while_running

pytestmark = [pytest.mark.e2e, pytest.mark.real_time]

ASKS = {names.REPLACE_FIRST: "true"}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web"},
    "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
}


class Single:
    """A Deployment of one pod on node `a`, under a budget that allows nothing; node `refuge` takes its replacement."""

    def __init__(self, story: Story, pod: JsonObject, before: int) -> None:
        self.story = story
        self.pod = pod
        self.node = pod["spec"]["nodeName"]
        self.fewest: int | None = None
        """Endpoints that were Ready at the same time, at least; None: nothing writes EndpointSlices."""
        self._before = before

    @property
    def now(self) -> JsonObject | None:
        """The pod as it is now."""
        return self.story.sight.get("Pod", self.pod["metadata"]["name"], self.story.namespace)

    @property
    def others(self) -> list[JsonObject]:
        """Its replacements."""
        uid = self.pod["metadata"]["uid"]
        return [pod for pod in self.story.sight.all("Pod", app="web") if pod["metadata"]["uid"] != uid]

    def is_released(self) -> bool:
        """Whether it is marked as released, and its ReplicaSet has let it go."""
        now = self.now
        return now is not None and names.RELEASED_FROM in annotations_of(now) and controller_of(now) is None

    def is_back(self) -> bool:
        """Whether its ReplicaSet has it again, and no replacement."""
        now = self.now
        is_owned = now is not None and controller_of(now) is not None and not is_terminating(now)
        return is_owned and names.RELEASED_FROM not in annotations_of(now or {}) and not self.others

    def was_replaced_first(self) -> None:
        """Its replacement was Ready before it was told to end."""
        assert self.story.sight.asked(self.pod) is not None
        self.was_never_down()

    def was_never_down(self) -> None:
        """At least one pod was Ready at every moment."""
        assert self.story.sight.lowest_health(self._before, app="web") >= 1
        assert self.fewest is None or self.fewest >= 1

    async def generation(self) -> int:
        """Generation of the Deployment."""
        path = path_of(DEPLOYMENTS, self.story.namespace, "web")
        _, deployment = await ask(self.story.api, "GET", path)
        return int(deployment["metadata"]["generation"])

    async def edit(self, spec: JsonObject) -> None:
        """Change the Deployment."""
        path = path_of(DEPLOYMENTS, self.story.namespace, "web")
        await ask(self.story.api, "PATCH", path, {"spec": spec}, content_type=MERGE)

    async def watch_endpoints(self) -> None:
        """Follow the endpoints of its Service until cancelled."""
        async for event in follow(self.story.api, path_of(ENDPOINT_SLICES, self.story.namespace), {}, self.story.clock):
            endpoints = event.object.get("endpoints") or ()
            ready = sum(bool(each["conditions"].get("ready")) for each in endpoints)
            if event.type in ("ADDED", "MODIFIED") and (ready or self.fewest is not None):
                self.fewest = ready if self.fewest is None else min(self.fewest, ready)


@asynccontextmanager
async def single(
    story: Story, *, refuge: bool = True, ready_seconds: float = 0.5, is_managed: bool = True, **bound: Any
) -> AsyncIterator[Single]:
    """A workload that is watched while the block runs. `is_managed`: a controller runs, which adds its finalizer."""
    await story.nodes("a", managed=is_managed)
    await story.create(SERVICE)
    behaviour = {"ready-seconds": str(ready_seconds)}
    (pod,) = await story.workload("Deployment", "web", 1, replicas=1, annotations=ASKS, behaviour=behaviour)
    await story.budget("web", "web", **(bound or {"minAvailable": 1}))
    if refuge:
        await story.nodes("refuge")
    found = Single(story, pod, len(story.sight.journal))
    async with while_running(found.watch_endpoints):
        yield found


async def drain(story: Story, node: str) -> None:
    """Request maintenance."""
    await story.patch("Node", node, {"metadata": {"annotations": {names.KEEP_DRAINED: "2026-01-01T00:00:00Z"}}})


async def uncordon(story: Story, node: str) -> None:
    """As a person does."""
    async with running(story.target.kubeconfig, {}, story.folder, "uncordon", node) as program:
        assert await program.ended() == 0, program.text()


@pytest.mark.parametrize(
    "bound", [{"minAvailable": 1}, *thorough({"maxUnavailable": 0}, {"minAvailable": "100%"})], ids=str
)
async def test_a_single_replica_is_never_down(story: Story, bound: dict[str, Any]) -> None:
    await story.controller()
    async with single(story, **bound) as web:
        generation = await web.generation()
        await story.delete("Node", web.node)
        await story.until_gone(web.node)
        web.was_replaced_first()
        assert await web.generation() == generation
    assert story.events_about(web.pod, names.EventReason.POD_RELEASED)
    assert story.events_about(web.pod, names.EventReason.EVICTED)
    (left,) = story.healthy("web")
    assert names.RELEASED_FROM not in annotations_of(left)


@pytest.mark.parametrize("write", ["release", "eviction"])
async def test_another_leader_continues_after_a_kill_at_each_write(story: Story, write: str) -> None:
    first = await story.controller()
    async with single(story) as web:
        await story.delete("Node", web.node)
        seen = web.is_released if write == "release" else (lambda: story.sight.asked(web.pod) is not None)
        await story.sight.until(f"{write} is written", seen)
        first.send(signal.SIGKILL)
        await first.ended()
        await story.controller()
        await story.until_gone(web.node)
        web.was_replaced_first()
        assert len([pod for pod in story.sight.all("Pod", app="web") if is_ready(pod)]) == 1


async def test_a_return_continues_after_a_kill(story: Story) -> None:
    """The replacement is marked as the one to go, and then the controller dies."""
    first = await story.controller()
    async with single(story, refuge=False) as web:
        await drain(story, web.node)
        await story.sight.until("it is released", lambda: web.is_released() and web.others)
        first.send(signal.SIGKILL)
        await first.ended()
        cost = {"metadata": {"annotations": {names.POD_DELETION_COST: str(-(2**31))}}}
        await story.patch("Pod", web.others[0]["metadata"]["name"], cost)
        await story.patch("Node", web.node, {"metadata": {"annotations": {names.KEEP_DRAINED: None}}})
        await story.controller()
        await story.sight.until("it is back", web.is_back)
        web.was_never_down()


@pytest.mark.parametrize("state", ["pending", "starting", "ready"])
async def test_uncordon_returns_the_pod_in_each_state_of_its_replacement(story: Story, state: str) -> None:
    wire = await story.wire()
    hold = wire.hold("request")
    await story.controller(through=wire)
    seconds = 4.0 if state == "starting" else 0.5
    async with single(story, refuge=state != "pending", ready_seconds=seconds) as web:
        generation = await web.generation()
        await drain(story, web.node)
        if state == "ready":
            await hold.reached.wait()
        else:
            is_bound = state == "starting"
            await story.sight.until(
                f"its replacement is {state}",
                lambda: [bool(pod["spec"].get("nodeName")) for pod in web.others] == [is_bound] and web.is_released(),
            )
        await uncordon(story, web.node)
        await story.sight.until("it is back", web.is_back)
        await story.counted("web")
        hold.go_on.set()  # an eviction that was sent before
        await story.sight.until(
            "it is schedulable", lambda: not story.sees("Node", web.node)["spec"].get("unschedulable")
        )
        assert story.sight.asked(web.pod) is None
        web.was_never_down()
        assert await web.generation() == generation


async def test_without_a_place_for_the_replacement_the_pod_returns_and_is_tried_again(story: Story) -> None:
    await story.controller(replaceFirst={"patience": "2s"})
    async with single(story, refuge=False) as web:
        await story.delete("Node", web.node)
        await story.sight.until("it is released", web.is_released)
        await story.sight.until("it is back", web.is_back)
        await story.sight.until("people are told", lambda: story.events_about(web.pod, names.EventReason.POD_RETURNED))
        web.was_never_down()
        await story.nodes("refuge")
        await story.until_gone(web.node)
        web.was_replaced_first()


async def test_a_rollout_in_the_middle_takes_over(story: Story) -> None:
    await story.controller()
    async with single(story, refuge=False) as web:
        await story.delete("Node", web.node)
        await story.sight.until("it is released", lambda: web.is_released() and web.others)
        await web.edit({"template": {"metadata": {"labels": {"revision": "2"}}}})
        await story.nodes("refuge")
        await story.until_gone(web.node)
        web.was_replaced_first()
        await story.sight.until("one pod is left", lambda: len(story.sight.all("Pod", app="web")) == 1)
        (left,) = story.sight.all("Pod", app="web", revision="2")
        assert controller_of(left) is not None


async def test_an_autoscaler_may_scale_in_the_middle(story: Story) -> None:
    await story.controller()
    async with single(story, refuge=False) as web:
        await story.delete("Node", web.node)
        await story.sight.until("it is released", lambda: web.is_released() and web.others)
        await web.edit({"replicas": 2})
        await story.nodes("refuge")
        await story.until_gone(web.node)
        web.was_replaced_first()
        await story.sight.until("two pods are Ready", lambda: len(story.healthy("web")) == 2)


async def test_a_quota_without_room_keeps_the_pod_until_it_has_some(story: Story) -> None:
    await story.controller()
    async with single(story) as web:
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "pods"},
            "spec": {"hard": {"pods": "1"}},
        }
        path = f"/api/v1/namespaces/{story.namespace}/resourcequotas"
        await ask(story.api, "POST", path, quota)

        async def used(room: int) -> None:
            # Written by the quota controller, where there is one.
            await ask(story.api, "PATCH", f"{path}/pods", {"spec": {"hard": {"pods": str(room)}}}, content_type=MERGE)
            status = {"status": {"hard": {"pods": str(room)}, "used": {"pods": "1"}}}
            await ask(story.api, "PATCH", f"{path}/pods/status", status, content_type=MERGE)

        await used(1)
        await story.delete("Node", web.node)

        def message() -> str:
            return str(story.condition(web.node, names.DRAINED).get("message", ""))

        await story.sight.until("the drain waits", lambda: "budget" in message())
        assert not web.is_released()
        await used(3)
        await story.until_gone(web.node)
        web.was_replaced_first()


@pytest.mark.parametrize("is_near", [True, False], ids=["near", "far"])
async def test_a_deadline_that_is_nearer_than_a_replacement_takes_its_course(story: Story, is_near: bool) -> None:
    group = {"selector": {"matchLabels": {LABEL: story.run}}, "terminationGracePeriod": "12s" if is_near else "1h"}
    await story.controller(nodeGroups=[group])
    async with single(story) as web:
        await story.delete("Node", web.node)
        await until_deadline(story, "Node", web.node)
        await story.until_gone(web.node, seconds=12 + story.at_most(20))
        if is_near:
            assert not story.events_about(web.pod, names.EventReason.POD_RELEASED)
            assert story.sight.lowest_health(0, app="web") == 0
        else:
            web.was_replaced_first()


async def test_a_drain_without_a_controller_is_killed_and_resumed_with_the_rights_of_the_page(story: Story) -> None:
    async with single(story, refuge=False, is_managed=False) as web:
        async with account_with(story, (*RIGHTS, EVENTS, *REPLACE_FIRST_RIGHTS)) as account:
            kubeconfig = access_with(story, await token_of(story, account), "laptop").kubeconfig
            async with running(kubeconfig, {}, story.folder, "drain", web.node) as first:
                await story.sight.until("it is released", lambda: web.is_released() and web.others)
                first.send(signal.SIGKILL)
                await first.ended()
            assert web.is_released()
            await story.nodes("refuge", managed=False)
            async with running(kubeconfig, {}, story.folder, "drain", web.node) as second:
                assert await second.ended() == 0, second.text()
        web.was_replaced_first()
        assert len(story.healthy("web")) == 1
