"""OpenAPI v3: documents are built at first use and cached until the served kinds change.

The index names a document for each group and version, with a hash by which clients cache it. Documents are JSON; a
client that accepts only protobuf gets 406 and falls back.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import orjson

from kubesim.openapi.definitions import definitions
from kubesim.openapi.paths import foreign_types, paths_of
from kubesim.server.api import JsonObject, Request, Response
from kubesim.server.resource import Registry, Resource
from kubesim.types.catalog import catalog

V3: Final = "/openapi/v3"
SECURITY: Final = {
    "BearerToken": {
        "description": "Bearer Token authentication",
        "in": "header",
        "name": "authorization",
        "type": "apiKey",
    }
}


class Document:
    """A document about some resources, made when it is first read."""

    def __init__(self, resources: list[Resource], title: JsonObject) -> None:
        self.resources = resources
        self._title = title
        self._hash = ""
        self._body = b""

    def is_about(self, resources: list[Resource]) -> bool:
        """Whether these are the resources it was made for."""
        return len(resources) == len(self.resources) and all(
            one is other for one, other in zip(resources, self.resources, strict=True)
        )

    @property
    def hash(self) -> str:
        """Changes when the document does, and is much cheaper than it."""
        if not self._hash:
            described = [_outline(resource) for resource in self.resources]
            raw = orjson.dumps([described, self._title, catalog().origin], default=str)
            self._hash = hashlib.sha512(raw).hexdigest().upper()
        return self._hash

    @property
    def body(self) -> bytes:
        """The document as JSON."""
        if not self._body:
            self._body = orjson.dumps(self._openapi())
        return self._body

    def _openapi(self) -> JsonObject:
        return {
            "openapi": "3.0.0",
            "info": self._title,
            "paths": self._paths(),
            "components": {"schemas": self._definitions(), "securitySchemes": SECURITY},
        }

    def _paths(self) -> dict[str, JsonObject]:
        return dict(sorted(item for resource in self.resources for item in paths_of(resource)))

    def _definitions(self) -> JsonObject:
        others = [name for resource in self.resources for name in foreign_types(resource)]
        return dict(definitions(self.resources, others))


def _outline(resource: Resource) -> list[Any]:
    """Parts of a resource in a document."""
    schema = resource.schema.raw if resource.schema is not None else None
    names = [resource.group, resource.version, resource.plural, resource.kind, resource.namespaced]
    return [*names, resource.verbs, resource.subresources, schema]


class OpenApi:
    """Answers about the shapes of things."""

    def __init__(self, registry: Registry, version: str) -> None:
        """`version`: of the server, `1.33`."""
        self._registry = registry
        self._title = {"title": "Kubernetes", "version": version}
        self._documents: dict[str, Document] = {}

    def answer(self, request: Request) -> Response | None:
        """The answer for a path of OpenAPI, or None if it is not one."""
        path = request.path.rstrip("/")
        if request.method != "GET" or not path.startswith(V3):
            return None
        if path == V3:
            return self._index()
        name = path.removeprefix(f"{V3}/")
        resources = self._served().get(name)
        if resources is None:
            return Response(status=404, body=b"")
        return _answered(request, self._document(name, resources))

    def _index(self) -> Response:
        named = {name: self._document(name, resources).hash for name, resources in self._served().items()}
        listed = {name: {"serverRelativeURL": f"{V3}/{name}?hash={hash_}"} for name, hash_ in sorted(named.items())}
        return Response(
            status=200,
            headers={"content-type": "text/plain; charset=utf-8"},
            body=orjson.dumps({"paths": listed}),
        )

    def _served(self) -> dict[str, list[Resource]]:
        """What is served, by the name of its document (`api/v1`, `apis/apps/v1`)."""
        served: dict[str, list[Resource]] = {}
        for resource in self._registry:
            name = f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"
            served.setdefault(name, []).append(resource)
        return served

    def _document(self, name: str, resources: list[Resource]) -> Document:
        document = self._documents.get(name)
        if document is None or not document.is_about(resources):
            document = self._documents[name] = Document(resources, self._title)
        return document


def _answered(request: Request, document: Document) -> Response:
    if not _takes_json(request.headers.get("accept", "*/*")):
        return Response(status=406, headers={"vary": "Accept"}, body=b"")
    tag = f'"{document.hash}"'
    headers = {"content-type": "application/json", "etag": tag, "vary": "Accept"}
    wanted = request.query.get("hash")
    if wanted and wanted != document.hash:
        return Response(status=301, headers={"location": f"{request.path}?hash={document.hash}"}, body=b"")
    headers["cache-control"] = "public, immutable" if wanted else "no-cache, private"
    if request.headers.get("if-none-match") == tag:
        return Response(status=304, headers=headers, body=b"")
    return Response(status=200, headers=headers, body=document.body)


def _takes_json(accept: str) -> bool:
    return any(_media(each) in ("application/json", "application/*", "*/*", "") for each in accept.split(","))


def _media(clause: str) -> str:
    return clause.partition(";")[0].strip()
