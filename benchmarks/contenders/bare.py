"""The yardstick of a storm: a bare loop that asks for one eviction after another, so many at a time, and nothing else.

It knows no budgets, repeats nothing, watches nothing, and writes nothing down: no client that sends the same requests
over the same connections can be faster.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contenders.driven import Driven, Driver, main
from benchmarks.ground.nodes import together
from gracectl.model.pod import Pod

AT_ONCE = 50
"""As many as the controller keeps in flight by default (`eviction.maxInFlight`)."""
BARE = Driven(f"bare loop, {AT_ONCE} at a time", __name__)


async def drain(driver: Driver, pods: list[Pod]) -> None:
    """Every pod is asked to leave once."""
    await together([partial(driver.evict, pod) for pod in pods], at_once=AT_ONCE)


if __name__ == "__main__":
    main(drain)
