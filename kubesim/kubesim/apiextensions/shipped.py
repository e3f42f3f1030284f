"""The definitions that gracectl ships in gracectl/crds: the embedded cluster serves what `gracectl crds` prints."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import orjson
import yaml

from kubesim.server.api import JsonObject

FOLDER = files("gracectl") / "crds"
SUFFIX = ".yaml"


def shipped_definitions() -> tuple[JsonObject, ...]:
    """The CustomResourceDefinitions of gracectl, in the order of their files' names; the caller's to change."""
    return tuple(orjson.loads(definition) for definition in _read())


@cache
def _read() -> tuple[bytes, ...]:
    # As JSON: parts that the YAML names once and refers to are then no longer one object.
    found = sorted((file for file in FOLDER.iterdir() if file.name.endswith(SUFFIX)), key=lambda file: file.name)
    return tuple(orjson.dumps(yaml.safe_load(file.read_text(encoding="utf-8"))) for file in found)
