"""The role that is rendered for the controller is the least that works: with it everything is done and nothing refused,
and each single right in it is one that something cannot be done without."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import anyio
import pytest
from rights.stories import STORIES
from rights.value_sets import EVERY, ValueSet
from support.grants import Grant, given_only_by, grants_of, without
from support.installed import Installed, place_for

from gracectl.app.controller import Controller
from gracectl.cloud.registry import load_provider
from gracectl.kube.access import Right
from gracectl.model.names import KARPENTER_LEASE
from gracectl.sim.access.attempts import Attempt
from gracectl.sim.server.api import JsonObject
from gracectl.termination.rights import MissingRights

pytestmark = pytest.mark.anyio

SECONDS: Final = 20_000.0
"""Virtual: no story takes so long."""

TOLERATED: Final = {Right("get", "leases", "coordination.k8s.io", name=KARPENTER_LEASE)}
"""Not asked for at the start: who may not look for a Karpenter sees none, and says so."""


class Told(NamedTuple):
    """What became of all stories of a value set."""

    grants: list[Grant]
    needed: Mapping[Grant, list[Attempt]]
    story_of: Mapping[Grant, str]
    """By right, a story that cannot be told without it."""


def is_served(installed: Installed, attempt: Attempt) -> bool:
    """A server refuses before it looks what it serves: what it has no definition of, nobody has missed."""
    groups = ("karpenter.sh", "termination.karpenter.sh", "cluster.x-k8s.io")
    return attempt.group not in groups or f"{attempt.resource}.{attempt.group}" in installed.definitions


async def all_told(value_set: ValueSet, folder: Path) -> Told:
    """Tell them all, under the rights that are rendered."""
    installed = value_set.installed()
    grants = grants_of(installed.objects, installed.account())
    attempts: dict[str, list[Attempt]] = {}
    for name in value_set.stories:
        async with place_for(installed, installed.objects, folder) as place:
            with anyio.fail_after(SECONDS):
                await STORIES[name](place)
        assert [each for each in place.wire.forbidden if is_served(installed, each)] == [], name
        attempts[name] = place.wire.attempts
    needed = given_only_by(grants, [each for tried in attempts.values() for each in tried])
    story_of = {
        grant: next(name for name, tried in attempts.items() if grant in given_only_by(grants, tried))
        for grant in needed
    }
    return Told(grants, needed, story_of)


@pytest.mark.parametrize("value_set", EVERY)
async def test_everything_is_done_with_these_rights_and_each_of_them_is_needed(
    value_set: ValueSet, tmp_path: Path
) -> None:
    told = await all_told(value_set, tmp_path)
    assert [str(each) for each in told.grants if each not in told.needed] == []
    settings = value_set.installed().settings
    admission = settings["admission"]
    ours = {settings["leaderElection"]["name"], admission["name"], admission["secret"], KARPENTER_LEASE}
    for grant, attempts in told.needed.items():
        # What has a name of ours is granted by it, but for making it: then it has none yet.
        assert grant.name or ours.isdisjoint(attempt.name for attempt in attempts), str(grant)


@pytest.mark.parametrize("value_set", EVERY)
async def test_with_one_right_less_the_controller_refuses_to_start_and_names_it(
    value_set: ValueSet, tmp_path: Path
) -> None:
    installed = value_set.installed()
    for grant in grants_of(installed.objects, installed.account()):
        async with place_for(installed, without(installed.objects, grant), tmp_path) as place:
            controller = Controller(place.stage.settings, place.wire, place.stage.clock, load_provider(place.stage.settings.provider))
            if grant.right in TOLERATED:
                await controller.check()
                assert place.wire.forbidden
                continue
            with pytest.raises(MissingRights) as caught:
                await controller.check()
            assert caught.value.rights == (grant.right,)


MOST = [each for each in EVERY if each.id in ("the file for kubectl", "definitions of claims", "machines")]


@pytest.mark.parametrize("value_set", MOST)
async def test_with_one_right_less_a_controller_that_was_let_in_is_refused_just_that(
    value_set: ValueSet, tmp_path: Path
) -> None:
    """So no story ends well because something else has done the work."""
    installed = value_set.installed()
    told = await all_told(value_set, tmp_path)
    for grant, name in told.story_of.items():
        refused = await refused_in(name, installed, without(installed.objects, grant), tmp_path)
        missed = [each for each in refused if is_served(installed, each)]
        assert missed, f"{name} went well without {grant}"
        assert all(grant.allows(each) for each in missed), f"without {grant}: {missed}"


async def refused_in(name: str, installed: Installed, objects: list[JsonObject], folder: Path) -> list[Attempt]:
    """Tell a story to somebody who believes to have all rights, until the first refusal; what was refused."""
    async with place_for(installed, objects, folder) as place:
        place.wire.is_let_in = True

        async def tell() -> None:
            # Whatever comes of it then: a watch that may not be opened ends the process.
            with suppress(Exception):
                await STORIES[name](place)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(SECONDS):
                group.start_soon(tell)
                while not any(is_served(installed, each) for each in place.wire.forbidden):
                    await place.stage.clock.sleep(0.5)
            group.cancel_scope.cancel()
        return place.wire.forbidden
