"""Objects with one field that is as large as a server stores it, for each field that a kind reads."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

from gracectl.kube import resources
from gracectl.kube.resources import Resource
from gracectl.model import machine, wire

BYTES: Final = 1_200_000
"""Of a field; etcd takes objects of 1.5 MiB."""

WIRE: Final[dict[str, type]] = {
    "pods": wire.Pod, "nodes": wire.Node, "nodeclaims": wire.NodeClaim, "poddisruptionbudgets": wire.Budget,
    "nodedisruptionbudgets": wire.NodeBudget, "volumeattachments": wire.Attachment,
    "persistentvolumeclaims": wire.VolumeClaim, "leases": wire.Lease, "machines": machine._Machine,
}  # fmt: skip
"""What is read of the kinds that are kept in memory, by plural."""

SINGLE: Final = {
    "namespaces": "kube-system alone", "nodepools": "asked for by its definition alone",
    "configmaps": "the settings alone", "events": "never read", "secrets": "our certificate alone",
    "mutatingwebhookconfigurations": "ours alone", "validatingwebhookconfigurations": "ours alone",
}  # fmt: skip
"""Kinds of which single objects are read, that tenants and kubelets cannot write."""

GIVEN: Final = {"name", "namespace", "uid", "resourceVersion"}
"""Of metadata: the server gives them, or limits their length."""


def kinds() -> dict[str, Resource[Any]]:
    """Every kind that gracectl.kube.resources names, by plural."""
    return {each.plural: each for each in vars(resources).values() if isinstance(each, Resource)}


def enlarged(plural: str) -> Iterator[tuple[str, bytes]]:
    """The path of each field of a kind, and an object in which that field is large."""
    smallest: dict[str, Any] = {"metadata": {"name": "a", "namespace": "shop", "uid": "1", "resourceVersion": "1"}}
    for path, value in _large(WIRE[plural]):
        yield ".".join(path), msgspec.json.encode(_with(smallest, path, value))


def _with(smallest: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    whole = {key: {**part} for key, part in smallest.items()}
    place = whole
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    return whole


def _large(kind: type) -> Iterator[tuple[tuple[str, ...], Any]]:
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name in GIVEN:
            continue
        if name in RAW:
            yield from (((name,), value) for value in RAW[name]())
            continue
        for member in _members(field.type):
            origin = typing.get_origin(member)
            if isinstance(member, type) and issubclass(member, msgspec.Struct):
                yield from (((name, *path), value) for path, value in _large(member))
            elif origin in (list, tuple):
                yield (name,), _many(typing.get_args(member)[0])
                yield (name,), _long(typing.get_args(member)[0])
            elif origin is dict:
                yield (name,), {f"k{number:07}": _small(typing.get_args(member)[1]) for number in range(BYTES // 30)}
            elif member is str:
                yield (name,), "x" * BYTES


def _members(type_: Any) -> Iterator[Any]:
    if typing.get_origin(type_) in (typing.Union, types.UnionType):
        for member in typing.get_args(type_):
            yield from _members(member)
    elif typing.get_origin(type_) is typing.Annotated:
        yield from _members(typing.get_args(type_)[0])
    else:
        yield type_


def _small(type_: Any) -> Any:
    members = list(_members(type_))
    return "2026-01-01T00:00:00Z" if datetime in members else "" if str in members else {}


def _many(item: Any) -> list[Any]:
    """As many entries as there is room for, all different."""
    if item is str:
        return [f"a/{number:06}" for number in range(BYTES // 12)]
    texts = [field.encode_name for field in msgspec.structs.fields(item) if str in _members(field.type)][:1]
    if not texts:
        entry: dict[str, Any] = {"persistentVolumeClaim": {"claimName": "x"}}
        return [entry] * (BYTES // 48)
    return [{texts[0]: f"{number:06}", **_claim(item, number)} for number in range(BYTES // 60)]


def _long(item: Any) -> list[Any]:
    """A few entries with long texts."""
    text = "x" * (BYTES // 12)
    if item is str:
        return [text] * 10
    texts = [field.encode_name for field in msgspec.structs.fields(item) if str in _members(field.type)]
    return [dict.fromkeys(texts, text[: len(text) // max(len(texts), 1)])] * 10


def _claim(item: Any, number: int) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": f"c{number:06}"}} if item is wire.Volume else {}


RAW: Final[dict[str, Any]] = {
    "labels": lambda: [{f"l{number:06}": "" for number in range(BYTES // 13)}],
    "ownerReferences": lambda: [[{"kind": "x", "name": f"{number:06}", "uid": "u"} for number in range(BYTES // 50)]],
    "tolerations": lambda: [[{"key": f"{number:06}"} for number in range(BYTES // 18)]],
    "selector": lambda: (
        [{"matchLabels": {f"l{number:06}": "" for number in range(count // 13)}} for count in (BYTES, 200_000)]
        + [
            {"matchExpressions": [{"key": "a", "operator": operator, "values": [f"{n:06}" for n in range(count // 9)]}]}
            for count in (BYTES, 200_000, 60_000)
            for operator in ("In", "NotIn")
        ]
        + [
            {"matchExpressions": [{"key": f"a{n}", "operator": "Exists"} for n in range(count // 33)]}
            for count in (BYTES, 200_000)
        ]
    ),
}
"""Parts that are read by themselves."""
