"""The scripts of tools/, with programs that note how they are called in the place of docker, kind, kubectl and helm."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.tools import TOOLS, versions

from gracectl import __version__

PROGRAMS = ("docker", "kind", "kubectl", "helm")
COMMANDS = ("bash", "env", "basename", "dirname", "sed", "grep", "paste", "cat", "cut", "cksum", "mktemp", "rm")
"""All that the scripts may need beside them."""
NOTE = """#!/bin/bash
printf '%s %s\\n' "${0##*/}" "$*" >> "$CALLS"
case "${0##*/} $*" in
    *'-f -') cat >> "$CALLS.applied" ;;
    'kind get clusters') cat "$CALLS.clusters" 2> /dev/null || echo 'No kind clusters found.' >&2 ;;
    'kind create cluster '*) echo "$4" >> "$CALLS.clusters" ;;
    'kind delete cluster '*) rm "$CALLS.clusters" ;;
    *spec.nodeName*) echo fake-7 ;;
    *'get nodes --selector pool=fake -o name') cat "$CALLS.nodes" 2> /dev/null ;;
    *deletionTimestamp*) [ -e "$CALLS.deleted" ] && echo 2026-01-01T00:00:00Z ;;
    *'delete node fake-7'*) touch "$CALLS.deleted" ;;
    'docker info') [ ! -e "$CALLS.stopped" ] ;;
