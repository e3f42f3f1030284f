"""Content negotiation: the object, a Table for kubectl, or metadata only (recordings tables, discovery).

The first shape in `Accept` that the server knows wins; none is 406. Errors are always a Status.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from kubesim.printers.columns import COLUMNS, DEFAULT
from kubesim.server.api import EventStream, Json, JsonObject, Response, StreamEvent
from kubesim.server.resource import Resource
from kubesim.server.stamps import Stamps
from kubesim.server.status import not_acceptable
from kubesim.server.watch import INITIAL_LIST, empty_list

PLAIN = ""
SHAPES = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
READABLE = ("application/json", "application/*", "*/*")
META = "meta.k8s.io/v1"


@lru_cache(maxsize=256)
def accepted_shape(accept: str) -> str:
    """`Table`, `PartialObjectMetadata` (of an object or a list) or "" for the plain object. Raises Refusal (406)."""
    for choice in accept.split(","):
        media, *parameters = (part.strip() for part in choice.split(";"))
        if media not in READABLE:
            continue
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        shape = given.get("as", PLAIN)
        if shape == PLAIN or (given.get("g") == "meta.k8s.io" and given.get("v") == "v1" and shape in SHAPES):
            return shape.removesuffix("List")
    raise not_acceptable()


class Shaper:
    """Gives answers about one resource the shape asked for."""

    def __init__(self, resource: Resource, shape: str, query: Mapping[str, str], stamps: Stamps) -> None:
        self._resource = resource
        self._shape = shape
        self._include = query.get("includeObject", "Metadata")
        self._stamps = stamps

    def response(self, response: Response) -> Response:
        """The answer in the shape asked for."""
        if response.stream is not None:
            return Response(status=200, headers=response.headers, stream=ShapedStream(response.stream, self))
        return Response(status=response.status, headers=response.headers, body=self.body(response.body))

    def body(self, body: Json) -> Json:
        """An object or list in the shape asked for; a Status stays what it is."""
        if not isinstance(body, dict) or body.get("kind") == "Status":
            return body
        if body.get("kind") == self._resource.list_name and "items" in body:
            return self._list(body)
        if self._shape == "Table":
            return self._table([body], {"resourceVersion": body["metadata"].get("resourceVersion", "")}, columns=True)
        return metadata_only(body)

    def event(self, event: StreamEvent, *, first: bool) -> StreamEvent:
        """An event of a watch; columns are described in the first one only."""
        if event.type == "ERROR":
            return event
        if self._shape != "Table":
            shown = metadata_only(event.object)
            return StreamEvent(event.type, _bookmark(shown) if event.type == "BOOKMARK" else shown)
        version = {"resourceVersion": event.object["metadata"].get("resourceVersion", "")}
        rows = [] if event.type == "BOOKMARK" else [event.object]
        return StreamEvent(event.type, self._table(rows, version, columns=first))

    def _list(self, body: JsonObject) -> JsonObject:
        if self._shape == "Table":
            return self._table(body["items"], body["metadata"], columns=True)
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": META,
            "metadata": body["metadata"],
            "items": [metadata_only(item) for item in body["items"]],
        }

    def _table(self, objects: list[JsonObject], metadata: JsonObject, *, columns: bool) -> JsonObject:
        shown = self._resource.columns or COLUMNS.get(self._resource.plural, DEFAULT)
        now = self._stamps.seconds
        table: JsonObject = {"kind": "Table", "apiVersion": META, "metadata": metadata}
        if columns:
            table["columnDefinitions"] = [
                {
                    "name": column.name,
                    "type": column.type,
                    "format": column.format,
                    "description": column.description or column.name,
                    "priority": 1 if column.wide else 0,
                }
                for column in shown
            ]
        table["rows"] = [
            {"cells": [column.cell(object_, now) for column in shown], "object": self._row_object(object_)}
            for object_ in objects
        ]
        return table

    def _row_object(self, object_: JsonObject) -> Json:
        match self._include:
            case "None":
                return None
            case "Object":
                return {"kind": self._resource.kind, "apiVersion": self._resource.api_version, **object_}
        return metadata_only(object_)


class ShapedStream:
    """A watch that converts its events as they are read."""

    def __init__(self, stream: EventStream, shaper: Shaper) -> None:
        self._stream = stream
        self._shaper = shaper
        self._first = True

    def __aiter__(self) -> ShapedStream:
        return self

    async def __anext__(self) -> StreamEvent:
        event = await self._stream.__anext__()
        first, self._first = self._first, False
        return self._shaper.event(event, first=first)

    def interrupt(self) -> None:
        """See EventStream."""
        self._stream.interrupt()

    async def aclose(self) -> None:
        """Stop reading."""
        await self._stream.aclose()


def _bookmark(object_: JsonObject) -> JsonObject:
    """What is watched as metadata is listed as metadata: so says the end of the initial events."""
    annotations = object_["metadata"].get("annotations") or {}
    if INITIAL_LIST not in annotations:
        return object_
    annotations = {**annotations, INITIAL_LIST: empty_list("PartialObjectMetadataList", META)}
    return {**object_, "metadata": {**object_["metadata"], "annotations": annotations}}


def metadata_only(object_: JsonObject) -> JsonObject:
    """PartialObjectMetadata of an object."""
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": object_["metadata"]}
