"""Histories: what people, workloads and machines do to a cluster while its nodes are terminated.

`ACTS` has each kind of act: how often, what it needs by chance, and what it does.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from kubesim.controllers.nodeclaims import NODE_CLAIMS, claim_manifest, claim_status
from kubesim.server.api import JsonObject
from support.karpenter import NODE_POOLS
from support.stage import CLAIMS, the_settings

from gracectl.cli.crds import shipped_definitions
from gracectl.controllers.termination.maintenance import withdrawal_patch
from gracectl.model import names
from gracectl.model.decode import decode_node
from gracectl.model.times import format_time
from gracectl.policy.interruption import Kind as Ending
from gracectl.policy.interruption import encode, interruption, interruption_of, merged
from simulation import campaigns
from simulation.plan import POOL, REFUGE, Act, NodePlan
from simulation.scene import MERGE, Scene, wait_for
from simulation.worlds import TEAM, a_pod, reloaded

PODS = "/api/v1/namespaces/shop/pods"
BUDGETS = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets"
NODE_BUDGETS = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SECONDS = 60.0
"""Within so many seconds from the start a history begins all that it does."""


NOTICES = (
    ("spot", 120.0),
    ("spot", 5.0),
    ("state-change", -3.0),
    ("scale-in", 300.0),
    ("other", None),
    ("rebalance", None),
    ("maintenance", None),
    ("maintenance", 950.0),
    ("maintenance", 60.0),
)
"""Kinds of notices, and in how many seconds the machine goes; None: that is unknown."""


class World(NamedTuple):
    """What draws of acts choose from."""

    nodes: tuple[NodePlan, ...]
    workloads: dict[str, str]
    """Kinds by name."""
    pods: list[str]
    budgets: list[str]


Draw = Callable[[random.Random, World], dict[str, Any] | None]
"""Fields of an act; None: it cannot be in this world."""
Perform = Callable[[Scene, Act], Awaitable[None]]


class Kind(NamedTuple):
    """Kind of act: its weight among others, what it needs, what it does."""

    weight: float
    draw: Draw
    perform: Perform


def a_history(chance: random.Random, nodes: tuple[NodePlan, ...], objects: tuple[JsonObject, ...]) -> tuple[Act, ...]:
    """What happens, in order. At least one node is asked to terminate."""
    world = World(
        nodes,
        {each["metadata"]["name"]: each["kind"] for each in objects if each["kind"] in ("Deployment", "StatefulSet")},
        [each["metadata"]["name"] for each in objects if each["kind"] == "Pod"],
        [each["metadata"]["name"] for each in objects if each["kind"] == "PodDisruptionBudget"],
    )
    acts: list[Act] = []
    victims = [node for node in nodes if node.name != REFUGE]
    for node in chance.sample(victims, chance.randint(1, len(victims))):
        way = chance.choice(
            ["delete node", "delete node", "delete claim" if node.claim else "delete node", "label terminable"]
        )
        acts.append(Act(at=_instant(chance), what=way, subject=node.name))
    kinds = [*ACTS]
    weights = [ACTS[kind].weight for kind in kinds]
    for kind in chance.choices(kinds, weights, k=chance.choice([0, 1, 2, 3, 4, 6, 8])):
        fields = ACTS[kind].draw(chance, world)
        if fields is not None:
            acts.append(Act(at=_instant(chance), what=kind, **fields))
    return tuple(sorted(acts, key=lambda act: act.at))


def some_notices(seed: int, nodes: tuple[NodePlan, ...]) -> tuple[Act, ...]:
    """Notices that machines go, for one seed in four; by a chance of their own. Several may be about one machine."""
    chance = random.Random(f"interruptions/{seed}")
    victims = [node.name for node in nodes if node.name != REFUGE]
    if chance.random() >= 1 / 4:
        return ()
    return tuple(
        Act(
            at=_instant(chance),
            what="interrupt",
            subject=chance.choice(victims),
            value=chance.choice(NOTICES),
        )
        for _ in range(chance.randint(1, 3))
    )


def _instant(chance: random.Random) -> float:
    return round(chance.uniform(0, chance.choice([5.0, SECONDS])), 3)


async def perform(scene: Scene, act: Act) -> None:
    """Carry out one act, at its time."""
    await scene.stage.clock.sleep(act.at)
    scene.note("history", str(act))
    disturb(scene, act.what)
    await ACTS[act.what].perform(scene, act)
    disturb(scene, act.what)  # some are undone, after their time


def disturb(scene: Scene, act: str) -> None:
    """Tell the judge of forecasts that they are not for what comes."""
    if scene.judge is not None:
        scene.judge.forecasts.disturb(act)


# -- draws -------------------------------------------------------------------------------------------------------------


def _node(chance: random.Random, world: World) -> dict[str, Any] | None:
    """Any node but the refuge."""
    return {"subject": chance.choice([node.name for node in world.nodes if node.name != REFUGE])}


def _claimed(chance: random.Random, world: World) -> dict[str, Any] | None:
    claimed = [node.name for node in world.nodes if node.claim]
    return {"subject": chance.choice(claimed)} if claimed else None


def _while(*seconds: float) -> Draw:
    """Any node but the refuge, for one of these times."""
    return lambda chance, world: {**(_node(chance, world) or {}), "seconds": chance.choice(seconds)}


def _workload(*values: Any) -> Draw:
    def draw(chance: random.Random, world: World) -> dict[str, Any] | None:
        name = chance.choice([*world.workloads])
        return {"subject": name, "value": {"kind": world.workloads[name], "as": chance.choice(values)}}

    return draw


def _budget(chance: random.Random, world: World) -> dict[str, Any] | None:
    if not world.budgets:
        return None
    changes: list[Any] = [
        {"spec": {"selector": {"matchLabels": {"app": "none"}}}},
        {"spec": {"selector": {"matchLabels": {}}}},
        {"spec": {"maxUnavailable": 0, "minAvailable": None}},
        {"spec": {"maxUnavailable": "100%", "minAvailable": None}},
        {"spec": {"minAvailable": 1, "maxUnavailable": None}},
        None,
    ]
    return {"subject": chance.choice(world.budgets), "value": chance.choice(changes)}


def _pod(*values: Any) -> Draw:
    def draw(chance: random.Random, world: World) -> dict[str, Any] | None:
        return {"subject": chance.choice(world.pods), "value": chance.choice(values)} if world.pods else None

    return draw


def _bound_pod(chance: random.Random, world: World) -> dict[str, Any] | None:
    node = chance.choice(world.nodes)
    return {"subject": node.name, "value": a_pod(chance, f"late{chance.randrange(1000)}", node)}


def _any(*values: Any, subject: str = "", seconds: tuple[float, ...] = (0.0,)) -> Draw:
    return lambda chance, world: {"subject": subject, "value": chance.choice(values), "seconds": chance.choice(seconds)}


# -- acts --------------------------------------------------------------------------------------------------------------


async def _delete_node(scene: Scene, act: Act) -> None:
    if act.subject in scene.nodes:
        await scene.insist("DELETE", f"/api/v1/nodes/{act.subject}")


async def _delete_claim(scene: Scene, act: Act) -> None:
    if act.subject in scene.nodes:
        await scene.insist("DELETE", f"{CLAIMS}/{act.subject}-claim")


async def _label_terminable(scene: Scene, act: Act) -> None:
    label = {names.LIFECYCLE_PHASE: names.LIFECYCLE_PHASE_TERMINABLE}
    await scene.patch(f"/api/v1/nodes/{act.subject}", {"metadata": {"labels": label}})
    if act.seconds:
        await scene.stage.clock.sleep(act.seconds)
        await scene.patch(f"/api/v1/nodes/{act.subject}", {"metadata": {"labels": {names.LIFECYCLE_PHASE: None}}})


async def _keep_drained(scene: Scene, act: Act) -> None:
    path, since = f"/api/v1/nodes/{act.subject}", format_time(scene.stage.clock.now())
    await scene.patch(path, {"metadata": {"annotations": {names.KEEP_DRAINED: since}}})
    await scene.stage.clock.sleep(act.seconds)
    node = scene.stage.node(act.subject)
    if node is not None and (back := withdrawal_patch(decode_node(msgspec.json.encode(node)))) is not None:
        await scene.patch(path, dict(back.body))


async def _cordon(scene: Scene, act: Act) -> None:
    await scene.patch(f"/api/v1/nodes/{act.subject}", {"spec": {"unschedulable": True}})
    await scene.stage.clock.sleep(act.seconds)
    await scene.patch(f"/api/v1/nodes/{act.subject}", {"spec": {"unschedulable": None}})


async def _undo_cordon(scene: Scene, act: Act) -> None:
    await scene.patch(f"/api/v1/nodes/{act.subject}", {"spec": {"unschedulable": None, "taints": None}})


async def _remove_finalizers(scene: Scene, act: Act) -> None:
    """Of a node that is not being deleted; the controllers put it back."""
    node = scene.stage.node(act.subject)
    if node is not None and "deletionTimestamp" not in node["metadata"]:
        await scene.patch(f"/api/v1/nodes/{act.subject}", {"metadata": {"finalizers": None}})


async def _edit_node(scene: Scene, act: Act) -> None:
    await scene.patch(f"/api/v1/nodes/{act.subject}", {"metadata": {"labels": {"busybody": str(act.at)}}})


async def _flip_node_label(scene: Scene, act: Act) -> None:
    """Of the label over which node budgets are."""
    node = scene.stage.node(act.subject)
    if node is not None:
        value = None if "team" in node["metadata"]["labels"] else TEAM["team"]
        await scene.patch(f"/api/v1/nodes/{act.subject}", {"metadata": {"labels": {"team": value}}})


async def _tighten(scene: Scene, act: Act) -> None:
    """An administrator is in a hurry: an earlier deadline on a node or its claim; never a later one."""
    text = format_time(scene.stage.clock.now() + act.seconds)
    for thing, path in (
        (scene.stage.claim(f"{act.subject}-claim"), f"{CLAIMS}/{act.subject}-claim"),
        (scene.stage.node(act.subject), f"/api/v1/nodes/{act.subject}"),
    ):
        if thing is not None:
            shown = thing["metadata"].get("annotations", {}).get(names.TERMINATION_TIMESTAMP, text)
            await scene.patch(path, {"metadata": {"annotations": {names.TERMINATION_TIMESTAMP: min(text, shown)}}})
            return


async def _interrupt(scene: Scene, act: Act) -> None:
    """An agent on the machine writes what it has heard."""
    node = scene.stage.node(act.subject)
    if node is not None:
        kind, seconds = act.value
        at = None if seconds is None else scene.stage.clock.now() + seconds
        known = interruption_of(decode_node(msgspec.json.encode(node)))
        value = encode(merged(known, interruption(Ending(kind), at, "agent", "as the machine says")))
        await scene.patch(f"/api/v1/nodes/{act.subject}", {"metadata": {"annotations": {names.INTERRUPTION: value}}})


async def _fail_node(scene: Scene, act: Act) -> None:
    kubelet = scene.stage.cluster.kubelet
    kubelet.kill(act.subject)
    await scene.stage.clock.sleep(act.seconds)
    if scene.stage.node(act.subject) is not None and scene.stage.instance_state(act.subject) == "running":
        kubelet.revive(act.subject)


async def _partition_node(scene: Scene, act: Act) -> None:
    scene.stage.cluster.kubelet.partition(act.subject)
    await scene.stage.clock.sleep(act.seconds)
    scene.stage.cluster.kubelet.heal(act.subject)


async def _end_machine(scene: Scene, act: Act) -> None:
    """By the cloud, as it takes spot instances back."""
    if act.subject in scene.stage.instances:
        scene.stage.cluster.cloud.terminate(scene.stage.instances[act.subject])


async def _return_machine(scene: Scene, act: Act) -> None:
    """The same machine, under another name, while the old node may still be there."""
    node = scene.stage.node(act.subject)
    if node is not None:
        await scene.insist("POST", "/api/v1/nodes", _anew(node, f"{act.subject}-back"))
        scene.stage.instances[f"{act.subject}-back"] = scene.stage.instances[act.subject]
        scene.stage.cluster.kubelet.revive(f"{act.subject}-back")


async def _register_again(scene: Scene, act: Act) -> None:
    """The node is removed by hand, finalizers and all, and its machine registers it again."""
    node = scene.stage.node(act.subject)
    if node is None:
        return
    path = f"/api/v1/nodes/{act.subject}"
    await scene.insist("DELETE", path)
    await scene.patch(path, {"metadata": {"finalizers": None}})
    if scene.stage.instance_state(act.subject) == "running" and await wait_for(
        scene, lambda: scene.stage.node(act.subject) is None, 5.0
    ):
        await scene.insist("POST", "/api/v1/nodes", _anew(node, act.subject))
        scene.stage.cluster.kubelet.revive(act.subject)


def _anew(node: JsonObject, name: str) -> JsonObject:
    """What the kubelet of a node registers."""
    labels = {key: value for key, value in node["metadata"]["labels"].items() if key != names.LIFECYCLE_PHASE}
    status = {key: value for key, value in node["status"].items() if key != "conditions"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}},
        "spec": {"providerID": node["spec"]["providerID"]},
        "status": status,
    }


async def _add_node(scene: Scene, act: Act) -> None:
    if act.subject not in scene.stage.instances:
        await scene.stage.add_nodes(act.subject, **msgspec.convert(act.value, dict[str, Any]))


async def _recreate_claim(scene: Scene, act: Act) -> None:
    """A claim goes, finalizers and all, and one of the same name comes, for the same node."""
    path = f"{CLAIMS}/{act.subject}-claim"
    node, plan = scene.stage.node(act.subject), scene.nodes.get(act.subject)
    if node is None or plan is None or plan.claim is None or scene.stage.claim(f"{act.subject}-claim") is None:
        return
    await scene.insist("DELETE", path)
    await scene.patch(path, {"metadata": {"finalizers": None}})
    if await scene.insist("POST", NODE_CLAIMS, claim_manifest(plan.claim, node)):
        await scene.patch(f"{path}/status", {"status": claim_status(node, format_time(scene.stage.clock.now()))})


async def _end_pod(scene: Scene, act: Act) -> None:
    await scene.attempt("DELETE", f"{PODS}/{act.subject}", act.value)


async def _evict_pod(scene: Scene, act: Act) -> None:
    """By another client, such as an autoscaler."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": act.subject, "namespace": "shop"}}
    await scene.attempt("POST", f"{PODS}/{act.subject}/eviction", body)


