"""What becomes of pods to which something was promised, as the watch shows it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import anyio
import msgspec
import pytest
from support.builders import a_pod

from benchmarks.ground.ground import Ground
from benchmarks.ground.passage import Passage
from benchmarks.ground.site import APP, App, Site
from gracectl.kube.client import KubeClient
from gracectl.runtime.clock import LoopClock

GROUND = Ground(Path("kubeconfig"), "bench-1", "kwok", Path("."))


async def test_a_promise_counts_from_the_start_of_its_pod() -> None:
    clock = LoopClock()
    one = Site(GROUND, GROUND, "bench-1-mixed", cast(KubeClient, None), clock)
    labels, now = {APP: "promised"}, clock.now()
    pods = [a_pod(f"p-{n}", labels=labels, created=now - 6, started=now - 5) for n in range(3)]
    for pod in pods:
        one.pods.put(pod)
    passage = Passage(one, [App("promised", 3, promise=20.0)], ["n1"])
    for pod, wait in zip(pods, (10.0, 5.0, 2.0), strict=True):
        await anyio.sleep(wait)
        one.pods.put(msgspec.structs.replace(pod, resource_version="2", deletion_timestamp=clock.now() + 6))
    # Told after 10, 15 and 17 seconds; promised until 15.
    assert passage.after_promises == pytest.approx([-5.0, 0.0, 2.0])
    assert passage.promises_broken == 1


async def test_what_only_a_deadline_ends_is_not_late_for_a_promise() -> None:
    clock = LoopClock()
    one = Site(GROUND, GROUND, "bench-1-mixed", cast(KubeClient, None), clock)
    pod = a_pod("p", labels={APP: "stubborn"}, created=clock.now(), started=clock.now())
    one.pods.put(pod)
    passage = Passage(one, [App("stubborn", 1, promise=3600.0)], ["n1"], deadline=30.0)
    await anyio.sleep(24.5)
    one.pods.remove(pod.key)
    assert (passage.after_promises, passage.promises_broken) == ([], 0)
