"""Collections read once: whole, in the version that is served, and with a missing right told."""

from __future__ import annotations

import msgspec
import pytest
from support.servers import ScriptedTransport, answer, lease, page, refusal

from gracectl.kube import errors
from gracectl.kube.cache.reading import read_all, read_served
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.requests import Selection
from gracectl.kube.resources import LEASES, Resource
from gracectl.kube.transport import Response
from gracectl.model.meta import Lease
from gracectl.runtime.clock import LoopClock

OLD: Resource[Lease] = msgspec.structs.replace(LEASES, version="v1beta1")
VERSIONS = (LEASES, OLD)
NOT_SERVED = answer(b"404 page not found", 404)
FORBIDDEN = refusal(403, "Forbidden", 'leases.coordination.k8s.io is forbidden: User "x" cannot list resource "leases"')
EXPIRED = refusal(410, "Expired")
SERVED = answer({"kind": "APIResourceList", "resources": [{"name": "leases"}]})


@pytest.fixture
async def transport() -> ScriptedTransport:
    return ScriptedTransport(LoopClock())


@pytest.fixture
async def client(transport: ScriptedTransport) -> KubeClient:
    return KubeClient(transport, transport.clock, settings=ClientSettings(retry=RetrySettings(attempts=1)))


def versions_of(transport: ScriptedTransport) -> list[str]:
    return [request.path.split("/")[3] for _, request in transport.asked]


async def test_all_pages_of_a_selection_are_read(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([page(7, lease("a", 1), lease("b", 2), token="more"), page(7, lease("c", 3))])
    leases = await read_all(client, LEASES, Selection(fields="x=y"), keep=lambda each: each.name != "a")
    assert [each.name for each in leases] == ["b", "c"]
    assert {dict(request.query)["fieldSelector"] for _, request in transport.asked} == {"x=y"}


async def test_an_expired_list_is_restarted_once(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([page(7, lease("a", 1), token="more"), EXPIRED, page(9, lease("b", 8))])
    assert [each.name for each in await read_all(client, LEASES)] == ["b"]
    transport.answers.extend([EXPIRED, EXPIRED])
    with pytest.raises(errors.Gone):
        await read_all(client, LEASES)


async def test_the_first_version_that_is_served_is_read(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([page(7, lease("a", 1))])
    assert len(await read_served(client, VERSIONS)) == 1
    transport.answers.extend([NOT_SERVED, page(7, lease("a", 1), lease("b", 2))])
    assert len(await read_served(client, VERSIONS)) == 2
    transport.answers.extend([NOT_SERVED, NOT_SERVED])
    assert await read_served(client, VERSIONS) == []
    assert versions_of(transport) == ["v1", "v1", "v1beta1", "v1", "v1beta1"]


async def test_a_missing_right_to_an_unserved_kind_is_fine(client: KubeClient, transport: ScriptedTransport) -> None:
    transport.answers.extend([FORBIDDEN, NOT_SERVED, NOT_SERVED])
    assert await read_served(client, VERSIONS) == []


@pytest.mark.parametrize("discovery", [[SERVED], [NOT_SERVED, SERVED], [refusal(503)]])
async def test_a_missing_right_to_what_may_be_served_is_told(
    client: KubeClient, transport: ScriptedTransport, discovery: list[Response]
) -> None:
    transport.answers.extend([FORBIDDEN, *discovery])
    with pytest.raises(errors.Forbidden, match="add the verb list on leases"):
        await read_served(client, VERSIONS)
