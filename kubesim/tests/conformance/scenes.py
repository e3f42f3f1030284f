"""What the recorder did off the tape: waited, cleared away, measured, answered as a webhook. One scene per recording
that has such things.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

import anyio
from conformance.drain import DRAIN
from conformance.player import Offstage, Player, Retry
from conformance.webhook_scenes import ADMISSION, ADMISSION_NODES, FINALIZER_RACE
from kubesim.server.api import Json
from kubesim.values import parse_time

MERGE = "application/merge-patch+json"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NODE_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_BUDGETS = "/apis/termination.karpenter.sh/v1alpha2/nodedisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/rec-deletes-options/leases"
BUDGETS = "/apis/policy/v1/namespaces/rec-eviction/poddisruptionbudgets"
PODS_AT_ONCE = "/api/v1/namespaces/rec-at-once/pods"
DELETED_PODS = "/api/v1/namespaces/rec-deletion/pods"

Aside = Callable[[Player], Awaitable[None]]


def waits(seconds: float) -> Aside:
    """Nothing happens for a while."""

    async def aside(player: Player) -> None:
        await player.target.clock.sleep(seconds)

    return aside


def is_gone(path: str, seconds: float = 10.0) -> Aside:
    """Wait until an object is removed; if it is not, the steps that follow will show it."""

    async def aside(player: Player) -> None:
        for _ in range(round(seconds / 0.25)):
            if (await player.call("GET", path)).status == 404:
                return
            await player.target.clock.sleep(0.25)

    return aside


def is_served(path: str) -> Aside:
    """Until an endpoint answers."""

    async def aside(player: Player) -> None:
        for _ in range(50):
            if (await player.call("GET", path)).status == 200:
                await player.target.clock.sleep(1)
                return
            await player.target.clock.sleep(0.2)

    return aside


def knows_uid(placeholder: str, path: str) -> Aside:
    """The recorder reads the uid of an object."""

    async def aside(player: Player) -> None:
        body = (await player.call("GET", path)).body
        player.learn(placeholder, body["metadata"]["uid"])

    return aside


def time_until_served(path: str) -> Callable[[Player], Awaitable[Json]]:
    """How long an endpoint takes to answer, and how often it did not."""

    async def measure(player: Player) -> Json:
        clock, refused = player.target.clock, 0
        begun = clock.monotonic()
        while (await player.call("GET", path)).status != 200 and clock.monotonic() < begun + 10:
            refused += 1
            await clock.sleep(0.005)
        return {"milliseconds": round(1000 * (clock.monotonic() - begun)), "not_found_before": refused}

    return measure


def are_soon_served(recorded: Json, here: Json) -> bool:
    """Served within what a busy machine took."""
    return bool(here["milliseconds"] < 2_500)


def ends_as(recorded: Json, here: Json) -> bool:
    """The same first and last event, however many there were between."""
    return bool(_stated(recorded[0]) == _stated(here[0]) and _stated(recorded[-1]) == _stated(here[-1]))


def _stated(event: Json) -> Json:
    """An event with its conditions by type, without instants."""
    status = event["object"]["status"]
    conditions = {
        each["type"]: (each["status"], each["reason"], each["message"]) for each in status["conditions"] or ()
    }
    disrupted = sorted(status.get("disruptedPods") or ())
    return event["type"], event["object"]["metadata"], {**status, "conditions": conditions, "disruptedPods": disrupted}


def has_same_causes(recorded: Json, here: Json) -> bool:
    """The same causes in another order."""

    def in_order(status: Json) -> Json:
        causes = sorted(status["details"]["causes"], key=str)
        message = sorted(re.split(r"[\[\]]|, (?=\w+(?:\.\w+)*: )", status["message"]))
        return {**status, "message": message, "details": {**status["details"], "causes": causes}}

    return bool(in_order(recorded) == in_order(here))


def storms(first: int, count: int) -> Callable[[Player], Awaitable[Json]]:
    """Evict so many pods at once, `<name:first>` and following; how many got which status."""

    async def measure(player: Player) -> Json:
        answers: list[tuple[int, Json]] = []

        async def evict(name: str) -> None:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            response = await player.call("POST", f"{PODS_AT_ONCE}/{name}/eviction", body)
            answers.append((response.status, response.body))

        async with anyio.create_task_group() as group:
            for number in range(first, first + count):
                group.start_soon(evict, f"<name:{number}>")
        codes = [str(status) for status, _ in answers]
        player.memory["causes"] = sorted(
            {cause["message"] for _, body in answers for cause in body.get("details", {}).get("causes", ())}
        )
        return {"statuses": {code: codes.count(code) for code in sorted(set(codes))}}

    return measure


async def causes(player: Player) -> Json:
    """How the refused ones of a storm were refused."""
    return {"causes": player.memory["causes"]}


def are_causes_of_one_budget(recorded: Json, here: Json) -> bool:
    """They differ from the recorded ones at most in how many healthy pods the budget has at that instant."""

    def without_count(facts: Json) -> set[str]:
        return {re.sub(r"has \d+ currently", "has some", cause) for cause in facts["causes"]}

    return bool(here["causes"]) and without_count(here) <= without_count(recorded)


def are_recounts(recorded: Json, here: Json) -> bool:
    """Begins with the eviction's own write and ends as recorded, after one recount or two."""
    trimmed = [[_stated(event) for event in events] for events in (recorded, here)]
    return trimmed[0][:2] == trimmed[1][:2] and trimmed[0][-1] == trimmed[1][-1] and len(here) in (3, 4)