async def _bind_pod(scene: Scene, act: Act) -> None:
    if act.subject in scene.nodes:
        await scene.insist("POST", PODS, act.value)


async def _patch_pod(scene: Scene, act: Act) -> None:
    await scene.attempt("PATCH", f"{PODS}/{act.subject}", act.value, MERGE)


async def _flip_pod_label(scene: Scene, act: Act) -> None:
    """A pod leaves its app, or its budget, and perhaps comes back: of a workload."""
    pods = [pod["metadata"]["name"] for pod in scene.stage.server.store.table("pods")]
    matching = sorted(name for name in pods if name.startswith(act.subject))
    if matching:
        await scene.attempt("PATCH", f"{PODS}/{matching[0]}", {"metadata": {"labels": {"app": act.value["as"]}}}, MERGE)


async def _scale(scene: Scene, act: Act) -> None:
    path = f"/apis/apps/v1/namespaces/shop/{act.value['kind'].lower()}s/{act.subject}"
    await scene.patch(path, {"spec": {"replicas": act.value["as"]}})


async def _roll_out(scene: Scene, act: Act) -> None:
    path = f"/apis/apps/v1/namespaces/shop/{act.value['kind'].lower()}s/{act.subject}"
    await scene.patch(path, {"spec": {"template": {"metadata": {"annotations": {"restarted": str(act.at)}}}}})


