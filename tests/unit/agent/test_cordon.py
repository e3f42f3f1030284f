"""Patches of a shutdown's cordon: what it records, and what of it is removed, and when."""

from __future__ import annotations

import random
from typing import Any

import anyio
import msgspec
from support.builders import NOW, a_node
from support.eviction import a_status
from support.servers import ScriptedTransport

from gracectl.agent.cordon import ShutdownCordon, cordon_patch, record_patch, uncordon_patch
from gracectl.kube.client import KubeClient
from gracectl.kube.transport import Response
from gracectl.model import names
from gracectl.model.node import Node
from gracectl.runtime.backoff import Backoff
from gracectl.runtime.clock import LoopClock

RECORD = {names.SHUTDOWN_CORDONED: "unschedulable"}


def marked(**fields: Any) -> Node:
    """A node that a shutdown has cordoned."""
    return a_node(unschedulable=True, annotations=RECORD, **fields)


def test_what_is_added_is_recorded_in_the_same_patch() -> None:
    assert record_patch(a_node()) is not None
    assert record_patch(marked()) is None
    patch = cordon_patch(a_node(annotations={names.SHUTDOWN_CORDONED: ""}))
    assert patch is not None
    path = f"/metadata/annotations/{names.SHUTDOWN_CORDONED.replace('/', '~1')}"
    assert {"op": "add", "path": path, "value": "taint,label,unschedulable"} in patch.operations


def test_what_was_recorded_is_removed() -> None:
    patch = uncordon_patch(marked())
    assert patch is not None
    assert {"op": "remove", "path": "/spec/unschedulable"} in patch.operations
    assert uncordon_patch(a_node(unschedulable=True)) is None


def test_a_node_that_is_being_deleted_keeps_its_cordon() -> None:
    assert uncordon_patch(marked(deletion_timestamp=NOW)) is None


async def test_nothing_is_removed_while_the_machine_is_down() -> None:
    clock = LoopClock()
    transport = ScriptedTransport(clock)
    is_up = False
    cordon = ShutdownCordon(
        KubeClient(transport, clock), marked, lambda: is_up, lambda: Backoff(1, 2, rng=random.Random(1))
    )
    assert not cordon.is_left
    with anyio.move_on_after(10):
        await cordon.run()
    assert transport.asked == []
    is_up = True
    assert cordon.is_left


async def test_what_a_kubelet_may_not_add_is_left_out() -> None:
    """NodeRestriction refuses each patch with a taint, as Kubernetes 1.37 words it."""
    clock = LoopClock()
    transport = ScriptedTransport(clock)
    opened = {
        "metadata": {
            "name": "n1", "uid": "uid-n1", "resourceVersion": "2", "annotations": {names.SHUTDOWN_CORDONED: ""},
        },
    }  # fmt: skip
    known = Response(status=200, body=msgspec.json.encode(opened))
    refusal = a_status(403, 'nodes "n1" is forbidden: node "n1" is not allowed to modify taints')
    transport.answers.extend((known, refusal, known))
    cordon = ShutdownCordon(
        KubeClient(transport, clock), a_node, lambda: False, lambda: Backoff(1, 2, rng=random.Random(1))
    )
    assert await cordon.apply(a_node())
    assert any("taint" in each["path"] for each in transport.body(1))
    written = {each["path"]: each["value"] for each in transport.body(2)}
    assert not [path for path in written if "taint" in path]
    assert written["/spec/unschedulable"] is True
    assert "label,unschedulable" in written.values()
