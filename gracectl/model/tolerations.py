"""Whether a pod tolerates a taint, as Kubernetes' `Toleration.ToleratesTaint` decides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gracectl.model import names
from gracectl.model.node import Taint
from gracectl.model.pod import Toleration

DISRUPTED_TAINT: Final = Taint(key=names.DISRUPTED_TAINT_KEY, effect=names.NO_SCHEDULE)
"""What the cordon puts on a node; a pod that tolerates it has agreed to stay until the end."""


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether any toleration matches the taint by effect, key and operator; an unknown operator matches nothing."""
    return any(_matches(toleration, taint) for toleration in tolerations)


def _matches(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
