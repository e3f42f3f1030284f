"""Stories about how terminations end: by the instance, by other clients, beside other nodes of the same machine."""

from __future__ import annotations

from kubesim.controllers.nodeclaims import ClaimSpec
from kubesim.server.api import JsonObject
from simulation.sieve.stories_starts import FOR_EVER, PAUSE, SLOW_CLOUD, STOPS, Telling, deleted, is_draining, ready
from simulation.sieve.story import settled, story
from support.stage import NOT_READY, Stage, a_pod_manifest

from gracectl.cloud.provider import ProviderRefused, ProviderUnavailable


async def register(stage: Stage, name: str, provider_id_of: JsonObject | None) -> None:
    """A node object for the machine of another one."""
    assert provider_id_of is not None
    spec = {"providerID": provider_id_of["spec"]["providerID"]}
    await stage.call("POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": spec})
    await ready(stage, name)


@story()
async def the_instance_is_gone_before_the_node_is_deleted(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("a", "n1"))
    yield
    stage.cluster.cloud.terminate(stage.instances["n1"])
    await stage.clock.sleep(0.1)
    await stage.patch_node("n1", NOT_READY, "/status")
    await deleted(stage, "n1")


@story(cloud=SLOW_CLOUD)
async def the_provider_fails_for_a_while(stage: Stage) -> Telling:
    await stage.add_nodes("n1", claim=ClaimSpec())
    stage.provider.moods.extend([ProviderUnavailable("throttled"), ProviderRefused("protected", "unprotect it")])
    yield
    await deleted(stage, "n1")
    await stage.until_claims_gone("n1-claim")


@story()
async def another_client_removes_the_finalizer(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER), a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await stage.delete_node("n1")
    await stage.until(lambda: len(stage.pods_on("n1")) == 1 and is_draining(stage, "n1"))
    await stage.clock.sleep(PAUSE)
    await stage.patch_node("n1", {"metadata": {"finalizers": None}})
    await stage.until_gone("n1")


@story()
async def a_node_is_registered_anew_during_its_drain(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("job", "n1", annotations=FOR_EVER))
    yield
    before = stage.node("n1")
    await stage.delete_node("n1")
    await stage.until(lambda: is_draining(stage, "n1"))
    await stage.clock.sleep(PAUSE)
    await stage.patch_node("n1", {"metadata": {"finalizers": None}})
    await register(stage, "n1", before)
    await settled(stage)


@story()
async def a_node_comes_back_after_its_termination(stage: Stage) -> Telling:
    await stage.add_nodes("n1", "n2")
    await stage.create(a_pod_manifest("a", "n1", behaviour=STOPS))
    yield
    await deleted(stage, "n1")
    await stage.add_nodes("n1")
    await settled(stage)


@story()
async def the_left_over_node_of_a_living_machine_goes_alone(stage: Stage) -> Telling:
    await stage.add_nodes("n2", claim=ClaimSpec())
    await stage.create(a_pod_manifest("a", "n2", behaviour=STOPS))
    await register(stage, "n1", stage.node("n2"))
    yield
    await deleted(stage, "n1")


@story(cloud=SLOW_CLOUD)
async def two_nodes_of_one_instance_go_together(stage: Stage) -> Telling:
    """The second takes longer than any event is late: until it is drained, the first must know of it."""
    await stage.add_nodes("n2")
    await register(stage, "n1", stage.node("n2"))
    await stage.create(a_pod_manifest("a", "n2", behaviour={"stop-seconds": 25}))
    yield
    await stage.delete_node("n2")
    await stage.delete_node("n1")
    await stage.until_gone("n1", "n2")


@story(cloud=SLOW_CLOUD)
async def a_claim_is_deleted_while_its_instance_terminates(stage: Stage) -> Telling:
    await stage.add_nodes("n1", claim=ClaimSpec())
    yield
    await stage.delete_node("n1")
    await stage.until(lambda: stage.instance_state("n1") != "running" or stage.node("n1") is None)
    if stage.claim("n1-claim"):
        await stage.delete_claim("n1-claim")
    await stage.until_gone("n1")
    await stage.until_claims_gone("n1-claim")
