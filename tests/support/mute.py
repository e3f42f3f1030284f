"""API servers that stop answering, for commands."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from gracectl.kube.leader.settings import LEASE_NAME
from gracectl.model import names
from gracectl.model.times import format_time
from gracectl.runtime.clock import SystemClock

NODES = "/api/v1/nodes"
NAMED = (NODES, "/api/v1/namespaces?")
"""What is answered with the names of the nodes."""
LEASES = "/apis/coordination.k8s.io/"
EMPTY = {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []}


class Mute:
    """A server of some nodes that knows nothing else. A DELETE of one in `silent` is never answered; `deaf`: nor is
    anything else."""

    def __init__(self, nodes: tuple[str, ...], silent: tuple[str, ...], *, deaf: bool) -> None:
        self.nodes = nodes
        self.silent = silent
        self.deaf = deaf
        self.asked = {name: threading.Event() for name in ("", *nodes)}
        """By name of the node, whether its deletion was requested; "" stands for any request."""
        self.over = threading.Event()

    def listed(self) -> Any:
        """The nodes, held by our finalizer."""
        metadata = {
            "resourceVersion": "7", "finalizers": [names.FINALIZER], "creationTimestamp": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        items = [{"metadata": {"name": name, "uid": f"uid-{name}", **metadata}} for name in self.nodes]
        return {"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items}


def held_lease() -> Any:
    """A controller leads."""
    spec = {"holderIdentity": "c", "leaseDurationSeconds": 15, "renewTime": format_time(SystemClock().now())}
    item = {"metadata": {"name": LEASE_NAME, "namespace": "gracectl", "resourceVersion": "7"}, "spec": spec}
    return {"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "metadata": {}, "items": [item]}


@contextmanager
def mute(folder: Path, *nodes: str, silent: tuple[str, ...] = (), deaf: bool = False) -> Iterator[tuple[Mute, Path]]:
    """The server, and a kubeconfig for it, while the block lasts."""
    state = Mute(nodes, silent, deaf=deaf)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.asked[""].set()
            if state.deaf:
                state.over.wait(60)
            else:
                is_lease = self.path.startswith(LEASES)
                self._answer(held_lease() if is_lease else state.listed() if self.path.startswith(NAMED) else EMPTY)

        def do_DELETE(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            name = self.path.rpartition("/")[2]
            state.asked[name].set()
            if name in state.silent:
                state.over.wait(60)
            else:
                self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def _answer(self, body: Any) -> None:
            encoded = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *args: object) -> None:
            """Discard it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        kubeconfig = folder / "mute"
        here = {"server": f"http://127.0.0.1:{server.server_address[1]}"}
        config = {
            "clusters": [{"name": "c", "cluster": here}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x",
        }  # fmt: skip
        kubeconfig.write_text(yaml.safe_dump(config))
        try:
            yield state, kubeconfig
        finally:
            state.over.set()
            server.shutdown()
            thread.join()
