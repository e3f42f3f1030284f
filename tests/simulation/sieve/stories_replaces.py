"""Stories about pods that are replaced before their eviction: released, evicted, or returned."""

from __future__ import annotations

from simulation.sieve.stories_starts import PAUSE, Telling, deleted
from simulation.sieve.story import story
from support.replacing import is_released, is_serving, pods_of, web
from support.stage import Stage, a_budget_manifest, the_settings
from support.stories import gracectl_uncordon, keep


def is_whole(stage: Stage) -> bool:
    """Whether the workload has its one pod, which serves and is not released."""
    pods = pods_of(stage)
    return len(pods) == 1 and is_serving(pods[0]) and not is_released(pods[0])


async def on_n1(stage: Stage, ready: float = 3.0) -> None:
    """A pod on n1 that its budget blocks, and an empty node."""
    await stage.add_nodes("n1")
    await stage.create(web(ready=ready), a_budget_manifest("web", minAvailable=1))
    await stage.add_nodes("n2")


@story()
async def a_single_replica_is_replaced_first(stage: Stage) -> Telling:
    await on_n1(stage)
    yield
    await deleted(stage, "n1")
    await stage.until(lambda: is_whole(stage))


@story()
async def a_node_is_uncordoned_while_a_pod_is_replaced(stage: Stage) -> Telling:
    await on_n1(stage, 60.0)
    yield
    await keep(stage, "n1")
    await stage.until(lambda: any(map(is_released, pods_of(stage))))
    await stage.clock.sleep(PAUSE)
    await gracectl_uncordon(stage, "n1")
    await stage.until(lambda: is_whole(stage))


@story(settings=the_settings(replaceFirst={"patience": "5s"}))
async def a_replacement_has_no_node_in_time(stage: Stage) -> Telling:
    await on_n1(stage)
    await stage.patch_node("n2", {"spec": {"unschedulable": True}})
    yield
    await stage.delete_node("n1")
    await stage.until(lambda: any(map(is_released, pods_of(stage))))
    await stage.clock.sleep(12.0)
    await stage.patch_node("n2", {"spec": {"unschedulable": None}})
    await stage.until_gone("n1")
    await stage.until(lambda: is_whole(stage))
