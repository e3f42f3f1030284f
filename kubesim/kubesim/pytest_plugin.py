"""The pytest plugin: a cluster in the test's process, one over HTTP, virtual time. Imports are lazy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kubesim.cluster import EmbeddedCluster
    from kubesim.testing import HttpCluster


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "kubesim(nodes=1, scenario='', ...): arguments of kubesim_http")


@pytest.fixture
def kubesim_cluster() -> Callable[..., AbstractAsyncContextManager[EmbeddedCluster]]:
    """`async with kubesim_cluster(nodes=3) as cluster:` a cluster in this process, on the time of the event loop.

    Under any runner of coroutines: pytest-asyncio, anyio, or a loop of the test's own. Arguments: see testing.running.
    """
    from kubesim.testing import running

    return running


@pytest.fixture
def kubesim_http(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpCluster]:
    """A cluster over HTTP, with `url` and `kubeconfig`; `@pytest.mark.kubesim(scenario="small")` says which."""
    from kubesim.testing import served

    marker = request.node.get_closest_marker("kubesim")
    with served(tmp_path, **(marker.kwargs if marker else {})) as http:
        yield http


@pytest.fixture
def kubesim_virtual_time() -> tuple[str, dict[str, Any]]:
    """A backend for anyio's `anyio_backend` with an event loop on virtual time: days pass in milliseconds."""
    from kubesim.testing import VirtualTimeLoop

    return ("asyncio", {"loop_factory": VirtualTimeLoop})
