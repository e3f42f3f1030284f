"""A model of how controllers drain that queue each pod by itself: a refusal waits 100 ms, then twice as long each time,
10 s at most, whatever the budget allows meanwhile. Karpenter's eviction queue is built so, with these numbers.

It is a model, not the program: it has the pods by one list at the beginning, pays for no cache, and never asks for a
pod again once the server has agreed. What is modelled is when it asks, and how often.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contenders.driven import Driven, Driver, main
from benchmarks.ground.nodes import together
from gracectl.model.pod import Pod

FIRST, LONGEST = 0.1, 10.0
AT_ONCE = 100
POLLING = Driven("model: per-pod polling, 100 ms to 10 s", __name__)
DONE = (200, 201, 404)
ANOTHER = 409  # The name is another pod's by now.


async def drain(driver: Driver, pods: list[Pod]) -> None:
    """Every pod is asked to leave until the server agrees."""
    await together([partial(_evicted, driver, pod) for pod in pods], at_once=max(len(pods), AT_ONCE))


async def _evicted(driver: Driver, pod: Pod) -> None:
    pause = FIRST
    while await driver.evict(pod) not in (*DONE, ANOTHER):
        await driver.clock.sleep(pause)
        pause = min(2 * pause, LONGEST)


if __name__ == "__main__":
    main(drain)
