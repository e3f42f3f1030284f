"""Manifests from the short forms of a scenario. Pure.

`{n}` is the number of a copy, from 1 to `count`; a name without it gets `-{n}` if there are several copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from kubesim.cluster import NodeSpec
from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.scenarios.scenario import (
    Batch,
    Bound,
    Budget,
    Claims,
    NodeGroup,
    Pods,
    PriorityClass,
    Quantities,
    Replicated,
    Stateful,
    Static,
    Volume,
)
from kubesim.server.api import Json, JsonObject

SYSTEM = "kube-system"
NUMBER = "{n}"


def numbers(name: str, count: int) -> Iterator[tuple[int, str]]:
    """The number and the name of each copy."""
    if count > 1 and NUMBER not in name:
        name = f"{name}-{NUMBER}"
    for number in range(1, count + 1):
        yield number, name.replace(NUMBER, str(number))


def node_specs(group: NodeGroup) -> Iterator[NodeSpec]:
    """The nodes of a group."""
    for number, name in numbers(group.name, group.count):
        yield NodeSpec(
            name=name,
            pods=group.pods,
            zone=group.zones[(number - 1) % len(group.zones)],
            instance_type=group.instance_type,
            labels=filled(group.labels, number),
            annotations=filled(group.annotations, number),
            taints=tuple({k: v for k, v in msgspec.to_builtins(taint).items() if v} for taint in group.taints),
            capacity=quantities(group.capacity),
            claim=None if group.claims is None else claim(group.claims, number, group.count),
        )


def claim(form: Claims, number: int, count: int) -> ClaimSpec:
    """The claim of the node of this number in a group of so many."""
    names = dict(numbers(form.name, count)) if form.name else {}
    return ClaimSpec(
        name=names.get(number, ""),
        node_pool=numbered(form.node_pool, number),
        capacity_type=form.capacity_type,
        termination_grace_period=form.termination_grace_period,
        expire_after=form.expire_after,
        labels=filled(form.labels, number),
        annotations=filled(form.annotations, number),
        spec=form.spec,
    )


def deployments(form: Replicated) -> Iterator[JsonObject]:
    """The Deployments of a short form, each with its budget."""
    for number, name in numbers(form.name, form.count):
        metadata = metadata_of(form, name, number)
        spec = {"replicas": form.replicas, "selector": selector_of(name), "template": template(form, name, number)}
        yield {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
        yield from own_budget(form.budget, metadata)


def stateful_sets(form: Stateful) -> Iterator[JsonObject]:
    """The StatefulSets of a short form, each with its budget."""
    for number, name in numbers(form.name, form.count):
        metadata = metadata_of(form, name, number)
        spec: JsonObject = {
            "replicas": form.replicas,
            "selector": selector_of(name),
            "serviceName": name,
            "podManagementPolicy": "Parallel" if form.parallel else "OrderedReady",
            "template": template(form, name, number),
        }
        if form.volume:
            claim = {"metadata": {"name": "data"}, "spec": claim_spec(form.volume, form.storage_class, "ReadWriteOnce")}
            spec["volumeClaimTemplates"] = [claim]
        yield {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}
        yield from own_budget(form.budget, metadata)


def daemon_sets(form: Pods) -> Iterator[JsonObject]:
    """The DaemonSets of a short form, each with its budget."""
    for number, name in numbers(form.name, form.count):
        metadata = metadata_of(form, name, number)
        spec = {"selector": selector_of(name), "template": template(form, name, number)}
        yield {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
        yield from own_budget(form.budget, metadata)


def jobs(form: Batch) -> Iterator[JsonObject]:
    """The Jobs of a short form, each with its budget."""
    for number, name in numbers(form.name, form.count):
        metadata = metadata_of(form, name, number)
        made = template(form, name, number)
        made = {**made, "spec": {"restartPolicy": "Never", **made["spec"]}}
        spec = {"completions": form.completions, "parallelism": form.parallelism, "template": made}
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        yield from own_budget(form.budget, metadata)


def bare_pods(form: Pods) -> Iterator[JsonObject]:
    """Pods without an owner. They share one budget, over the label `app` that all of them have."""
    app = form.name.replace(NUMBER, "").strip("-")
    for number, name in numbers(form.name, form.count):
        made = template(form, app, number)
        metadata = {**made["metadata"], "name": name, "namespace": numbered(form.namespace, number)}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"]}
    yield from own_budget(form.budget, {"name": app, "namespace": numbered(form.namespace, 1)})


def static_pod(form: Static) -> JsonObject:
    """The manifest of a static pod, without the node's name."""
    made = template(
        Pods(
            name=form.name,
            labels=form.labels,
            annotations=form.annotations,
            image=form.image,
            requests=form.requests,
            priority_class="system-node-critical",
            pod={"hostNetwork": True, **form.pod},
        ),
        form.name,
        1,
    )
    metadata = {**made["metadata"], "name": form.name, "namespace": SYSTEM}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"]}


