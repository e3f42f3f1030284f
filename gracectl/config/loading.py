"""Loading of the settings: one YAML document, validated as a whole, and the variables that override it.

The document is a file, or the text of a ConfigMap. The error of invalid settings has the file or the variable, the path
of the field, its value and the remedy; a program that is starting exits before it has contacted any cluster.

`GRACECTL__EVICTION__MAX_IN_FLIGHT=20` is `eviction.maxInFlight`. Two underscores separate levels and follow the prefix,
so no variable that Kubernetes sets for a Service named gracectl (`GRACECTL_PORT`, `GRACECTL_SERVICE_HOST`) is taken for
a setting. Values are YAML, as in the file. Invariant: a variable with the prefix that is no field is rejected, as an
unknown field of the file is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from gracectl.config.errors import ConfigError, InvalidField, prefix_errors
from gracectl.config.fields import fields
from gracectl.config.messages import LISTED, invalid_field, suggestion
from gracectl.config.settings import Settings
from gracectl.model import names
from gracectl.model.meta import ConfigMap
from gracectl.policy.health import UnhealthyNodes
from gracectl.policy.pace import validate_maximum
from gracectl.policy.windows import invalid_window
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


def validate_settings(settings: Settings) -> None:
    """Raise ValueError, with the field in front, for invalid values."""
    with prefix_errors("health.maximumUnhealthy"):
        UnhealthyNodes(unhealthy=0, managed=0, maximum=settings.health.maximum_unhealthy).validate()
    with prefix_errors("voluntary.maximumAtOnce"):
        validate_maximum(settings.voluntary.maximum_at_once)
    with prefix_errors("tracing.url"):
        settings.tracing.validate()
    with prefix_errors("voluntary.pendingPatience"):
        assert settings.voluntary.patience_seconds >= 0
    if problem := invalid_window(settings.voluntary.windows, "voluntary.windows"):
        raise ValueError(problem)
    for field, initial, maximum in (
        ("eviction.backoff", settings.eviction.backoff_initial_seconds, settings.eviction.backoff_maximum_seconds),
        ("instance.poll", settings.instance.poll_initial_seconds, settings.instance.poll_maximum_seconds),
        ("instance.retry", settings.instance.retry_initial_seconds, settings.instance.retry_maximum_seconds),
    ):
        if initial > maximum:
            raise ValueError(
                f"{field}InitialSeconds: {initial:g} is more than {field}MaximumSeconds, which is {maximum:g}"
            )
    if settings.node_selector is not None:
        with prefix_errors("nodeSelector"):
            settings.node_selector.selector().validate()
    with prefix_errors("metrics.listen"):
        settings.metrics.address()
    with prefix_errors("metrics.labels"):
        settings.metrics.validate()
    with prefix_errors("probes.listen"):
        settings.probes.address()
    for section, validate in (
        ("leaderElection", settings.leader_election.validate),
        ("admission", settings.admission.validate),
        ("agent", settings.agent.validate),
        ("interruption", settings.interruption.validate),
        ("notifications", settings.notifications.validate),
    ):
        try:
            validate()
        except ValueError as error:
            raise ValueError(f"{section}.{error}") from error
    _check_addresses(settings)
    settings.order()
    for number, group in enumerate(settings.node_groups):
        try:
            group.group()
        except ValueError as error:
            raise ValueError(f"nodeGroups[{number}].{error}") from error
    try:
        settings.replace_first.replace_first(settings.plan.replacement_seconds)
    except ValueError as error:
        raise ValueError(f"replaceFirst.{error}") from error


def _check_addresses(settings: Settings) -> None:
    """Raise ValueError if an address would have to be served with TLS and without."""
    address = settings.admission.address()
    for field, other in (("metrics", settings.metrics.address()), ("probes", settings.probes.address())):
        if address is not None and address == other and address[1]:
            raise ValueError(
                f"admission.listen: {settings.admission.listen} is served without TLS by {field}.listen; choose "
                "another port"
            )


PREFIX: Final = "GRACECTL__"

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class Override(msgspec.Struct, frozen=True):
    """Value of a variable: its field, text, and parsed value."""

    variable: str
    path: str
    text: str
    value: Any


def variable_of(path: str) -> str:
    """Variable of the field at this path."""
    return PREFIX + "__".join(_HUMP.sub("_", part).upper() for part in path.split("."))


@cache
def _paths() -> Mapping[str, str]:
    """Paths by variable; sections have none."""
    return {variable_of(path): path for path, field in fields().items() if not field.is_section}


def overrides(environ: Mapping[str, str]) -> tuple[Override, ...]:
    """Overrides of the environment; fields of an optional section come after it. Raises ConfigError."""
    found = [_override(name, text) for name, text in sorted(environ.items()) if name.startswith(PREFIX)]
    return tuple(sorted(found, key=lambda each: each.path.count(".")))


def _override(name: str, text: str) -> Override:
    path = _paths().get(name)
    if path is None:
        raise ConfigError(f"variable {name}: {_unknown_reason(name)}")
    try:
        value = parse_yaml(text)
    except DocumentError as error:
        raise ConfigError(f"variable {name}: its value {error}") from error
    if value is None and not text.partition("#")[0].strip():
        raise ConfigError(
            f"variable {name}: is empty; unset it to leave {path} as it is, or write null for no value, '\"\"' for an "
            "empty text"
        )
    return Override(name, path, text, value)


def _unknown_reason(name: str) -> str:
    section = next((path for path, field in fields().items() if field.is_section and variable_of(path) == name), None)
    if section is not None:
        first = next(path for path in fields() if path.startswith(f"{section}."))
        return f"{section} is a section; set its fields one by one, such as {variable_of(first)}"
    hint = suggestion(name.removeprefix(PREFIX).upper(), [each.removeprefix(PREFIX) for each in _paths()])
    hint = hint.replace("mean ", f"mean {PREFIX}")
    return f"there is no such setting; {hint}remove or correct it ({LISTED})"


def apply_overrides(document: Any, found: tuple[Override, ...]) -> Any:
    """The document with the overrides applied. Invalid parts of the document stay, so that they are reported."""
    for each in found:
        document = _with(document, each.path.split("."), each.value, "")
    return document


def _with(document: Any, parts: list[str], value: Any, before: str) -> Any:
    if not parts:
        return value
    if document is None and not (before and fields()[before].is_section):
        document = {}
    if not isinstance(document, dict):
        return document
    name, *rest = parts
    path = f"{before}.{name}" if before else name
    below = document.get(name, {} if rest else None)
    return {**document, name: _with(below, rest, value, path)}
