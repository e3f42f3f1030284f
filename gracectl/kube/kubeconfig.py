"""Reading kubeconfig files the way kubectl does, down to one context with its cluster and user.

Invariant: whatever is wrong is said once, with the file, the field and what to do about it.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

_USERINFO = re.compile(r"(?:(?<=//)|^)[^/?#]*@")

# Which fields of a cluster or a user are paths, relative to the file they stand in.
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class CredentialsError(Exception):
    """No usable way to an API server. The message names the file and field at fault and the remedy."""

    def __init__(self, problem: str, *, source: str = "", field: str = "", remedy: str = "") -> None:
        super().__init__(problem, source, field, remedy)
        self.problem = problem
        self.source = source
        self.field = field
        self.remedy = remedy

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.source, self.field) if part)
        said = f"{place}: {self.problem}" if place else self.problem
        return f"{said}; {self.remedy}" if self.remedy else said


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One context, complete: `cluster` and `user` as the files have them, their paths made absolute.

    `source` and `user_source` are the files that the cluster and the user stand in.
    """

    name: str
    cluster_name: str
    cluster: Mapping[str, Any]
    user_name: str
    user: Mapping[str, Any]
    source: str
    user_source: str


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class _Exec(msgspec.Struct, rename="camel"):
    command: str | None = None
    args: list[str] | None = None
    env: list[_Variable] | None = None
    api_version: str | None = None
    install_hint: str | None = None
    interactive_mode: str | None = None
    provide_cluster_info: bool | None = None


class _AuthProvider(msgspec.Struct):
    name: str
    config: dict[str, str] | None = None


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: _Exec | None = None
    auth_provider: _AuthProvider | None = None


class _Loader(yaml.SafeLoader):
    """Reads what looks like a date as text, as every field of a kubeconfig is that is no flag."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Entry(msgspec.Struct, frozen=True):
    """A named cluster, user or context, and the file that has it."""

    value: dict[str, Any]
    source: str


class _Merged(msgspec.Struct):
    sources: list[str] = msgspec.field(default_factory=list)
    current: str = ""
    clusters: dict[str, _Entry] = msgspec.field(default_factory=dict)
    users: dict[str, _Entry] = msgspec.field(default_factory=dict)
    contexts: dict[str, _Entry] = msgspec.field(default_factory=dict)

    @property
    def source(self) -> str:
        return ", ".join(self.sources)


def read_context(paths: tuple[Path, ...], context: str | None) -> Context:
    """The context of that name (None or empty: the current one) of the merged files.

    Files that do not exist are skipped as long as one of them does. Raises CredentialsError.
    """
    merged = _merge(paths)
    name = context or merged.current
    choice = f"the contexts are: {', '.join(sorted(merged.contexts))}" if merged.contexts else "it has no contexts"
    if not name:
        raise CredentialsError(
            "no context is selected", source=merged.source, field="current-context", remedy=f"name one; {choice}"
        )
    entry = merged.contexts.get(name)
    if entry is None:
        field = "contexts" if context else "current-context"
        raise CredentialsError(f"there is no context {name!r}", source=merged.source, field=field, remedy=choice)
    cluster = _referred(merged.clusters, entry, name, "cluster")
    user = _Entry({}, entry.source)
    if entry.value.get("user"):
        user = _referred(merged.users, entry, name, "user")
    cluster_place, user_place = f"clusters[{entry.value['cluster']}]", f"users[{entry.value.get('user') or ''}]"
    _check(cluster, _Cluster, cluster_place)
    _check(user, _User, user_place)
    _check_address(cluster, cluster_place)
    if (user.value.get("exec") or {}).get("provideClusterInfo"):
        _check_plain(cluster, cluster_place)
    return Context(
        name=name,
        cluster_name=entry.value["cluster"],
        cluster=cluster.value,
        user_name=entry.value.get("user") or "",
        user=user.value,
        source=cluster.source,
        user_source=user.source,
    )


def context_names(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Names of the contexts of the merged files. Raises CredentialsError."""
    return tuple(_merge(paths).contexts)


def _merge(paths: tuple[Path, ...]) -> _Merged:
    """As kubectl: of two values under one name the first wins, and so does the first current-context."""
    merged = _Merged()
    for path in paths:
        content = _read(path)
        if content is None:
            continue
        source = str(path)
        merged.sources.append(source)
        current = content.get("current-context") or ""
        if not isinstance(current, str):
            raise CredentialsError("is not a text", source=source, field="current-context", remedy="quote the name")
        merged.current = merged.current or current
        for plural, singular, entries in (
            ("clusters", "cluster", merged.clusters),
            ("users", "user", merged.users),
            ("contexts", "context", merged.contexts),
        ):
            for name, value in _named(content, plural, singular, source):
                entries.setdefault(name, _Entry(_with_absolute_paths(value, path.parent), source))
    if not merged.sources:
        raise CredentialsError(
            "there is no such file",
            source=", ".join(str(path) for path in paths),
            remedy="name a kubeconfig with --kubeconfig or the variable KUBECONFIG",
        )
    return merged


