"""The page on providers: its examples work, and its tables have every option."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from kubesim.controllers.cloud import PREFIX, CloudSettings
from kubesim_support.patience import PATIENCE
from msgspec import inspect
from support.instances import over_http
from support.stage import staged

from gracectl.cloud.clusterapi import ClusterApiProvider
from gracectl.cloud.exec import ExecProvider
from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    NodeIdentity,
    ProviderRefused,
    ProviderSettings,
    ProviderUnavailable,
    load_provider,
)
from gracectl.cloud.simulated import SimulatedProvider
from gracectl.cloud.webhook import WebhookProvider
from gracectl.runtime.documents import parse_yaml

PAGE = (Path(__file__).parents[3] / "docs" / "providers.md").read_text()


def block(language: str, holding: str = "") -> str:
    """The code block of the page in this language that holds these words."""
    (only_block,) = (each for each in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if holding in each)
    return str(only_block)


def section(name: str) -> str:
    text = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert text
    return text


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example as a package that is installed: its module, and what an installer writes down of it."""
    (tmp_path / "gracectl_rental.py").write_text(block("python"))
    facts = tmp_path / "gracectl_rental-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: gracectl-rental\nVersion: 1\n")
    group = re.search(r'entry-points\."(.*?)"\]\n(\w+) = "(.*?)"', block("toml"))
    assert group is not None
    (facts / "entry_points.txt").write_text(f"[{group[1]}]\n{group[2]} = {group[3]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("gracectl_rental", None)


@pytest.mark.real_time
async def test_a_node_ends_with_the_provider_that_the_page_writes(installed: None) -> None:
    async with staged("n1", "n2", cloud=CloudSettings(terminate_delay=0.3)) as stage, over_http(stage) as url:
        stage.server.mount("/api/machines/", _renamed(stage))
        provider: Any = load_provider(ProviderSettings("rental", {"endpoint": f"{url}/api"}))
        stage.provider = provider
        async with stage.controller() as controller:
            await stage.settle(controller)
            with anyio.fail_after(PATIENCE):
                await stage.delete_node("n1")
                await stage.until_gone("n1")
        assert (stage.instance_state("n1"), stage.instance_state("n2")) == ("terminated", "running")


def _renamed(stage: Any) -> Any:
    async def handle(request: Any) -> Any:
        path = PREFIX + request.path.rpartition("/")[2]
        return await stage.cluster.cloud(msgspec.structs.replace(request, path=path))

    return handle


def test_the_providers_of_the_page_are_those_that_are_installed() -> None:
    options: dict[str, dict[str, Any]] = {
        "webhook": {"url": "https://x", "secretFile": __file__},
        "exec": {"command": ["x"]},
    }
    options["simulated"] = {"endpoint": "http://x"}
    for name in ("clusterapi", "exec", "none", "simulated"):
        assert load_provider(ProviderSettings(name, options.get(name, {}))).name == name
        assert section(name)
    with pytest.raises(ValueError, match="secretFile"):
        load_provider(ProviderSettings("webhook", options["webhook"]))


@pytest.mark.parametrize("provider", [ClusterApiProvider, WebhookProvider, ExecProvider, SimulatedProvider])
def test_every_option_is_on_the_page_with_its_default(provider: Any) -> None:
    kind = inspect.type_info(provider.Options)
    assert isinstance(kind, inspect.StructType)
    text = section(provider.name)
    rows = {
        name: row[2].strip()
        for row in (line.split("|") for line in text.splitlines() if line.startswith("| `"))
        for name in re.findall(r"`(\w+)`", row[1])
    }
    for field in kind.fields:
        assert f"`{field.encode_name}`" in text
        if field.encode_name in rows and isinstance(field.default, bool | int | float):
            written = rows[field.encode_name].strip("`").split()[0]
            assert parse_yaml(written) == field.default, field.encode_name
        if field.encode_name in rows and field.required:
            assert rows[field.encode_name] == "required"
    assert rows.keys() <= {field.encode_name for field in kind.fields}


VIRSH = """#!/bin/sh
case "$1" in
  list) [ -e "$FOLDER/broken" ] && exit 1; ls "$FOLDER/domains" ;;
  domstate) cat "$FOLDER/domains/$3" ;;
  destroy) echo "$3" >> "$FOLDER/destroyed"; echo "shut off" > "$FOLDER/domains/$3"; echo "Domain destroyed" ;;
esac
"""


@pytest.fixture
def libvirt(tmp_path: Path) -> Path:
    """A folder with two domains, a `virsh` for them, and the script of the page."""
    (tmp_path / "domains").mkdir()
    for name, state in (("worker-1", "running"), ("worker-10", "in shutdown")):
        (tmp_path / "domains" / name).write_text(state)
    for name, text in (("virsh", VIRSH), ("end-domain", block("sh"))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


@pytest.mark.real_time
async def test_the_script_of_the_page_ends_domains_of_libvirt(libvirt: Path) -> None:
    environment = {"FOLDER": str(libvirt), "PATH": f"{libvirt}:{os.environ['PATH']}"}
    provider = ExecProvider(ExecProvider.Options(command=(str(libvirt / "end-domain"),), env=environment))
    assert await provider.state("libvirt:///worker-1") is InstanceState.RUNNING
    assert await provider.state("libvirt:///worker-10") is InstanceState.ENDING
    assert await provider.state("libvirt:///worker-2") is InstanceState.GONE
    with pytest.raises(ProviderRefused, match=r"domain worker-1 belongs to another node; check spec\.providerID"):
        await provider.terminate("libvirt:///worker-1", NodeIdentity("worker-10"))
    for other in ("libvirt://host/worker-1", "libvirt:////worker-1", "qemu:///worker-1", "worker-1", "libvirt:///"):
        with pytest.raises(ProviderRefused, match="is no domain of libvirt"):
            await provider.terminate(other)
    assert not await anyio.Path(libvirt / "destroyed").exists()
    await provider.terminate("libvirt:///worker-1", NodeIdentity("worker-1"))
    assert await anyio.Path(libvirt / "destroyed").read_text() == "worker-1\n"
    assert await provider.state("libvirt:///worker-1") is InstanceState.GONE
    with pytest.raises(InstanceGone):
        await provider.terminate("libvirt:///worker-1")
    await anyio.Path(libvirt / "broken").touch()
    with pytest.raises(ProviderUnavailable):
        await provider.state("libvirt:///worker-2")
