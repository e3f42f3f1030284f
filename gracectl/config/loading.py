"""Loading of the settings: one YAML document, validated as a whole, and the variables that override it.

The document is a file, or the text of a ConfigMap. The error of invalid settings has the file or the variable, the path
of the field, its value and the remedy; a program that is starting exits before it has contacted any cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gracectl.config.errors import ConfigError, InvalidField
from gracectl.config.messages import invalid_field
from gracectl.config.settings import Settings
from gracectl.config.validation import validate_settings
from gracectl.config.variables import Override, apply_overrides, overrides
from gracectl.model import names
from gracectl.model.meta import ConfigMap
from gracectl.runtime.documents import DocumentError, parse_yaml, read_file

NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})


LONGEST_TEXT: Final = 100_000
"""Maximum characters of a ConfigMap, which is read before its author is known."""


class LoadedSettings(msgspec.Struct, frozen=True):
    """Effective settings and their sources: `document` is the content of `file`, or of `config_map`
    (`namespace/name`)."""

    settings: Settings
    file: Path | None
    document: Any
    overrides: tuple[Override, ...]
    config_map: str = ""

    @property
    def source(self) -> str:
        """Source: `file PATH`, `configmap NAMESPACE/NAME` or `defaults`."""
        if self.config_map:
            return f"configmap {self.config_map}"
        return "defaults" if self.file is None else f"file {self.file}"


def load_settings(path: Path | None, environ: Mapping[str, str] = NO_VARIABLES) -> Settings:
    """Effective settings; see `read_settings`."""
    return read_settings(path, environ).settings


def read_settings(path: Path | None, environ: Mapping[str, str] = NO_VARIABLES) -> LoadedSettings:
    """Read the settings file, if there is a path, and the environment. Raises ConfigError."""
    found = overrides(environ)
    where = "" if path is None else f"settings file {path}"
    try:
        document = {} if path is None else _parsed(read_file(path))
    except DocumentError as error:
        raise ConfigError(f"{where}: {error}") from error
    return LoadedSettings(_effective(document, found, where), path, document, found)


def read_config_map(found: ConfigMap, environ: Mapping[str, str] = NO_VARIABLES) -> LoadedSettings:
    """Read the settings in a ConfigMap, and the environment. Raises ConfigError."""
    where = f"ConfigMap {found.full_name}"
    variables = overrides(environ)
    text = found.data.get(names.SETTINGS_KEY)
    try:
        if text is None:
            raise DocumentError(f"has no key {names.SETTINGS_KEY}")
        if len(text) > LONGEST_TEXT:
            raise DocumentError(f"{names.SETTINGS_KEY} is longer than {LONGEST_TEXT:,} characters")
        document = _parsed(text, allows_aliases=False)
    except DocumentError as error:
        raise ConfigError(f"{where}: {error}") from error
    return LoadedSettings(_effective(document, variables, where), None, document, variables, found.full_name)


def _parsed(text: str, *, allows_aliases: bool = True) -> Any:
    document = parse_yaml(text, allows_aliases=allows_aliases)
    return {} if document is None else document


def _effective(document: Any, found: tuple[Override, ...], where: str) -> Settings:
    """Settings of a document that is `where` (""), and of variables."""
    try:
        return settings_of(apply_overrides(document, found))
    except InvalidField as error:
        raise ConfigError(_message(error, where, document, found)) from error


def settings_of(merged: Any) -> Settings:
    """Validated settings of a document. Raises InvalidField."""
    try:
        settings = msgspec.convert(merged, Settings)
        validate_settings(settings)
    except msgspec.ValidationError as error:
        raise invalid_field(error, merged) from error
    except ValueError as error:
        field, _, reason = str(error).partition(": ")
        raise InvalidField(field, reason) from error
    return settings


def _message(error: InvalidField, where: str, document: Any, found: tuple[Override, ...]) -> str:
    """Message with the source of an error: the variable that has it, the file if it is invalid by itself, or else the
    variables together with it."""
    if (culprit := _culprit(error.field, found)) is not None:
        is_text = error.field == culprit.path and error.reason.endswith("in quotes")
        remedy = f": {culprit.variable}='\"{culprit.text}\"'" if is_text else ""
        return f"variable {culprit.variable}: {error}{remedy}"
    try:
        settings_of(document)
    except InvalidField as file_error:
        return f"{where}: {file_error}"
    source = f"{where} with " if where else ""
    listed = ", ".join(each.variable for each in found)
    return f"{source}variable{'s' * (len(found) > 1)} {listed}: {error}"


def _culprit(field: str, found: tuple[Override, ...]) -> Override | None:
    """Variable with the invalid field, if any."""
    for each in reversed(found):
        if field == each.path or field.startswith((f"{each.path}.", f"{each.path}[")):
            return each
    return None


def is_set(document: Any, path: str) -> bool:
    """Whether a document has a value at this path (`eviction.qps`)."""
    for name in path.split("."):
        if not isinstance(document, dict) or name not in document:
            return False
        document = document[name]
    return True
