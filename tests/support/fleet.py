"""A cluster in a process of its own for commands that are run against it, with nodes as a test wants them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import anyio
import pytest
import yaml
from click.testing import CliRunner, Result
from e2e_support import manifests
from e2e_support.names import LABEL
from e2e_support.target import embedded_cluster
from kubesim.controllers.objects import is_ready
from kubesim.server.api import JsonObject
from kubesim_support.accounts import RBAC
from kubesim_support.patience import PATIENCE

from benchmarks.ground.hollow import connected
from gracectl.cli.root import root
from gracectl.kube.http import HttpTransport
from gracectl.kube.leader.settings import LEASE_NAME
from gracectl.kube.transport import Request, Response
from gracectl.model import names
from gracectl.model.times import format_micro_time
from gracectl.runtime.clock import SystemClock

# A cluster in a process of its own for commands that are run against it, with nodes as a test wants them.
#
# A controller runs beside it, in a process of its own too. It manages the nodes that are made `managed`; others have
# its finalizer only if the test says so, and then nothing ever removes it. So it is known what a command finds, and
# when.

RUN = "fleet"
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
STRICTLY = [sys.executable, "-X", "dev", "-W", "error", "-m", "gracectl"]
"""A warning of any kind is a traceback."""


class Fleet:
    """Reaches the cluster as its administrator. `folder`: the test module's, where kubeconfigs are written."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self.kubeconfig = kubeconfig
        self.folder = folder

    @property
    def server(self) -> str:
        """Its address."""
        address: str = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        return address

    # -- the cluster ---------------------------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        """Status and body of an answer, whatever it is."""

        async def ask() -> tuple[int, Any]:
            async with connected(self.kubeconfig) as api:
                return await api.call(method, path, body, content_type=kind)

        return anyio.run(ask)

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """The same for what must succeed; the body."""
        status, answer = self.call(method, path, body, kind)
        assert status < 300, answer
        return answer

    def node(self, name: str) -> JsonObject | None:
        """As the server has it now."""
        status, answer = self.call("GET", f"{NODES}/{name}")
        node: JsonObject | None = answer if status == 200 else None
        return node

    def is_deleted(self, name: str) -> bool:
        """Whether its deletion was requested; it exists."""
        node = self.node(name)
        assert node is not None, f"there is no node {name}"
        return "deletionTimestamp" in node["metadata"]

    def annotations(self, name: str) -> Mapping[str, str]:
        """Those of a node."""
        return (self.node(name) or {"metadata": {}})["metadata"].get("annotations") or {}

    def is_led(self) -> bool:
        """Whether a controller leads."""
        leases = self.ask("GET", "/apis/coordination.k8s.io/v1/leases")["items"]
        return any(each["metadata"]["name"] == LEASE_NAME and each["spec"].get("holderIdentity") for each in leases)

    def add(self, name: str, *, managed: bool = False, finalizers: tuple[str, ...] = (), **labels: str) -> str:
        """A node. `managed`: the controller holds it by the time of the return."""
        self._add(name, managed, finalizers, labels)
        if managed:
            self.until(f"{name} is held", lambda: names.FINALIZER in self._finalizers(name))
        return name

    def held(self, name: str, **labels: str) -> str:
        """A node with our finalizer that no controller manages: it stays until `release`."""
        self._add(name, False, (names.FINALIZER,), labels)
        return name

    def _add(self, name: str, managed: bool, finalizers: tuple[str, ...], labels: Mapping[str, str]) -> None:
        manifest = manifests.node(name, RUN, managed=managed)
        manifest["metadata"]["labels"] |= labels
        manifest["metadata"]["finalizers"] = list(finalizers)
        self.ask("POST", NODES, manifest)

    def release(self, name: str) -> None:
        """Take the finalizers off a node."""
        self.patch(name, {"metadata": {"finalizers": None}})

    def patch(self, name: str, change: Any) -> None:
        """Merge a change into a node."""
        self.ask("PATCH", f"{NODES}/{name}", change, MERGE)

    def delete(self, name: str) -> None:
        """Delete a node."""
        self.ask("DELETE", f"{NODES}/{name}")

    def pod(self, name: str, on: str, **extra: Any) -> None:
        """A pod on a node; it is Ready by the time of the return."""
        self.ask("POST", PODS, manifests.pod(name, RUN, on=on, **extra))
        self.until(f"{name} is Ready", lambda: is_ready(self.ask("GET", f"{PODS}/{name}")))

    def pod_is_there(self, name: str) -> bool:
        """Whether it is, terminating or not."""
        return self.call("GET", f"{PODS}/{name}")[0] == 200

    def _finalizers(self, name: str) -> list[str]:
        finalizers: list[str] = (self.node(name) or {"metadata": {}})["metadata"].get("finalizers") or []
        return finalizers

    def until(self, what: str, is_so: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Ask the server again and again."""
        clock = SystemClock()
        end = clock.monotonic() + seconds
        while not is_so():
            assert clock.monotonic() < end, f"not within {seconds:g} s: {what}"
            anyio.run(clock.sleep, 0.1)

    def user(self, name: str, *rules: JsonObject) -> Path:
        """The kubeconfig of an account with these rights and no others."""
        self.ask("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": name}})
        self.ask("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": list(rules)})
        binding = {
            "metadata": {"name": name},
            "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
        }
        self.ask("POST", f"{RBAC}/clusterrolebindings", binding)
        token = self.ask("POST", f"/api/v1/namespaces/default/serviceaccounts/{name}/token", {"spec": {}})
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token["status"]["token"]}
        path = self.folder / name
        path.write_text(yaml.safe_dump(config))
        return path

    # -- commands ------------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, as_: Path | None = None) -> Result:
        """A command in this process."""
        command, *rest = arguments
        return CliRunner().invoke(root, [command, "--kubeconfig", str(as_ or self.kubeconfig), *rest])

    @contextmanager
    def running(self, *arguments: str, kubeconfig: Path | None = None) -> Iterator[Process]:
        """A command in a process of its own, in which a warning is a failure; killed if it still runs at the end."""
        command, *rest = arguments
        whole = [*STRICTLY, command, "--kubeconfig", str(kubeconfig or self.kubeconfig), *rest]
        with started(whole) as process:
            yield process


def overheard(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What the commands of this process ask of servers from now on, as it comes."""
    asked: list[Request] = []
    send = HttpTransport.send

    async def listening(self: HttpTransport, request: Request) -> Response:
        asked.append(request)
        return await send(self, request)

    monkeypatch.setattr(HttpTransport, "send", listening)
    return asked


PREVIEW = re.compile(r"^cluster: .*?(?=^gracectl: |^Traceback|\Z)", re.DOTALL | re.MULTILINE)


def errors(stderr: str) -> str:
    """What a drain or a termination says on stderr behind its preview."""
    return PREVIEW.sub("", stderr)


SOON: Final = 5.0
"""Seconds: half of what a request waits for its answer."""


class Process:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._began = SystemClock().monotonic()
        self.out = ""
        """What was read of stdout so far."""

    def until(self, words: str) -> None:
        """Read its stdout up to a line with these words; after PATIENCE it is killed, so that a failure shows them."""
        assert self._process.stdout is not None
        limit = threading.Timer(PATIENCE, self._process.kill)
        limit.start()
        try:
            for line in self._process.stdout:
                self.out += line
                if words in line:
                    return
        finally:
            limit.cancel()
        raise AssertionError(f"it ended without {words!r}: {self.out}{_rest(self._process.stderr)}")

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def ended_soon(self) -> tuple[int, str]:
        """As `ended`, after less time than any request may take, or than it took up to here: it starts more slowly
        than it ends."""
        return self.ended(max(SOON, SystemClock().monotonic() - self._began))

    def ended(self, seconds: float = PATIENCE) -> tuple[int, str]:
        """Its exit code, and what it has said on stderr, without a preview."""
        out, err = self._process.communicate(timeout=seconds)
        self.out += out
        lines = [line for line in err.splitlines(keepends=True) if not line.startswith("Executing <")]
        return self._process.returncode, errors("".join(lines))


def _rest(stream: IO[str] | None) -> str:
    return "" if stream is None else stream.read()


@contextmanager
def started(command: list[str]) -> Iterator[Process]:
    """A process whose stdout can be read line by line."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


NODE_DRAINS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodedrains.gracectl.io"


@contextmanager
def played_fleet(folder: Path) -> Iterator[Fleet]:
    """A cluster with authentication that serves NodeDrains. There is no controller, only a Lease that says that one
    leads: the test plays it."""
    with embedded_cluster(folder, "--nodes", "2", "--pods", "1", "--rbac") as kubeconfig:
        place = Fleet(kubeconfig, folder)
        now = format_micro_time(SystemClock().now() + 500)
        lease = {"holderIdentity": "played", "leaseDurationSeconds": 600, "renewTime": now}
        path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        place.ask("POST", path, {"metadata": {"name": LEASE_NAME}, "spec": lease})
        yield place


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """A cluster with authentication, and its controller. It serves no NodeDrains: commands request each node."""
    settings = folder / "controller.yaml"
    selector = {"matchLabels": {LABEL: RUN, f"{LABEL}-managed": "true"}}
    settings.write_text(yaml.safe_dump({"nodeSelector": selector, "drain": {"minimumSeconds": 0.3}}))
    with embedded_cluster(folder, "--nodes", "2", "--pods", "1", "--rbac") as kubeconfig:
        Fleet(kubeconfig, folder).ask("DELETE", NODE_DRAINS)
        command = [sys.executable, "-m", "gracectl", "controller", "--kubeconfig", str(kubeconfig)]
        with (
            (folder / "controller.log").open("wb") as log,
            subprocess.Popen([*command, "--config", str(settings)], stderr=log) as controller,
        ):
            try:
                place = Fleet(kubeconfig, folder)
                place.until("the controller leads", place.is_led)
                yield place
            finally:
                controller.kill()
