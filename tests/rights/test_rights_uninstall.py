"""The role of the chart's hook, which takes gracectl off a cluster, is the least that works; and its test has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from rights.retelling import all_told
from rights.stories import CONFIGURATIONS, Story, leading
from rights.value_sets import SETS, ValueSet
from support.grants import Account, grants_of, without
from support.helm import HELM
from support.installed import Installed, Place, place_for
from support.leaving import Leaving, held
from support.stage import a_pod_manifest

from gracectl.cli.leaving.report import Outcome, Report
from gracectl.kube.errors import ApiError
from gracectl.model import names
from gracectl.model.times import parse_time
from gracectl.sim.world.nodeclaims import ClaimSpec

pytestmark = [pytest.mark.anyio, HELM]

UNINSTALLED = [pytest.param(one, id=one.name) for one in SETS]


def hook_of(installed: Installed) -> Account:
    """As whom the hook asks."""
    return installed.account("Job", "uninstall")
