"""The plan of a scenario: every node, every object, and the options of the cluster.

Pure. Invariant: nothing is left of short forms, counts and patterns; what a plan says is put into a cluster as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import TypeVar

import msgspec

from kubesim.cluster import ClusterOptions, NodeSpec
from kubesim.controllers.nodeclaims import NODE_CLAIM
from kubesim.scenarios import manifests
from kubesim.scenarios.demo import demo_plan
from kubesim.scenarios.options import options_of
from kubesim.scenarios.parser import ScenarioError
from kubesim.scenarios.scenario import Budget, Demo, NodeGroup, Pods, Replicated, Scenario, Volume
from kubesim.scenarios.validation import check
from kubesim.server.api import JsonObject

Counted = TypeVar("Counted", NodeGroup, Pods, Budget, Volume)


class StaticPod(msgspec.Struct, frozen=True):
    """The manifest of a static pod (metadata.name without the node's name), and the node that runs it."""

    node: str
    manifest: JsonObject


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that is put into a cluster, in this order. `options` make the cluster."""

    options: ClusterOptions
    nodes: tuple[NodeSpec, ...]
    objects: tuple[JsonObject, ...]
    static_pods: tuple[StaticPod, ...]


def plan_of(scenario: Scenario, definitions: Sequence[JsonObject] = (NODE_CLAIM,)) -> Plan:
    """Write a scenario out; `definitions`: see options_of. Raises ScenarioError for what cannot be."""
    check(scenario, definitions)
    nodes = list(chain.from_iterable(map(manifests.node_specs, scenario.nodes)))
    objects = list(_objects(scenario))
    statics = [
        StaticPod(node.name, manifests.static_pod(form))
        for node in nodes
        for form in scenario.static_pods
        if fnmatchcase(node.name, form.nodes)
    ]
    if scenario.demo is not None:
        demo = demo_plan(nodes=scenario.demo.nodes, pods=scenario.demo.pods, seed=scenario.seed)
        nodes += demo.nodes
        objects += demo.objects
        statics += [StaticPod(node.name, manifest) for node in demo.nodes for manifest in demo.static_pods]
    _refuse_twins(nodes, objects)
    options = options_of(scenario, definitions)
    return Plan(options=options, nodes=tuple(nodes), objects=tuple(objects), static_pods=tuple(statics))


def _objects(scenario: Scenario) -> chain[JsonObject]:
    """What exists before pods do, then the workloads, then budgets by themselves."""
    return chain(
        map(manifests.priority_class, scenario.priority_classes),
        chain.from_iterable(map(manifests.volumes, scenario.volumes)),
        (_checked(manifest, f"objects[{index}]") for index, manifest in enumerate(scenario.objects)),
        chain.from_iterable(map(manifests.daemon_sets, scenario.daemon_sets)),
        chain.from_iterable(map(manifests.deployments, scenario.deployments)),
        chain.from_iterable(map(manifests.stateful_sets, scenario.stateful_sets)),
        chain.from_iterable(map(manifests.jobs, scenario.jobs)),
        chain.from_iterable(map(manifests.bare_pods, scenario.pods)),
        chain.from_iterable(map(manifests.budgets, scenario.budgets)),
    )


def _checked(manifest: JsonObject, place: str) -> JsonObject:
    """A manifest that names what it is. Raises ScenarioError."""
    for field in ("apiVersion", "kind"):
        if not isinstance(manifest.get(field), str):
            raise ScenarioError(f"{place}.{field}: is missing; a manifest says its apiVersion and kind")
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise ScenarioError(f"{place}.metadata.name: is missing; give the object a name")
    return manifest


def _refuse_twins(nodes: list[NodeSpec], objects: list[JsonObject]) -> None:
    seen: set[tuple[str, str, str]] = set()
    named = [("Node", "", node.name) for node in nodes]
    named += [("NodeClaim", "", node.claim.name_for(node.name)) for node in nodes if node.claim is not None]
    named += [
        (object_["kind"], object_["metadata"].get("namespace", ""), object_["metadata"].get("name", ""))
        for object_ in objects
    ]
    for kind, namespace, name in named:
        if name and (kind, namespace, name) in seen:
            where = f" in {namespace}" if namespace else ""
            raise ScenarioError(f"there are two of {kind} {name}{where}; give one of them another name")
        seen.add((kind, namespace, name))


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """The scenario `factor` times as large: more (or fewer) nodes, workloads and bare pods; a workload of which there
    is one gets more replicas instead. Nothing that is there vanishes. Raises ScenarioError for a factor below 0.
    """
    if not factor > 0:
        raise ScenarioError(f"a scenario cannot be {factor:g} times as large; choose a number above 0")
    if factor == 1:
        return scenario
    demo = scenario.demo
    if demo is not None:
        demo = Demo(nodes=max(2, _times(demo.nodes, factor)), pods=_times(demo.pods, factor))
    return msgspec.structs.replace(
        scenario,
        nodes=tuple(_more(form, factor) for form in scenario.nodes),
        deployments=tuple(_more_pods(form, factor) for form in scenario.deployments),
        stateful_sets=tuple(_more_pods(form, factor) for form in scenario.stateful_sets),
        daemon_sets=tuple(_more(form, factor) if form.count > 1 else form for form in scenario.daemon_sets),
        jobs=tuple(_more(form, factor) for form in scenario.jobs),
        pods=tuple(_more(form, factor) for form in scenario.pods),
        budgets=tuple(_more(form, factor) if form.count > 1 else form for form in scenario.budgets),
        volumes=tuple(_more(form, factor) if form.count > 1 else form for form in scenario.volumes),
        demo=demo,
    )


def _more(form: Counted, factor: float) -> Counted:
    return msgspec.structs.replace(form, count=_times(form.count, factor))


Replicas = TypeVar("Replicas", bound=Replicated)


def _more_pods(form: Replicas, factor: float) -> Replicas:
    if form.count > 1:
        return msgspec.structs.replace(form, count=_times(form.count, factor))
    return msgspec.structs.replace(form, replicas=_times(form.replicas, factor))


def _times(count: int, factor: float) -> int:
    # 0.1 * 30 is a little more than 3, which must not become 4.
    return math.ceil(round(count * factor, 6))
