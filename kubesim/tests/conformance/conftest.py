"""The suite runs against the embedded cluster on virtual time, or, with KUBESIM_CONFORMANCE_KUBECONFIG, against a live
one; at the end it reports what was compared and which differences are known.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from conformance.embedded import embedded
from conformance.live import live
from conformance.report import Report
from conformance.target import Target
from kubesim.testing import VirtualTimeLoop

VARIABLE = "KUBESIM_CONFORMANCE_KUBECONFIG"
REPORT = Report()


@pytest.fixture
def report() -> Report:
    """The report of this run."""
    return REPORT


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Virtual time, unless the cluster has a time of its own."""
    if os.environ.get(VARIABLE) or request.node.get_closest_marker("real_time"):
        return ("asyncio", {})
    return ("asyncio", {"loop_factory": VirtualTimeLoop})


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    """The cluster under test."""
    async with chosen() as target:
        yield target


def chosen() -> AbstractAsyncContextManager[Target]:
    """The cluster that the environment names, or a fresh embedded one."""
    kubeconfig = os.environ.get(VARIABLE)
    return live(os.path.expanduser(kubeconfig)) if kubeconfig else embedded()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was found, however quiet pytest is to be."""
    lines = list(REPORT.lines())
    if lines:
        terminalreporter.section("conformance")
        for line in lines:
            terminalreporter.line(line)
