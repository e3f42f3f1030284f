"""Merge of an applied configuration into the live object. Nothing is removed.

Merged lists keep the live order. If the configuration orders shared items differently, its order wins, and its new
items stay between them. Order of structured-merge-diff (typed/merge.go).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kubesim.managedfields.forms import Form, element_of, field_type, form_of
from kubesim.managedfields.pathelements import Element
from kubesim.server.api import Json
from kubesim.types.schema import MISSING

if TYPE_CHECKING:
    from kubesim.types.schema import Schema


def merged(live: Json, applied: Json, schema: Schema | None) -> Json:
    """The live value (MISSING: there is none) with what is applied. Raises ValueError for an item without its keys."""
    if live is MISSING:
        return applied
    form = form_of(schema, applied)
    # null leaves maps and lists that have something in them as they are: it says nothing about any part of them.
    if form is Form.MAP:
        parts = live if isinstance(live, dict) else {}
        if not parts and not applied:
            return applied
        given = {
            name: merged(parts.get(name, MISSING), each, field_type(schema, name))
            for name, each in (applied or {}).items()
        }
        return {**parts, **given}
    if form is Form.LIST and schema is not None:
        items = live if isinstance(live, list) else []
        if not items and not applied:
            return applied
        return _merged_list(items, applied or [], schema)
    return applied


def _merged_list(live: list[Json], applied: list[Json], schema: Schema) -> list[Json]:
    mine, theirs = ([element_of(schema, each) for each in items] for items in (live, applied))
    known = dict(zip(mine, live, strict=True))
    given = dict(zip(theirs, applied, strict=True))
    return [
        live[place] if element is None else merged(known.get(element, MISSING), given[element], schema.items)
        for place, element in _order(mine, theirs)
    ]


def _order(live: Sequence[Element], applied: Sequence[Element]) -> Iterator[tuple[int, Element | None]]:
    """Items of a merged list: (index in the live list, None) for a live item, (-1, element) for an applied one."""
    ours = set(live)
    wanted = set(applied)
    anchors = deque(element for element in applied if element in ours)
    place = 0
    for element in applied:
        # Whatever stands in the live list before the next shared item comes first.
        while place < len(live):
            if live[place] not in wanted:
                yield place, None
            elif not anchors:
                place += 1  # merged before; the next applied item comes here
                break
            elif live[place] == anchors[0]:
                break
            place += 1
        yield -1, element
        if anchors and element == anchors[0]:
            anchors.popleft()
            if place < len(live) and live[place] == element:
                place += 1
    for rest in range(place, len(live)):
        if live[rest] not in wanted:
            yield rest, None
