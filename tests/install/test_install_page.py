"""docs/install.md: what it tells people to paste is run here, on the embedded cluster with the real kubectl.

Whose blocks are only for docker and kind has the page's own stand-ins for them. The controller is a process with the
token of the ServiceAccount that was installed and the settings of the ConfigMap that was, behind the Service that was.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from e2e_support.balancer import free_ports
from support.kubectl import needs_kubectl

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
KIND, EMBEDDED = (
    PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    for heading in ("On kind, in ten minutes", "Without docker")
)
BLOCK = re.compile(r"<!-- ([^>]+) -->\n```console\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
COMMENT = re.compile(r"\s{2,}# (.*)$")
EXIT = re.compile(r"exit code (\d)")
READY = 6
MISSING = 1
"""What the budget of examples/kind/web.yaml lets be missing."""

WORLD = frozenset({"pods", "replicasets.apps", "events", "events.events.k8s.io", "endpointslices.discovery.k8s.io"})
"""Kinds whose objects come and go by themselves."""

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300), needs_kubectl]


def blocks(text: str) -> list[tuple[str, list[str]]]:
    """Each block with its tag, as commands with their comments."""
    return [(tag, COMMAND.findall(body)) for tag, body in BLOCK.findall(text)]


def the_block(tag: str) -> list[str]:
    """The only one of the stand-ins with that tag."""
    (found,) = (commands for each, commands in blocks(EMBEDDED) if each == f"embedded: {tag}")
    return found


class Terminal:
    """A shell of somebody who follows the page: in a folder with the project's files, and the program on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("examples", "helm"):
            (folder / name).symlink_to(ROOT / name)
        self._webhooks, *others = free_ports(3)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GRACECTL")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "KUBECONFIG": str(folder / "sim.kubeconfig"),
            "COLUMNS": "100",
            # Others on this machine may have the page's own ports.
            "GRACECTL__ADMISSION__LISTEN": f"127.0.0.1:{self._webhooks}",
            "GRACECTL__METRICS__LISTEN": f"127.0.0.1:{others[0]}",
            "GRACECTL__PROBES__LISTEN": f"127.0.0.1:{others[1]}",
        }

    def type(self, command: str) -> str:
        """Run a command of the page; it must end as its comment says, or well. Returns what it printed."""
        said = COMMENT.search(command)
        expected = int(code[1]) if said and (code := EXIT.search(said[1])) else 0
        done = self.run(command)
        shown = f"$ {command}\n{done.stdout}{done.stderr}"
        print(shown)
        assert done.returncode == expected, shown
        return done.stdout

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command, whatever comes of it."""
        typed = COMMENT.sub("", command).replace("127.0.0.1:8443", f"127.0.0.1:{self._webhooks}")
        return subprocess.run(
            ["bash", "-c", typed],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    @contextmanager
    def another(self, command: str, says: str = "") -> Iterator[subprocess.Popen[str]]:
        """The command in a terminal of its own, until Ctrl-C; with `says`, from when it has printed that."""
        process = subprocess.Popen(
            ["bash", "-c", f"{assigned(command)} exec {bare(command)}"],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        try:
            while says and says not in (line := process.stdout.readline()):
                assert line, f"{command} has ended"
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            print(f"$ {command}\n{process.communicate(timeout=30)[0]}")

    def everything(self) -> dict[str, Any]:
        """All that is in the cluster and does not come and go by itself: what nodes bear, the names of all others."""
        kinds = set(self.type("kubectl api-resources --verbs=list -o name").split()) - WORLD
        found: dict[str, Any] = {}
        for kind in sorted(kinds):
            done = self.run(f"kubectl get {kind} -A -o json")
            for each in orjson.loads(done.stdout)["items"] if done.returncode == 0 else ():
                metadata = each["metadata"]
                name = f"{kind}/{metadata.get('namespace', '')}/{metadata['name']}"
                found[name] = borne_by(each) if kind == "nodes" else ""
        return found


def assigned(command: str) -> str:
    """The variables before a command."""
    return " ".join(re.findall(r"^(?:[A-Z_]+=\S* )*", command)).strip()


def bare(command: str) -> str:
    """A command without them."""
    return re.sub(r"^(?:[A-Z_]+=\S* )*", "", command)


def borne_by(node: dict[str, Any]) -> Any:
    """What a controller could have left on a node."""
    metadata, spec = node["metadata"], node["spec"]
    kept = {name: value for name, value in metadata.get("annotations", {}).items() if "kubectl" not in name}
    return [metadata.get("finalizers", []), metadata["labels"], kept, spec.get("taints"), spec.get("unschedulable")]


def test_each_block_is_run_or_has_a_stand_in() -> None:
    assert {tag for tag, _ in blocks(KIND)} == {"once", "kind", "run", "run nothing"}
    assert [tag for tag, _ in blocks(EMBEDDED)] == [
        f"embedded: {each}" for each in ("the cluster", "step 1", "step 3", "the controller")
    ]
    assert len(BLOCK.findall(KIND + EMBEDDED)) == (KIND + EMBEDDED).count("```console")


def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    (cluster,), (controller,) = the_block("the cluster"), the_block("the controller")
    steps = re.split(r"^(?=\*\*\d\. )", KIND, flags=re.MULTILINE)[1:]
    assert [step[2] for step in steps] == list("1234567")
    with terminal.another(cluster, "kubeconfig: "):
        for step in steps[:2]:
            follow(terminal, step)
        before = terminal.everything()
        for command in the_block("step 3"):
            terminal.type(command)
        with watched_pods(terminal) as ready, terminal.another(controller):
            for step in steps[2:]:
                follow(terminal, step)
        assert ready() >= READY - MISSING
        after = terminal.everything()
    gone = {f"nodes//{name}" for name in ("kwok-0", "kwok-1")}
    leases = {f"leases.coordination.k8s.io/kube-node-lease/{name}" for name in ("kwok-0", "kwok-1")}
    assert set(before) - set(after) <= gone | leases
    assert gone <= set(before) - set(after)
    assert after == {name: what for name, what in before.items() if name in after}


def follow(terminal: Terminal, step: str) -> None:
    """Type all that a step has for everybody."""
    for tag, commands in blocks(step):
        for command in commands:
            if tag == "run":
                terminal.type(command)
            elif tag == "run nothing":
                assert terminal.run(command).stdout == "", command


@contextmanager
def watched_pods(terminal: Terminal) -> Iterator[Any]:
    """Follows how many pods are Ready; yields what tells the fewest of all the time."""
    watch = "kubectl get deployment web -w -o jsonpath='{.status.readyReplicas}{\"\\n\"}'"
    with terminal.another(f"{watch} > ready.txt") as process:
        yield lambda: min(int(line or 0) for line in (terminal.folder / "ready.txt").read_text().splitlines())
        assert process.poll() is None
