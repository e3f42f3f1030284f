"""What every test shares: virtual time by default, real time where sockets are involved; seeds."""

from __future__ import annotations

import os
from typing import Any

import pytest
from kubesim.testing import VirtualTimeLoop

# Workers of xdist inherit the width of a terminal that they do not have: what commands print would be broken at it.
os.environ.pop("COLUMNS", None)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with `@pytest.mark.seeds(3)` gets a `seed` from 0 to 2; with KUBESIM_SEEDS=300, one up to 299. All but the
    first are thorough."""
    marker = metafunc.definition.get_closest_marker("seeds")
    if marker:
        number = int(os.environ.get("KUBESIM_SEEDS", marker.args[0]))
        metafunc.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, number))])


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """asyncio on virtual time; a test (or module) marked `real_time` gets the ordinary event loop."""
    if request.node.get_closest_marker("real_time"):
        return ("asyncio", {})
    return ("asyncio", {"loop_factory": VirtualTimeLoop})
