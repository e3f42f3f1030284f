"""The paths in a document: what may be done with a resource, and with which parameters.

Clients look here for two things above all: which kind a path is about, and whether a write knows `fieldValidation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubesim.kinds.subresources import SUBRESOURCES
from kubesim.openapi.definitions import kind_of, schema_name
from kubesim.server.api import JsonObject
from kubesim.server.patches import APPLY, JSON_PATCH, MERGE, STRATEGIC
from kubesim.server.resource import Resource
from kubesim.types.catalog import KINDS, PREFIX, type_name

DESCRIPTIONS: Final = {
    "allowWatchBookmarks": 'allowWatchBookmarks requests watch events with type "BOOKMARK".',
    "continue": "The continue option should be set when retrieving more results from the server.",
    "dryRun": "When present, indicates that modifications should not be persisted. Valid values are: - All",
    "fieldManager": "fieldManager is a name associated with the actor or entity that is making these changes.",
    "fieldSelector": "A selector to restrict the list of returned objects by their fields. Defaults to everything.",
    "fieldValidation": "fieldValidation instructs the server on how to handle objects in the request "
    "(POST/PUT/PATCH) containing unknown or duplicate fields. Valid values are: - Ignore - Warn - Strict",
    "force": 'Force is going to "force" Apply requests. It means user will re-acquire conflicting fields.',
    "gracePeriodSeconds": "The duration in seconds before the object should be deleted.",
    "labelSelector": "A selector to restrict the list of returned objects by their labels. Defaults to everything.",
    "limit": "limit is a maximum number of responses to return for a list call.",
    "orphanDependents": "Deprecated: please use the PropagationPolicy.",
    "propagationPolicy": "Whether and how garbage collection will be performed.",
    "resourceVersion": "resourceVersion sets a constraint on what resource versions a request may be served from.",
    "resourceVersionMatch": "resourceVersionMatch determines how resourceVersion is applied to list calls.",
    "timeoutSeconds": "Timeout for the list/watch call.",
    "watch": "Watch for changes to the described resources and return them as a stream of notifications.",
    "name": "name of the {kind}",
    "namespace": "object name and auth scope, such as for teams and projects",
    "pretty": "If 'true', then the output is pretty printed.",
}
TYPES: Final = {
    "allowWatchBookmarks": "boolean",
    "force": "boolean",
    "gracePeriodSeconds": "integer",
    "limit": "integer",
    "orphanDependents": "boolean",
    "timeoutSeconds": "integer",
    "watch": "boolean",
}
LISTING: Final = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "timeoutSeconds",
    "watch",
)
WRITING: Final = ("dryRun", "fieldManager", "fieldValidation")
DELETING: Final = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")

Operation = tuple[str, str, str, tuple[str, ...]]
"""The HTTP method, the action, the first word of the operation's id, the parameters."""

COLLECTION: Final[dict[str, Operation]] = {
    "list": ("get", "list", "list", LISTING),
    "create": ("post", "post", "create", WRITING),
    "deletecollection": ("delete", "deletecollection", "deleteCollection", (*DELETING, *LISTING)),
}
OBJECT: Final[dict[str, Operation]] = {
    "get": ("get", "get", "read", ()),
    "update": ("put", "put", "replace", WRITING),
    "patch": ("patch", "patch", "patch", (*WRITING, "force")),
    "delete": ("delete", "delete", "delete", DELETING),
}
SENT: Final = {"put", "post", "patch"}


