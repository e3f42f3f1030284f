"""One object that cannot be decoded: it is set aside under its key, and everything else goes on."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from support.servers import FullLength, ScriptedTransport, World, answer, event, lease, page

from gracectl.kube.cache import Cache
from gracectl.kube.cache.reading import fill, read_all
from gracectl.kube.cache.reflector import Reflector
from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.errors import ServerError
from gracectl.kube.resources import LEASES, NODES, PODS
from gracectl.model.envelope import UndecodableObject
from gracectl.model.pod import Pod, UnknownPod
from gracectl.runtime.clock import LoopClock
from gracectl.runtime.supervise import while_running

DEEP: Any = msgspec.Raw(b'{"f:a":' * 9_990 + b"1" + b"}" * 9_990)


def broken(name: str, version: int, uid: str = "") -> dict[str, Any]:
    """A Lease with a duration that is none."""
    return {**lease(name, version, uid=uid), "spec": {"leaseDurationSeconds": "long"}}


def a_pod(name: str, version: int, *, node: str = "n1", uid: str = "", grace: Any = 30) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    managed = [{"manager": "m", "fieldsV1": DEEP}]
    spec = {"nodeName": node, "terminationGracePeriodSeconds": grace}
    return {"metadata": {"managedFields": managed, **meta}, "spec": spec}


class Pods:
    """A scripted server, and a cache that follows its pods."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.transport = ScriptedTransport(self.clock)
        self.client = KubeClient(self.transport, self.clock, settings=ClientSettings(retry=RetrySettings(attempts=1)))
        self.cache: Cache[Pod] = Cache("pods", {"node": lambda pod: (pod.node_name,)})
        self.dedup_key: list[str] = []
        self.cache.subscribe(lambda old, new: self.dedup_key.append(f"{_shown(old)}>{_shown(new)}"))
        self.aside: list[UndecodableObject] = []
        self.cache.subscribe_undecodable(self.aside.append)

    @asynccontextmanager
    async def followed(self, seconds: float, rng: random.Random | None = None) -> AsyncGenerator[None, None]:
        reflector = Reflector(self.client, PODS, self.cache, self.clock, rng=rng or FullLength())
        async with while_running(reflector.run):
            await self.clock.sleep(seconds)
            yield


def _shown(pod: Pod | None) -> str:
    return "" if pod is None else f"{'?' if isinstance(pod, UnknownPod) else ''}{pod.name}"


async def test_pods_nested_as_deep_as_a_server_stores_them_are_followed_like_any_other() -> None:
    pods = Pods()
    pods.transport.answers.append(page(7, a_pod("a", 1)))
    pods.transport.streams.append([event("ADDED", a_pod("b", 8)), event("DELETED", a_pod("a", 9))])
    async with pods.followed(1):
        assert pods.dedup_key == [">a", ">b", "a>"]
        assert pods.transport.story == ["list pods", "watch pods @7", "watch pods @9"]
        assert pods.aside == []


