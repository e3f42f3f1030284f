"""The role that is rendered for the controller is the least that works: with it everything is done and nothing refused,
and each single right in it is one that something cannot be done without."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from support.rights import grants_of, place_for, without
from support.rights_stories import PLAIN, SETS, Retelling, ValueSet, all_told, each_is_missed
from support.thorough import thorough

from gracectl.app.controller import Controller
from gracectl.cloud.provider import load_provider
from gracectl.controllers.rbac import MissingPermissions

MOST: Final = [
    each for each in (PLAIN, *SETS) if each.name in (PLAIN.name, "definitions of claims", "machines", "replace first")
]
"""Between them they have every right that there is."""
OTHERS: Final = [each for each in (PLAIN, *SETS) if each not in MOST]


_TOLD: dict[object, Retelling] = {}


async def retelling(value_set: ValueSet, folder: Path) -> Retelling:
    """What becomes of its stories with all rights; they are told once, for all that render the same."""
    installed = value_set.installed()
    account = installed.account()
    webhooks = [each["webhooks"] for each in installed.objects if "webhooks" in each]
    same = (
        *grants_of(installed.objects, account),
        *map(repr, (account, installed.settings, sorted(installed.definitions), webhooks)),
    )
    if same not in _TOLD:
        _TOLD[same] = await all_told(installed, account, value_set.stories, folder)
    return _TOLD[same]


@pytest.mark.parametrize("value_set", [*MOST, *thorough(*OTHERS)], ids=lambda one: one.name)
async def test_everything_is_done_with_these_rights_and_each_of_them_is_needed(
    value_set: ValueSet, tmp_path: Path
) -> None:
    installed = value_set.installed()
    retold = await retelling(value_set, tmp_path)
    assert retold.unused == []
    settings = installed.settings
    admission = settings["admission"]
    ours = {settings["leaderElection"]["name"], admission["name"], admission["secret"]}
    for grant, attempts in retold.needed.items():
        # What has a name of ours is granted by it, but for making it: then it has none yet.
        assert grant.name or ours.isdisjoint(attempt.name for attempt in attempts), str(grant)


@pytest.mark.parametrize("value_set", MOST, ids=lambda one: one.name)
async def test_with_one_right_less_the_controller_refuses_to_start_and_names_it(
    value_set: ValueSet, tmp_path: Path
) -> None:
    installed = value_set.installed()
    for grant in grants_of(installed.objects, installed.account()):
        async with place_for(installed, without(installed.objects, grant), tmp_path, parts=frozenset()) as place:
            provider = load_provider(place.stage.settings.provider)
            controller = Controller(place.stage.settings, place.wire, place.stage.clock, provider)
            with pytest.raises(MissingPermissions) as caught:
                await controller.check()
            assert caught.value.rights == (grant.right,)


@pytest.mark.parametrize("value_set", MOST, ids=lambda one: one.name)
async def test_with_one_right_less_a_controller_that_was_let_in_is_refused_just_that(
    value_set: ValueSet, tmp_path: Path
) -> None:
    """So no story ends well because something else has done the work. What several of them have is taken from one."""
    installed, retold = value_set.installed(), await retelling(value_set, tmp_path)
    tried = {grant for one in MOST[: MOST.index(value_set)] for grant in (await retelling(one, tmp_path)).story_of}
    rest = {grant: story for grant, story in retold.story_of.items() if grant not in tried}
    assert rest
    missing = retold._replace(story_of=rest)
    await each_is_missed(missing, installed, installed.account(), value_set.stories, tmp_path)