def paths_of(resource: Resource) -> Iterator[tuple[str, JsonObject]]:
    """The paths of a resource with what may be done at them."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    base = f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    scope = ("namespace",) if resource.namespaced else ()
    kind, body = kind_of(resource), schema_name(resource)
    if resource.namespaced and "list" in resource.verbs:
        listed = _operation(resource, COLLECTION["list"], kind, schema_name(resource, of_list=True))
        listed["operationId"] = f"list{_prefix(resource)}{resource.kind}ForAllNamespaces"
        yield f"{root}/{resource.plural}", {"get": listed, "parameters": _parameters(resource, ("pretty",))}
    collection: JsonObject = {}
    for verb, operation in COLLECTION.items():
        if verb in resource.verbs:
            answer = schema_name(resource, of_list=True) if verb == "list" else body
            collection[operation[0]] = _operation(resource, operation, kind, answer)
    yield base, {**collection, "parameters": _parameters(resource, (*scope, "pretty"))}
    single = {
        operation[0]: _operation(resource, operation, kind, body)
        for verb, operation in OBJECT.items()
        if verb in resource.verbs
    }
    if single:
        yield f"{base}/{{name}}", {**single, "parameters": _parameters(resource, ("name", *scope, "pretty"))}
    for name in resource.subresources:
        yield (
            f"{base}/{{name}}/{name}",
            {
                **_subresource(resource, name),
                "parameters": _parameters(resource, ("name", *scope, "pretty")),
            },
        )


def _subresource(resource: Resource, name: str) -> JsonObject:
    origin, kind, verbs = SUBRESOURCES[name]
    group, _, version = origin.rpartition("/")
    group_version_kind, body = kind_of(resource), schema_name(resource)
    if kind:
        group_version_kind = {"group": group, "kind": kind, "version": version or resource.version}
        body = type_name(group, version or resource.version, kind)
    operations = {**OBJECT, "create": COLLECTION["create"]}
    found: JsonObject = {}
    for verb in verbs:
        described = _operation(resource, operations[verb], group_version_kind, body)
        described["operationId"] += name[0].upper() + name[1:]
        described["description"] = f"{verb} {name} of the specified {resource.kind}"
        found[operations[verb][0]] = described
    return found


def foreign_types(resource: Resource) -> Iterator[str]:
    """The types of the catalogue that a resource's subresources speak of."""
    for name in resource.subresources:
        origin, kind, _ = SUBRESOURCES[name]
        group, _, version = origin.rpartition("/")
        if kind:
            yield type_name(group, version or resource.version, kind)


def _operation(resource: Resource, operation: Operation, kind: JsonObject, body: str) -> JsonObject:
    method, action, word, parameters = operation
    scope = "Namespaced" if resource.namespaced else ""
    if word == "deleteCollection":
        named = f"delete{_prefix(resource)}Collection{scope}{resource.kind}"
    else:
        named = f"{word}{_prefix(resource)}{scope}{resource.kind}"
    answered = f"{PREFIX}io.k8s.apimachinery.pkg.apis.meta.v1.Status" if method == "delete" else f"{PREFIX}{body}"
    described: JsonObject = {
        "description": f"{word} {resource.plural}",
        "operationId": named,
        "responses": {
            "200": {"description": "OK", "content": {"application/json": {"schema": {"$ref": answered}}}},
            "401": {"description": "Unauthorized"},
        },
        "tags": [_tag(resource)],
        "x-kubernetes-action": action,
        KINDS: kind,
    }
    if parameters:
        described["parameters"] = _parameters(resource, parameters)
    content = _content(resource, method, body)
    if content:
        described["requestBody"] = {"content": content, "required": method != "delete"}
    return described


def _content(resource: Resource, method: str, body: str) -> JsonObject:
    meta = f"{PREFIX}io.k8s.apimachinery.pkg.apis.meta.v1"
    if method == "patch":
        known = type_name(resource.group, resource.version, resource.kind)
        types = (APPLY, JSON_PATCH, MERGE, *((STRATEGIC,) if known else ()))
        return {type_: {"schema": {"$ref": f"{meta}.Patch"}} for type_ in types}
    if method == "delete":
        return {"*/*": {"schema": {"$ref": f"{meta}.DeleteOptions"}}}
    return {"*/*": {"schema": {"$ref": f"{PREFIX}{body}"}}} if method in SENT else {}


def _parameters(resource: Resource, names: tuple[str, ...]) -> list[JsonObject]:
    found: list[JsonObject] = []
    for name in names:
        in_path = name in ("name", "namespace")
        described: JsonObject = {
            "name": name,
            "in": "path" if in_path else "query",
            "description": DESCRIPTIONS[name].replace("{kind}", resource.kind),
            "schema": {"type": TYPES.get(name, "string"), "uniqueItems": True},
        }
        found.append({**described, "required": True} if in_path else described)
    return found


def _prefix(resource: Resource) -> str:
    group = resource.group.removesuffix(".k8s.io") or "core"
    return "".join(part[:1].upper() + part[1:] for part in (*group.split("."), resource.version))


def _tag(resource: Resource) -> str:
    prefix = _prefix(resource).removesuffix(resource.version[:1].upper() + resource.version[1:])
    return f"{prefix[:1].lower()}{prefix[1:]}_{resource.version}"
