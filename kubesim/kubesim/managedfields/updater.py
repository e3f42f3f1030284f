"""Ownership after a write (structured-merge-diff, merge/update.go).

An ordinary write owns the fields that it changes, alone. An applier owns the fields of its configuration, shared with
others that set the same value; a different value is a conflict. A field that an applier leaves out goes if it has no
other owner. Invariant: a manager owns only fields that it wrote and no other write has changed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kubesim.managedfields.comparison import Comparison, compare
from kubesim.managedfields.extraction import fields_of, with_named_fields
from kubesim.managedfields.fieldsets import NOTHING, FieldSet
from kubesim.managedfields.managers import Managed, Manager, Owned
from kubesim.managedfields.merging import merged
from kubesim.managedfields.pathelements import Path, field, shown
from kubesim.managedfields.pruning import without_fields
from kubesim.server.api import JsonObject
from kubesim.server.status import Refusal

if TYPE_CHECKING:
    from kubesim.types.schema import Schema

UNOWNED = FieldSet.of(
    [
        (field("apiVersion"),),
        (field("kind"),),
        (field("metadata"),),
        *(
            (field("metadata"), field(name))
            for name in (
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "clusterName",
                "generation",
                "managedFields",
                "resourceVersion",
            )
        ),
    ]
)
"""Fields without owners: they say which object this is, or are the server's own."""


class Author(NamedTuple):
    """A manager at work: in which version, when (RFC 3339), on which type, and blind to which fields (those that this
    path of the API does not write)."""

    manager: Manager
    api_version: str
    now: str
    schema: Schema | None
    blind: FieldSet = NOTHING


class Conflicts(Exception):
    """What is applied contradicts what others own: (manager, field) for each contradiction, in order."""

    def __init__(self, found: list[tuple[Manager, Path]]) -> None:
        super().__init__(f"{len(found)} conflicts")
        self.found = found

    def refusal(self) -> Refusal:
        """The 409 that lists them."""
        causes = [
            {"reason": "FieldManagerConflict", "message": f"conflict with {manager.words}", "field": shown(path)}
            for manager, path in self.found
        ]
        if len(causes) == 1:
            message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
        else:
            lines: list[str] = []
            for manager in dict.fromkeys(manager for manager, _ in self.found):
                lines.append(f"conflicts with {manager.words}:")
                lines.extend(f"- {shown(path)}" for owner, path in self.found if owner == manager)
            message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
        return Refusal(409, "Conflict", message, details={"causes": causes})


def updated(managed: Managed, old: JsonObject, new: JsonObject, author: Author) -> Managed:
    """The owners after `author` changed `old` to `new`. Raises ValueError for an item of a list without its keys."""
    change = compare(old, new, author.schema).without(author.blind)
    left = _less(managed, change)
    written = change.written - UNOWNED
    if written:
        before = left.get(author.manager)
        fields = before.fields | written if before is not None else written
        left[author.manager] = Owned(fields, author.api_version, author.now)
    return left


def applied(
    managed: Managed, live: JsonObject, configuration: JsonObject, author: Author, *, force: bool
) -> tuple[JsonObject, Managed]:
    """The object and its owners after `author` applied a configuration to `live`. Raises Conflicts, and ValueError
    for an item of a list without its keys."""
    schema = author.schema
    before = managed.get(author.manager)
    said = fields_of(configuration, schema).without(author.blind)
    owners: dict[Manager, Owned] = {**managed, author.manager: Owned(said, author.api_version)}
    new = merged(live, configuration, schema)
    if before is not None and before.fields:
        new = _pruned(new, before.fields, _union(owners), schema)
    change = compare(live, new, schema).without(author.blind)
    others = {manager: owned for manager, owned in managed.items() if manager != author.manager}
    conflicts = [
        (manager, path)
        for manager, owned in sorted(others.items(), key=lambda entry: entry[0])
        for path in (owned.fields & change.written).paths()
    ]
    if conflicts and not force:
        raise Conflicts(conflicts)
    left = _less(others, change)
    if fields := said - UNOWNED:
        # Applying an unchanged configuration sets no time: nothing was written.
        time = (before.time if before is not None else "") if new == live else author.now
        left[author.manager] = Owned(fields, author.api_version, time)
    return new, left


def _less(managed: Managed, change: Comparison) -> dict[Manager, Owned]:
    """The owners without what was written or removed; managers without fields are dropped."""
    if not change.removed and not change.modified and not change.added:
        return dict(managed)
    rest = {
        manager: owned._replace(fields=owned.fields - change.written - change.removed)
        for manager, owned in managed.items()
    }
    return {manager: owned for manager, owned in rest.items() if owned.fields}


def _union(managed: Managed) -> FieldSet:
    fields = NOTHING
    for owned in managed.values():
        fields = fields | owned.fields
    return fields


def _pruned(new: JsonObject, given_up: FieldSet, owned: FieldSet, schema: Schema | None) -> JsonObject:
    """`new` without what its applier owned before and no manager owns now."""
    last = with_named_fields(given_up, schema)
    everything = with_named_fields(fields_of(new, schema), schema)

    def rest(fields: FieldSet) -> JsonObject:
        return without_fields(new, fields, schema) or {}

    def kept(value: JsonObject) -> FieldSet:
        return with_named_fields(fields_of(value, schema), schema)

    # What went with a parent comes back if it has an owner, or if its applier never did.
    after = rest(everything - (kept(rest(last)) | with_named_fields(owned, schema)))
    return rest((everything - kept(after)) & last)
