"""Request bodies: from bytes to the object that the path expects (recording writes-refused).

Invariant: nothing that a caller can still change reaches the store. The body check copies in-process objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import orjson
import yaml

from kubesim.server.api import Json, JsonObject, Request
from kubesim.server.goformat import decoded_as
from kubesim.server.patches import APPLY, JSON_PATCH, MERGE, STRATEGIC
from kubesim.server.resource import Resource
from kubesim.server.status import Refusal, bad_request, unsupported_media_type

ACCEPTED = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
SUMMARY = 30
"""So many characters of a body are quoted at most."""
PATCHES = (JSON_PATCH, MERGE, STRATEGIC, APPLY)


def copied(value: Json) -> Json:
    """A copy of a JSON value, as deep as it goes. Its texts are the same: they take most of the room."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value


def content_type(request: Request) -> str:
    """The media type of the body, without parameters; in-process callers that name none mean JSON."""
    return request.headers.get("content-type", "application/json").partition(";")[0].strip()


class _Loader(yaml.SafeLoader):
    """YAML as JSON has it: what looks like a date is text, binary data is nothing at all."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def as_json(value: Json) -> Json:
    """YAML as JSON: keys become text, numbers beyond 64 bits floats. Raises ValueError for what JSON lacks."""
    if isinstance(value, dict):
        return {_as_key(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"json: unsupported value: {value}")
    if isinstance(value, str):
        return _as_text(value)
    if value is None or isinstance(value, int | float):
        return value
    raise ValueError(f"json: unsupported type: {type(value).__name__}")


def _as_text(text: str) -> str:
    if not text.isascii():
        text.encode()  # an escape may stand for half a character: that is none
    return text


def _as_key(key: Json) -> str:
    if isinstance(key, str):
        return _as_text(key)
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int | float):
        return str(key)
    raise ValueError(f"unsupported map key: {key}")


Decode = Callable[[bytes, str], Json]
"""Reads a body of some media type that should hold an object of a kind. Raises Refusal (400)."""


def as_yaml(raw: bytes, kind: str = "") -> Json:
    """A body in YAML. Raises Refusal (400)."""
    try:
        return as_json(yaml.load(raw, _Loader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise bad_request(f"error converting YAML to JSON: {error}") from None


def _as_it_is(body: Json) -> JsonObject:
    options: JsonObject = body
    return options


class Bodies:
    """Reads the bodies of requests."""

    def __init__(
        self, decoders: Mapping[str, Decode] | None = None, *, typed_options: Callable[[Json], JsonObject] = _as_it_is
    ) -> None:
        """`decoders`: how bodies that are neither JSON nor YAML are read, by media type; `typed_options`: what Go makes
        of the options in a DELETE's body (raises Refusal)."""
        self._decoders: dict[str, Decode] = {"application/yaml": as_yaml, **(decoders or {})}
        self._typed_options = typed_options

    def patch(self, request: Request) -> Json:
        """The body of a PATCH; a caller that keeps any of it takes a copy. Raises Refusal: 415 for an unknown type, 400
        if it is not of that type."""
        media = content_type(request)
        if media not in PATCHES:
            raise unsupported_media_type()
        if not isinstance(request.body, bytes):
            return request.body
        if media == APPLY:
            return as_yaml(request.body)
        try:
            return orjson.loads(request.body)
        except orjson.JSONDecodeError:
            raise bad_request("error decoding patch: unexpected end of JSON input") from None

    def object(self, request: Request, kind: str) -> Json:
        """The body of a POST or PUT with an object of `kind`; copy it before keeping it. Raises Refusal (400, 415)."""
        if not isinstance(request.body, bytes) and request.body is not None:
            return request.body
        raw: bytes = request.body or b""
        media = content_type(request)
        if media == "application/json":
            return as_object(raw, kind)
        if media not in self._decoders:
            raise unsupported_media_type(ACCEPTED)
        return self._decoders[media](raw, kind)

    def options(self, request: Request) -> JsonObject | None:
        """The body of a DELETE, or None when there is none. Raises Refusal (400)."""
        body = request.body
        if isinstance(body, bytes):
            if not body:
                return None
            decode = self._decoders.get(content_type(request))
            body = decode(body, "DeleteOptions") if decode else as_options(body)
        return self._typed_options(body) if isinstance(body, dict) else None


def as_object(raw: bytes, kind: str) -> JsonObject:
    """A body in JSON that must hold an object. Raises Refusal (400)."""
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise unrecognized(kind, "unexpected end of JSON input", raw.decode(errors="replace") or "<empty>") from None
    if not isinstance(parsed, dict):
        go_type = (
            'struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
        )
        raise unrecognized(
            kind, f"json: cannot unmarshal {decoded_as(parsed)} into Go value of type {go_type}", raw.hex()
        )
    for field in ("apiVersion", "kind"):
        named = parsed.get(field)
        if named is not None and not isinstance(named, str):
            fault = f"json: cannot unmarshal {decoded_as(named)} into Go struct field .{field} of type string"
            raise unrecognized(kind, fault, raw.decode(errors="replace"))
    return parsed


def unrecognized(kind: str, fault: str, shown: str) -> Refusal:
    """400 for a body that does not even say what it is; of a long one only the beginning is shown."""
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: "
        f"{fault} ({shortened(shown)})"
    )


def shortened(text: str) -> str:
    """A body as refusals quote it: of a long one only the beginning."""
    return f"{text[:SUMMARY]} ..." if len(text) > SUMMARY else text


def as_options(raw: bytes) -> Json:
    """Options in JSON. Raises Refusal (400)."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise bad_request("couldn't get version/kind; json parse error: unexpected end of JSON input") from None


def check_kind(body: Json, resource: Resource) -> JsonObject:
    """The body as an object of the resource; kind and apiVersion may be missing. Raises Refusal (400)."""
    if not isinstance(body, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")
    if resource.strategy.untyped:
        return body  # checks of such bodies look at their type, too
    kind = body.get("kind") or resource.kind
    api_version = body.get("apiVersion") or resource.api_version
    if not isinstance(kind, str) or not isinstance(api_version, str):
        raise bad_request(f"the object provided is unrecognized (must be of type {resource.kind})")
    if (kind, api_version) != (resource.kind, resource.api_version):
        version = api_version.rpartition("/")[2]
        group = resource.group.partition(".")[0] or "core"
        raise bad_request(
            f'{kind} in version "{version}" cannot be handled as a {resource.kind}: converting ({version}.{kind}) to '
            f"({group}.{resource.kind}): unknown conversion"
        )
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        version, found = resource.version, decoded_as(metadata)
        raise bad_request(
            f'{kind} in version "{version}" cannot be handled as a {kind}: json: cannot unmarshal {found} into Go '
            f"struct field {kind}.metadata of type v1.ObjectMeta"
        )
    whole = {"kind": kind, "apiVersion": api_version, **body, "metadata": metadata or {}}
    whole["kind"], whole["apiVersion"] = kind, api_version  # what is null or empty means what was meant
    return whole
