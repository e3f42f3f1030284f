"""The stories: end to end, a real controller process against a cluster over HTTP.

`make e2e KUBECONFIG=…` runs them against a cluster of yours, `make test` against the simulated one; the stories do not
know which.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from e2e_support.definition import BUDGETS_FOR_NODES, CAMPAIGNS, CLAIMS, served
from e2e_support.story import Story, told
from e2e_support.target import Target, chosen_target

NUMBERS = count(1)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The ordinary event loop: there are sockets and other processes."""
    return ("asyncio", {})


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The cluster of all stories of this run."""
    with chosen_target(tmp_path_factory.mktemp("cluster")) as target:
        yield target


@pytest.fixture
async def story(target: Target, tmp_path: Path) -> AsyncIterator[Story]:
    """A namespace, nodes and workloads of this test's own, watched."""
    async with told(target, str(next(NUMBERS)), tmp_path) as story:
        yield story


@pytest.fixture(scope="session")
def node_claims(target: Target) -> Iterator[None]:
    """The cluster serves node claims, whether or not it did before; for all stories of this run that need them."""
    with served(target, CLAIMS):
        yield


@pytest.fixture(scope="session")
def node_budgets(target: Target) -> Iterator[None]:
    """Likewise, budgets for nodes."""
    with served(target, BUDGETS_FOR_NODES):
        yield


@pytest.fixture
async def claim_story(target: Target, node_claims: None, tmp_path: Path) -> AsyncIterator[Story]:
    """A story that also has node claims."""
    async with told(target, str(next(NUMBERS)), tmp_path, with_claims=True) as story:
        yield story


@pytest.fixture
async def budget_story(target: Target, node_claims: None, node_budgets: None, tmp_path: Path) -> AsyncIterator[Story]:
    """A story that has node claims and budgets for nodes."""
    async with told(target, str(next(NUMBERS)), tmp_path, with_claims=True, with_budgets=True) as story:
        yield story


@pytest.fixture(scope="session")
def node_drains(target: Target) -> Iterator[None]:
    """Likewise, NodeDrains."""
    with served(target, CAMPAIGNS):
        yield


@pytest.fixture
async def drain_story(target: Target, node_drains: None, tmp_path: Path) -> AsyncIterator[Story]:
    """A story that has NodeDrains, and sees its own."""
    async with told(target, str(next(NUMBERS)), tmp_path, with_drains=True) as story:
        yield story
