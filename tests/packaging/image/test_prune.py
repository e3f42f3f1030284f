"""What prune.py leaves: AWS services that gracectl calls, what finds their credentials, the reader of kubeconfigs."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import botocore
import kubernetes_asyncio
import pytest
import yaml
from botocore.loaders import Loader
from botocore.session import get_session
from kubesim_support.patience import PATIENCE
from support.tools import BUILD, ROOT

PRUNE = runpy.run_path(str(ROOT / "deploy/container" / "prune.py"))
KEPT: frozenset[str] = PRUNE["KEPT"]
DATA = Path(botocore.__file__).parent / "data"


def copied(folder: Path) -> Path:
    """Botocore's folder of descriptions: one that is read, one that is not, and no content."""
    for name in (*KEPT, "cloudfront"):
        (folder / name).mkdir()
    (folder / "endpoints.json").touch()
    return folder


def test_services_that_are_not_called_are_removed_and_nothing_else(tmp_path: Path) -> None:
    assert PRUNE["prune"](copied(tmp_path)) == 1
    assert {each.name for each in tmp_path.iterdir()} == {*KEPT, "endpoints.json"}


def test_a_folder_that_is_not_botocores_keeps_all(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(LookupError, match="no description of autoscaling"):
        PRUNE["prune"](tmp_path)
    assert (tmp_path / "precious").exists()


def test_all_that_the_provider_calls_stays() -> None:
    source = "".join(path.read_text() for path in (ROOT / "gracectl/cloud/aws").glob("*.py"))
    called = set(re.findall(r'(?:service=|_call\()"([a-z0-9-]+)"', source))
    assert {"ec2", "autoscaling", "sts"} <= called <= KEPT


def test_what_stays_makes_the_clients_that_are_needed(tmp_path: Path) -> None:
    for name in (*KEPT, *(file.name for file in DATA.glob("*.json"))):
        (tmp_path / name).symlink_to(DATA / name)
    session = get_session()
    loader = Loader(extra_search_paths=[str(tmp_path)], include_default_search_paths=False)
    session.register_component("data_loader", loader)
    for service in sorted(KEPT):
        client = session.create_client(service, "eu-west-1", aws_access_key_id="a", aws_secret_access_key="b")
        assert client.meta.endpoint_url.startswith("https://")
        client.close()


def test_a_kubeconfig_is_read_without_the_models(tmp_path: Path) -> None:
    installed = Path(kubernetes_asyncio.__file__).parent
    shutil.copytree(
        installed, tmp_path / "kubernetes_asyncio", ignore=shutil.ignore_patterns("__pycache__", "*_test.py")
    )
    PRUNE["prune_models"](tmp_path / "kubernetes_asyncio")
    kubeconfig = tmp_path / "config"
    context = {"name": "one", "context": {"cluster": "one", "user": "one"}}
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "one",
                "contexts": [context],
                "clusters": [{"name": "one", "cluster": {"server": "http://one.example"}}],
                "users": [{"name": "one", "user": {"token": "secret"}}],
            }
        )
    )
    program = (
        "import anyio, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from gracectl.kube.auth import library, lookup\n"
        f"assert library.kube_config.__file__.startswith({str(tmp_path)!r})\n"
        "from gracectl.runtime.clock import SystemClock\n"
        f"credentials = anyio.run(lambda: lookup.load({str(kubeconfig)!r}, clock=SystemClock()))\n"
        "assert credentials.url == 'http://one.example'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_the_image_is_pruned_before_its_bytecode_is_made() -> None:
    runs = [" ".join(one.listed) for one in BUILD if one.word == "RUN"]
    prunes = runs.index("/opt/gracectl/bin/python deploy/container/prune.py")
    compiles = [number for number, run in enumerate(runs) if "compileall" in run]
    installs = [number for number, run in enumerate(runs) if "deploy/container/requirements.txt" in run]
    assert installs[0] < prunes < compiles[0]
