"""What every test shares: virtual time by default, real time where sockets are involved."""

from __future__ import annotations

from functools import partial
from typing import Any

import looptime
import pytest


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """asyncio on virtual time; a test (or module) marked `real_time` gets the ordinary event loop."""
    if request.node.get_closest_marker("real_time"):
        return ("asyncio", {})
    # Before it moves the time, looptime waits some turns of the loop for other threads; here are none.
    return ("asyncio", {"loop_factory": partial(looptime.new_event_loop, noop_cycles=1)})
