"""A provider that ends instances by objects of the cluster: what the composed controller does for it."""

from __future__ import annotations

import pytest
from kubesim_support.accounts import guarded, rule
from support.inprocess import InProcessTransport
from support.stage import the_settings

from gracectl.app.controller import Controller
from gracectl.cloud.none import NoneProvider
from gracectl.cloud.provider import UsesCluster
from gracectl.controllers.rbac import RIGHTS, MissingPermissions, freeze_rights
from gracectl.kube.client import KubeClient
from gracectl.kube.errors import NotLeading
from gracectl.kube.rbac import Permission
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import NODES
from gracectl.runtime.clock import LoopClock

MACHINES = Permission("delete", "machines", "example.io")


class Within(NoneProvider):
    """A provider that needs a right of its own."""

    def __init__(self) -> None:
        super().__init__(NoneProvider.Options())
        self.client: KubeClient | None = None
        self.times_told = 0

    def rights(self) -> tuple[Permission, ...]:
        return (MACHINES,)

    def use(self, client: KubeClient) -> None:
        self.client = client
        self.times_told += 1


async def test_its_rights_are_asked_for_at_the_start_beside_our_own() -> None:
    clock = LoopClock()
    server = await guarded(clock, "gracectl", rule("*", "*", "*"))
    provider = Within()
    settings = the_settings()
    await Controller(settings, InProcessTransport(server, clock, token="t"), clock, provider).check()
    server = await guarded(clock, "gracectl", rule("get", "nodes"))
    with pytest.raises(MissingPermissions) as caught:
        await Controller(settings, InProcessTransport(server, clock, token="t"), clock, Within()).check()
    rights = [right for right in RIGHTS if right != Permission("get", "nodes")]
    assert caught.value.rights == (*rights, *freeze_rights("kube-system"), MACHINES)


async def test_it_gets_a_client_once_that_reads_always_and_writes_only_through_the_fence() -> None:
    clock = LoopClock()
    server = await guarded(clock, "gracectl", rule("*", "*", "*"))
    provider = Within()
    Controller(the_settings(), InProcessTransport(server, clock, token="t"), clock, provider)
    assert provider.client is not None
    assert provider.times_told == 1
    assert not [node async for page in provider.client.list(NODES) for node in page.items]
    with pytest.raises(NotLeading):
        await provider.client.patch(NODES, ("", "n1"), MergePatch({"metadata": {}}), uid="1")


def test_other_providers_are_no_such() -> None:
    assert isinstance(Within(), UsesCluster)
    assert not isinstance(NoneProvider(NoneProvider.Options()), UsesCluster)
