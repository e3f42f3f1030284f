"""A resource of which a server may serve one version, another, or none: which one is watched, and what is missing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
from support.servers import FOREVER, ScriptedTransport, answer, expired, lease, page, refusal

from gracectl.kube import errors
from gracectl.kube.cache import Cache
from gracectl.kube.cache.reflector import Reflector, ReflectorSettings
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.resources import LEASES, Resource
from gracectl.model.meta import Lease
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running

OLD: Resource[Lease] = msgspec.structs.replace(LEASES, version="v1beta1")
NOT_SERVED = answer(b"404 page not found", 404)
FORBIDDEN = refusal(403, "Forbidden", 'leases.coordination.k8s.io is forbidden: User "x" cannot list resource "leases"')
SERVED = answer({"kind": "APIResourceList", "resources": [{"name": "leases"}, {"name": "leases/status"}]})
OTHERS_SERVED = answer({"kind": "APIResourceList", "resources": [{"name": "others"}]})


class World:
    """A scripted server, and a cache that follows the newer version, the older one, or neither."""

    def __init__(self, *, optional: bool = True) -> None:
        self.clock = LoopClock()
        self.transport = ScriptedTransport(self.clock)
        self.client = KubeClient(self.transport, self.clock, settings=ClientSettings(retry=RetrySettings(attempts=1)))
        self.cache: Cache[Lease] = Cache("leases")
        self.reflector = Reflector(
            self.client, (LEASES, OLD), self.cache, self.clock, settings=ReflectorSettings(optional=optional)
        )

    @asynccontextmanager
    async def running(self, seconds: float) -> AsyncGenerator[None, None]:
        async with while_running(self.reflector.run):
            await self.clock.sleep(seconds)
            yield

    @property
    def story(self) -> list[str]:
        """`v1`, `v1beta1`: of which version something was asked; `?v1`: whether it is served."""
        parts = [request.path.split("/") for _, request in self.transport.asked]
        return [each[3] if len(each) > 4 else f"?{each[3]}" for each in parts]


async def test_the_first_version_is_taken_where_it_is_served() -> None:
    world = World()
    world.transport.answers.append(page(7, lease("a", 1)))
    async with world.running(10):
        assert world.story == ["v1", "v1"]
        assert world.reflector.resource == LEASES


async def test_where_the_first_version_is_not_served_the_second_is_taken_at_once() -> None:
    world = World(optional=False)
    world.transport.answers.extend([NOT_SERVED, page(7, lease("a", 1))])
    async with world.running(10):
        assert world.transport.instants == [0.0, 0.0, 0.0]
        assert world.story == ["v1", "v1beta1", "v1beta1"]
        assert world.reflector.resource == OLD
        assert [thing.name for thing in world.cache.values()] == ["a"]


async def test_where_none_is_served_both_are_looked_for_again_beginning_with_the_first() -> None:
    world = World()
    world.transport.answers.extend([NOT_SERVED] * 5 + [page(7, lease("a", 1))])
    async with world.running(29):
        assert world.cache.live
        assert len(world.cache) == 0
        assert world.reflector.resource == LEASES
        await world.clock.sleep(40)
        assert world.transport.instants == [0.0, 0.0, 30.0, 30.0, 60.0, 60.0, 60.0]
        assert world.story == ["v1", "v1beta1"] * 3 + ["v1beta1"]


async def test_none_served_of_a_resource_that_must_be_there_ends_it() -> None:
    world = World(optional=False)
    world.transport.answers.extend([NOT_SERVED, NOT_SERVED])
    with pytest.raises(errors.NotServed):
        await world.reflector.run()


async def test_a_version_that_is_served_no_longer_is_replaced_by_another_without_a_gap() -> None:
    world = World()
    news: list[str] = []
    world.transport.answers.extend([page(7, lease("a", 1)), NOT_SERVED, page(9, lease("a", 1))])
    world.transport.streams.extend([[20.0, expired()], [FOREVER]])
    world.cache.subscribe(lambda old, new: news.append("+" if old is None else "-" if new is None else "~"))
    async with world.running(60):
        assert world.reflector.resource == OLD
        assert news == ["+"]


async def test_what_is_known_is_given_up_only_when_none_has_been_served_twice() -> None:
    world = World()
    world.transport.answers.extend([page(7, lease("a", 1)), *[NOT_SERVED] * 4, page(9, lease("b", 8))])
    world.transport.streams.extend([[20.0, expired()], [FOREVER]])
    async with world.running(40):
        assert len(world.cache) == 1
        await world.clock.sleep(20)
        assert len(world.cache) == 0
        await world.clock.sleep(30)
        assert [thing.name for thing in world.cache.values()] == ["b"]


async def test_without_permission_on_what_is_not_served_nothing_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """A server refuses before it looks whether it has the resource at all; its discovery tells."""
    caplog.set_level("INFO")
    world = World()
    world.transport.answers.extend([FORBIDDEN, NOT_SERVED, OTHERS_SERVED, FORBIDDEN, NOT_SERVED, NOT_SERVED])
    async with world.running(31):
        assert world.cache.live
        assert world.story == ["v1", "?v1", "?v1beta1"] * 2
        assert world.transport.instants == [0.0] * 3 + [30.0] * 3
    # No permission is requested for what does not exist.
    assert caplog.messages == ["the server has no leases.coordination.k8s.io; looking again every 30 s"]


async def test_a_missing_right_to_what_is_served_is_told_at_the_start() -> None:
    world = World()
    world.transport.answers.extend([FORBIDDEN, NOT_SERVED, SERVED])
    with pytest.raises(errors.Forbidden, match="add the verb list on leases"):
        await world.reflector.run()


async def test_a_discovery_that_does_not_answer_excuses_nothing() -> None:
    world = World()
    world.transport.answers.extend([FORBIDDEN, refusal(503)])
    with pytest.raises(errors.Forbidden):
        await world.reflector.run()


async def test_what_is_installed_later_without_rights_to_it_ends_nothing() -> None:
    """Nodes go on ending; the log says what is missing."""
    world = World()
    world.transport.answers.extend([NOT_SERVED, NOT_SERVED, FORBIDDEN, SERVED, page(7, lease("a", 1))])
    async with world.running(31):
        assert len(world.cache) == 1
        assert "add the verb list on leases" in world.reflector.statistics().last_error


async def test_whether_a_resource_is_served() -> None:
    world = World()
    world.transport.answers.extend([SERVED, OTHERS_SERVED, NOT_SERVED, answer(b"<html>")])
    assert [await world.client.serves(LEASES) for _ in range(3)] == [True, False, False]
    with pytest.raises(errors.ServerError, match="is not a list of resources"):
        await world.client.serves(LEASES)
    assert {request.path for _, request in world.transport.asked} == {"/apis/coordination.k8s.io/v1"}