async def _edit_budget(scene: Scene, act: Act) -> None:
    if act.value is None:
        await scene.insist("DELETE", f"{BUDGETS}/{act.subject}")
    else:
        await scene.patch(f"{BUDGETS}/{act.subject}", act.value)


async def _edit_node_budget(scene: Scene, act: Act) -> None:
    if act.value is None:
        await scene.attempt("DELETE", f"{NODE_BUDGETS}/team-a")
    else:
        await scene.attempt("PATCH", f"{NODE_BUDGETS}/team-a", {"spec": act.value}, MERGE)


async def _settings(scene: Scene, act: Act) -> None:
    scene.stage.settings = the_settings(**_merged(scene, act.value))


def _merged(scene: Scene, value: dict[str, Any]) -> dict[str, Any]:
    election = {} if scene.plan.elects is False else {"leaderElection": {"enabled": True}}
    return {**value, **scene.plan.settings, **election}


async def _install_karpenter(scene: Scene, act: Act) -> None:
    """Its definitions come: the nodes get another finalizer, one after another."""
    for definition in (*shipped_definitions(), NODE_POOLS):
        await scene.attempt("POST", DEFINITIONS, definition)


ACTS: dict[str, Kind] = {
    "delete node": Kind(1, _node, _delete_node),
    "delete claim": Kind(1, _claimed, _delete_claim),
    "label terminable": Kind(1, _while(0.0, 0.5, 10.0), _label_terminable),
    "keep drained": Kind(3, _while(3.0, 30.0, 90.0), _keep_drained),
    "cordon": Kind(1, _while(1.0, 30.0), _cordon),
    "undo cordon": Kind(2, _node, _undo_cordon),
    "remove finalizers": Kind(1, _node, _remove_finalizers),
    "edit node": Kind(1, _node, _edit_node),
    "flip node label": Kind(1, _node, _flip_node_label),
    "tighten deadline": Kind(2, _while(-5.0, 1.0, 7.0, 60.0), _tighten),
    "interrupt": Kind(0, _node, _interrupt),
    "fail node": Kind(2, _while(5.0, 60.0, 200.0), _fail_node),
    "partition node": Kind(1, _while(5.0, 60.0, 200.0), _partition_node),
    "end machine": Kind(1, _node, _end_machine),
    "return machine": Kind(1, _node, _return_machine),
    "register again": Kind(1, _node, _register_again),
    "add node": Kind(1, lambda chance, world: {"subject": "new", "value": {"labels": dict(TEAM)}}, _add_node),
    "recreate claim": Kind(1, _claimed, _recreate_claim),
    "end pod": Kind(1, _pod(None, {"gracePeriodSeconds": 0}, {"gracePeriodSeconds": 60}), _end_pod),
    "evict pod": Kind(1, _pod(None), _evict_pod),
    "bind pod": Kind(3, _bound_pod, _bind_pod),
    "protect pod": Kind(
        2,
        _pod(
            *({"metadata": {"annotations": {names.DO_NOT_DISRUPT: value}}} for value in ("true", "15s", "soon", None))
        ),
        _patch_pod,
    ),
    "flip pod label": Kind(2, _workload("other", "app0"), _flip_pod_label),
    "scale": Kind(2, _workload(0, 1, 2, 7), _scale),
    "roll out": Kind(1, _workload(None), _roll_out),
    "edit budget": Kind(3, _budget, _edit_budget),
    "edit node budget": Kind(
        1,
        _any({"maxUnavailable": 0, "minAvailable": None}, {"selector": {"matchLabels": {POOL: "3s"}}}, None),
        _edit_node_budget,
    ),
    "settings": Kind(2, lambda chance, world: {"value": reloaded(chance)}, _settings),
    "install karpenter": Kind(0.5, _any(None), _install_karpenter),
    "campaign": Kind(0, _node, campaigns.campaign),
    "freeze": Kind(0, _node, campaigns.freeze),
}


async def mend(scene: Scene) -> None:
    """What would hold terminations for ever is mended: broken budgets, protection without end, failed machines."""
    disturb(scene, "mend")
    await campaigns.cancel_all(scene)
    for name in scene.stage.instances:
        scene.stage.cluster.kubelet.heal(name)
    for budget in list(scene.stage.server.store.table("poddisruptionbudgets.policy")):
        if budget["metadata"]["namespace"] == "shop":
            await scene.insist("DELETE", f"{BUDGETS}/{budget['metadata']['name']}")
    for budget in list(scene.stage.server.store.table("nodedisruptionbudgets.termination.karpenter.sh")):
        await scene.insist("DELETE", f"{NODE_BUDGETS}/{budget['metadata']['name']}")
    unprotected = {"metadata": {"annotations": {names.DO_NOT_DISRUPT: None, names.DO_NOT_EVICT: None}}}
    for pod in list(scene.stage.server.store.table("pods")):
        if {names.DO_NOT_DISRUPT, names.DO_NOT_EVICT} & {*pod["metadata"].get("annotations", {})}:
            await scene.attempt("PATCH", f"{PODS}/{pod['metadata']['name']}", unprotected, MERGE)