async def remembers_now(player: Player) -> None:
    """The recorder looks at its clock."""
    player.memory["begun"] = player.target.clock.monotonic()


async def seconds_passed(player: Player) -> Json:
    """Since then."""
    return {"seconds": round(player.target.clock.monotonic() - player.memory["begun"])}


def lasts_two_minutes(recorded: Json, here: Json) -> bool:
    """The controller counts from a time stamp of whole seconds."""
    return bool(118 <= here["seconds"] <= 125)


async def counted_from_first_delete(player: Player) -> Json:
    """Seconds from the first DELETE to the deletionTimestamp, for three answers."""
    first, shortened, late = (
        parse_time(player.answered[index].body["metadata"]["deletionTimestamp"]) for index in (29, 30, 31)
    )
    begun = first - 30
    return {"at_first": 30, "shortened_to_10": round(shortened - begun), "shortened_to_1": round(late - begun)}


async def is_compacted(player: Player) -> None:
    """Something else is written, and then the past forgotten."""
    player.target.compact()


def are_bookmarks(recorded: Json, here: Json) -> bool:
    """One or two, of the recorded kind."""
    kinds = {(event["type"], event["object"]["kind"], event["object"]["apiVersion"]) for event in recorded}
    events = [(event["type"], event["object"]["kind"], event["object"]["apiVersion"]) for event in here]
    return bool(events) and set(events) == kinds


def are_from_history(recorded: Json, here: Json) -> bool:
    """The cache still knows the version of old: no error, then, but what has happened since."""
    return all(event["type"] in ("ADDED", "MODIFIED", "DELETED") for event in here)


SCENES: Mapping[str, Offstage] = {
    "admission": ADMISSION,
    "admission-nodes": ADMISSION_NODES,
    "auth": Offstage(before={16: waits(0.5)}),
    "crds": Offstage(
        measured={1: time_until_served(NODE_CLAIMS), 33: time_until_served(NODE_BUDGETS)},
        loosely={1: are_soon_served, 33: are_soon_served, 2: ends_as, 34: ends_as},
    ),
    "custom-resources": Offstage(before={1: is_served("/apis/rec.example/v1/things")}, loosely={5: has_same_causes}),
    "deletes-options": Offstage(before={13: is_gone(f"{LEASES}/one"), 15: is_gone(f"{LEASES}/two")}),
    "eviction": Offstage(
        hurried=frozenset({81}), retries=(Retry(79, 82, f"{BUDGETS}/edited"),), loosely={36: are_recounts}
    ),
    "eviction-at-once": Offstage(
        measured={16: storms(1, 10), 17: causes, 33: storms(11, 10), 34: causes},
        loosely={17: are_causes_of_one_budget, 34: are_causes_of_one_budget},
    ),
    "eviction-of-another-uid": Offstage(
        before={8: remembers_now}, measured={14: seconds_passed}, loosely={14: lasts_two_minutes}
    ),
    "finalizer-race": FINALIZER_RACE,
    "history-compacted": Offstage(before={5: is_compacted}),
    "list-pages": Offstage(before={17: waits(0.5)}),
    "list-versions": Offstage(before={3: waits(0.5)}),
    "node-drain-end-to-end": DRAIN,
    "pod-deletion": Offstage(
        before={30: waits(3.0), 90: knows_uid("<uid:4>", f"{DELETED_PODS}/precondition")},
        measured={32: counted_from_first_delete},
    ),
    "watch-versions": Offstage(loosely={3: are_bookmarks, 7: are_from_history}),
}
"""By recording. Those that are not named have nothing off the tape."""