esac
"""
VERSIONS = versions()


class Machine:
    """A folder of programs, which is all that PATH has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls_file = folder / "calls"
        self._bin = folder / "bin"
        self._bin.mkdir()
        for tool in (*COMMANDS, "touch"):
            (self._bin / tool).symlink_to(shutil.which(tool) or "")
        for program in PROGRAMS:
            (self._bin / program).write_text(NOTE)
            (self._bin / program).chmod(0o755)

    def without(self, *programs: str) -> None:
        """Take programs away."""
        for program in programs:
            (self._bin / program).unlink()

    def run(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script of tools/ here."""
        environment = {"PATH": str(self._bin), "CALLS": str(self.calls_file), "HOME": str(self.folder), **variables}
        return subprocess.run([TOOLS / script], env=environment, text=True, capture_output=True, check=False)

    @property
    def calls(self) -> list[str]:
        """How programs were called."""
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []

    def calls_of(self, *beginnings: str) -> list[str]:
        """Those calls that begin so."""
        return [call for call in self.calls if call.startswith(beginnings)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_kind_up_does_one_thing_after_another_and_says_what_is_next(machine: Machine) -> None:
    done = machine.run("kind-up", NODES="3")
    assert (done.returncode, done.stderr) == (0, "")
    node = VERSIONS["KIND_NODE_1_37"]
    kubectl = "kubectl --context kind-gracectl"
    wanted = [
        "docker info",
        "kind get clusters",
        f"kind create cluster --name gracectl --image {node} --wait 180s --config tools/kind/cluster.yaml",
        f"docker build --quiet --tag gracectl:{__version__} .",
        f"kind load docker-image gracectl:{__version__} --name gracectl",
        f"{kubectl} create configmap kwok --namespace kube-system",
        f"{kubectl} -n kube-system rollout status deployment/kwok",
        f"{kubectl} wait node --selector pool=fake --for condition=Ready",
        f"{kubectl} create configmap grafana --namespace monitoring",
        "helm upgrade --install gracectl helm/gracectl --kube-context kind-gracectl --namespace gracectl "
        f"--values tools/kind/values.yaml --set image.tag={__version__} --wait",
        f"{kubectl} apply --server-side --force-conflicts --field-manager gracectl-kind -f tools/kind/page.yaml",
        f"{kubectl} wait deployment --all --namespace bank",
        f"{kubectl} wait node/fake-7 --for jsonpath={{.metadata.finalizers[0]}}=karpenter.sh/termination",
        f"{kubectl} delete node fake-7 --wait=false",
        f"{kubectl} -n monitoring rollout status deployment/grafana",
    ]
    remaining = iter(machine.calls)
    for beginning in wanted:
        assert any(call.startswith(beginning) for call in remaining), beginning
    applied = Path(f"{machine.calls_file}.applied").read_text()
    assert applied.count("providerID: kwok://fake-") == 3
    assert "image: registry.k8s.io/kwok/kwok:v0.8.0@sha256:" in applied
    assert "${" not in applied
    _, _, commands = done.stdout.partition("Next:\n")
    assert len([line for line in commands.splitlines() if line.startswith("  kubectl --context kind-gracectl ")]) == 3
    assert "why fake-7 is stuck" in commands


def test_kind_up_goes_on_where_it_is(machine: Machine) -> None:
    assert machine.run("kind-up", NODES="1").returncode == 0
    machine.calls_file.unlink()
    Path(f"{machine.calls_file}.applied").unlink()
    Path(f"{machine.calls_file}.nodes").write_text("node/fake-1\n")
    done = machine.run("kind-up", NODES="2")
    assert done.returncode == 0
    assert re.findall(r"kwok://(\S+)", Path(f"{machine.calls_file}.applied").read_text()) == ["fake-2"]
    assert "cluster gracectl: there already" in done.stdout
    assert not machine.calls_of("kind create", "kubectl --context kind-gracectl delete")
    assert machine.calls_of("kind export kubeconfig --name gracectl")


def test_kind_up_takes_another_version_and_name(machine: Machine) -> None:
    assert machine.run("kind-up", NODES="1", KUBERNETES="1.35", CLUSTER="old").returncode == 0
    (created,) = machine.calls_of("kind create")
    assert created.startswith(f"kind create cluster --name old --image {VERSIONS['KIND_NODE_1_35']}")
    assert not [call for call in machine.calls_of("kubectl") if not call.startswith("kubectl --context kind-old ")]


@pytest.mark.parametrize("script", ["kind-up", "kind-down", "bench-kind"])
def test_what_is_missing_is_said_before_anything_is_done(machine: Machine, script: str) -> None:
    machine.without("docker", "kind")
    done = machine.run(script)
    assert (done.returncode, done.stdout, machine.calls) == (2, "", [])
    docker, kind = done.stderr.splitlines()
    assert docker.startswith(f"{script}: docker: not on PATH; get it from https://docs.docker.com/")
    assert kind.endswith(f"go install sigs.k8s.io/kind@{VERSIONS['KIND_VERSION']}")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"NODES": "ten"}, "kind-up: NODES=ten: not a number from 1 on\n"),
        ({"NODES": "0"}, "kind-up: NODES=0: not a number from 1 on\n"),
        ({"KUBERNETES": "1.20"}, "kind-up: KUBERNETES=1.20: no node image is pinned; take one of 1.37 1.36 1.35\n"),
    ],
)
def test_a_value_that_cannot_be_is_refused(machine: Machine, variables: dict[str, str], said: str) -> None:
    done = machine.run("kind-up", **variables)
    assert (done.returncode, done.stdout, done.stderr, machine.calls) == (2, "", said, [])


def test_a_docker_that_does_not_answer_is_named(machine: Machine) -> None:
    Path(f"{machine.calls_file}.stopped").touch()
    done = machine.run("kind-up")
    assert done.returncode == 2
    assert done.stderr.startswith("kind-up: docker: its daemon does not answer; start it")
    assert machine.calls == ["docker info"]


def test_kind_down_removes_the_cluster_once(machine: Machine) -> None:
    Path(f"{machine.calls_file}.clusters").write_text("other\ngracectl\n")
    assert machine.run("kind-down").returncode == 0
    assert machine.calls_of("kind delete") == ["kind delete cluster --name gracectl"]
    again = machine.run("kind-down")
    assert (again.returncode, again.stdout) == (0, "kind-down: cluster gracectl: not there; nothing to do\n")


def test_the_benchmark_leaves_a_cluster_that_it_has_not_made(machine: Machine) -> None:
    Path(f"{machine.calls_file}.clusters").write_text("gracectl-bench\n")
    done = machine.run("bench-kind")
    assert done.returncode == 2
    assert "cluster gracectl-bench: there already" in done.stderr
    assert not machine.calls_of("kind create", "kind delete")
