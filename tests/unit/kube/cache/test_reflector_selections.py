"""A reflector of a part of a collection: what comes into its selection is an arrival, what leaves it is gone."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from kubesim.apiserver import ApiServer
from kubesim.faults import DropWatch, Expire, Rule
from kubesim.server.api import Json, Request
from support.inprocess import InProcessTransport
from support.stage import NAMESPACE, a_pod_manifest

from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import KubeClient
from gracectl.kube.requests import Selection
from gracectl.kube.resources import PODS
from gracectl.model.pod import Pod
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running

PATH = f"/api/v1/namespaces/{NAMESPACE}/pods"


class World:
    """An embedded API server with no world around it, and a cache of the pods that a selection lets through."""

    def __init__(self, selection: Selection) -> None:
        self.clock = LoopClock()
        self.server = ApiServer(self.clock)
        self.transport = InProcessTransport(self.server, self.clock)
        self.cache: Cache[Pod] = Cache("pods")
        self.told: list[str] = []
        self.cache.subscribe(self._told)
        settings = ReflectorSettings(selection=selection)
        self.reflector = Reflector(
            KubeClient(self.transport, self.clock), PODS, self.cache, self.clock, settings=settings
        )

    def _told(self, old: Pod | None, new: Pod | None) -> None:
        thing = new or old
        assert thing is not None
        self.told.append(f"{'+' if old is None else '-' if new is None else '~'}{thing.name}")

    async def ask(self, method: str, path: str, body: Json = None, content_type: str = "application/json") -> None:
        headers = {"content-type": content_type}
        answer = await self.server.handle(Request(method=method, path=path, headers=headers, body=body))
        assert answer.status < 300, answer.body
        await self.clock.sleep(1)

    async def create(self, name: str, node: str = "", **more: str) -> None:
        await self.ask("POST", PATH, a_pod_manifest(name, node, labels=more))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        await self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        await self.create("here", "n1", app="web")
        await self.create("there", "n2", app="web")
        async with while_running(self.reflector.run):
            await self.cache.wait_live()
            yield


async def test_a_pod_comes_to_its_node_by_being_bound() -> None:
    world = World(Selection(fields="spec.nodeName=n1"))
    async with world.running():
        assert world.told == ["+here"]
        await world.create("new")
        await world.create("elsewhere")
        assert world.told == ["+here"]
        await world.ask("POST", f"{PATH}/new/binding", {"target": {"name": "n1"}})
        await world.ask("POST", f"{PATH}/elsewhere/binding", {"target": {"name": "n2"}})
        assert world.told == ["+here", "+new"]
        await world.ask("DELETE", f"{PATH}/there", {"gracePeriodSeconds": 0})
        await world.ask("DELETE", f"{PATH}/here", {"gracePeriodSeconds": 0})
        assert world.told == ["+here", "+new", "~here", "-here"]


async def test_resuming_and_listing_anew_keep_to_the_selection(caplog: pytest.LogCaptureFixture) -> None:
    world = World(Selection(fields="spec.nodeName=n1"))
    with caplog.at_level(logging.INFO):
        async with world.running():
            world.transport.before.add(Rule(fault=DropWatch(5.0), count=1))
            world.transport.before.add(Rule(fault=Expire(), path="pods", count=1))
            await world.clock.sleep(5)
            await world.create("new", "n1")
            await world.create("elsewhere", "n2")
            await world.clock.sleep(30)
            assert {each.name for each in world.cache.values()} == {"here", "new"}
            assert world.reflector.statistics().lists == 2
    assert "list or watch of pods (spec.nodeName=n1) interrupted" in caplog.text
