"""The few commands of kubectl that remedies are made of, for machines without kubectl: the same requests.

`python -m support.kubectl patch pdb -n shop web --type merge -p '…'`; KUBECONFIG names the cluster. Raises SystemExit
for whatever it does not know, so that a remedy cannot be taken for tried that was not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import yaml

from benchmarks.ground.hollow import connected

MERGE = "application/merge-patch+json"
PATHS = {
    "pod": "/api/v1/namespaces/{}/pods",
    "service": "/api/v1/namespaces/{}/services",
    "node": "/api/v1/nodes",
    "pdb": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "nodeclaims": "/apis/karpenter.sh/v1/nodeclaims",
    "volumeattachment": "/apis/storage.k8s.io/v1/volumeattachments",
    "nodepools": "/apis/karpenter.sh/v1/nodepools",
    "nodeclaim": "/apis/karpenter.sh/v1/nodeclaims",
    "leases": "/apis/coordination.k8s.io/v1/leases",
}
VERBS = ("get", "describe", "delete", "edit", "patch", "annotate", "label", "create", "taint")


def arguments(words: list[str]) -> argparse.Namespace:
    """What is on the command line."""
    parser = argparse.ArgumentParser(prog="kubectl")
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("kind", choices=PATHS)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-A", dest="everywhere", action="store_true")
    parser.add_argument("-n", dest="namespace", default="default")
    parser.add_argument("-o", dest="output", choices=("yaml", "wide"))
    parser.add_argument("-p", dest="patch")
    parser.add_argument("--type", choices=("merge",))
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--show-labels", action="store_true")
    parser.add_argument("--selector")
    parser.add_argument("--max-unavailable")
    return parser.parse_intermixed_args(words)


class Kubectl:
    """One run."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._collection = PATHS[given.kind].format(given.namespace)

    async def run(self) -> None:
        """Do it. Raises SystemExit for an error of the server."""
        verb, names = self._given.verb, self._given.names
        if verb in ("annotate", "label"):
            await self._set(names[0], names[1:], "annotations" if verb == "annotate" else "labels")
        elif verb == "taint":
            await self._taint(names[1], names[2])
        elif verb == "create":
            await self._create(names[0])
        elif verb == "edit":
            await self._edit(names)
        elif verb == "patch":
            await self._call("PATCH", names[0], json.loads(self._given.patch), MERGE)
        else:
            for name in names or [""]:
                print(yaml.safe_dump(await self._call("DELETE" if verb == "delete" else "GET", name)))

    async def _set(self, name: str, changes: list[str], field: str) -> None:
        before = (await self._call("GET", name))["metadata"].get(field) or {}
        wanted: dict[str, str | None] = {}
        for change in changes:
            key, separator, value = change.partition("=")
            if not separator and not change.endswith("-"):
                raise SystemExit(f"error: {change}")
            if separator and key in before and not self._given.overwrite:
                raise SystemExit(f"error: --overwrite is false but found the key {key}")
            wanted[key if separator else change[:-1]] = value if separator else None
        await self._call("PATCH", name, {"metadata": {field: wanted}}, MERGE)

    async def _create(self, name: str) -> None:
        labels = dict(each.split("=") for each in self._given.selector.split(","))
        spec = {"selector": {"matchLabels": labels}, "maxUnavailable": int(self._given.max_unavailable)}
        await self._call("POST", "", {"metadata": {"name": name}, "spec": spec})

    async def _taint(self, name: str, text: str) -> None:
        key, _, rest = text.partition("=")
        value, _, effect = rest.partition(":")
        before = (await self._call("GET", name))["spec"].get("taints") or []
        taints = [*before, {"key": key, "value": value, "effect": effect}]
        await self._call("PATCH", name, {"spec": {"taints": taints}}, MERGE)

    async def _edit(self, names: list[str]) -> None:
        objects = [await self._call("GET", name) for name in names]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "edit.yaml"
            file.write_text(yaml.safe_dump({"items": objects}))
            await anyio.to_thread.run_sync(
                lambda: subprocess.run(f"{os.environ['KUBE_EDITOR']} {file}", shell=True, check=True)
            )
            edited = yaml.safe_load(file.read_text())["items"]
        for name, each in zip(names, edited, strict=True):
            await self._call("PUT", name, each)

    async def _call(self, method: str, name: str, body: Any = None, kind: str = "application/json") -> Any:
        path = f"{self._collection}/{name}".rstrip("/")
        async with connected(Path(os.environ["KUBECONFIG"])) as api:
            status, answer = await api.call(method, path, body, content_type=kind)
        if status >= 300:
            raise SystemExit(f"error from server: {answer}")
        return answer


if __name__ == "__main__":
    anyio.run(Kubectl(arguments(sys.argv[1:])).run)
