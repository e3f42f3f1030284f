"""NodeClaims as people see them with kubectl."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from clients.place import Place, served
from kubesim.apiserver import ApiServer
from kubesim.clock import SystemClock
from kubesim.cluster import ClusterOptions, EmbeddedCluster, NodeSpec
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim_support.kubectl import Kubectl, needs_kubectl
from support.schemas import FULL_V1, FULL_V1BETA1, claim

from gracectl.cli.crds import manifests, shipped_definitions

pytestmark = [pytest.mark.real_time, needs_kubectl]

DEADLINE = "karpenter.sh/nodeclaim-termination-timestamp"


@pytest.fixture
async def claimed(tmp_path: Path) -> AsyncIterator[tuple[Kubectl, Place]]:
    """kubectl in a cluster of one node with its claim."""
    cluster = EmbeddedCluster(SystemClock(), ClusterOptions(speed=10.0, definitions=shipped_definitions()))
    async with served(cluster.server, tmp_path) as kubeconfig, anyio.create_task_group() as group:
        await group.start(cluster.run)
        spec = ClaimSpec(node_pool="blue", capacity_type="spot", termination_grace_period="15m")
        await cluster.add_node(NodeSpec(name="n1", claim=spec))
        yield Kubectl(kubeconfig, tmp_path), Place(cluster, kubeconfig)
        group.cancel_scope.cancel()


@pytest.fixture
async def lonely_kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl at a server without controllers."""
    async with served(ApiServer(SystemClock()), tmp_path) as kubeconfig:
        yield Kubectl(kubeconfig, tmp_path)


def cells(table: str) -> list[dict[str, str]]:
    """The rows of a table, by their headings."""
    heading, *rows = table.splitlines()
    columns = [(match.start(), match[0]) for match in re.finditer(r"\S+", heading)]
    ends = [start for start, _ in columns[1:]] + [None]
    return [{name: row[start:end].strip() for (start, name), end in zip(columns, ends, strict=True)} for row in rows]


async def test_get_shows_what_karpenter_shows_and_wide_the_deadline(claimed: tuple[Kubectl, Place]) -> None:
    kubectl, place = claimed
    await kubectl("annotate", "nodeclaim", "n1-claim", f"{DEADLINE}=2026-11-21T08:15:00Z")
    (plain,) = cells(await kubectl("get", "nodeclaims"))
    age = plain.pop("AGE")
    assert re.fullmatch(r"\d+s", age)
    assert plain == {
        "NAME": "n1-claim", "TYPE": "sim.large", "CAPACITY": "spot", "ZONE": "zone-a", "NODE": "n1", "READY": "True",
    }  # fmt: skip
    (wide,) = cells(await kubectl("get", "nodeclaims", "-o", "wide"))
    (instance,) = place.cluster.cloud.instances
    assert list(wide)[7:] == ["IMAGEID", "ID", "NODEPOOL", "NODECLASS", "DRIFTED", "TGP", "DEADLINE"]
    assert list(wide.values())[7:] == [
        "hollow", f"sim:///zone-a/{instance.id}", "blue", "default", "", "15m", "2026-11-21T08:15:00Z",
    ]  # fmt: skip
    (older,) = cells(await kubectl("get", "nodeclaims.v1beta1.karpenter.sh", "-o", "wide"))
    assert list(older) == list(wide)
    assert "n1-claim" in await kubectl("get", "karpenter")
    assert (await kubectl.run("get", "nc")).code == 1


async def test_explain_warns_of_what_a_grace_period_does(claimed: tuple[Kubectl, Place]) -> None:
    kubectl, _ = claimed
    for version in ("karpenter.sh/v1", "karpenter.sh/v1beta1"):
        field = "nodeclaim.spec.terminationGracePeriod"
        output = await kubectl("explain", field, f"--api-version={version}")
        words = " ".join(output.split())
        assert words.count("WARNING:") == 4
        for promised in (
            "the deadline overrides PodDisruptionBudgets, the annotation karpenter.sh/do-not-disrupt and preStop hooks",
            "BEFORE the deadline",
            "A pod with a longer terminationGracePeriodSeconds is deleted when the termination begins",
            "while pods on it are protected or their budgets are spent",
            "makes the nodes of the pool drift, which replaces all of them",
            "It cannot be changed",
            "Absent: there is no deadline",
        ):
            assert promised in words
        assert max(map(len, output.splitlines())) <= 84
    for field in ("", ".spec", ".spec.nodeClassRef", ".spec.taints", ".status.conditions"):
        assert "<no description>" not in await kubectl("explain", f"nodeclaim{field}")
    assert "Absent means Never" in await kubectl("explain", "nodeclaim.spec.expireAfter")


@pytest.mark.parametrize("options", [(), ("--server-side",)], ids=["client-side", "server-side"])
async def test_the_definitions_are_applied_again_and_again(lonely_kubectl: Kubectl, options: tuple[str, ...]) -> None:
    kubectl, kind = lonely_kubectl, "customresourcedefinition.apiextensions.k8s.io"
    names = [
        f"{kind}/{name}"
        for name in (
            "nodedrains.gracectl.io",
            "nodeclaims.karpenter.sh",
            "nodedisruptionbudgets.termination.karpenter.sh",
        )
    ]
    first = await kubectl("apply", "-f", "-", *options, stdin=manifests())
    assert first.splitlines() == [f"{name} {'serverside-applied' if options else 'created'}" for name in names]
    await kubectl("wait", "--for=condition=Established", *names)
    again = await kubectl("apply", "-f", "-", *options, stdin=manifests())
    assert again.splitlines() == [f"{name} {'serverside-applied' if options else 'unchanged'}" for name in names]
    assert (await kubectl.run("diff", "-f", "-", *options, stdin=manifests())).code == 0
    await kubectl.apply(FULL_V1, options=options)
    await kubectl.apply(FULL_V1BETA1, options=options)
    assert len(cells(await kubectl("get", "nodeclaims"))) == 2


async def test_manifests_of_both_versions_are_applied_and_applied_again(claimed: tuple[Kubectl, Place]) -> None:
    kubectl, _ = claimed
    assert await kubectl.apply(FULL_V1) == "nodeclaim.karpenter.sh/general-7x2kq created\n"
    assert await kubectl.apply(FULL_V1) == "nodeclaim.karpenter.sh/general-7x2kq unchanged\n"
    assert await kubectl.apply(FULL_V1BETA1) == "nodeclaim.karpenter.sh/old-b8t5n created\n"
    assert await kubectl.apply(FULL_V1BETA1) == "nodeclaim.karpenter.sh/old-b8t5n unchanged\n"
    patch = '{"status":{"nodeName":"n9"}}'
    await kubectl("patch", "nodeclaim", "old-b8t5n", "--subresource=status", "--type=merge", "-p", patch)
    assert await kubectl("get", "nodeclaim", "old-b8t5n", "-o", "jsonpath={.status.nodeName}") == "n9"


async def test_a_refused_change_of_the_grace_says_what_to_do_instead(claimed: tuple[Kubectl, Place]) -> None:
    kubectl, _ = claimed
    await kubectl.apply(claim(terminationGracePeriod="15m"))
    patch = '{"spec":{"terminationGracePeriod":"5m"}}'
    refused = await kubectl.run("patch", "nodeclaim", "c", "--type=merge", "-p", patch)
    assert refused.code == 1
    assert "* spec.terminationGracePeriod: Forbidden: cannot be changed, added or taken away" in refused.err
    assert "delete the NodeClaim and let a new one with the new value take its place" in refused.err
