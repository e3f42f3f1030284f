"""metadata.managedFields: the server's Ownership.

An object has managedFields from its first server-side apply on. A real server keeps them from the object's creation;
here that would double the cost of every write, and most objects are never applied. Until then the store's log names
the author of each write, and `untracked` derives the owners from it. Differences that a client can see: objects that
were never applied show no managedFields; entries of a new object are ignored; updaters stay apart, however many they
are; items of a list with equal keys count as one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import orjson

from kubesim.managedfields import managers, updater, validation
from kubesim.managedfields.comparison import compare
from kubesim.managedfields.extraction import fields_of
from kubesim.managedfields.fieldsets import NOTHING, FieldSet
from kubesim.managedfields.managers import APPLY, Managed, Manager
from kubesim.managedfields.untracked import blind_to, owners_until_now, update_author
from kubesim.managedfields.updater import Author, Conflicts
from kubesim.server.api import Json, JsonObject
from kubesim.server.bodies import content_type
from kubesim.server.calls import Call
from kubesim.server.goformat import decoded_as
from kubesim.server.patches import APPLY as APPLY_PATCH
from kubesim.server.status import bad_request, internal
from kubesim.types.catalog import built_in_type
from kubesim.types.schema import Schema

if TYPE_CHECKING:
    from kubesim.server.resource import Resource
    from kubesim.server.stamps import Stamps
    from kubesim.server.store import Store

KUBECTL = "kubectl"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

CustomTypes = Callable[["Resource"], "Schema | None"]
"""The schema of a custom resource, as its definition gives it; None where there is none."""

ANYTHING = Schema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})


def untyped(resource: Resource) -> Schema | None:
    """The custom types of a server that knows none."""
    return None


@lru_cache(maxsize=512)
def whole(schema: Schema) -> Schema:
    """The type of a whole custom resource: what its definition says, and the metadata of every object."""
    return Schema({**schema.raw, "x-kubernetes-embedded-resource": True})


class Owners:
    """Keeps managedFields, and merges what is applied."""

    def __init__(self, store: Store, stamps: Stamps, custom: CustomTypes = untyped) -> None:
        self._store = store
        self._stamps = stamps
        self._custom = custom

    def created(self, call: Call, new: JsonObject) -> JsonObject:
        """A new object. Only one that was applied has managedFields."""
        return new if "managedFields" not in new["metadata"] or is_apply(call) else with_entries(new, [])

    def updated(self, call: Call, new: JsonObject, old: JsonObject) -> JsonObject:
        """A changed object. One without managedFields is passed through."""
        given, before = new["metadata"].get("managedFields"), old["metadata"].get("managedFields")
        if given is None and before is None:
            return new
        entries = given if is_apply(call) else self._entries_after(call, new, old)
        if entries != before and managers.without_times(entries) == managers.without_times(before):
            same = with_entries(new, before)
            return same if same == old else with_entries(new, entries)
        return with_entries(new, entries)

    def _entries_after(self, call: Call, new: JsonObject, old: JsonObject) -> Json:
        given, before = new["metadata"].get("managedFields"), old["metadata"].get("managedFields")
        if call.route.subresource:
            given = before
        elif managers.is_reset(given):
            return []
        # kubectl rewrites the entries when client-side apply moves to the server; most clients leave them out.
        managed = managers.decoded(given) or managers.decoded(before)
        return self._after(managed, old, new, self._updater(call)) if managed else []

    def applied(self, call: Call, configuration: Json, live: JsonObject | None) -> JsonObject:
        """Apply a configuration to the live object (None: there is none). Raises Refusal: 400 for an object of another
        version, 409 for conflicts, 500 (as a real server) for one that does not fit its type."""
        resource = call.route.resource
        body = checked({} if configuration is None else configuration, resource)
        schema = self._type(resource)
        if found := validation.faults(body, schema):
            raise internal(f"failed to create typed patch object ({identity(body)}): {validation.as_text(found)}")
        author = Author(
            Manager(call.field_manager, APPLY, "", call.route.subresource),
            resource.api_version,
            self._stamps.now,
            schema,
            blind_to(call.route),
        )
        present = live if live is not None else {"kind": resource.kind, "apiVersion": resource.api_version}
        try:
            managed = self._managed(resource, live, author)
            new, managed = self._merged(call, managed, present, body, author)
        except ValueError as error:
            raise internal(f"failed to create typed live object ({identity(present)}): {error}") from None
        if live is None:
            # What is created has no version yet, whichever the configuration names.
            metadata = {key: value for key, value in new["metadata"].items() if key != "resourceVersion"}
            new = {**new, "metadata": metadata}
        return with_entries(synchronised(new, body, author), managers.encoded(managed))

    def _type(self, resource: Resource) -> Schema:
        built_in = built_in_type(resource.group, resource.version, resource.kind)
        return built_in or whole(self._custom(resource) or ANYTHING)

    def _managed(self, resource: Resource, live: JsonObject | None, author: Author) -> Managed:
        if live is None:
            return managers.NO_OWNERS
        managed = managers.decoded(live["metadata"].get("managedFields"))
        if managed:
            return managed
        return owners_until_now(self._store.table(resource.table).changes_of(live), live, author)

    @staticmethod
    def _merged(
        call: Call, managed: Managed, live: JsonObject, body: JsonObject, author: Author
    ) -> tuple[JsonObject, Managed]:
        force = call.query.get("force") in ("true", "1")
        try:
            return updater.applied(managed, live, body, author, force=force)
        except Conflicts as conflicts:
            found = conflicts.found
            if author.manager.name == KUBECTL:
                mine = last_applied(live, author)
                found = [(manager, path) for manager, path in found if path not in mine]
            if found:
                raise Conflicts(found).refusal() from None
        return updater.applied(managed, live, body, author, force=True)

    def _updater(self, call: Call) -> Author:
        return update_author(call.route, call.field_manager, self._stamps.now, self._type(call.route.resource))

    @staticmethod
    def _after(managed: Managed, old: JsonObject, new: JsonObject, author: Author) -> Json:
        try:
            return managers.encoded(updater.updated(managed, old, new, author))
        except ValueError:
            # Like the real server if the owners are unknown: there are none.
            return []


def is_apply(call: Call) -> bool:
    """Whether the call is a server-side apply."""
    return call.request.method == "PATCH" and content_type(call.request) == APPLY_PATCH


def with_entries(object_: JsonObject, entries: Json) -> JsonObject:
    """The object with these managedFields; none are left out."""
    metadata = {key: value for key, value in object_["metadata"].items() if key != "managedFields"}
    if entries:
        metadata["managedFields"] = entries
    return {**object_, "metadata": metadata}


def checked(configuration: Json, resource: Resource) -> JsonObject:
    """An applied configuration as an object of the resource. Raises Refusal (400)."""
    if not isinstance(configuration, dict):
        why = f"json: cannot unmarshal {decoded_as(configuration)} into Go value of type map[string]interface {{}}"
        raise bad_request(f"error decoding YAML: error unmarshaling JSON: while decoding JSON: {why}")
    version = configuration.get("apiVersion") or ""
    if not version and not configuration.get("kind"):
        raise bad_request(f"invalid object type: {group_version_kind(configuration)}")
    if version != resource.api_version:
        why = f"Specified patch version: {version}, expected: {resource.api_version}"
        raise bad_request(f"Incorrect version specified in apply patch. {why}")
    if configuration.get("kind") != resource.kind:
        raise bad_request(f"invalid object type: {group_version_kind(configuration)}")
    metadata = configuration.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    return configuration if isinstance(metadata, dict) else {**configuration, "metadata": {}}


def group_version_kind(object_: JsonObject) -> str:
    """`apps/v1, Kind=Deployment`; `/v1, Kind=Pod`."""
    version = object_.get("apiVersion") or ""
    return f"{version if '/' in version else f'/{version}'}, Kind={object_.get('kind') or ''}"


def identity(object_: JsonObject) -> str:
    """The object as errors name it: `default/web; apps/v1, Kind=Deployment`."""
    metadata = object_.get("metadata") or {}
    return f"{metadata.get('namespace') or ''}/{metadata.get('name') or ''}; {group_version_kind(object_)}"


def last_applied(live: JsonObject, author: Author) -> FieldSet:
    """What kubectl's client-side apply owns: what its annotation says and the object still holds."""
    text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    if not text:
        return NOTHING
    try:
        said = orjson.loads(text)
        if not isinstance(said, dict) or said.get("apiVersion") != author.api_version:
            return NOTHING
        change = compare(said, live, author.schema)
        return fields_of(said, author.schema) - change.modified - change.added - change.removed
    except ValueError:
        return NOTHING


def synchronised(object_: JsonObject, configuration: JsonObject, author: Author) -> JsonObject:
    """The object with the annotation of kubectl's client-side apply, where it has one, kept up to date."""
    annotations = object_["metadata"].get("annotations") or {}
    if author.manager.name != KUBECTL or not annotations.get(LAST_APPLIED):
        return object_
    metadata = configuration["metadata"]
    if LAST_APPLIED in (metadata.get("annotations") or {}):
        rest = {key: value for key, value in metadata["annotations"].items() if key != LAST_APPLIED}
        configuration = {**configuration, "metadata": {**metadata, "annotations": rest}}
    text = orjson.dumps(configuration, option=orjson.OPT_SORT_KEYS).decode() + "\n"
    if annotations[LAST_APPLIED] == text:
        return object_
    metadata = {**object_["metadata"], "annotations": {**annotations, LAST_APPLIED: text}}
    return {**object_, "metadata": metadata}
