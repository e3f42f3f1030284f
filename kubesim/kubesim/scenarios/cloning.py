"""Copies of a model pod: name, uid, node and address are its own, all the rest is shared, ids of containers too.

Invariant: a copy differs from its model in name, uid, owner, node, address and instants, and in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import orjson

from kubesim.server.api import Json, JsonObject
from kubesim.server.stamps import Stamps

INDEX_LABEL = "apps.kubernetes.io/pod-index"


class Cloner:
    """Makes pods of one model; uids, generated names and addresses are the next ones."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._addresses = 0

    def generated(self, model: JsonObject, nodes: Sequence[str], **metadata: Json) -> Iterator[JsonObject]:
        """Pods with generated names, one on each node given; `metadata` replaces the model's."""
        prefix: str = model["metadata"]["generateName"]
        taken: set[str] = set()
        for node in nodes:
            while (name := prefix + self._stamps.suffix()) in taken:
                pass
            taken.add(name)
            yield self.one(model, name, node, metadata)

    def numbered(self, model: JsonObject, nodes: Sequence[str], **metadata: Json) -> Iterator[JsonObject]:
        """The pods of a StatefulSet; pod 0 is the model."""
        first: str = model["metadata"]["name"]
        for number, node in enumerate(nodes):
            name = f"{first.removesuffix('0')}{number}"
            labels = {key: name if value == first else value for key, value in model["metadata"]["labels"].items()}
            if INDEX_LABEL in labels:
                labels[INDEX_LABEL] = str(number)
            pod = self.one(model, name, node, {**metadata, "labels": labels})
            if pod["spec"].get("hostname") == first:
                pod["spec"]["hostname"] = name
            yield pod

    def one(self, model: JsonObject, name: str, node: str, metadata: Mapping[str, Json]) -> JsonObject:
        """One pod, on a node."""
        before = model["metadata"]
        uid, now = self._stamps.uid(), self._stamps.now
        own = {**before, **metadata, "name": name, "uid": uid, "creationTimestamp": now}
        spec = {**model["spec"], "nodeName": node}
        if "affinity" in spec:
            spec["affinity"] = _moved(spec["affinity"], model["spec"]["nodeName"], node)
        self._addresses += 1
        high, low = divmod(self._addresses, 250)
        ip = f"10.{128 + high // 250}.{high % 250}.{low + 1}"
        status = {**model["status"], "podIP": ip, "podIPs": [{"ip": ip}]}
        return {**model, "metadata": own, "spec": spec, "status": status}


def _moved(affinity: JsonObject, before: str, after: str) -> JsonObject:
    """A DaemonSet's pod may name its node in its affinity."""
    moved: JsonObject = orjson.loads(orjson.dumps(affinity).replace(orjson.dumps(before), orjson.dumps(after)))
    return moved
