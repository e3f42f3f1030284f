"""The newest known state of an object, of which the watch shows older ones late."""

from __future__ import annotations

import msgspec
from support.builders import NOW, a_node

from gracectl.controllers.cluster.tracked import TrackedObject
from gracectl.kube.resources import NODES
from gracectl.model import names
from gracectl.model.node import Node


def at(version: int, node: Node) -> Node:
    return msgspec.structs.replace(node, resource_version=str(version))


def test_a_state_that_one_of_our_writes_has_replaced_is_older() -> None:
    first, second, third, fourth = (at(version, a_node()) for version in range(1, 5))
    tracked = TrackedObject(NODES, first)
    tracked.wrote(second)
    tracked.wrote(third)
    for late in (first, second):
        tracked.refresh(late)
        assert tracked.latest is third
    tracked.refresh(fourth)  # of another client
    assert tracked.latest is fourth


def test_a_state_from_before_the_deletion_or_with_more_finalizers_is_older() -> None:
    held = at(2, a_node(deletion_timestamp=NOW, finalizers=(names.FINALIZER, "other")))
    freed = at(3, msgspec.structs.replace(held, finalizers=("other",)))
    tracked = TrackedObject(NODES, freed)
    for late in (at(1, a_node()), held):
        tracked.refresh(late)
        assert tracked.latest is freed