def budgets(form: Budget) -> Iterator[JsonObject]:
    """The PodDisruptionBudgets of a short form."""
    for number, name in numbers(form.name, form.count):
        selector = selector_of(numbered(form.app, number)) if form.selector is None else form.selector
        yield budget(name, numbered(form.namespace, number), form, selector)


def own_budget(bound: Bound | None, metadata: JsonObject) -> Iterator[JsonObject]:
    """The budget that a workload brings along, of its name."""
    if bound is not None:
        yield budget(metadata["name"], metadata["namespace"], bound, selector_of(metadata["name"]))


def budget(name: str, namespace: str, bound: Bound, selector: JsonObject) -> JsonObject:
    """A PodDisruptionBudget."""
    demands = {
        "minAvailable": bound.min_available,
        "maxUnavailable": bound.max_unavailable,
        "unhealthyPodEvictionPolicy": bound.unhealthy_pod_eviction_policy,
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**{field: value for field, value in demands.items() if value is not None}, "selector": selector},
    }


def priority_class(form: PriorityClass) -> JsonObject:
    """A PriorityClass."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": form.name},
        "value": form.value,
        "globalDefault": form.is_default,
        "preemptionPolicy": form.preemption,
    }


def volumes(form: Volume) -> Iterator[JsonObject]:
    """Claims, which the provisioner binds to volumes."""
    for number, name in numbers(form.name, form.count):
        yield {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": numbered(form.namespace, number)},
            "spec": claim_spec(form.size, form.storage_class, form.access_mode),
        }


def claim_spec(size: str, storage_class: str, access_mode: str) -> JsonObject:
    """The spec of a claim."""
    return {
        "accessModes": [access_mode],
        "resources": {"requests": {"storage": size}},
        "storageClassName": storage_class,
    }


def template(form: Pods, app: str, number: int) -> JsonObject:
    """The pod template of a workload with the label `app`."""
    container: JsonObject = {"name": "main", "image": form.image or f"registry.example/{app}:1"}
    if form.requests:
        container["resources"] = {"requests": quantities(form.requests)}
    more: dict[str, Json] = {
        "terminationGracePeriodSeconds": form.grace,
        "nodeSelector": dict(form.node_selector),
        "tolerations": list(form.tolerations),
        "priorityClassName": form.priority_class,
    }
    spec = {"containers": [container], **{key: value for key, value in more.items() if value or key[:4] == "term"}}
    metadata: JsonObject = {"labels": {"app": app, **filled(form.labels, number)}}
    if form.annotations:
        metadata["annotations"] = filled(form.annotations, number)
    return {"metadata": metadata, "spec": {**spec, **form.pod}}


def metadata_of(form: Pods, name: str, number: int) -> JsonObject:
    """The metadata of a workload."""
    return {"name": name, "namespace": numbered(form.namespace, number), "labels": {"app": name}}


def selector_of(app: str) -> JsonObject:
    """The label selector of the pods of an app."""
    return {"matchLabels": {"app": app}}


def numbered(text: str, number: int) -> str:
    """A text with the number of its copy."""
    return text.replace(NUMBER, str(number))


def quantities(amounts: Quantities) -> dict[str, str]:
    """Quantities as the server stores them."""
    return {name: str(amount) for name, amount in amounts.items()}


def filled(texts: Mapping[str, str], number: int) -> dict[str, str]:
    """Labels or annotations with the number of their copy."""
    return {key: numbered(text, number) for key, text in texts.items()}
