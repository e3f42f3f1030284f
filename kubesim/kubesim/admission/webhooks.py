"""One admission webhook, read from its configuration once and then held against every write.

A stored configuration has its defaults and is valid (see `configurations`), so nothing is checked again here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from kubesim.server.api import JsonObject

ANY: Final = "*"


class Place(NamedTuple):
    """Where a write happens, as rules name it."""

    group: str
    version: str
    plural: str
    subresource: str = ""


NAMESPACES: Final = Place("", "v1", "namespaces")


class Rule(msgspec.Struct, frozen=True):
    """Which writes a webhook wants to hear of. `resources`: (plural, subresource), each perhaps `*`."""

    operations: frozenset[str]
    groups: frozenset[str]
    versions: frozenset[str]
    resources: tuple[tuple[str, str], ...]
    scope: str

    def covers(self, operation: str, place: Place, namespace: str) -> bool:
        """Whether the rule covers an operation there. A namespace is cluster-scoped, despite its `namespace`."""
        return (
            self.touches(operation, place.plural, place.subresource)
            and _has(self.groups, place.group)
            and _has(self.versions, place.version)
            and (self.scope == ANY or (self.scope == "Namespaced") is (bool(namespace) and place[:3] != NAMESPACES[:3]))
        )

    def touches(self, operation: str, plural: str, subresource: str) -> bool:
        """Whether the rule is about an operation on a resource of that name, in whatever group and version."""
        return _has(self.operations, operation) and any(
            resource in (ANY, plural) and sub in (ANY, subresource) for resource, sub in self.resources
        )


class Service(NamedTuple):
    """A Service of the cluster, as the address of a webhook."""

    namespace: str
    name: str
    port: int

    @property
    def host(self) -> str:
        """The name that its certificate must bear."""
        return f"{self.name}.{self.namespace}.svc"


class Client(msgspec.Struct, frozen=True):
    """Address of a webhook. `url` has a path and no query; `ca_bundle` is base64 ("": the system's authorities)."""

    url: str
    ca_bundle: str
    service: Service | None = None


class Condition(NamedTuple):
    """One of a webhook's matchConditions: an expression that must be true for the webhook to be asked."""

    name: str
    expression: str


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """One webhook of one configuration. `id` is unique; `timeout` in seconds."""

    id: str
    name: str
    rules: tuple[Rule, ...]
    client: Client
    equivalent: bool
    ignores_failures: bool
    reinvocable: bool
    side_effects: str
    timeout: int
    review_versions: tuple[str, ...]
    namespace_selector: JsonObject
    object_selector: JsonObject
    conditions: tuple[Condition, ...]

    @property
    def has_side_effects(self) -> bool:
        """Whether it must not be asked in a dry run."""
        return self.side_effects not in ("None", "NoneOnDryRun")

    def may_concern(self, operation: str, place: Place) -> bool:
        """Whether a write of some object there may concern the webhook."""
        return any(
            rule.touches(operation, place.plural, place.subresource)
            and (self.equivalent or (_has(rule.groups, place.group) and _has(rule.versions, place.version)))
            for rule in self.rules
        )


def webhooks_of(configuration: JsonObject) -> list[Webhook]:
    """The webhooks of a configuration, in its order."""
    name = configuration["metadata"]["name"]
    return [_webhook(name, raw) for raw in configuration.get("webhooks") or ()]


def _webhook(configuration: str, raw: JsonObject) -> Webhook:
    return Webhook(
        id=f"{configuration}/{raw['name']}",
        name=raw["name"],
        rules=tuple(_rule(rule) for rule in raw.get("rules") or ()),
        client=_client(raw["clientConfig"]),
        equivalent=raw["matchPolicy"] == "Equivalent",
        ignores_failures=raw["failurePolicy"] == "Ignore",
        reinvocable=raw.get("reinvocationPolicy") == "IfNeeded",
        side_effects=raw["sideEffects"],
        timeout=raw["timeoutSeconds"],
        review_versions=tuple(raw["admissionReviewVersions"]),
        namespace_selector=raw["namespaceSelector"],
        object_selector=raw["objectSelector"],
        conditions=tuple(Condition(each["name"], each["expression"]) for each in raw.get("matchConditions") or ()),
    )


def _rule(raw: JsonObject) -> Rule:
    return Rule(
        operations=frozenset(raw["operations"]),
        groups=frozenset(raw["apiGroups"]),
        versions=frozenset(raw["apiVersions"]),
        resources=tuple(_split(resource) for resource in raw["resources"]),
        scope=raw["scope"],
    )


def _split(resource: str) -> tuple[str, str]:
    plural, _, subresource = resource.partition("/")
    return plural, subresource


def _client(raw: JsonObject) -> Client:
    ca_bundle = raw.get("caBundle") or ""
    if raw.get("service") is None:
        url = urlsplit(raw["url"])
        return Client(f"{url.scheme}://{url.netloc}{_path(url.path)}", ca_bundle)
    given = raw["service"]
    service = Service(given["namespace"], given["name"], given["port"])
    return Client(f"https://{service.host}:{service.port}{_path(given.get('path') or '')}", ca_bundle, service)


def _path(path: str) -> str:
    """A path as Go joins it: it begins with one slash and, unless it is that slash, ends with none."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


def _has(names: Sequence[str] | frozenset[str], name: str) -> bool:
    return ANY in names or name in names
