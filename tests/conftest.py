"""What every test shares: virtual time by default, real time where sockets are involved."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from support.thorough import thorough
from support.virtual import VirtualLoop

# No machine is too slow for an example.
for profile, number in (("quick", 25), ("thorough", 100), ("soak", 2000)):
    settings.register_profile(profile, max_examples=number, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")

# Workers of xdist inherit the width of a terminal that they do not have: what commands print would be broken at it.
os.environ.pop("COLUMNS", None)
# No test asks the internet: each process would load the authorities of the system first, a tenth of its start.
os.environ |= {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}
# A shell lets what it runs in the background ignore SIGINT: so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the stories, which mostly wait, over the first half of a run of several workers; others compute beside."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    files: dict[bool, dict[Path, None]] = {True: {}, False: {}}
    for item in items:
        files[item.get_closest_marker("e2e") is not None][item.path] = None
    shares = {True: 0.5, False: 1.0}
    places = {file: shares[is_story] * n / len(of) for is_story, of in files.items() for n, file in enumerate(of)}
    items.sort(key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays, so no garbage is looked for meanwhile: a sixth of the time of it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What has been imported and collected stays: the garbage collector need not look at it again and again.

    Nor at the rest as often as by default: with the heap of thousands of tests that took a tenth of a run.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs in this process configures the log for itself only."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with `@pytest.mark.seeds(6)` gets a `seed` from 0 to 5; with GRACECTL_SEEDS=300, one up to 299. All but
    the first are thorough."""
    marker = metafunc.definition.get_closest_marker("seeds")
    if marker:
        number = int(os.environ.get("GRACECTL_SEEDS", marker.args[0]))
        metafunc.parametrize("seed", [0, *thorough(*range(1, number))])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many points of each of Sieve's patterns there are, and were run (tests/simulation/sieve)."""
    ran: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for report in (each for key in ("passed", "failed") for each in terminalreporter.getreports(key)):
        for pattern, number, points in (value for key, value in report.user_properties if key == "sieve"):
            ran[pattern] += number
            there[pattern] += points
    for pattern, points in there.items():
        terminalreporter.write_line(f"sieve: {pattern}: {ran[pattern]} of {points} points run")


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """asyncio on virtual time; a test (or module) marked `real_time` gets the ordinary event loop."""
    if request.node.get_closest_marker("real_time"):
        return ("asyncio", {})
    return ("asyncio", {"loop_factory": VirtualLoop})
