"""`gracectl crds`: the CustomResourceDefinitions that gracectl works with, as they ship."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import click
import msgspec
import yaml

from gracectl.cli.output import echo
from gracectl.model.encoding import encode

SUFFIX = ".yaml"


@click.command()
def crds() -> None:
    """Print the CustomResourceDefinitions of gracectl.

    gracectl also works with Karpenter's own definition of NodeClaims: do not replace that one.
    """
    echo(manifests(), nl=False)


def shipped_definitions() -> tuple[dict[str, Any], ...]:
    """Parse the definitions; the caller may change the objects."""
    definitions: tuple[dict[str, Any], ...] = tuple(msgspec.json.decode(_as_json()))
    return definitions


@cache
def _as_json() -> bytes:
    return encode(list(yaml.safe_load_all(manifests())))


def manifests() -> str:
    """The definitions as one YAML stream, with comments."""
    folder = files("gracectl") / "crds"
    found = sorted((file for file in folder.iterdir() if file.name.endswith(SUFFIX)), key=lambda file: file.name)
    return "---\n".join(file.read_text(encoding="utf-8") for file in found)
