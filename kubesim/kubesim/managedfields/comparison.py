"""Which fields differ between two values of one type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kubesim.managedfields import pathelements
from kubesim.managedfields.fieldsets import NOTHING, FieldSet
from kubesim.managedfields.forms import Form, element_of, field_type, form_of
from kubesim.managedfields.pathelements import Path
from kubesim.server.api import Json
from kubesim.types.schema import MISSING

if TYPE_CHECKING:
    from kubesim.types.schema import Schema


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed from one value to another. No field is in two of the sets."""

    removed: FieldSet = NOTHING
    modified: FieldSet = NOTHING
    added: FieldSet = NOTHING

    def without(self, fields: FieldSet) -> Comparison:
        """The same, blind to these fields and all that lies in them."""
        return Comparison(self.removed.without(fields), self.modified.without(fields), self.added.without(fields))

    @property
    def written(self) -> FieldSet:
        """What the change wrote."""
        return self.modified | self.added


def compare(old: Json, new: Json, schema: Schema | None) -> Comparison:
    """What changed. Raises ValueError for an item of a list without its keys."""
    walk = _Walk()
    walk.compare(old, new, schema, ())
    return Comparison(FieldSet.of(walk.removed), FieldSet.of(walk.modified), FieldSet.of(walk.added))


@dataclass
class _Walk:
    removed: list[Path] = field(default_factory=list)
    modified: list[Path] = field(default_factory=list)
    added: list[Path] = field(default_factory=list)

    def compare(self, old: Json, new: Json, schema: Schema | None, path: Path) -> None:
        """Compare two values of which one may be MISSING."""
        if old is new:
            return
        before = form_of(schema, new if old is MISSING else old)
        after = form_of(schema, old if new is MISSING else new)
        if before is not after and None not in (old, new):
            self._in_form(before, old, new, schema, path)
        self._in_form(after, old, new, schema, path)

    def _in_form(self, form: Form, old: Json, new: Json, schema: Schema | None, path: Path) -> None:
        if form is Form.MAP:
            was = old if isinstance(old, dict) else {}
            now = new if isinstance(new, dict) else {}
            if was or now:
                for name in (*was, *(name for name in now if name not in was)):
                    here = (*path, pathelements.field(name))
                    self.compare(was.get(name, MISSING), now.get(name, MISSING), field_type(schema, name), here)
                self._note_container(old, new, path)
                return
        elif form is Form.LIST and schema is not None and (old or new):
            self._compare_lists(
                old if isinstance(old, list) else [], new if isinstance(new, list) else [], schema, path
            )
            self._note_container(old, new, path)
            return
        if old is MISSING:
            self.added.append(path)
        elif new is MISSING:
            self.removed.append(path)
        elif old != new:
            self.modified.append(path)

    def _note_container(self, old: Json, new: Json, path: Path) -> None:
        if old is MISSING:
            self.added.append(path)
        elif new is MISSING:
            self.removed.append(path)

    def _compare_lists(self, old: list[Json], new: list[Json], schema: Schema, path: Path) -> None:
        was, now = ({element_of(schema, each): each for each in items} for items in (old, new))
        for element in was | now:
            self.compare(was.get(element, MISSING), now.get(element, MISSING), schema.items, (*path, element))
