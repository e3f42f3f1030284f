"""Pods that return to a cordoned node: their controller creates another one for each evicted pod.

A cordon only affects the scheduler. A pod that is bound by name (spec.nodeName), or by a scheduler that ignores the
cordon, still arrives, and without a pause the controllers would create and evict pods ten times a second. So a pod that
was created after the cordon waits until it is as old as the cordon was at its creation, within bounds: the pauses
double. The pause follows from the objects alone, so a restart loses nothing and every command shows the same.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from gracectl.model import names
from gracectl.model.foreign import harmless
from gracectl.model.meta import OwnerReference, condition_of
from gracectl.model.node import DISRUPTED_TAINT, UNSCHEDULABLE_TAINT, Node, tolerates
from gracectl.model.pod import Pod
from gracectl.policy.evictability import is_static
from gracectl.policy.waves import is_daemon

FIRST_SECONDS: Final = 2.0
"""Minimum pause: creation times are whole seconds, so a shorter pause might be zero."""

LONGEST_SECONDS: Final = 60.0

LONGEST_NAME: Final = 253
"""Characters of an object's name."""

CERTAIN_SECONDS: Final = 10.0
"""Time until a scheduler has surely seen the cordon, so that it did not bind pods created later."""


UNKNOWN_CAUSE: Final = "how it was bound to this node is unknown"


class ReturnedPod(msgspec.Struct, frozen=True):
    """A pod that came after the cordon. `until`: when it is evicted (Unix seconds); `age`: seconds from the cordon to
    its creation. `workload`: what makes it, for messages; `controller`: UID of that. `cause`: how it came."""

    until: float
    age: float
    workload: str
    controller: str
    cause: str

    @property
    def is_lasting(self) -> bool:
        """Whether it came when every scheduler knew the cordon."""
        return self.age >= CERTAIN_SECONDS

    @property
    def reason(self) -> str:
        """Reason in a plan."""
        return f"{self.workload} made it after the cordon: {self.cause}; eviction waits"


def returned(pod: Pod, node: Node, cordoned_at: float | None, *, is_late: bool = False) -> ReturnedPod | None:
    """Describe a pod that was created after the cordon by a controller that recreates it; else None.

    `cordoned_at`: Unix seconds; None: not cordoned yet. `is_late`: the pod was seen to be absent at the cordon.
    """
    if cordoned_at is None:
        return None
    # Creation is rounded down: in the second of the cordon it does not show which came first.
    is_after = pod.created > cordoned_at or (is_late and pod.created >= math.floor(cordoned_at))
    controller = recreating_controller(pod) if is_after else None
    if controller is None:
        return None
    age = max(pod.created - cordoned_at, 0.0)
    return ReturnedPod(
        until=pod.created + min(max(age, FIRST_SECONDS), LONGEST_SECONDS),
        age=age,
        workload=workload_of(pod, controller),
        controller=controller.uid,
        cause=_cause(pod, node) if age >= CERTAIN_SECONDS else UNKNOWN_CAUSE,
    )


def cordon_known_at(node: Node, requested: float) -> float:
    """From when a cordoned node was cordoned for certain (Unix seconds), as its objects show; inf: they do not.

    `requested`: when its drain was. The drain begins after the cordon, and writes the condition Drained.
    """
    drained = condition_of(node.conditions, names.DRAINED)
    return math.inf if drained is None or drained.last_transition is None else max(requested, drained.last_transition)


def _cause(pod: Pod, node: Node) -> str:
    """How a pod was bound to a node that the schedulers know to be cordoned."""
    if DISRUPTED_TAINT not in node.taints and (
        not node.unschedulable or tolerates(pod.tolerations, UNSCHEDULABLE_TAINT)
    ):
        return UNKNOWN_CAUSE
    if pod.scheduler:
        scheduler = harmless(pod.scheduler)
        return f"its pods are bound to this node by name, or by scheduler {scheduler} against its taints"
    return "its pods are bound to this node by name; change spec.nodeName"


def recreating_controller(pod: Pod) -> OwnerReference | None:
    """The controller that makes another pod, on any node, for one that is gone; None if none does."""
    if is_static(pod) or is_daemon(pod):
        return None
    return pod.controller


def workload_of(pod: Pod, controller: OwnerReference) -> str:
    """`Deployment shop/web`: what a person knows the controller of a pod by."""
    kind, name = controller.kind, controller.name
    template = pod.labels.get(names.POD_TEMPLATE_HASH, "")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    return f"{harmless(kind)} {pod.namespace}/{harmless(name, LONGEST_NAME)}"
