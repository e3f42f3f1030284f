"""Programs that gracectl is compared with."""

from __future__ import annotations

from benchmarks.contenders.contender import Contender
from benchmarks.contenders.karpenter import Karpenter
from benchmarks.contenders.kubectl import PROGRAM, Kubectl
from benchmarks.contenders.polling import POLLING
from benchmarks.ground.ground import KarpenterFiles

WITHOUT_KUBECTL = "kubectl is not on PATH: its rows are left out"


def peers(karpenter: KarpenterFiles | None = None, grace: float | None = None) -> tuple[Contender, ...]:
    """kubectl both ways, where there is one, and Karpenter; where that is not named, a model of it. `grace`: see
    Karpenter; the others know no deadlines of nodes."""
    kubectl = (Kubectl(is_parallel=False), Kubectl(is_parallel=True)) if PROGRAM else ()
    return (*kubectl, Karpenter(karpenter, grace) if karpenter else POLLING)
