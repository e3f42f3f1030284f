"""Decoded pods and budgets over them, for what decides about them."""

from __future__ import annotations

import orjson

from benchmarks.micro import pods
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.decode import PodDecoder
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector


def decoded(numbers: range) -> tuple[Pod, ...]:
    """These pods, sharing what they have in common as those of a cache do."""
    decode = PodDecoder()
    return tuple(decode(orjson.dumps(pods.pod(number, numbers.stop))) for number in numbers)


def budget_over(workload: int, *, namespace: str = "", allowed: int = 1, version: int = 1) -> PodDisruptionBudget:
    """A budget that selects the pods of a workload; its namespace unless another one is given."""
    labels = pods.labels_of(workload)
    return PodDisruptionBudget(
        namespace=namespace or pods.namespace_of(workload),
        name=f"web-{workload}",
        uid=f"9d1c3b70-7a53-4a0c-8f5e-{workload:012x}",
        resource_version=str(version),
        generation=1,
        observed_generation=1,
        selector=LabelSelector({key: labels[key] for key in ("app.kubernetes.io/name", "app.kubernetes.io/instance")}),
        disruptions_allowed=allowed,
        current_healthy=pods.REPLICAS,
        desired_healthy=pods.REPLICAS - 1,
        expected_pods=pods.REPLICAS,
    )
