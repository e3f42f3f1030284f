"""The recorder's admission webhook where the tape does not show it: how it is registered, what it answers unrecorded,
how often it is asked.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

import orjson
from conformance.player import Offstage, Player
from conformance.target import WEBHOOK_PORT
from kubesim.server.api import Json, JsonObject

NODES = "/api/v1/nodes"
REGISTRY = "/apis/admissionregistration.k8s.io/v1"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
RACER = "rec-node-race"
GUARDED = "rec-node-guarded-a"
HOLD = {"metadata": {"finalizers": ["rec.example/hold"]}}
ROUNDS = 20

Answer = Callable[[Player, JsonObject], Awaitable[JsonObject]]
Aside = Callable[[Player], Awaitable[None]]


def answering(**response: Json) -> Answer:
    """Always this."""

    async def answer(player: Player, request: JsonObject) -> JsonObject:
        return response

    return answer


def denying(**status: Json) -> Answer:
    """No, with this status."""
    return answering(allowed=False, status=status)


async def slowly(player: Player, request: JsonObject) -> JsonObject:
    """Yes, after two seconds."""
    await player.target.clock.sleep(2)
    return {"allowed": True}


async def holds(player: Player, request: JsonObject) -> JsonObject:
    """Yes, after it has added a finalizer to the node."""
    await player.call("PATCH", f"{NODES}/{request['name']}", HOLD, STRATEGIC)
    return {"allowed": True}


ADDS_FINALIZER = answering(
    allowed=True,
    patchType="JSONPatch",
    patch=base64.b64encode(
        orjson.dumps([{"op": "add", "path": "/metadata/finalizers", "value": HOLD["metadata"]["finalizers"]}])
    ).decode(),
)


def without_node(name: str) -> Aside:
    """The node is cleared away."""

    async def aside(player: Player) -> None:
        await player.call("PATCH", f"{NODES}/{name}", {"metadata": {"finalizers": None}}, MERGE)
        await player.call("DELETE", f"{NODES}/{name}")

    return aside


async def asked(player: Player) -> Json:
    """How often, for the step before."""
    return {"asked": player.asked}


async def waited(player: Player) -> Json:
    """How long the client waited for the step before, and how often the webhook was asked."""
    return {"seconds_at_least": int(player.took + 0.001), "asked": player.asked}


async def outcomes(player: Player) -> Json:
    """Delete a node again and again: does it survive, and how often is the webhook asked?"""
    path, counts = f"{NODES}/{RACER}", dict[str, int]()
    node = player.request_of(1)
    for _ in range(ROUNDS):
        await without_node(RACER)(player)
        await player.send(node)
        player.asked = 0
        await player.call("DELETE", path)
        survives = (await player.call("GET", path)).status == 200
        outcome = f"{'held by its finalizer' if survives else 'vanished'}, webhook asked {player.asked} times"
        counts[outcome] = counts.get(outcome, 0) + 1
    await without_node(RACER)(player)
    return {"outcomes": counts}


def registered(kind: str, operation: str, *, failure: str = "Fail", port: int = WEBHOOK_PORT) -> Aside:
    """The one webhook in force from now on (registered off the tape)."""

    async def aside(player: Player) -> None:
        await unregistered(player)
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": "rec-webhook"},
            "webhooks": [
                {
                    "name": "nodes.rec.example",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "NoneOnDryRun",
                    "timeoutSeconds": 3,
                    "failurePolicy": failure,
                    "objectSelector": {"matchLabels": {"rec": "webhook"}},
                    "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": "<ca>"},
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["nodes"]}
                    ],
                }
            ],
        }
        await player.call("POST", f"{REGISTRY}/{kind.lower()}webhookconfigurations", body)
        await player.target.clock.sleep(2)

    return aside


async def unregistered(player: Player) -> None:
    """No webhook is in force from now on."""
    for kind in ("mutating", "validating"):
        await player.call("DELETE", f"{REGISTRY}/{kind}webhookconfigurations/rec-webhook")
    await player.target.clock.sleep(2)


async def knows_version(player: Player) -> None:
    """The recorder reads the version of the node."""
    body = (await player.call("GET", f"{NODES}/{RACER}")).body
    player.learn("<rv:5>", body["metadata"]["resourceVersion"])


ADMISSION = Offstage(
    has_webhook=True,
    before={index: without_node(GUARDED) for index in (27, 32, 37, 42, 47)},
    answers={
        12: denying(
            code=429,
            reason="TooManyRequests",
            message="wait",
            details={"retryAfterSeconds": 5, "causes": [{"reason": "NodeDisruptionBudget", "message": "web"}]},
        ),
        13: denying(message="no"),
        14: denying(code=200, message="odd"),
        15: answering(allowed=False),
        16: answering(allowed=True, uid="another"),
        44: slowly,
        49: slowly,
    },
    measured={23: asked, **dict.fromkeys((35, 40, 45, 50), waited)},
)

ADMISSION_NODES = Offstage(
    has_webhook=True,
    before={
        0: registered("Mutating", "CREATE"),
        4: registered("Validating", "DELETE"),
        23: unregistered,
        24: registered("Validating", "DELETE", port=9),
        25: registered("Validating", "DELETE", port=9, failure="Ignore"),
    },
)

FINALIZER_RACE = Offstage(
    has_webhook=True,
    before={**dict.fromkeys((17, 25, 27), without_node(RACER)), 18: knows_version},
    answers={9: holds, 27: ADDS_FINALIZER, 30: ADDS_FINALIZER},
    measured={9: outcomes, 30: outcomes},
)
