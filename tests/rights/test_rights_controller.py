"""The role that is rendered for the controller is the least that works: with it everything is done and nothing refused,
and each single right in it is one that something cannot be done without."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from rights.stories import STORIES
from rights.value_sets import EVERY, ValueSet
from support.grants import given_only_by, grants_of
from support.installed import Installed, Place, for_a_test, place_for

from gracectl.sim.access.attempts import Attempt

pytestmark = pytest.mark.anyio

SECONDS = 20_000.0
"""Virtual: no story takes so long."""


def is_served(installed: Installed, attempt: Attempt) -> bool:
    """A server refuses before it looks what it serves: what it has no definition of, nobody has missed."""
    groups = ("karpenter.sh", "termination.karpenter.sh")
    return attempt.group not in groups or f"{attempt.resource}.{attempt.group}" in installed.definitions


async def told(name: str, place: Place) -> None:
    with anyio.fail_after(SECONDS):
        await STORIES[name](place)


@pytest.mark.parametrize("value_set", EVERY)
async def test_everything_is_done_with_these_rights_and_each_of_them_is_needed(
    value_set: ValueSet, tmp_path: Path
) -> None:
    installed = value_set.installed()
    attempts: list[Attempt] = []
    for name in value_set.stories:
        async with place_for(installed, installed.objects, tmp_path) as place:
            await told(name, place)
        assert [each for each in place.wire.forbidden if is_served(installed, each)] == [], name
        attempts += place.wire.attempts
    grants = grants_of(installed.objects, installed.account())
    needed = given_only_by(grants, attempts)
    assert [str(each) for each in grants if each not in needed] == []
