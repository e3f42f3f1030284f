"""The provider of the embedded cluster against its cloud, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from kubesim.apiserver import ApiServer
from kubesim.controllers.cloud import PREFIX, Cloud, CloudSettings
from kubesim.controllers.pace import Pace
from kubesim.http import HttpFace
from kubesim.server.api import Request, Response
from kubesim_support.patience import PATIENCE

from gracectl.cloud.provider import InstanceGone, InstanceState, ProviderRefused, ProviderUnavailable
from gracectl.cloud.simulated import SimulatedProvider
from gracectl.runtime.clock import SystemClock
from gracectl.runtime.supervise import while_running

pytestmark = pytest.mark.real_time

ID = "sim:///zone-a/i-1"


class Site:
    """A cloud with instance i-1, its HTTP face, and the provider that is under test."""

    def __init__(self, settings: CloudSettings) -> None:
        clock = SystemClock()
        self.ended = anyio.Event()
        self.cloud = Cloud(Pace(clock), settings, lambda instance: self.ended.set())
        self.cloud.create("i-1", "node-1")
        self.server = ApiServer(clock)
        self.server.mount(PREFIX, self.cloud)
        self.face = HttpFace(self.server)
        self.url = ""

    def provider(self, timeout: float = 5.0, url: str = "") -> SimulatedProvider:
        return SimulatedProvider(SimulatedProvider.Options(endpoint=url or self.url, timeout_seconds=timeout))


@pytest.fixture
async def site(anyio_backend: object) -> AsyncIterator[Site]:
    site = Site(CloudSettings(terminate_delay=0.05))
    site.url = await site.face.start()
    async with while_running(site.cloud.run):
        yield site
    await site.face.stop()


async def test_the_life_of_an_instance(site: Site) -> None:
    provider = site.provider(url=site.url + "/")
    assert await provider.state(ID) is InstanceState.RUNNING
    await provider.terminate(ID)
    assert await provider.state(ID) is InstanceState.ENDING
    await provider.terminate(ID)  # idempotent
    with anyio.fail_after(PATIENCE):
        await site.ended.wait()
    assert await provider.state(ID) is InstanceState.GONE
    await provider.terminate(ID)
    await provider.aclose()


async def test_an_instance_that_does_not_exist_is_gone(site: Site) -> None:
    provider = site.provider()
    assert await provider.state("sim:///zone-a/i-2") is InstanceState.GONE
    with pytest.raises(InstanceGone, match="i-2 does not exist"):
        await provider.terminate("sim:///zone-a/i-2")
    await provider.aclose()


async def test_an_id_is_one_part_of_the_path_whatever_it_holds(site: Site) -> None:
    provider = site.provider()
    assert await provider.state("sim:///zone-a/i-1?x=/../../i-1") is InstanceState.RUNNING  # the last part
    assert await provider.state("sim:///zone-a/i-1?a b#c") is InstanceState.GONE
    await provider.aclose()


async def test_termination_protection_is_refused_with_a_remedy(site: Site) -> None:
    provider = site.provider()
    site.cloud.protect("i-1", "termination protection is on")
    with pytest.raises(ProviderRefused) as caught:
        await provider.terminate(ID)
    assert str(caught.value) == ("termination protection is on; remove the termination protection of instance i-1")
    assert await provider.state(ID) is InstanceState.RUNNING
    await provider.aclose()


async def test_a_cloud_that_fails_is_unavailable_for_this_time(site: Site) -> None:
    provider = site.provider()
    site.cloud.fail("i-1", 1)
    with pytest.raises(ProviderUnavailable, match="instance i-1: the cloud has an internal error"):
        await provider.terminate(ID)
    await provider.terminate(ID)
    await provider.aclose()


async def test_a_cloud_that_takes_too_long_is_unavailable(site: Site) -> None:
    async def asleep(request: Request) -> Response:
        await anyio.sleep(5)
        return Response(status=200)

    site.server.mount("/slow", asleep)
    provider = site.provider(timeout=0.05, url=site.url + "/slow")
    with pytest.raises(ProviderUnavailable, match="no response within"):
        await provider.state(ID)
    await provider.aclose()


async def test_a_cloud_that_is_not_there_is_unavailable() -> None:
    site = Site(CloudSettings())
    url = await site.face.start()
    await site.face.stop()
    provider = site.provider(url=url)
    with pytest.raises(ProviderUnavailable, match="no connection"):
        await provider.terminate(ID)
    await provider.aclose()


@pytest.mark.parametrize("endpoint", ["not an address", "htp://127.0.0.1", "http://"])
async def test_an_endpoint_that_is_no_address_is_unavailable_and_no_traceback(endpoint: str) -> None:
    provider = SimulatedProvider(SimulatedProvider.Options(endpoint=endpoint))
    with pytest.raises(ProviderUnavailable):
        await provider.state(ID)
    await provider.aclose()


@pytest.mark.parametrize("body", ["<html>welcome</html>", {"no": "instance"}, ""])
async def test_an_answer_that_is_no_instance_is_unavailable(site: Site, body: object) -> None:
    async def other(request: Request) -> Response:
        return Response(status=200, body=body)

    site.server.mount("/other", other)
    provider = site.provider(url=site.url + "/other")
    with pytest.raises(ProviderUnavailable, match="check endpoint"):
        await provider.state(ID)
    await provider.aclose()


async def test_an_unknown_state_is_no_reason_to_skip_anything(site: Site) -> None:
    async def other(request: Request) -> Response:
        return Response(status=200, body={"id": "i-1", "state": "rebooting"})

    site.server.mount("/other", other)
    provider = site.provider(url=site.url + "/other")
    assert await provider.state(ID) is InstanceState.UNKNOWN
    await provider.aclose()


async def test_closing_twice_and_unused_is_harmless(site: Site) -> None:
    provider = site.provider()
    await provider.aclose()
    assert await provider.state(ID) is InstanceState.RUNNING
    await provider.aclose()
    await provider.aclose()
