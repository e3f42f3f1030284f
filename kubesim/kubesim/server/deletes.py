"""DELETE: preconditions, grace, finalizers, collections (recordings pod-deletion, deletes-finalizers, deletes-options).

An object is removed immediately unless a finalizer or a grace period blocks it. A blocked object gets its
deletionTimestamp; for pods that is now + grace, which a later DELETE may only shorten, counted from the first DELETE.
Even a pod without grace shows two changes: grace 0, then the removal.
"""

from __future__ import annotations

from math import floor
from typing import NamedTuple

import msgspec

from kubesim.server.api import JsonObject
from kubesim.server.calls import Call, Write
from kubesim.server.hooks import Admission
from kubesim.server.options import DeleteOptions
from kubesim.server.reads import Page, Reader, list_object
from kubesim.server.resource import Resource
from kubesim.server.routing import Route
from kubesim.server.stamps import Stamps
from kubesim.server.status import Refusal, details_of, not_found, overtaken, precondition_failed, success
from kubesim.server.store import Store
from kubesim.values import format_time, parse_time

COLLECTORS = {"orphan": "Orphan", "foregroundDeletion": "Foreground"}


class Begun(NamedTuple):
    """How far grace alone takes a deletion: `pending` if it is in progress and nothing changes, else the object as it
    would be stored and the seconds of grace left (None: the kind knows no grace, or it no longer counts)."""

    pending: bool
    object: JsonObject
    seconds: int | None


class Fate(NamedTuple):
    """Effect of a DELETE: none if `pending`; else `object` replaces the old one, and stays if it `waits`."""

    pending: bool
    waits: bool
    object: JsonObject
    grace: int | None = None


def _as_duration(seconds: int) -> float:
    """Go counts nanoseconds in 64 bits: more than 292 years come out as anything (looked up at a server of 1.37)."""
    return ((seconds * 10**9 + 2**63) % 2**64 - 2**63) / 10**9


