"""Forecasts in scenarios where replacements find no node, or never become Ready."""

from __future__ import annotations

import sys
from unittest.mock import patch

import anyio
import pytest
from support.virtual import VirtualLoop

from gracectl.inspect import progress
from simulation.scenarios import forecasts_of


@pytest.mark.parametrize(("scenario", "wrong"), [("crowded", 2), ("crashing", 0)])
def test_nothing_counts_on_replacements_that_do_not_come(scenario: str, wrong: int) -> None:
    """In the first two seconds nothing shows that there is no room."""
    with patch.object(progress, "QUICK_PODS", sys.maxsize):
        counts = anyio.run(forecasts_of, scenario, 1, backend_options={"loop_factory": VirtualLoop})
    assert (counts.ranges, counts.late, counts.never) == (wrong, wrong, 0)
    assert counts.unknown > 30
