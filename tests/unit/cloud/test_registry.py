"""Finding a provider by name, and refusing what does not fit."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import msgspec
import pytest

from gracectl.cli.config import provider_of
from gracectl.cloud import provider
from gracectl.cloud.none import NoneProvider
from gracectl.cloud.provider import (
    InstanceGone,
    InstanceState,
    Provider,
    ProviderSettings,
    UnknownProvider,
    load_provider,
)
from gracectl.cloud.simulated import SimulatedProvider
from gracectl.config import ConfigError, Settings


def test_the_default_ends_nothing() -> None:
    assert isinstance(load_provider(ProviderSettings()), NoneProvider)


def test_an_installed_one_gets_its_options() -> None:
    settings = ProviderSettings("simulated", {"endpoint": "http://127.0.0.1:1", "timeoutSeconds": 2})
    provider = load_provider(settings)
    assert isinstance(provider, SimulatedProvider)
    assert (provider.name, provider.needs_provider_id) == ("simulated", True)


def test_an_unknown_one_lists_those_there_are() -> None:
    with pytest.raises(UnknownProvider, match=r'unknown provider "azure"; installed: .*none, .*simulated'):
        load_provider(ProviderSettings("azure"))


def test_none_installed_at_all_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "entry_points", lambda group: EntryPoints())
    with pytest.raises(UnknownProvider, match="installed: none"):
        load_provider(ProviderSettings("none"))


def test_one_from_another_package_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", f"{NoneProvider.__module__}:NoneProvider", provider.GROUP)
    monkeypatch.setattr(provider, "entry_points", lambda group: EntryPoints([entry]))
    assert isinstance(load_provider(ProviderSettings("mine")), NoneProvider)


@pytest.mark.parametrize("value", ["no.such.module:Provider", f"{NoneProvider.__module__}:NoSuchProvider"])
def test_one_that_cannot_be_loaded_is_a_matter_of_configuration(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    entry = EntryPoint("mine", value, provider.GROUP)
    monkeypatch.setattr(provider, "entry_points", lambda group: EntryPoints([entry]))
    with pytest.raises(ConfigError, match=f'provider.name: provider "mine" cannot be loaded from {value}: '):
        provider_of(Settings(provider=ProviderSettings("mine")))


def test_one_whose_extra_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("gracectl.cloud.aws")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    with pytest.raises(ConfigError, match=r"provider\.name: .*'aiobotocore'.*pip install '\.\[aws\]'"):
        provider_of(Settings(provider=ProviderSettings("aws")))


def test_nothing_of_an_extra_is_imported_before_it_is_named() -> None:
    program = (
        "import sys, gracectl.cli.controller; from gracectl.cloud.provider import *;"
        "load_provider(ProviderSettings()); sys.exit('aiobotocore' in sys.modules or 'botocore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(("name", "options", "message"), [
    ("simulated", {}, "Object missing required field `endpoint`"),
    ("simulated", {"endpoint": 7}, r"Expected `str`, got `int` - at `\$\.endpoint`"),
    ("simulated", {"endpoint": "localhost:1"}, r"matching regex '\^https\?://' - at `\$\.endpoint`"),
    ("simulated", {"endpoint": "http://x", "timeoutSeconds": 0}, r"Expected `float` > 0.0 - at `\$\.timeoutSeconds`"),
    ("simulated", {"endpoint": "http://x", "timeout": 1}, "unknown field `timeout`"),
    ("none", {"endpoint": "x"}, "unknown field `endpoint`"),
    ("aws", {"region": "us-west-2a"}, r"matching regex .* - at `\$\.region`"),
    ("aws", {"accountId": "12"}, r"matching regex .* - at `\$\.accountId`"),
    ("aws", {"timeoutSeconds": 60}, r"Expected `float` < 60.0 - at `\$\.timeoutSeconds`"),
    ("aws", {"autoScalingGroups": "leave"}, r"Invalid enum value 'leave' - at `\$\.autoScalingGroups`"),
    ("aws", {"endpoint": "http://x"}, "unknown field `endpoint`"),
])  # fmt: skip
def test_options_that_do_not_fit_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        load_provider(ProviderSettings(name, options))


def test_people_are_told_which_field_of_the_settings_it_is() -> None:
    with pytest.raises(ConfigError, match=r'^provider\.name: unknown provider "azure"'):
        provider_of(Settings(provider=ProviderSettings("azure")))
    with pytest.raises(ConfigError, match=r"^provider\.options: .*`endpoint` \(provider simulated\)"):
        provider_of(Settings(provider=ProviderSettings("simulated")))


async def test_none_is_honest() -> None:
    provider: Provider = NoneProvider(NoneProvider.Options())
    assert await provider.state("") is InstanceState.UNKNOWN
    with pytest.raises(InstanceGone):
        await provider.terminate("")
    await provider.aclose()
    assert not provider.needs_provider_id
