"""Sets of fields, as managedFields keep them (FieldsV1), and their algebra.

A set is a tree of nodes with members and children. A field and its parts belong to a set independently. Invariants: a
set is a value; no node below the root is empty; the object itself () belongs to no set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kubesim.managedfields.pathelements import SELF, Element, Path, in_order
from kubesim.server.api import JsonObject


@dataclass(frozen=True, slots=True)
class FieldSet:
    """A set of fields. `members` are the elements that belong to it, `children` what belongs to it below an element."""

    members: frozenset[Element] = frozenset()
    children: Mapping[Element, FieldSet] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Iterable[Path]) -> FieldSet:
        """The set of these paths; () is passed over."""
        members: set[Element] = set()
        below: dict[Element, list[Path]] = defaultdict(list)
        for path in paths:
            if len(path) == 1:
                members.add(path[0])
            elif path:
                below[path[0]].append(path[1:])
        return cls(frozenset(members), {element: cls.of(rest) for element, rest in below.items()})

    @classmethod
    def decoded(cls, fields: JsonObject) -> FieldSet:
        """The set that encoded() wrote as FieldsV1."""
        parts = {element: below for element, below in fields.items() if element != SELF}
        members = frozenset(element for element, below in parts.items() if not below or SELF in below)
        return cls(members, _filled({element: cls.decoded(below) for element, below in parts.items()}))

    def encoded(self) -> JsonObject:
        """The set as FieldsV1, in order."""
        fields: JsonObject = {}
        for element in in_order(self.members | self.children.keys()):
            below = self.children.get(element)
            if below is None:
                fields[element] = {}
            else:
                itself: JsonObject = {SELF: {}} if element in self.members else {}
                fields[element] = {**itself, **below.encoded()}
        return fields

    def __bool__(self) -> bool:
        return bool(self.members or self.children)

    def __contains__(self, path: Path) -> bool:
        if len(path) < 2:
            return bool(path) and path[0] in self.members
        return path[1:] in self.below(path[0])

    def below(self, element: Element) -> FieldSet:
        """What belongs to the set below an element."""
        return self.children.get(element, NOTHING)

    def paths(self) -> Iterator[Path]:
        """Every field of the set, in the order of conflicts: the members of a node, then its children."""
        for element in in_order(self.members):
            yield (element,)
        for element in in_order(self.children):
            for path in self.children[element].paths():
                yield (element, *path)

    def __or__(self, other: FieldSet) -> FieldSet:
        if not self or not other:
            return self or other
        children = dict(self.children)
        for element, below in other.children.items():
            children[element] = children[element] | below if element in children else below
        return FieldSet(self.members | other.members, children)

    def __and__(self, other: FieldSet) -> FieldSet:
        shared = self.children.keys() & other.children.keys()
        return FieldSet(
            self.members & other.members,
            _filled({element: self.children[element] & other.children[element] for element in shared}),
        )

    def __sub__(self, other: FieldSet) -> FieldSet:
        """Without the fields of the other set; what lies in such a field stays."""
        return FieldSet(
            self.members - other.members,
            _filled({element: below - other.below(element) for element, below in self.children.items()}),
        )

    def without(self, other: FieldSet) -> FieldSet:
        """Without the fields of the other set and all that lies in them."""
        return FieldSet(
            self.members - other.members,
            _filled(
                {
                    element: below.without(other.below(element))
                    for element, below in self.children.items()
                    if element not in other.members
                }
            ),
        )


NOTHING = FieldSet()
"""The empty set."""


def _filled(children: Mapping[Element, FieldSet]) -> Mapping[Element, FieldSet]:
    return {element: below for element, below in children.items() if below}
