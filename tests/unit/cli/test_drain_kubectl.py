"""What a strict drain refuses: the stories of kubectl's own tests (staging/src/k8s.io/kubectl/pkg/cmd/drain)."""

from __future__ import annotations

import pytest
from support.builders import a_pod, owned_by

from gracectl.cli.drain.kubectl import PERMITS, Strictness
from gracectl.controllers.cluster.cache import empty_cluster_cache
from gracectl.model import names
from gracectl.model.pod import Pod

CONTROLLED = {"owners": owned_by("ReplicaSet")}
STATIC = {"annotations": {names.MIRROR_POD: "x"}}
ALL = frozenset(PERMITS)


@pytest.mark.parametrize(("fields", "needed"), [
    pytest.param(CONTROLLED, [], id="a pod of a ReplicaSet"),
    pytest.param({"owners": owned_by("Job")}, [], id="a pod of a Job"),
    pytest.param({"owners": owned_by("ReplicationController")}, [], id="a pod of a ReplicationController"),
    pytest.param({"owners": owned_by("DaemonSet", group="apps")}, ["--ignore-daemonsets"], id="a pod of a DaemonSet"),
    pytest.param({}, ["--force"], id="a naked pod"),
    pytest.param({**CONTROLLED, "empty_dir": True}, ["--delete-emptydir-data"], id="a pod with an emptyDir"),
    pytest.param({"empty_dir": True}, ["--delete-emptydir-data", "--force"], id="a naked pod with an emptyDir"),
    pytest.param({"phase": "Succeeded", "empty_dir": True}, [], id="a finished pod"),
    pytest.param({"phase": "Failed"}, [], id="a failed pod"),
    pytest.param(STATIC, [], id="a static pod"),
])  # fmt: skip
def test_pods_that_kubectl_refuses_to_drain(fields: dict[str, object], needed: list[str]) -> None:
    cluster = empty_cluster_cache()
    pod: Pod = a_pod("web", **fields)
    cluster.pods.put(pod)
    refusal = Strictness(is_strict=True).refusal(cluster, "n1")
    assert [flag for flag in PERMITS if f"needs {flag}" in refusal] == sorted(needed, key=[*PERMITS].index)
    assert Strictness(is_strict=True, permitted=ALL).refusal(cluster, "n1") == ""
    assert Strictness().refusal(cluster, "n1") == ""