class Deleter:
    """Deletes objects and collections."""

    def __init__(self, store: Store, stamps: Stamps, reader: Reader, admission: Admission) -> None:
        self._store = store
        self._stamps = stamps
        self._reader = reader
        self._admission = admission

    async def delete(self, call: Call, options: DeleteOptions) -> JsonObject:
        """DELETE of one object; returns the body to answer with. Raises Refusal (404, 409, and a webhook's)."""
        if not self._admission.concerns(call, "DELETE"):
            return self.remove(call.route, options)
        fate = self._fate(call.route.resource, self._found(call.route, options), options)
        sent = options.raw if fate.grace is None else {**options.raw, "gracePeriodSeconds": fate.grace}
        return await self._asked(Write(call, "DELETE", options.dry_run, sent), call.route, options)

    def remove(self, route: Route, options: DeleteOptions) -> JsonObject:
        """Delete one object without admission; returns the body to answer with. Raises Refusal (404, 409)."""
        resource = route.resource
        old = self._found(route, options)
        fate = self._fate(resource, old, options)
        if fate.pending:
            return self._answer(resource, old)
        new = self._marked(resource, fate, old, options)
        return resource.shown(new) if fate.waits else self._gone(resource, new, options)

    async def _asked(self, write: Write, route: Route, options: DeleteOptions) -> JsonObject:
        """Delete with webhooks called before each of the two possible writes. Whether to wait is decided once, from the
        first read: a finalizer added meanwhile blocks nothing (issue 77988, recording finalizer-race)."""
        resource = route.resource
        first = self._found(route, options)
        fate = self._fate(resource, first, options)
        if fate.pending:
            return self._answer(resource, first)
        if fate.waits or fate.object != first:
            current = await self._admitted(write, route, options)
            fate = self._fate(resource, current, options)
            if fate.pending:
                return self._answer(resource, first)
            marked = self._marked(resource, fate, current, options)
            if fate.waits:
                return resource.shown(marked)
            if options.dry_run:
                return self._answer(resource, marked)
            if options.resource_version:
                options = msgspec.structs.replace(options, resource_version=marked["metadata"]["resourceVersion"])
        return self._gone(resource, await self._admitted(write, route, options), options)

    async def _admitted(self, write: Write, route: Route, options: DeleteOptions) -> JsonObject:
        """The newest object that the webhooks have admitted; they are asked again if it changed. Raises Refusal."""
        table = self._store.table(route.resource.table)
        while True:
            current = table.get(*route.key)
            if current is None:
                raise not_found(route.resource.words, route.name)
            check_not_overtaken(route, current, options)
            await self._admission.mutate(write, None, current)
            await self._admission.validate(write, None, current)
            if options.dry_run or table.get(*route.key) is current:
                return current

    def _found(self, route: Route, options: DeleteOptions) -> JsonObject:
        found = self._store.table(route.resource.table).get(*route.key)
        if found is None:
            raise not_found(route.resource.words, route.name)
        check_preconditions(route.resource, found, options)
        return found

    def _fate(self, resource: Resource, old: JsonObject, options: DeleteOptions) -> Fate:
        ending = resource.strategy.ending(old, self._stamps.now)
        if ending is not None:
            return Fate(False, True, ending, None)
        begun = self._begin(resource, old, options)
        if begun.pending:
            return Fate(True, True, old)
        new = with_metadata(begun.object, finalizers=collectors_for(begun.object["metadata"], options))
        held = bool(new["metadata"].get("finalizers")) or waits_for_namespace(new)
        if begun.seconds is None and held:
            new = self._mark(new)
        return Fate(False, held or bool(begun.seconds), new, begun.seconds)

    def _marked(self, resource: Resource, fate: Fate, old: JsonObject, options: DeleteOptions) -> JsonObject:
        if options.dry_run or fate.object == old:
            return fate.object
        return self._store.put(self._store.table(resource.table), fate.object, old)

    def _gone(self, resource: Resource, object_: JsonObject, options: DeleteOptions) -> JsonObject:
        if not options.dry_run:
            self._store.remove(self._store.table(resource.table), object_)
        return self._answer(resource, object_)

    async def delete_collection(self, call: Call, options: DeleteOptions) -> JsonObject:
        """DELETE of a collection; returns the list as it was. Raises Refusal."""
        route = call.route
        page: Page = await self._reader.page(route, call.query)
        asked = self._admission.concerns(call, "DELETE")
        # Webhooks get the deletion of a collection without a name.
        write = Write(call, "DELETE", options.dry_run, options.raw)
        for object_ in page.objects:
            metadata = object_["metadata"]
            one = route._replace(namespace=metadata.get("namespace"), name=metadata["name"])
            try:
                if asked:
                    await self._asked(write, one, options)
                else:
                    self.remove(one, options)
            except Refusal as refusal:
                if refusal.code != 404:  # gone meanwhile, or since the version that was listed
                    raise
        return list_object(route.resource, page)

    def _begin(self, resource: Resource, old: JsonObject, options: DeleteOptions) -> Begun:
        metadata = old["metadata"]
        if "deletionTimestamp" not in metadata:
            period = resource.strategy.graceful_period(old, options.grace)
            if period is None:
                return Begun(False, old, None)
            fresh = {**old, "metadata": bumped(metadata)}
            return Begun(False, self._graced(fresh, self._stamps.seconds + _as_duration(period), period), period)
        granted = metadata.get("deletionGracePeriodSeconds")
        if granted is None or resource.strategy.graceful_period(old, options.grace) is None:
            return Begun(False, old, None)
        if options.grace is None or options.grace >= granted:
            return Begun(True, old, granted)
        period = 1 if options.grace < 0 else options.grace
        first = parse_time(metadata["deletionTimestamp"]) - _as_duration(granted)
        # Counted from the first DELETE, but never an instant that has passed (1.24 did not mind): that is as good as 1.
        end, now = first + period, self._stamps.seconds
        if end < now:
            end, period = now, min(period, 1)
        return Begun(False, self._graced(old, end, period), period)

    @staticmethod
    def _graced(old: JsonObject, end: float, period: int) -> JsonObject:
        return with_metadata(old, deletionTimestamp=format_time(floor(end)), deletionGracePeriodSeconds=period)

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


def check_not_overtaken(route: Route, object_: JsonObject, options: DeleteOptions) -> None:
    """Raises Refusal (409) if the object is no longer as the preconditions want it."""
    metadata = object_["metadata"]
    fault = ""
    if options.uid and options.uid != metadata["uid"]:
        fault = f"UID in precondition: {options.uid}, UID in object meta: {metadata['uid']}"
    elif options.resource_version and options.resource_version != metadata["resourceVersion"]:
        version, found = options.resource_version, metadata["resourceVersion"]
        fault = f"ResourceVersion in precondition: {version}, ResourceVersion in object meta: {found}"
    if fault:
        raise overtaken(route.resource.words, metadata.get("namespace", ""), metadata["name"], fault)


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
    """The object with some of its metadata changed; a list that becomes empty is left out."""
    metadata = {**object_["metadata"], **changes}
    for key, value in changes.items():
        if value == []:
            del metadata[key]
    return {**object_, "metadata": metadata}


def bumped(metadata: JsonObject) -> JsonObject:
    """Metadata one generation on, where generations are counted: a deletion changes what is wanted."""
    generation = metadata.get("generation")
    return {**metadata, "generation": generation + 1} if generation else metadata


def waits_for_namespace(object_: JsonObject) -> bool:
    """Whether it is a namespace with remaining objects."""
    return object_["kind"] == "Namespace" and bool(object_.get("spec", {}).get("finalizers"))
