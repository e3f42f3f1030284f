"""The library that reads kubeconfigs: who imports it, and how much of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shell import run_program

pytestmark = pytest.mark.real_time

LIBRARY = "gracectl.kube.auth.library"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["version"], ["completion", "bash"], ["config"], ["crds"], ["status", "--help"]], ids=str
)
def test_a_command_without_a_cluster_does_not_import_it(arguments: list[str]) -> None:
    run_program(
        "import sys\n"
        "from gracectl.cli.root import root\n"
        f"root.main({arguments}, standalone_mode=False)\n"
        f"assert {LIBRARY!r} not in sys.modules\n"
        "assert 'kubernetes_asyncio' not in sys.modules\n"
    )


def test_a_pod_does_not_import_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_bytes((Path(__file__).parents[1] / "certificates" / "ca.pem").read_bytes())
    run_program(
        "import anyio, pathlib, sys\n"
        "import gracectl.kube.connection, gracectl.app.controller\n"
        "from gracectl.kube.auth.lookup import load\n"
        "from gracectl.runtime.clock import SystemClock\n"
        "environ = {'KUBERNETES_SERVICE_HOST': '10.0.0.1', 'KUBERNETES_SERVICE_PORT': '443'}\n"
        f"account = pathlib.Path({str(tmp_path)!r})\n"
        "anyio.run(lambda: load(clock=SystemClock(), environ=environ, service_account=account))\n"
        f"assert {LIBRARY!r} not in sys.modules\n"
        "assert 'kubernetes_asyncio' not in sys.modules\n"
    )


@pytest.mark.parametrize("first", ["gracectl.kube.auth.library", "kubernetes_asyncio"])
def test_its_models_are_not_imported_and_others_still_get_the_whole_package(first: str) -> None:
    run_program(
        f"import {first}\n"
        "import sys\n"
        "before = set(sys.modules)\n"
        "from gracectl.kube.auth.library import Configuration, kube_config\n"
        "added = {name for name in set(sys.modules) - before if name.startswith('kubernetes_asyncio')}\n"
        "assert not added, added\n"
        "import kubernetes_asyncio\n"
        "assert kubernetes_asyncio.client.V1Pod().kind is None\n"
        "assert kubernetes_asyncio.client.Configuration is not Configuration\n"
        "assert kubernetes_asyncio.config.kube_config is not kube_config\n"
    )


def test_the_reader_does_without_the_models() -> None:
    run_program(
        "import sys\n"
        "import gracectl.kube.auth.library as library\n"
        "assert 'kubernetes_asyncio' not in sys.modules\n"
        "assert library.kube_config.ApiClient is object\n"
    )
