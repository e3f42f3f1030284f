"""Programs that gracectl is compared with."""

from __future__ import annotations

from benchmarks.contenders.contender import Contender
from benchmarks.contenders.kubectl import PROGRAM, Kubectl
from benchmarks.contenders.polling import POLLING

WITHOUT_KUBECTL = "kubectl is not on PATH: its rows are left out"


def peers() -> tuple[Contender, ...]:
    """kubectl both ways, where there is one, and the model."""
    real = (Kubectl(is_parallel=False), Kubectl(is_parallel=True)) if PROGRAM else ()
    return (*real, POLLING)
