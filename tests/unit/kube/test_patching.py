"""Optimistic writes to one object: repeated after a conflict, and never to another object of that name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.servers import ScriptedTransport, answer, lease, refusal

from gracectl.kube.client import ClientSettings, KubeClient
from gracectl.kube.client.retry import RetrySettings
from gracectl.kube.errors import Conflict, Invalid
from gracectl.kube.patching import ATTEMPTS, delete, patch_with_retry
from gracectl.kube.requests import MergePatch
from gracectl.kube.resources import LEASES, NODES
from gracectl.model.decode import decode_node
from gracectl.model.meta import Lease
from gracectl.model.node import Node
from gracectl.runtime.clock import LoopClock

STALE = refusal(409, "Conflict", "the object has been modified", name="a")
INVALID = refusal(422, "Invalid", "no such index", name="a")


def a_client() -> tuple[KubeClient, ScriptedTransport]:
    clock = LoopClock()
    transport = ScriptedTransport(clock)
    return KubeClient(transport, clock, settings=ClientSettings(retry=RetrySettings(attempts=1))), transport


def needed(thing: Lease) -> MergePatch | None:
    return None if thing.holder == "us" else MergePatch({"spec": {"holderIdentity": "us"}})


async def known(client: KubeClient, transport: ScriptedTransport) -> Lease:
    transport.answers.append(answer(lease("a", 1)))
    return await client.get(LEASES, ("n", "a"))


async def test_after_a_conflict_it_is_computed_from_the_newest_state() -> None:
    client, transport = a_client()
    thing = await known(client, transport)
    transport.answers += [STALE, answer(lease("a", 2)), answer(lease("a", 3, holder="us"))]
    after = await patch_with_retry(client, LEASES, thing, needed)
    assert after is not None
    assert after.resource_version == "3"
    bodies = [msgspec.json.decode(request.body or b"") for _, request in transport.asked if request.method == "PATCH"]
    assert [body["metadata"] for body in bodies] == [{"resourceVersion": "1"}, {"resourceVersion": "2"}]


async def test_an_object_that_has_taken_the_name_meanwhile_is_not_written() -> None:
    client, transport = a_client()
    thing = await known(client, transport)
    transport.answers += [STALE, answer(lease("a", 2, uid="another"))]
    assert await patch_with_retry(client, LEASES, thing, needed) is None
    assert [request.method for _, request in transport.asked] == ["GET", "PATCH", "GET"]


async def test_what_is_invalid_in_the_newest_state_is_raised_at_once() -> None:
    client, transport = a_client()
    thing = await known(client, transport)
    transport.answers += [INVALID, answer(lease("a", 1))]
    with pytest.raises(Invalid):
        await patch_with_retry(client, LEASES, thing, needed)
    assert not transport.answers


async def test_others_are_not_first_for_ever() -> None:
    client, transport = a_client()
    thing = await known(client, transport)
    for version in range(2, ATTEMPTS + 1):
        transport.answers += [STALE, answer(lease("a", version))]
    transport.answers.append(STALE)
    with pytest.raises(Conflict):
        await patch_with_retry(client, LEASES, thing, needed)


async def test_a_deletion_names_the_object_that_is_meant_and_ends_with_another_one() -> None:
    client, transport = a_client()
    thing = await known(client, transport)
    message = "Precondition failed: UID in precondition: uid-a, UID in object meta: another"
    transport.answers.append(refusal(409, "Conflict", message, name="a"))
    await delete(client, LEASES, thing)
    _, request = transport.asked[-1]
    assert msgspec.json.decode(request.body or b"")["preconditions"] == {"uid": "uid-a"}


UNREADABLE = refusal(422, "Invalid", 'patch: Invalid value: "{…}": parsing time "10000-01-01T23:58:59Z"', name="n1")
STORED = "10000-01-01T23:58:59Z"


def a_node(version: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": "u", "resourceVersion": str(version)}, **more}


def unschedulable(node: Node) -> MergePatch | None:
    return None if node.unschedulable else MergePatch({"spec": {"unschedulable": True}})


async def test_instants_that_the_server_cannot_read_are_rewritten_first() -> None:
    client, transport = a_client()
    conditions = [
        {"type": "Ready", "status": "True", "lastHeartbeatTime": STORED},
        {"type": "Other", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]
    bad = a_node(1, status={"conditions": conditions}, spec={"taints": [{"key": "k", "timeAdded": STORED}]})
    transport.answers += [UNREADABLE, answer(bad), answer(bad), answer(a_node(2)), answer(a_node(3))]
    transport.answers += [answer(a_node(4, spec={"unschedulable": True}))]
    after = await patch_with_retry(client, NODES, decode_node(msgspec.json.encode(bad)), unschedulable)
    assert after is not None
    assert after.unschedulable
    patches = [request for _, request in transport.asked if request.method == "PATCH"][1:3]
    status = {"conditions": [{"type": "Ready", "lastHeartbeatTime": "9999-12-31T23:59:59Z"}]}
    taints = [{"key": "k", "timeAdded": "9999-12-31T23:59:59Z"}]
    assert [(request.path, msgspec.json.decode(request.body or b"")) for request in patches] == [
        ("/api/v1/nodes/n1", {"metadata": {"uid": "u"}, "spec": {"taints": taints}, "status": status}),
        ("/api/v1/nodes/n1/status", {"metadata": {"uid": "u"}, "status": status}),
    ]


@pytest.mark.parametrize("answers", [[answer(a_node(1))], [refusal(403, "Forbidden", "no", name="n1")]])
async def test_what_cannot_be_rewritten_fails_as_before(answers: list[Any]) -> None:
    client, transport = a_client()
    transport.answers += [UNREADABLE, answer(a_node(1)), *answers]
    with pytest.raises(Invalid):
        await patch_with_retry(client, NODES, decode_node(msgspec.json.encode(a_node(1))), unschedulable)
    assert not transport.answers
