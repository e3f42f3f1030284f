"""The role of the chart's hook that registers webhooks is the least that works."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.rights import Account, Installed, Place
from support.rights_stories import SETS, Story, ValueSet, all_told, each_is_missed

from gracectl.admission.registration import register
from gracectl.admission.rotation import CertificateSecret
from gracectl.kube.client import KubeClient

SOME = [one for one in SETS if one.name in ("default", "other names", "cert-manager", "a certificate of others")]


def hook_of(installed: Installed) -> Account:
    """The account of the hook's pod."""
    return installed.account("Job", "webhooks")


async def webhooks_are_registered(place: Place) -> None:
    """After an installation, and again after an upgrade that changes them."""
    stage = place.stage
    settings = stage.settings.admission
    hook, stage.transport = place.wire, await place.as_(place.installed.account())
    client = KubeClient(hook, stage.clock)
    secret = CertificateSecret(client, (settings.namespace, settings.secret))
    async with stage.settled():
        stored = await secret.read()
        while stored is None:
            await stage.clock.sleep(0.5)
            stored = await secret.read()
    state = stored.state
    for result in ("created", "unchanged"):
        assert {line.rpartition(" ")[2] for line in await register(client, settings, state)} == {result}
    changed = type(state)(state.pair, state.authorities, state.authority_key, "0" * 32)
    assert {line.rpartition(" ")[2] for line in await register(client, settings, changed)} == {"updated"}


STORIES: Mapping[str, Story] = {"webhooks are registered": webhooks_are_registered}


@pytest.mark.parametrize("value_set", SOME, ids=lambda one: one.name)
async def test_webhooks_are_registered_with_these_rights_and_each_of_them_is_needed(
    value_set: ValueSet, tmp_path: Path
) -> None:
    installed = value_set.installed()
    retold = await all_told(installed, hook_of(installed), STORIES, tmp_path)
    assert retold.unused == []


async def test_with_one_right_less_just_that_is_refused(tmp_path: Path) -> None:
    installed = SOME[0].installed()
    retold = await all_told(installed, hook_of(installed), STORIES, tmp_path)
    await each_is_missed(retold, installed, hook_of(installed), STORIES, tmp_path)