def _read(path: Path) -> dict[str, Any] | None:
    """The content of one file, None if there is no such file; an empty file is an empty configuration."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise CredentialsError(f"cannot be read: {reason}", source=str(path), remedy="is it a kubeconfig?") from error
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # All but the first are PyYAML's own: for numbers of any length, texts that are not of the tag before them, and
        # what is nested too deeply.
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split()) or "malformed"
        raise CredentialsError(
            f"is not YAML: {problem}{line}", source=str(path), remedy="is it a kubeconfig?"
        ) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise CredentialsError("is YAML, but not a kubeconfig", source=str(path), remedy="expected a mapping")
    return content


def _named(content: Mapping[str, Any], plural: str, singular: str, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    entries = content.get(plural) or []
    if not isinstance(entries, list):
        raise CredentialsError("is not a list", source=source, field=plural, remedy="correct the file")
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise CredentialsError("has no name", source=source, field=f"{plural}[{number}]", remedy="correct the file")
        value = entry.get(singular)
        if not isinstance(value, dict | None):
            field = f"{plural}[{entry['name']}].{singular}"
            raise CredentialsError("is not a mapping", source=source, field=field, remedy="correct the file")
        yield entry["name"], value or {}


def _with_absolute_paths(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    changed = dict(value)
    for field in _PATHS:
        if isinstance(changed.get(field), str) and changed[field]:
            changed[field] = str(folder.absolute() / changed[field])
    plugin = changed.get("exec")
    if isinstance(plugin, dict) and isinstance(plugin.get("command"), str) and "/" in plugin["command"]:
        # A bare word is looked up on PATH, anything with a slash is relative to the file.
        changed["exec"] = plugin | {"command": str(folder.absolute() / plugin["command"])}
    return changed


def _check(entry: _Entry, shape: type[msgspec.Struct], place: str) -> None:
    """Raises CredentialsError, with the field, for what has not the type that kubectl expects."""
    try:
        read = msgspec.convert(entry.value, shape)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        field = place + path.rstrip("`")
        problem = problem[:1].lower() + problem[1:]
        raise CredentialsError(problem, source=entry.source, field=field, remedy="correct or quote it") from error
    for name, value in zip(shape.__struct_encode_fields__, msgspec.structs.astuple(read), strict=True):
        if name.endswith("-data") and value:
            try:
                b64decode("".join(value.split()), validate=True)
            except ValueError as error:
                problem = f"is not base64: {error}"
                field, remedy = f"{place}.{name}", f"encode the PEM text, or give its file as {name[:-5]}"
                raise CredentialsError(problem, source=entry.source, field=field, remedy=remedy) from error


def _check_address(cluster: _Entry, place: str) -> None:
    server = cluster.value.get("server") or ""
    try:
        parts = urlsplit(server)
        is_good = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and server.isprintable()
        )
    except ValueError:
        is_good = False
    if not is_good:
        problem = f"{shown_address(server)!r} is no URL" if server else "the cluster has no address"
        remedy = "give its URL, such as https://10.0.0.1:6443"
        raise CredentialsError(problem, source=cluster.source, field=f"{place}.server", remedy=remedy)


def shown_address(url: str) -> str:
    """The address of a server for people and logs: without a user, a password, and what may hold a token."""
    return _USERINFO.sub("", url).partition("?")[0].partition("#")[0]


def _check_plain(cluster: _Entry, place: str) -> None:
    """All that is known of the cluster, as JSON for an exec plugin."""
    try:
        json.dumps(cluster.value)
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"cannot be passed to the exec plugin (provideClusterInfo): {error}"
        raise CredentialsError(problem, source=cluster.source, field=place, remedy="correct the file") from error


def _referred(entries: Mapping[str, _Entry], context: _Entry, name: str, what: str) -> _Entry:
    wanted = context.value.get(what)
    entry = entries.get(wanted) if isinstance(wanted, str) else None
    if entry is None:
        known = ", ".join(sorted(entries)) or "none"
        raise CredentialsError(
            f"there is no {what} {wanted!r}" if wanted else f"it names no {what}",
            source=context.source,
            field=f"contexts[{name}].{what}",
            remedy=f"the {what}s are: {known}",
        )
    return entry
