"""Decoded pods and budgets over them, for what decides about them."""

from __future__ import annotations

from typing import Final

import msgspec
import orjson

from benchmarks.micro import pods
from gracectl.model.budget import PodDisruptionBudget
from gracectl.model.decode import PodDecoder
from gracectl.model.pod import Pod
from gracectl.model.selectors import LabelSelector, Requirement

MANY: Final = tuple(f"{number:063}" for number in range(2000))
"""Values, as long as they may be, that no pod has."""


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


def hostile_budget(number: int, namespace: str) -> PodDisruptionBudget:
    """A budget that selects none of the pods, and says so at length; its name is before those of the others."""
    name, instance = "app.kubernetes.io/name", "app.kubernetes.io/instance"
    requirements = (
        (Requirement(name, "In", MANY),),
        (Requirement(name, "NotIn", (*MANY, "web")),),
        (Requirement(name, "Exists"), Requirement(instance, "In", MANY), Requirement("team", "NotIn", MANY)),
        (Requirement("team", "DoesNotExist"), Requirement("absent", "NotIn", MANY)),
        (Requirement(instance, "Exists"), Requirement("absent", "Exists")),
        (Requirement(name, "In", ("web",)), Requirement("team", "DoesNotExist")),
        (
            *(Requirement(f"absent-{each}", "DoesNotExist") for each in range(1000)),
            Requirement(name, "NotIn", ("web",)),
        ),
    )
    selector = LabelSelector({}, requirements[number % len(requirements)])
    return msgspec.structs.replace(budget_over(0, namespace=namespace), name=f"a-{number:04}", selector=selector)
