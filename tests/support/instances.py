"""The instances of a stage behind the interfaces of providers: Machines, an endpoint, a command."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from aiohttp import web
from kubesim.http import HttpFace
from kubesim.server import api

from gracectl.cloud.provider import Provider, ProviderSettings, load_provider
from gracectl.cloud.simulated import STATES
from support.endpoint import SECRET, Call, says, serving
from support.machines import ClusterApi
from support.stage import Stage

COMMAND = """
import json, os, sys, urllib.error, urllib.request
method = {"state": "GET", "terminate": "DELETE"}[os.environ["GRACECTL_ACTION"]]
url = sys.argv[1] + "/cloud/v1/instances/" + os.environ["GRACECTL_PROVIDER_ID"].rpartition("/")[2]
words = {"running": "running", "shutting-down": "ending", "terminated": "gone"}
try:
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        print(json.dumps({"state": words[json.load(answer)["state"]]}))
except urllib.error.HTTPError as error:
    if error.code != 404:
        raise
    print(json.dumps({"state": "gone"}))
"""


@asynccontextmanager
async def machines(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """Cluster API in the cluster itself."""
    capi = ClusterApi(stage)
    for node in stage.instances:
        await capi.add(node)
    async with capi.working():
        yield load_provider(ProviderSettings("clusterapi"))


@asynccontextmanager
async def machines_elsewhere(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """Cluster API where a kubeconfig leads to (that is the same cluster, by another way)."""
    async with machines(stage, folder), over_http(stage) as url:
        file = folder / "kubeconfig"
        file.write_text(kubeconfig(url))
        yield load_provider(ProviderSettings("clusterapi", {"kubeconfig": str(file)}))


@asynccontextmanager
async def endpoint(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """An HTTP endpoint in front of the cloud."""

    async def ask(call: Call) -> web.StreamResponse:
        path = f"/cloud/v1/instances/{call.body['providerID'].rpartition('/')[2]}"
        method = {"state": "GET", "terminate": "DELETE"}[call.body["action"]]
        answer = await stage.cluster.cloud(api.Request(method=method, path=path))
        return says(200, {"state": "gone" if answer.status == 404 else STATES[answer.body["state"]]})

    async with serving() as there:
        there.otherwise = ask
        file = folder / "secret"
        file.write_text(SECRET)
        yield load_provider(ProviderSettings("webhook", {"url": there.url, "secretFile": str(file)}))


@asynccontextmanager
async def command(stage: Stage, folder: Path) -> AsyncIterator[Provider]:
    """A program in front of the cloud."""
    async with over_http(stage) as url:
        yield load_provider(ProviderSettings("exec", {"command": [sys.executable, "-S", "-c", COMMAND, url]}))


@asynccontextmanager
async def over_http(stage: Stage) -> AsyncIterator[str]:
    """The address of the stage's server, and of its cloud, while the block lasts."""
    face = HttpFace(stage.server)
    try:
        yield await face.start()
    finally:
        await face.stop()


def kubeconfig(url: str) -> str:
    """A kubeconfig of a server without authentication."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "there", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "there",
        }
    )
