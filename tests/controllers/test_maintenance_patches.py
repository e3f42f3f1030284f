"""Patches of a maintenance that ends: in which order its marks and the record of them go."""

from __future__ import annotations

from support.builders import a_node

from gracectl.controllers.node.maintenance import forgotten, superfluous
from gracectl.model import names


def test_the_record_goes_when_all_that_it_lists_is_gone() -> None:
    listed, empty = (a_node(unschedulable=True, annotations={names.CORDONED: marks}) for marks in ("unschedulable", ""))
    assert superfluous(listed) is not None
    assert forgotten(listed) is None
    assert superfluous(empty) is None
    assert forgotten(empty) is not None
