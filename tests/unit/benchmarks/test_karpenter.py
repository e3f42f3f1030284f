"""Karpenter as a contender: nodes are given to it as its own, and nothing of that is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.contenders import karpenter
from benchmarks.contenders.karpenter import CLAIMS, DEFINITIONS, FINALIZER, Karpenter, _counted
from benchmarks.ground.ground import KarpenterFiles, opened
from benchmarks.ground.process import Metrics
from benchmarks.ground.site import OLD, Site, site
from benchmarks.ground.waiting import Stalled
from benchmarks.run import main
from gracectl.kube.resources import NODES

CRDS = Path(karpenter.__file__).parents[2] / "gracectl" / "crds"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """That looks at the claim of its node, says so, and ends."""
    path = tmp_path / "karpenter"
    path.write_text("#!/bin/sh\necho no cluster at $KUBECONFIG\nexit 1\n")
    path.chmod(0o755)
    return path


@pytest.mark.real_time
async def test_it_owns_nodes_until_it_ends_and_leaves_nothing(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[bytes] = []

    async def is_asked(contender: Karpenter, one: Site, name: str) -> None:
        await own(contender, one, name)
        claims.append(await one.client.get(CLAIMS, ("", name)))
        node = await one.client.get(NODES, ("", name))
        assert (node.provider_id, FINALIZER in node.finalizers) == (f"kwok://{name}", True)

    own = Karpenter._own
    monkeypatch.setattr(Karpenter, "_own", is_asked)
    contender = Karpenter(KarpenterFiles(program, (CRDS,)), grace=80.0)
    async with opened(None) as ground, site(ground, "karpenter") as one:
        nodes = await one.add_nodes(OLD, 2)
        with pytest.raises(Stalled, match=r"it has ended; it said: no cluster at .*kubeconfig"):
            async with contender.entered(one, nodes):
                pytest.fail("a program that has ended is not ready")
        definitions = [each async for page in one.client.list(DEFINITIONS) for each in page.items]
        assert not await one.client.serves(CLAIMS)
        assert definitions == []
    assert len(claims) == 2
    assert all(b'"terminationGracePeriod":"80s"' in each and b'"Registered"' in each for each in claims)


async def test_its_requests_are_counted_as_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def took(verb: str, kind: str, subresource: str, count: int) -> tuple[dict[str, str], float]:
        return {"verb": verb, "kind": kind, "subresource": subresource}, float(count)

    async def metrics_at(url: str) -> Metrics:
        name = "client_go_request_duration_seconds_count"
        codes = [({"code": "201", "method": "POST"}, 12.0), ({"code": "429", "method": "POST"}, 39.0)]
        asked = [took("CREATE", "pods", "eviction", 51), took("PATCH", "nodes", "", 4)]
        return {name: asked, "client_go_request_total": codes}

    monkeypatch.setattr(karpenter, "metrics_at", metrics_at)
    requests, codes = await _counted("http://there/metrics")
    assert requests == {"create pods/eviction": 51, "patch nodes": 4}
    assert codes == {"201": 12, "429": 39}


@pytest.mark.parametrize(
    ("crds", "words"), [(False, "name both, the binary and the folders"), (True, "name a cluster with --kubeconfig")]
)
def test_it_is_named_completely_or_not_at_all(program: Path, crds: bool, words: str) -> None:
    options = ["--karpenter", str(program), *(["--karpenter-crds", str(CRDS)] if crds else [])]
    result = CliRunner().invoke(main, [*options, "pdb-chain"])
    assert result.exit_code == 2
    assert words in result.output
