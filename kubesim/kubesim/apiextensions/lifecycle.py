"""Lifecycle of definitions: names are accepted, endpoints are added, changed and removed.

Each step runs on the server's timers, shortly after the write that causes it, so that a watch sees the conditions one
by one (recording crds). Every step reads the stored state, so steps may be repeated or late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kubesim.apiextensions.customresources import resources_of
from kubesim.apiextensions.definition import (
    CLEANUP,
    TABLE,
    Definition,
    condition,
    with_condition,
    with_status,
)
from kubesim.apiextensions.strategy import definition_resource
from kubesim.server.api import JsonObject
from kubesim.server.deletes import Deleter
from kubesim.server.options import DeleteOptions
from kubesim.server.resource import Registry, Resource
from kubesim.server.routing import Route
from kubesim.server.stamps import Stamps
from kubesim.server.store import Store, Table
from kubesim.server.timers import Timers

NAMING_SECONDS: Final = 0.02
"""After a definition is written its names are looked at; the real server needs a few milliseconds."""

ESTABLISHING_SECONDS: Final = 0.08
"""From the acceptance of its names to the first object that can be written (recording crds: 81 and 98 ms in all)."""

EMPTYING_SECONDS: Final = 5.0
"""How often the server looks whether the objects of a definition under deletion are gone."""

ACCEPTED: Final = {"status": "True", "reason": "NoConflicts", "message": "no conflicts found"}
INSTALLING: Final = {"status": "False", "reason": "Installing", "message": "the initial names have been accepted"}
NOT_ACCEPTED: Final = {"status": "False", "reason": "NotAccepted", "message": "not all names are accepted"}
ESTABLISHED: Final = {
    "status": "True",
    "reason": "InitialNamesAccepted",
    "message": "the initial names have been accepted",
}
EMPTYING: Final = {
    "status": "True",
    "reason": "InstanceDeletionInProgress",
    "message": "CustomResource deletion is in progress",
}


class DefinitionController:
    """Keeps the endpoints of custom resources as their definitions want them."""

    def __init__(self, registry: Registry, store: Store, stamps: Stamps, timers: Timers) -> None:
        self._registry = registry
        self._store = store
        self._stamps = stamps
        self._timers = timers
        self._served: dict[str, list[Resource]] = {}
        self._written_by: dict[str, Any] = {}
        """By definition, the version and its schema by which all stored objects were written."""
        self._wanted: dict[str, Any] = {}
        """By definition, what its endpoints were made from."""
        self._due: set[str] = set()
        registry.add(definition_resource(self._changed))

    def connect(self, deleter: Deleter) -> None:
        """Connect the deleter."""
        self._deleter = deleter

    def serve_now(self, name: str) -> None:
        """Serve a definition that has just been written without the moments that it takes."""
        self._name(name)
        self._establish(name)

    @property
    def _table(self) -> Table:
        return self._store.table(TABLE)

    def _changed(self, name: str) -> None:
        """Schedule all steps that may follow the write of a definition: each is counted from the write."""
        self._timers.later(0.0, lambda: self._look(name))
        self._timers.later(NAMING_SECONDS, lambda: self._name(name))
        self._timers.later(NAMING_SECONDS + ESTABLISHING_SECONDS, lambda: self._establish(name))

    def _look(self, name: str) -> None:
        raw = self._table.get("", name)
        if raw is None:
            self._withdraw(name)
            return
        if condition(raw, "Established").get("status") == "True":
            self._serve(raw)
        if "deletionTimestamp" in raw["metadata"]:
            self._empty(raw)

    def _put(self, new: JsonObject, old: JsonObject) -> JsonObject:
        return old if new == old else self._store.put(self._table, new, old)

    def _name(self, name: str) -> None:
        """Accept the names that are free in the group."""
        raw = self._table.get("", name)
        if raw is None or "deletionTimestamp" in raw["metadata"]:
            return
        if raw["spec"]["names"] == raw["status"].get("acceptedNames"):
            return
        accepted, conflict = self._accepted_names(raw)
        new = with_condition(with_status(raw, acceptedNames=accepted), self._stamps.now, "NamesAccepted", **conflict)
        if condition(raw, "Established").get("status") != "True":
            said = INSTALLING if conflict is ACCEPTED else NOT_ACCEPTED
            new = with_condition(new, self._stamps.now, "Established", **said)
        if self._put(new, raw) is not raw:
            self._look_at_others(raw)

    def _accepted_names(self, raw: JsonObject) -> tuple[JsonObject, dict[str, str]]:
        """The names that a definition gets, and the condition with the result."""
        wanted, held = raw["spec"]["names"], raw["status"].get("acceptedNames") or {}
        words, kinds = set[str](), set[str]()
        for other in self._others(raw):
            names = other["status"].get("acceptedNames") or {}
            words.update(filter(None, (names.get("plural"), names.get("singular"), *(names.get("shortNames") or ()))))
            kinds.update(filter(None, (names.get("kind"), names.get("listKind"))))
        accepted, conflict = {"plural": "", "kind": "", **held}, ACCEPTED
        for key, taken, reason in (
            ("plural", words, "PluralConflict"),
            ("singular", words, "SingularConflict"),
            ("shortNames", words, "ShortNamesConflict"),
            ("kind", kinds, "KindConflict"),
            ("listKind", kinds, "ListKindConflict"),
        ):
            given = wanted.get(key)
            clashes = [each for each in (given if isinstance(given, list) else [given]) if each in taken]
            if clashes and given != held.get(key):
                said = [f'"{each}" is already in use' for each in clashes]
                message = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
                conflict = {"status": "False", "reason": reason, "message": message}
            elif given:
                accepted[key] = given
            else:
                accepted.pop(key, None)
        if wanted.get("categories"):
            accepted["categories"] = wanted["categories"]
        else:
            accepted.pop("categories", None)
        return accepted, conflict

    def _others(self, raw: JsonObject) -> Iterator[JsonObject]:
        name, group = raw["metadata"]["name"], raw["spec"]["group"]
        for other in self._table:
            if other["spec"]["group"] == group and other["metadata"]["name"] != name:
                yield other

    def _look_at_others(self, raw: JsonObject) -> None:
        """Names may have become free."""
        for other in self._others(raw):
            if condition(other, "NamesAccepted").get("status") == "False":
                self._changed(other["metadata"]["name"])

    def _establish(self, name: str) -> None:
        raw = self._table.get("", name)
        if raw is None or condition(raw, "NamesAccepted").get("status") != "True":
            return
        if condition(raw, "Established").get("status") != "True" and "deletionTimestamp" not in raw["metadata"]:
            raw = self._put(with_condition(raw, self._stamps.now, "Established", **ESTABLISHED), raw)
        if condition(raw, "Established").get("status") == "True":
            self._serve(raw)

    def _serve(self, raw: JsonObject) -> None:
        """Serve the versions of a definition as they are now."""
        definition = Definition(raw)
        wanted = (raw["spec"], definition.names, definition.is_terminating)
        if self._wanted.get(definition.name) == wanted:
            return
        self._wanted[definition.name] = wanted
        schema = (definition.storage.name, definition.storage.schema.raw)
        table = self._store.table(f"{definition.names['plural']}.{definition.group}")
        if definition.name not in self._written_by or not len(table):
            self._written_by[definition.name] = schema
        resources = resources_of(definition, as_stored=self._written_by[definition.name] == schema)
        self._remove_endpoints(definition.name)
        self._served[definition.name] = resources
        for resource in resources:
            self._registry.add(resource)

    def _remove_endpoints(self, name: str) -> None:
        for resource in self._served.pop(name, ()):
            self._registry.remove(resource.group, resource.version, resource.plural)

    def _withdraw(self, name: str) -> None:
        """A definition is gone: so are its endpoints, and its names are free."""
        served = self._served.get(name)
        self._remove_endpoints(name)
        self._written_by.pop(name, None)
        self._wanted.pop(name, None)
        if served:
            group = served[0].group
            for other in self._table:
                if other["spec"]["group"] == group and condition(other, "NamesAccepted").get("status") == "False":
                    self._changed(other["metadata"]["name"])

    def _empty(self, raw: JsonObject) -> None:
        """Delete the objects of a definition, and then itself."""
        name = raw["metadata"]["name"]
        if CLEANUP not in (raw["metadata"].get("finalizers") or ()):
            return
        raw = self._put(with_condition(raw, self._stamps.now, "Terminating", **EMPTYING), raw)
        served = self._served.get(name)
        if served:
            for object_ in list(self._store.table(served[0].table)):
                metadata = object_["metadata"]
                if "deletionTimestamp" not in metadata:
                    route = Route(served[0], metadata.get("namespace"), metadata["name"], "")
                    self._deleter.remove(route, DeleteOptions())
            if len(self._store.table(served[0].table)):
                if name not in self._due:
                    self._due.add(name)
                    self._timers.later(EMPTYING_SECONDS, lambda: self._empty_again(name))
                return
        self._finish(raw)

    def _empty_again(self, name: str) -> None:
        self._due.discard(name)
        raw = self._table.get("", name)
        if raw is not None:
            self._empty(raw)

    def _finish(self, raw: JsonObject) -> None:
        """Nothing holds the definition any more, as far as its objects are concerned."""
        reason, message = "InstanceDeletionCompleted", "removed all instances"
        if raw["metadata"]["name"] not in self._served:
            reason, message = "NeverEstablished", "resource was never established"
        done = with_condition(raw, self._stamps.now, "Terminating", status="False", reason=reason, message=message)
        finalizers = [each for each in raw["metadata"]["finalizers"] if each != CLEANUP]
        if finalizers:
            self._put({**done, "metadata": {**done["metadata"], "finalizers": finalizers}}, raw)
            return
        self._store.remove(self._table, raw)
        self._withdraw(raw["metadata"]["name"])
