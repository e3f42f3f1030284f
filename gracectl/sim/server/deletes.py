"""DELETE: preconditions, grace, finalizers, collections (recordings pod-deletion, deletes-finalizers, deletes-options).

An object goes at once unless a finalizer or its grace holds it. A held object gets its deletionTimestamp; a kind with
grace (pods) gets now + grace, which a later DELETE may shorten and never lengthen, counted from the first one. Even a
pod that goes at once shows two changes: its grace of 0, then its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gracectl.model.times import format_time, parse_time
from gracectl.sim.server.api import JsonObject
from gracectl.sim.server.options import DeleteOptions
from gracectl.sim.server.reads import Page, Reader, list_object
from gracectl.sim.server.resource import Resource
from gracectl.sim.server.routing import Route
from gracectl.sim.server.stamps import Stamps
from gracectl.sim.server.status import details_of, not_found, precondition_failed, success
from gracectl.sim.server.store import Store

COLLECTORS = {"orphan": "Orphan", "foregroundDeletion": "Foreground"}


class Begun(NamedTuple):
    """How far grace alone takes a deletion: `pending` if it was under way and nothing changes, else the object as it
    would be stored and the seconds of grace left (None: the kind knows no grace, or it no longer counts)."""

    pending: bool
    object: JsonObject
    seconds: int | None


class Deleter:
    """Deletes objects and collections."""

    def __init__(self, store: Store, stamps: Stamps, reader: Reader) -> None:
        self._store = store
        self._stamps = stamps
        self._reader = reader

    def delete(self, route: Route, options: DeleteOptions) -> JsonObject:
        """DELETE of one object; returns the body to answer with. Raises Refusal (404, 409)."""
        resource = route.resource
        table = self._store.table(resource.table)
        old = table.get(*route.key)
        if old is None:
            raise not_found(resource.words, route.name)
        check_preconditions(resource, old, options)
        begun = self._begin(resource, old, options)
        if begun.pending:
            return self._answer(resource, old)
        new = with_metadata(begun.object, finalizers=collectors_for(begun.object["metadata"], options))
        held = bool(new["metadata"].get("finalizers")) or waits_for_namespace(new)
        if begun.seconds is None and held:
            new = self._mark(new)
        waits = held or bool(begun.seconds)
        if not options.dry_run and new != old:
            new = self._store.put(table, new, old)
        if waits:
            return resource.shown(new)
        if not options.dry_run:
            self._store.remove(table, new)
        return self._answer(resource, new)

    async def delete_collection(self, route: Route, query: Mapping[str, str], options: DeleteOptions) -> JsonObject:
        """DELETE of a collection; returns the list as it was. Raises Refusal."""
        page: Page = await self._reader.page(route, query)
        for object_ in page.objects:
            metadata = object_["metadata"]
            self.delete(route._replace(namespace=metadata.get("namespace"), name=metadata["name"]), options)
        return list_object(route.resource, page)

    def _begin(self, resource: Resource, old: JsonObject, options: DeleteOptions) -> Begun:
        metadata = old["metadata"]
        if "deletionTimestamp" not in metadata:
            period = resource.strategy.graceful_period(old, options.grace)
            if period is None:
                return Begun(False, old, None)
            return Begun(False, self._graced(old, self._stamps.seconds, period), period)
        granted = metadata.get("deletionGracePeriodSeconds")
        if granted is None or resource.strategy.graceful_period(old, options.grace) is None:
            return Begun(False, old, None)
        if options.grace is None or options.grace >= granted:
            return Begun(True, old, granted)
        period = 1 if options.grace < 0 else options.grace
        first = parse_time(metadata["deletionTimestamp"]) - granted
        return Begun(False, self._graced(old, first, period), period)

    @staticmethod
    def _graced(old: JsonObject, first: float, period: int) -> JsonObject:
        metadata = bumped(old["metadata"])
        return with_metadata(
            {**old, "metadata": metadata},
            deletionTimestamp=format_time(int(first) + period),
            deletionGracePeriodSeconds=period,
        )

    def _mark(self, object_: JsonObject) -> JsonObject:
        metadata = object_["metadata"]
        if "deletionTimestamp" in metadata:
            return with_metadata(object_, deletionGracePeriodSeconds=0)
        marked = with_metadata(
            {**object_, "metadata": bumped(metadata)},
            deletionTimestamp=self._stamps.now,
            deletionGracePeriodSeconds=0,
        )
        if marked["kind"] == "Namespace":
            marked["status"] = {**marked.get("status", {}), "phase": "Terminating"}
        return marked

    @staticmethod
    def _answer(resource: Resource, object_: JsonObject) -> JsonObject:
        if resource.strategy.answers_with_object:
            return resource.shown(object_)
        metadata = object_["metadata"]
        return success(details=details_of(resource.words, metadata["name"], uid=metadata["uid"]))


def check_preconditions(resource: Resource, object_: JsonObject, options: DeleteOptions) -> None:
    """Raises Refusal (409) if the object is not the one, or not as, the caller saw it."""
    metadata = object_["metadata"]
    if options.uid and options.uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise precondition_failed(resource.words, metadata["name"], why)
    version = options.resource_version
    if version and version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            f"({metadata['resourceVersion']}). The object might have been modified"
        )
        raise precondition_failed(resource.words, metadata["name"], why)


def collectors_for(metadata: JsonObject, options: DeleteOptions) -> list[str]:
    """The object's finalizers with those that ask the garbage collector to orphan or to wait for dependents."""
    finalizers: list[str] = metadata.get("finalizers") or []
    propagation = options.propagation
    if options.orphan_dependents is not None:
        propagation = "Orphan" if options.orphan_dependents else "Background"
    if not propagation:
        return finalizers
    kept = [finalizer for finalizer in finalizers if finalizer not in COLLECTORS]
    added = [finalizer for finalizer, wanted in COLLECTORS.items() if wanted == propagation]
    return kept + added


def with_metadata(object_: JsonObject, **changes: object) -> JsonObject:
    """The object with some of its metadata changed; empty lists are left out."""
    metadata = {**object_["metadata"], **changes}
    return {**object_, "metadata": {key: value for key, value in metadata.items() if value != []}}


def bumped(metadata: JsonObject) -> JsonObject:
    """Metadata one generation on, where generations are counted: a deletion changes what is wanted."""
    generation = metadata.get("generation")
    return {**metadata, "generation": generation + 1} if generation else metadata


def waits_for_namespace(object_: JsonObject) -> bool:
    """Whether it is a namespace that still has to be emptied."""
    return object_["kind"] == "Namespace" and bool(object_.get("spec", {}).get("finalizers"))
