"""POST, PUT and PATCH: the one path of every write (recordings writes-create, writes-refused, writes-patch).

Order, as in a real server: decode, find the old object, apply the change, check uid and version, restore server-owned
fields, prepare and validate by the kind's strategy, store only a real change. An update that takes the last finalizer
off a deleted object removes it: the DELETED event still shows the finalizer, the response does not.
"""

from __future__ import annotations

from collections.abc import Callable

from kubesim.server import metadata as meta
from kubesim.server import patches
from kubesim.server.api import Json, JsonObject
from kubesim.server.bodies import check_kind, copied
from kubesim.server.calls import Call, Write
from kubesim.server.hooks import Admission, BodyCheck, Ownership, Permission
from kubesim.server.options import check_patch, check_write
from kubesim.server.resource import Occasion, Resource
from kubesim.server.routing import Route
from kubesim.server.stamps import Stamps
from kubesim.server.status import (
    Cause,
    Kind,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    internal,
    invalid,
    invalid_value,
    not_found,
    overtaken,
    unsupported_media_type,
)
from kubesim.server.store import Store

WRONG_NAMESPACE = "the namespace of the provided object does not match the namespace sent on the request"
NAMESPACE_WORDS = Kind("", "namespaces", "Namespace")

Change = Callable[[JsonObject], JsonObject]
Written = tuple[int, JsonObject]
"""The status code and the object to answer with."""


