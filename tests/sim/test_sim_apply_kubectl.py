"""`kubectl apply --server-side` against the embedded server, as people type it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import orjson
import pytest

from gracectl.runtime.clock import SystemClock
from gracectl.sim.cluster import write_kubeconfig
from gracectl.sim.core import ApiServer
from gracectl.sim.http import HttpFace

PROGRAM = shutil.which("kubectl")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real_time,
    pytest.mark.skipif(PROGRAM is None, reason="kubectl is not on PATH"),
]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Printed(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


class Kubectl:
    """Runs kubectl, each time as a process of its own."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._command = [str(PROGRAM), f"--kubeconfig={kubeconfig}"]
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(home)}

    async def run(self, *arguments: str, stdin: str = "") -> Printed:
        """Run one command, whatever comes of it."""
        with anyio.fail_after(30):
            done = await anyio.run_process(
                [*self._command, *arguments], input=stdin.encode(), env=self._environment, check=False
            )
        return Printed(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run one command that must succeed; returns what it printed."""
        printed = await self.run(*arguments, stdin=stdin)
        assert printed.code == 0, f"kubectl {' '.join(arguments)}: {printed.err}"
        return printed.out

    async def apply(self, manifest: Any, *options: str) -> Printed:
        """`kubectl apply -f -`, whatever comes of it."""
        return await self.run("apply", "-f", "-", *options, stdin=orjson.dumps(manifest).decode())

    async def get(self, *arguments: str) -> Any:
        """What `kubectl get` shows, managedFields and all."""
        return orjson.loads(await self("get", *arguments, "-o", "json", "--show-managed-fields"))


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """The real kubectl, and a server for it."""
    face = HttpFace(ApiServer(SystemClock()))
    url = await face.start()
    write_kubeconfig(tmp_path / "kubeconfig", url)
    try:
        yield Kubectl(tmp_path / "kubeconfig", tmp_path)
    finally:
        with anyio.CancelScope(shield=True):
            await face.stop()


def settings(**data: str) -> dict[str, Any]:
    """A ConfigMap."""
    metadata = {"name": "settings", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def managers(object_: Any) -> list[tuple[str, str]]:
    """Who owns something, and by which operation."""
    return [(entry["manager"], entry["operation"]) for entry in object_["metadata"].get("managedFields", [])]


async def test_conflicts_are_told_and_can_be_forced(kubectl: Kubectl) -> None:
    applied = await kubectl.apply(settings(a="1", b="1"), "--server-side")
    assert applied.out == "configmap/settings serverside-applied\n"
    refused = await kubectl.apply(settings(a="2"), "--server-side", "--field-manager=other")
    assert refused.code == 1
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .data.a' in refused.err
    assert "--force-conflicts" in refused.err
    forced = await kubectl.apply(settings(a="2"), "--server-side", "--field-manager=other", "--force-conflicts")
    assert forced.code == 0
    found = await kubectl.get("configmap", "settings")
    assert found["data"] == {"a": "2", "b": "1"}
    assert managers(found) == [("kubectl", "Apply"), ("other", "Apply")]


async def test_managed_fields_are_shown_on_request(kubectl: Kubectl) -> None:
    await kubectl.apply(settings(a="1"), "--server-side")
    assert "managedFields" not in await kubectl("get", "configmap", "settings", "-o", "yaml")
    assert "f:a: {}" in await kubectl("get", "configmap", "settings", "-o", "yaml", "--show-managed-fields")


async def test_a_dry_run_stores_nothing(kubectl: Kubectl) -> None:
    printed = await kubectl.apply(settings(a="1"), "--server-side", "--dry-run=server")
    assert printed.out == "configmap/settings serverside-applied (server dry run)\n"
    assert (await kubectl.run("get", "configmap", "settings")).code == 1


async def test_an_unknown_field_is_refused(kubectl: Kubectl) -> None:
    printed = await kubectl.apply({**settings(a="1"), "extra": 1}, "--server-side", "--validate=false")
    assert "failed to create typed patch object" in printed.err
    assert ".extra: field not declared in schema" in printed.err


async def test_who_applied_on_the_clients_side_can_move_to_the_servers(kubectl: Kubectl) -> None:
    await kubectl.apply(settings(a="1", b="1"))
    await kubectl("label", "configmap", "settings", "owner=somebody")
    moved = await kubectl.apply(settings(a="2"), "--server-side")
    assert (moved.code, moved.err) == (0, "")
    found = await kubectl.get("configmap", "settings")
    # What was applied before and is no more goes, as client-side apply would have had it; what another wrote stays.
    assert found["data"] == {"a": "2"}
    assert found["metadata"]["labels"] == {"owner": "somebody"}
    assert orjson.loads(found["metadata"]["annotations"][LAST_APPLIED])["data"] == {"a": "2"}
    assert managers(found) == [("kubectl-last-applied", "Apply"), ("kubectl", "Apply"), ("kubectl-label", "Update")]


async def test_who_edits_what_is_applied_owns_it(kubectl: Kubectl) -> None:
    await kubectl.apply(settings(a="1"), "--server-side")
    await kubectl("patch", "configmap", "settings", "--type=merge", "-p", '{"data":{"a":"2"}}')
    refused = await kubectl.apply(settings(a="1"), "--server-side")
    assert 'conflict with "kubectl-patch" using v1: .data.a' in refused.err
