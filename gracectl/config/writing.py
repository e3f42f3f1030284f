"""The settings that count as a YAML file: it loads back to equal settings, and says of each value where it is from.

What is as if nobody had said anything bears no comment. Nothing is left out for being secret, because nothing here may
be: what a provider must keep secret, it is given as the path of a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, Final

import msgspec
import yaml

from gracectl.config.fields import Field, fields
from gracectl.config.reading import Reading, is_given

WIDEST: Final = 72
"""Columns of a list or mapping that is written in one line."""

_BELOW: Final = "  "
_TEXT: Final = "tag:yaml.org,2002:str"


def as_builtins(reading: Reading) -> Any:
    """The settings as YAML has them."""
    whole = msgspec.to_builtins(reading.settings, builtin_types=(bytes, date, datetime))
    # Of what is there only if somebody has written it, what he has left out would say nothing.
    whole["nodeSelector"] = _without_nulls(whole["nodeSelector"])
    whole["nodeGroups"] = [
        {"selector": None, **_without_nulls(group)}  # the first, as people write it
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


def as_yaml(reading: Reading) -> str:
    """A file of these settings, with comments."""
    whole = as_builtins(reading)
    lines = [*_head(reading), *_lines(whole, "", reading)]
    return "\n".join(lines) + "\n"


def _head(reading: Reading) -> Iterator[str]:
    if reading.file is None and not reading.overrides:
        yield "# Neither a file nor a variable says anything: these are the defaults."
        return
    yield "# Where a value is not the default, a comment says where it is from."
    if reading.file is not None:
        name = str(reading.file)
        yield f"# file: {name if name.isprintable() else ascii(name)}"


def _lines(section: dict[str, Any], before: str, reading: Reading) -> Iterator[str]:
    indent = _BELOW * before.count(".")
    for name, value in section.items():
        path = f"{before}{name}"
        field = fields()[path]
        if field.is_section:
            if not before:
                yield ""
            yield f"{indent}{name}:"
            yield from _lines(value, f"{path}.", reading)
        else:
            yield from _entry(indent, name, value, _origin(field, value, reading))


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
    """A list or mapping, each entry in a line of its own if it fits."""
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
    """In one line."""
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
    """Without anchors, which people do not expect, and with texts in one line."""

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
    """Whole seconds without a point."""
    match value:
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() if value.is_integer() and abs(value) <= 1e15:
            return int(value)
    return value


def _origin(field: Field, value: Any, reading: Reading) -> str:
    """Where a value is from that is not the default."""
    if value == _plain(field.default):
        return ""
    whole = [each for each in reading.overrides if each.path == field.path]
    parts = [each for each in reading.overrides if each.path.startswith(f"{field.path}.")]
    found = [] if whole or not is_given(reading.written, field.path) else ["file"]
    return ", ".join([*found, *(f"${each.variable}" for each in (*whole, *parts))])
