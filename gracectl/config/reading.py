"""Reading the settings: one YAML document, checked whole, and the variables that beat it.

Settings that do not fit change nothing: the error names the file or the variable, the path of the field, what was given
and what would be right, and a program that begins ends before it has spoken to any cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gracectl.config.checks import check
from gracectl.config.errors import ConfigError, Misfit
from gracectl.config.settings import Settings
from gracectl.config.variables import Override, applied, overrides
from gracectl.config.words import misfit
from gracectl.runtime.documents import DocumentError, document, file_text

NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


class Reading(msgspec.Struct, frozen=True):
    """The settings that count, and where they come from: `written` is what the file says, as YAML has it."""

    settings: Settings
    file: Path | None
    written: Any
    overrides: tuple[Override, ...]


def load_settings(path: Path | None, environ: Mapping[str, str] = NO_VARIABLES) -> Settings:
    """The settings that count; see `read_settings`."""
    return read_settings(path, environ).settings


def read_settings(path: Path | None, environ: Mapping[str, str] = NO_VARIABLES) -> Reading:
    """Read the settings file, if there is a path, and what the environment says. Raises ConfigError."""
    found = overrides(environ)
    written = _document(path)
    try:
        return Reading(settings_of(applied(written, found)), path, written, found)
    except Misfit as wrong:
        raise ConfigError(_explained(wrong, path, written, found)) from wrong


def _document(path: Path | None) -> Any:
    if path is None:
        return {}
    try:
        written = document(file_text(path))
    except DocumentError as error:
        raise ConfigError(f"settings file {path}: {error}") from error
    return {} if written is None else written


def settings_of(whole: Any) -> Settings:
    """A document, as YAML has it, as settings that are checked. Raises Misfit."""
    try:
        settings = msgspec.convert(whole, Settings)
        check(settings)
    except msgspec.ValidationError as error:
        raise misfit(error, whole) from error
    except ValueError as error:
        field, _, reason = str(error).partition(": ")
        raise Misfit(field, reason) from error
    return settings


def _explained(wrong: Misfit, path: Path | None, written: Any, found: tuple[Override, ...]) -> str:
    """Whose fault it is: that of the variable that says so; of the file, if it would be wrong by itself; or that of
    the variables beside it."""
    if (blamed := _blamed(wrong.field, found)) is not None:
        is_text = wrong.field == blamed.path and wrong.reason.endswith("in quotes")
        remedy = f": {blamed.variable}='\"{blamed.text}\"'" if is_text else ""
        return f"variable {blamed.variable}: {wrong}{remedy}"
    try:
        settings_of(written)
    except Misfit as alone:
        return f"settings file {path}: {alone}"
    beside = f"settings file {path} with " if path else ""
    listed = ", ".join(each.variable for each in found)
    return f"{beside}variable{'s' * (len(found) > 1)} {listed}: {wrong}"


def _blamed(field: str, found: tuple[Override, ...]) -> Override | None:
    """The variable that says what is wrong, if that is in what one of them says."""
    for each in reversed(found):
        if field == each.path or field.startswith((f"{each.path}.", f"{each.path}[")):
            return each
    return None


def is_given(written: Any, path: str) -> bool:
    """Whether a document says anything at this path (`eviction.qps`)."""
    for name in path.split("."):
        if not isinstance(written, dict) or name not in written:
            return False
        written = written[name]
    return True
