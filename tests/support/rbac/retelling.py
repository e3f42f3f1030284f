"""Stories of an account, run with exactly the rights that were rendered for it, and with one less."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import anyio
from kubesim.auth.attributes import Attempt
from kubesim.server.api import JsonObject

from support.grants import Account, Grant, given_only_by, grants_of, without
from support.installed import Installed, place_for
from support.rbac.stories import Story

SECONDS: Final = 20_000.0
"""Virtual: no story takes so long."""

OPTIONAL_GROUPS: Final = ("karpenter.sh", "termination.karpenter.sh", "cluster.x-k8s.io")


class Retelling(NamedTuple):
    """What became of all stories of an account."""

    grants: list[Grant]
    needed: Mapping[Grant, list[Attempt]]
    """By right, what nothing else would have allowed."""
    story_of: Mapping[Grant, str]
    """By right, a story that cannot be told without it."""

    @property
    def unused(self) -> list[str]:
        """Rights that nothing needs."""
        return [str(each) for each in self.grants if each not in self.needed]


def is_served(installed: Installed, attempt: Attempt) -> bool:
    """A server refuses before it looks what it serves: what it has no definition of, is not missing."""
    return attempt.group not in OPTIONAL_GROUPS or f"{attempt.resource}.{attempt.group}" in installed.definitions


async def all_told(installed: Installed, account: Account, stories: Mapping[str, Story], folder: Path) -> Retelling:
    """Tell them all; nothing that the cluster serves may be refused."""
    grants = grants_of(installed.objects, account)
    attempts: dict[str, list[Attempt]] = {}
    for name, story in stories.items():
        async with place_for(installed, installed.objects, folder, account) as place:
            with anyio.fail_after(SECONDS):
                await story(place)
        forbidden = [each for each in place.wire.forbidden if is_served(installed, each)]
        assert not forbidden, f"{name}: {forbidden}"
        attempts[name] = place.wire.attempts
    needed = given_only_by(grants, [each for tried in attempts.values() for each in tried])
    story_of = {
        grant: next(name for name, tried in attempts.items() if grant in given_only_by(grants, tried))
        for grant in needed
    }
    return Retelling(grants, needed, story_of)


async def each_is_missed(
    told: Retelling, installed: Installed, account: Account, stories: Mapping[str, Story], folder: Path
) -> None:
    """Take each right away in turn: just what only it allows is refused, and nothing else has done the work."""
    for grant, name in told.story_of.items():
        refused = await _refused_in(stories[name], installed, without(installed.objects, grant), account, folder)
        missed = [each for each in refused if is_served(installed, each)]
        assert missed, f"{name} went well without {grant}"
        assert all(grant.allows(each) for each in missed), f"without {grant}: {missed}"


async def _refused_in(
    story: Story, installed: Installed, objects: list[JsonObject], account: Account, folder: Path
) -> list[Attempt]:
    """Run a story with a program that assumes all rights, until the first refusal; what was refused."""
    async with place_for(installed, objects, folder, account) as place:
        place.wire.is_let_in = True

        async def tell() -> None:
            # Whatever comes of it then: a watch that may not be opened ends the process.
            with suppress(Exception):
                await story(place)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            with anyio.move_on_after(SECONDS):
                group.start_soon(tell)
                while not any(is_served(installed, each) for each in place.wire.forbidden):
                    await place.stage.clock.sleep(0.5)
            group.cancel_scope.cancel()
        return place.wire.forbidden