async def test_an_undecodable_pod_has_a_stand_in(caplog: pytest.LogCaptureFixture) -> None:
    pods = Pods()
    pods.transport.answers.append(page(7, a_pod("bad", 1, grace="x"), a_pod("good", 2), a_pod("worse", 3, grace=[])))
    labeled = a_pod("odd", 11)
    labeled["metadata"]["labels"] = 7  # found only when all else of it is decoded
    pods.transport.streams.append(
        [
            event("MODIFIED", a_pod("bad", 8, grace="y")), event("ADDED", a_pod("new", 9)),
            event("MODIFIED", a_pod("bad", 10)), event("MODIFIED", a_pod("good", 11, grace={})),
            event("ADDED", labeled), event("DELETED", a_pod("worse", 12, grace=[])),
        ],
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        async with pods.followed(1):
            assert sorted(_shown(pod) for pod in pods.cache.by_index("node", "n1")) == ["?good", "?odd", "bad", "new"]
            assert [each.name for each in pods.cache.undecodable] == ["good", "odd"]
            assert pods.cache.statistics().undecodable == 2
            assert pods.transport.story == ["list pods", "watch pods @7", "watch pods @12"]
    assert pods.dedup_key[:5] == [">good", ">?bad", ">?worse", "?bad>?bad", ">new"]
    assert pods.dedup_key[5:] == ["?bad>bad", "good>?good", ">?odd", "?worse>"]
    assert [each.name for each in pods.aside] == ["bad", "worse", "good", "odd"]  # each is news once
    assert [each.uid for each in pods.aside] == ["uid-bad", "uid-worse", "uid-good", "uid-odd"]
    assert "pods shop/bad: cannot be decoded, and is set aside: Expected `int | null`, got `str`" in caplog.text


async def test_a_new_list_forgets_what_is_gone_and_keeps_what_is_still_undecodable() -> None:
    pods = Pods()
    pods.transport.answers.extend(
        [
            page(7, a_pod("a", 1, grace="x"), a_pod("b", 2, grace="x"), a_pod("c", 3, grace="x")),
            page(9, a_pod("a", 1, grace="x"), a_pod("b", 8)),
        ]
    )
    for _ in range(2):
        await fill(pods.cache, pods.client, PODS)
    assert [each.name for each in pods.cache.undecodable] == ["a"]
    assert pods.dedup_key == [">?a", ">?b", ">?c", "?c>", "?b>b"]
    assert [each.name for each in pods.aside] == ["a", "b", "c"]


async def test_only_what_is_kept_of_a_list_is_set_aside() -> None:
    pods = Pods()
    pods.transport.answers.append(page(7, a_pod("a", 1, grace="x"), a_pod("b", 2, node="n2", grace="x")))
    await fill(pods.cache, pods.client, PODS, keep=lambda pod: pod.node_name == "n2")
    assert [each.name for each in pods.cache.undecodable] == ["b"]


async def test_a_pod_whose_labels_cannot_be_read_does_not_spoil_its_page() -> None:
    """Labels are decoded later than the rest."""
    pods, labeled = Pods(), a_pod("b", 2, node="n2")
    del labeled["metadata"]["managedFields"]
    labeled["metadata"]["labels"] = {"app": 7}
    good = {**a_pod("a", 1), "metadata": {"namespace": "shop", "name": "a", "uid": "a", "resourceVersion": "1"}}
    pods.transport.answers.append(page(7, good, labeled))
    await fill(pods.cache, pods.client, PODS)
    assert sorted(_shown(pod) for pod in pods.cache.values()) == ["?b", "a"]
    (each,) = pods.cache.undecodable
    assert (each.uid, each.resource_version, each.node_name) == ("uid-b", "2", "n2")


async def test_another_object_stands_as_it_was_last(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.transport.answers.extend([page(7, lease("a", 1), lease("b", 2), broken("c", 3)), page(20, broken("a", 15))])
    world.transport.streams.append(
        [
            event("MODIFIED", broken("a", 8)),
            event("MODIFIED", broken("b", 9, uid="another")),
            event("ADDED", lease("d", 10)),
        ]
    )
    with caplog.at_level(logging.WARNING):
        async with world.running(1):
            assert world.dedup_key == ["+a:a", "+b:b", "-b:b", "+d:d"]
            assert [each.name for each in world.cache.undecodable] == ["c", "a", "b"]
            held = world.cache.get("n", "a")
            assert held is not None
            assert held.resource_version == "1"
            assert world.transport.story == ["list leases", "watch leases @7", "watch leases @10"]
            assert world.reflector.statistics().undecodable == 3
            await fill(world.cache, KubeClient(world.transport, world.clock), LEASES)
            assert [lease.name for lease in world.cache.values()] == ["a"]
            assert [each.name for each in world.cache.undecodable] == ["a"]


async def test_a_part_holds_its_own_stand_ins() -> None:
    pods = Pods()
    pods.transport.answers.extend(
        [
            page(7, a_pod("a", 1, grace="x")), page(8, a_pod("b", 2, node="n2", grace="x")),
            page(9, a_pod("a", 1, grace="x")), page(10),
        ],
    )  # fmt: skip
    first, second = pods.cache.partition("node", "n1"), pods.cache.partition("node", "n2")
    for part in (first, second, first):
        await fill(part, pods.client, PODS)
    assert sorted(each.name for each in pods.cache.undecodable) == ["a", "b"]
    await fill(first, pods.client, PODS)
    assert [each.name for each in pods.cache.undecodable] == ["b"]
    second.drop()
    assert pods.cache.undecodable == ()


async def test_a_single_read_leaves_out_what_cannot_be_decoded_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    pods = Pods()
    node = {"metadata": {"name": "n1"}, "spec": {"unschedulable": "yes"}}
    pods.transport.answers.append(page(7, node, {"metadata": {"name": "n2"}}))
    assert [node.name for node in await read_all(pods.client, NODES)] == ["n2"]
    assert "Node n1: cannot be decoded: Expected `bool | null`, got `str` - at `$.spec.unschedulable`" in caplog.text


@pytest.mark.parametrize("body", [b'{"metadata":{"name":"\xe4"}}', b"[" * 5_000, b'{"metadata":{"name":7}}'])
async def test_a_single_answer_that_cannot_be_decoded_is_a_fault_of_the_server(body: bytes) -> None:
    pods = Pods()
    pods.transport.answers.append(answer(body))
    with pytest.raises(ServerError, match="the answer is not Pod"):
        await pods.client.get(PODS, ("shop", "a"))


async def test_refusals_are_read_whatever_is_nested_in_them() -> None:
    pods = Pods()
    status = {"kind": "Status", "code": 500, "message": "no", "details": {"causes": DEEP}, "extra": DEEP}
    pods.transport.answers.extend([answer(msgspec.json.encode(status), 500), answer(b"\xe4" * 5_000, 500)])
    for _ in range(2):
        with pytest.raises(ServerError):
            await pods.client.get(PODS, ("shop", "a"))
