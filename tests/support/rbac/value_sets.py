"""Installations that differ in what they may do: values of the chart, and what the cluster serves beside."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml
from kubesim.server.api import JsonObject

from support.helm import KUBERNETES, Release, needs_helm
from support.installed import Installed
from support.machines import PLACE
from support.rbac.stories import NODE_BUDGETS_DEFINITION, NODE_CLAIMS_DEFINITION, STORIES, Story

MANIFESTS = Path(__file__).parents[3] / "helm" / "manifests"
NEEDS: Mapping[str, str] = {
    "claims_end": NODE_CLAIMS_DEFINITION,
    "budgets_for_nodes_hold": NODE_BUDGETS_DEFINITION,
}
"""Stories that need a cluster which serves this."""


class ValueSet(msgspec.Struct, frozen=True):
    """A way to install. `values`: of `--set`; None: the file for kubectl, without helm."""

    name: str
    values: tuple[str, ...] | None = ()
    serves: tuple[str, ...] = ()
    """What the cluster has defined already, as helm is told: karpenter.sh/v1/NodeClaim."""

    def installed(self) -> Installed:
        """What it renders to."""
        return _rendered(self)

    @property
    def stories(self) -> Mapping[str, Story]:
        """Those that can be told with it."""
        installed = self.installed()
        left_out = {name for name, needed in NEEDS.items() if needed not in installed.definitions}
        if not installed.settings["admission"]["listen"]:
            left_out.add("admission_is_asked")
        if installed.settings["provider"]["name"] != "clusterapi":
            left_out.add("machines_end")
        return {name: story for name, story in STORIES.items() if name not in left_out}


@functools.cache
def _rendered(one: ValueSet) -> Installed:
    if one.values is None:
        return Installed.of((MANIFESTS / "gracectl.yaml").read_text())
    return rendered(one.values, one.serves)


def rendered(values: tuple[str, ...], serves: tuple[str, ...] = (), kubernetes: str = KUBERNETES) -> Installed:
    """The chart with these values, hooks and tests too; skips the test where there is no helm."""
    needs_helm()
    release = Release(values=_nested(values), apis=serves, kubernetes=kubernetes)
    return Installed(tuple(release.objects()), serves)


def _nested(values: tuple[str, ...]) -> JsonObject:
    """`a.b=c`, as `--set` would take it."""
    whole: JsonObject = {}
    for path, _, value in (each.partition("=") for each in values):
        *parents, last = path.split(".")
        place = whole
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = yaml.safe_load(value) if value else ""
    return whole


MACHINES = "cluster.x-k8s.io/v1beta2/Machine"
PLAIN = ValueSet("the file for kubectl", None)
SETS = (
    ValueSet("default"),
    ValueSet("definitions of claims", ("crds.nodeClaims=true",)),
    ValueSet("definitions of others", ("crds.install=false",), ("karpenter.sh/v1/NodeClaim",)),
    ValueSet("no definitions", ("crds.install=false",)),
    ValueSet("no admission", ("settings.admission.listen=",)),
    ValueSet("webhooks of mine", ("admission.register=false",)),
    ValueSet("a certificate of others", ("admission.existingSecret=webhook-cert",)),
    ValueSet("cert-manager", (), ("cert-manager.io/v1/Certificate",)),
    ValueSet("no leader election", ("settings.leaderElection.enabled=false", "replicaCount=1")),
    ValueSet("machines", ("settings.provider.name=clusterapi",), (MACHINES,)),
    ValueSet(
        "machines of one namespace",
        ("settings.provider.name=clusterapi", f"settings.provider.options.namespace={PLACE}"),
        (MACHINES,),
    ),
    ValueSet(
        "other names",
        (
            "settings.leaderElection.name=our-lease",
            "settings.leaderElection.namespace=locks",
            "settings.admission.name=our-webhooks",
            "settings.admission.secret=our-certificate",
            "settings.karpenter.namespaces=[]",
            "serviceAccount.name=our-account",
        ),
    ),
)