class Writer:
    """Creates, replaces and patches objects."""

    def __init__(
        self,
        store: Store,
        stamps: Stamps,
        admission: Admission,
        ownership: Ownership,
        checks: BodyCheck,
        permission: Permission,
    ) -> None:
        self._store = store
        self._stamps = stamps
        self._admission = admission
        self._ownership = ownership
        self._checks = checks
        self._permission = permission

    async def create(self, call: Call, body: Json) -> Written:
        """POST of a collection. Raises Refusal."""
        dry_run = check_write(call.query, "CreateOptions")
        new = self._checks.sent(call, check_kind(body, call.route.resource))
        return await self._create(call, new, dry_run=dry_run)

    async def put(self, call: Call, body: Json) -> Written:
        """PUT of an object. Raises Refusal."""
        route, resource = call.route, call.route.resource
        dry_run = check_write(call.query, "UpdateOptions")
        new = self._checks.sent(call, reset_kept(check_kind(body, resource)))
        self._check_name(route, new["metadata"])
        if resource.view is not None:
            new = resource.view.to_stored(new)
        uid = new["metadata"].get("uid")
        if resource.strategy.created_by_put and self._store.table(resource.table).get(*route.key) is None:
            metadata = {key: value for key, value in new["metadata"].items() if key != "resourceVersion"}
            return await self._create(call, {**new, "metadata": metadata}, dry_run=dry_run)

        def replace(old: JsonObject) -> JsonObject:
            if uid and uid != old["metadata"]["uid"]:
                fault = f"UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
                raise overtaken(resource.words, route.namespace or "", route.name, fault)
            return new

        return 200, await self.update(call, replace, dry_run=dry_run)

    async def patch(self, call: Call, body: Json, content_type: str) -> Written:
        """PATCH of an object, of whichever type. Raises Refusal."""
        resource = call.route.resource
        dry_run = check_patch(call.query, content_type)
        layout = self._checks.layout(resource)
        if layout is None and not isinstance(call.request.body, bytes):
            # Of a built-in kind the body check makes a new object of whatever is new; of others it may keep parts.
            body = copied(body)
        if content_type == patches.APPLY:
            return await self._apply(call, body, dry_run=dry_run)
        if content_type == patches.STRATEGIC and layout is None:
            raise unsupported_media_type((patches.JSON_PATCH, patches.MERGE, patches.APPLY))
        change = patches.change(content_type, body, layout)

        def through_view(old: JsonObject) -> JsonObject:
            view = resource.view
            before = view.from_stored(old) if view else old
            new = change(before)
            if isinstance(new, dict):
                new = self._checks.patched(call, reset_kept(new), before)
            if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
                raise bad_request("the patched object is no object")
            self._check_name(call.route, new["metadata"])
            return view.to_stored(new) if view else new

        return 200, await self.update(call, through_view, dry_run=dry_run)

    async def _apply(self, call: Call, body: Json, *, dry_run: bool) -> Written:
        """Server-side apply: creates what is not there."""
        route, resource = call.route, call.route.resource

        def apply(old: JsonObject | None) -> JsonObject:
            view = resource.view
            before = view.from_stored(old) if view and old else old
            new = self._checks.patched(call, self._ownership.applied(call, body, before), before or {"metadata": {}})
            metadata = new["metadata"]
            if metadata.get("namespace", route.namespace) != route.namespace:
                raise bad_request(WRONG_NAMESPACE)
            self._check_name(route, metadata)
            return view.to_stored(new) if view and old else new

        if not route.subresource and self._store.table(resource.table).get(*route.key) is None:
            return await self._create(call, apply(None), dry_run=dry_run)
        return 200, await self.update(call, apply, dry_run=dry_run)

    async def _create(self, call: Call, body: JsonObject, *, dry_run: bool) -> Written:
        route, resource = call.route, call.route.resource
        namespace = route.namespace or ""
        given = body["metadata"]
        if resource.namespaced and given.get("namespace", namespace) != namespace:
            raise bad_request(WRONG_NAMESPACE)
        self._check_namespace(resource, namespace, given.get("name", ""))
        if given.get("resourceVersion"):
            raise internal("resourceVersion should not be set on objects to be created")
        if resource.view is not None:
            body = resource.view.to_stored(body)
        asked = self._admission.concerns(call, "CREATE")
        write = Write(call, "CREATE", dry_run, dict(call.query)) if asked else None
        if write is not None:
            draft = self._draft(resource, body, namespace)
            body = await self._admission.mutate(write, draft, None) or draft
            given = body["metadata"]
        table = self._store.table(resource.table)
        metadata = meta.for_create(given, resource, namespace, self._stamps.now, self._stamps.uid)
        if "name" not in metadata and "generateName" in metadata:
            name = f"{metadata['generateName'][:58]}{self._stamps.suffix()}"
            while table.get(namespace, name) is not None:
                name = f"{metadata['generateName'][:58]}{self._stamps.suffix()}"
            metadata = {"name": name, **metadata}
        new = {"kind": body["kind"], "apiVersion": body["apiVersion"], **body, "metadata": metadata}
        strategy, occasion = resource.strategy, self._occasion(namespace)
        new = strategy.normalise(strategy.prepare_create(new, occasion))
        self._permission.check(call, new, None)
        new = self._ownership.created(call, new)
        faults = meta.validate(
            new["metadata"], names_are_free=strategy.names_are_free, finalizers_are_free=strategy.untyped
        )
        self._refuse_faults(resource, new, [*faults, *strategy.validate(new)])
        if write is not None:
            await self._admission.validate(write, new, None)
        existing = table.get(namespace, new["metadata"]["name"])
        if existing is not None:
            being_deleted = "deletionTimestamp" in existing["metadata"]
            raise already_exists(resource.words, metadata["name"], being_deleted=being_deleted)
        if dry_run:
            return 201, resource.shown(new)
        return 201, resource.shown(self._store.put(table, new, None, call.signed(occasion.now)))

    def _draft(self, resource: Resource, body: JsonObject, namespace: str) -> JsonObject:
        """A new object as mutating webhooks see it: with defaults, without uid, time, generation and status."""
        strategy = resource.strategy
        metadata = meta.for_create(body["metadata"], resource, namespace, self._stamps.now, lambda: "")
        new = strategy.normalise(strategy.prepare_create({**body, "metadata": metadata}, self._occasion(namespace)))
        server_only = ("uid", "creationTimestamp", "generation")
        kept = {key: value for key, value in new["metadata"].items() if key not in server_only}
        if "status" in new:
            new = strategy.normalise({**new, "status": body.get("status") or {}})
        return {**new, "metadata": kept}

    async def update(self, call: Call, change: Change, *, dry_run: bool = False) -> JsonObject:
        """Change an object (or its subresource) and return it as shown. Raises Refusal. `change` maps the stored object
        to a new one and is repeated if the object changed while webhooks ran."""
        route, resource = call.route, call.route.resource
        table = self._store.table(resource.table)
        asked = self._admission.concerns(call, "UPDATE")
        write = Write(call, "UPDATE", dry_run, dict(call.query)) if asked else None
        while True:
            old = table.get(*route.key)
            if old is None:
                raise not_found(resource.words, route.name)
            new = change(old)
            if write is not None:
                draft = resource.strategy.normalise(new)
                new = await self._admission.mutate(write, draft, old) or draft
            self._permission.check(call, new, old)
            now = self._stamps.now
            new = self._prepared(route, new, old, now)
            new = self._ownership.updated(call, new, old)
            if write is not None:
                await self._admission.validate(write, new, old)
                if not dry_run and table.get(*route.key) is not old:
                    continue
            if new == old:
                return resource.shown(old)
            if dry_run:
                return resource.shown(new)
            if is_finished(new):
                self._store.remove(table, old)
                return resource.shown(new)
            return resource.shown(self._store.put(table, new, old, call.signed(now)))

    def _prepared(self, route: Route, new: JsonObject, old: JsonObject, now: str) -> JsonObject:
        resource, strategy = route.resource, route.resource.strategy
        before = old["metadata"]
        self._check_version(resource, route.name, new["metadata"], before)
        metadata = meta.for_update(new["metadata"], before)
        if route.subresource == "status" and not strategy.status_writes_metadata:
            metadata = meta.with_owners(before, metadata)
        occasion = Occasion(before.get("namespace", ""), now, route.subresource)
        new = {**new, "kind": old["kind"], "apiVersion": old["apiVersion"], "metadata": metadata}
        new = strategy.normalise(strategy.prepare_update(new, old, occasion))
        if strategy.counts_generations and new.get("spec") != old.get("spec"):
            new = {**new, "metadata": {**new["metadata"], "generation": before.get("generation", 0) + 1}}
        # The real server validates a change of metadata for every kind, and most kinds do it again.
        faults = meta.validate(metadata, names_are_free=strategy.names_are_free, finalizers_are_free=strategy.untyped)
        faults += 2 * meta.validate_update(metadata, before)
        faults += strategy.faults_of_change(new, old, occasion)
        self._refuse_faults(resource, new, faults)
        return new

    def _occasion(self, namespace: str) -> Occasion:
        return Occasion(namespace, self._stamps.now)

    @staticmethod
    def _check_version(resource: Resource, name: str, given: JsonObject, before: JsonObject) -> None:
        version = given.get("resourceVersion")
        if not version:
            if not resource.strategy.unconditional_update:
                fault = invalid_value("metadata.resourceVersion", "0x0", "must be specified for an update")
                words = Kind(resource.group, resource.plural, resource.plural)  # the real server names no Kind here
                raise invalid(words, name, [Cause(fault.reason, fault.message.replace('"', ""), fault.field)])
        elif version != before["resourceVersion"]:
            raise conflict(resource.words, name)

    @staticmethod
    def _refuse_faults(resource: Resource, new: JsonObject, faults: list[Cause]) -> None:
        if faults:
            raise invalid(resource.stored_words, new["metadata"].get("name", ""), faults)

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        found = self._store.table("namespaces").get("", namespace)
        if found is None:
            raise not_found(NAMESPACE_WORDS, namespace)
        if "deletionTimestamp" in found["metadata"]:
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = Cause("NamespaceTerminating", f"namespace {namespace} is being terminated", "metadata.namespace")
            raise forbidden(resource.words, name, why, causes=[cause])

    @staticmethod
    def _check_name(route: Route, metadata: JsonObject) -> None:
        name = metadata.get("name", "")
        if not name:
            why = f"the name of the object ({route.name} based on URL) was undeterminable: name must be provided"
            raise bad_request(why)
        if name != route.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({route.name})")
        namespace = metadata.get("namespace")
        if namespace and namespace != (route.namespace or ""):
            raise bad_request(
                f"the namespace of the object ({namespace}) does not match the namespace on the request "
                f"({route.namespace or ''})"
            )


def reset_kept(object_: JsonObject) -> JsonObject:
    """The object with empty managedFields spelled `[{}]`, which means the same (no field has an owner): a check
    that reads as Go's JSON writes would lose the empty list."""
    metadata = object_.get("metadata")
    if isinstance(metadata, dict) and metadata.get("managedFields") == []:
        return {**object_, "metadata": {**metadata, "managedFields": [{}]}}
    return object_


def is_finished(object_: JsonObject) -> bool:
    """Whether an object under deletion has nothing left to wait for."""
    metadata = object_["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and not (object_["kind"] == "Namespace" and object_.get("spec", {}).get("finalizers"))
    )
