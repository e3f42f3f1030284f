"""The effective settings as a YAML file: it loads back to equal settings, with the source of each value as a comment.

Defaults have no comment. Nothing is omitted as secret, because settings hold no secrets: providers get them as paths of
files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, Final

import msgspec
import yaml

from gracectl.config.fields import Field, fields
from gracectl.config.loading import LoadedSettings, is_set

WIDEST: Final = 72
"""Columns of a list or mapping in one line."""

_BELOW: Final = "  "
_TEXT: Final = "tag:yaml.org,2002:str"


def as_builtins(loaded: LoadedSettings) -> Any:
    """Settings as YAML has them."""
    whole = msgspec.to_builtins(loaded.settings, builtin_types=(bytes, date, datetime))
    # Omitted fields of optional objects stay omitted.
    whole["nodeSelector"] = _without_nulls(whole["nodeSelector"])
    whole["nodeGroups"] = [
        {"selector": None, **_without_nulls(group)}  # first, as usual in manifests
        for group in whole["nodeGroups"]
    ]
    return _plain(whole)


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(each) for key, each in value.items() if each is not None}
        case list() | tuple():
            return [_without_nulls(each) for each in value]
    return value


def as_yaml(loaded: LoadedSettings) -> str:
    """Settings file with comments."""
    whole = as_builtins(loaded)
    lines = [*_head(loaded), *_lines(whole, "", loaded)]
    return "\n".join(lines) + "\n"


def _head(loaded: LoadedSettings) -> Iterator[str]:
    if loaded.file is None and not loaded.overrides:
        yield "# No file and no variables: these are the defaults."
        return
    yield "# Comments have the source of each value that is not the default."
    if loaded.file is not None:
        name = str(loaded.file)
        yield f"# file: {name if name.isprintable() else ascii(name)}"


def _lines(section: dict[str, Any], before: str, loaded: LoadedSettings) -> Iterator[str]:
    indent = _BELOW * before.count(".")
    for name, value in section.items():
        path = f"{before}{name}"
        field = fields()[path]
        if field.is_section:
            if not before:
                yield ""
            yield f"{indent}{name}:"
            yield from _lines(value, f"{path}.", loaded)
        else:
            yield from _entry(indent, name, value, _origin(field, value, loaded))


def _entry(indent: str, name: str, value: Any, origin: str) -> Iterator[str]:
    comment = f"  # {origin}" if origin else ""
    text = _flow(value)
    if not isinstance(value, list | dict) or len(indent) + len(name) + 2 + len(text) <= WIDEST:
        yield f"{indent}{name}: {text}{comment}"
        return
    yield f"{indent}{name}:{comment}"
    for line in _block(value):
        yield f"{indent}{_BELOW}{line}"


def _block(value: Any) -> Iterator[str]:
    """A list or mapping with one entry per line, if it fits."""
    for key, entry in value.items() if isinstance(value, dict) else ((None, each) for each in value):
        mark = "- " if isinstance(value, list) else f"{_flow(key)}: "
        text = _flow(entry)
        if len(text) <= WIDEST or not entry or not isinstance(entry, list | dict):
            yield f"{mark}{text}"
            continue
        first, *others = _block(entry)
        if isinstance(value, list):
            yield f"- {first}"
        else:
            yield mark.rstrip()
            yield f"{_BELOW}{first}"
        yield from (f"{_BELOW}{line}" for line in others)


def _flow(value: Any) -> str:
    """Value in one line."""
    written = yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=True,
        allow_unicode=True,
        sort_keys=False,
        width=math.inf,
    )
    return str(written).removesuffix("\n").removesuffix("\n...")


class _Dumper(yaml.SafeDumper):
    """Without anchors, and with texts in one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    begins_well = text[:1].isalnum() or text[:1] == "/"
    is_plain = begins_well and _fits_plain(dumper, text) and _means_itself(text)
    return dumper.represent_scalar(_TEXT, text, style=None if is_plain else '"')


def _means_itself(text: str) -> bool:
    try:
        return bool(yaml.safe_load(text) == text)
    except (yaml.YAMLError, ValueError):  # ValueError: no such date
        return False


def _fits_plain(dumper: yaml.SafeDumper, text: str) -> bool:
    return bool(dumper.analyze_scalar(text).allow_flow_plain)


_Dumper.add_representer(str, _represent_text)


def _plain(value: Any) -> Any:
    """Whole seconds without a decimal point."""
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() if value.is_integer() and abs(value) <= 1e15:
            return int(value)
    return value


def _origin(field: Field, value: Any, loaded: LoadedSettings) -> str:
    """Source of a value that is not the default."""
    if value == _plain(field.default):
        return ""
    whole = [each for each in loaded.overrides if each.path == field.path]
    parts = [each for each in loaded.overrides if each.path.startswith(f"{field.path}.")]
    found = [] if whole or not is_set(loaded.document, field.path) else ["file"]
    return ", ".join([*found, *(f"${each.variable}" for each in (*whole, *parts))])
