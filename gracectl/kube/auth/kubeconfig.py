"""Kubeconfig files, read and merged down to one context with its cluster and user.

kubernetes_asyncio merges the files. What it takes without a look is checked here first: every error names the file, the
field and the remedy.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import yaml

from gracectl.kube.auth.credentials import CredentialsError, shown_address
from gracectl.kube.auth.library import kube_config

_KINDS: Final = {"clusters": "cluster", "users": "user", "contexts": "context"}
# Fields of a cluster or a user that are paths, relative to the file they stand in.
_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """One context, complete: cluster and user have the types that kubectl expects, no null, no empty field, and
    absolute paths.

    `source` and `user_source` are the files that the cluster and the user stand in.
    """

    name: str
    cluster: Mapping[str, Any]
    user_name: str
    user: Mapping[str, Any]
    source: str
    user_source: str


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class _Exec(msgspec.Struct, rename="camel", omit_defaults=True):
    command: str | None = None
    args: list[str] | None = None
    env: list[_Variable] | None = None
    api_version: str | None = None
    install_hint: str | None = None
    interactive_mode: str | None = None
    provide_cluster_info: bool | None = None


class _AuthProvider(msgspec.Struct, omit_defaults=True):
    name: str
    config: dict[str, str] | None = None


class _Cluster(msgspec.Struct, rename="kebab", omit_defaults=True):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(msgspec.Struct, rename="kebab", omit_defaults=True):
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


class _Merger(kube_config.KubeConfigMerger):
    """The merged files: under each name the first entry, as kubectl has it. Raises CredentialsError."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        # Not the library's, which splits paths at colons.
        self.paths: list[str] = []
        self.config_merged: kube_config.ConfigNode = kube_config.ConfigNode(
            "kubeconfig", {plural: [] for plural in _KINDS}
        )
        for path in paths:
            self.load_config(path)
        if not self.paths:
            raise CredentialsError(
                "there is no such file",
                source=", ".join(str(path) for path in paths),
                remedy="name a kubeconfig with --kubeconfig or the variable KUBECONFIG",
            )
        self.source = ", ".join(self.paths)

    def load_config(self, path: Path) -> None:
        """Add a file, if it exists."""
        content = _read(path)
        if content is None:
            return
        source = str(path)
        self.paths.append(source)
        current = content.get("current-context") or ""
        if not isinstance(current, str):
            raise CredentialsError("is not a text", source=source, field="current-context", remedy="quote the name")
        # The library lets the last file win.
        self.config_merged.value["current-context"] = self.current or current
        for plural in _KINDS:
            self._merge(plural, list(_entries(content, plural, path)), source)

    @property
    def current(self) -> str:
        """The current context; "" for none."""
        return str(self.config_merged.value.get("current-context", ""))

    def named(self, plural: str) -> dict[str, _Entry]:
        """The entries of a kind, by name."""
        nodes = self.config_merged.value[plural]
        return {node.value["name"]: _Entry(node.value[_KINDS[plural]], str(node.path)) for node in nodes}


class _Entry(msgspec.Struct, frozen=True):
    """A cluster, user or context, and the file that has it."""

    value: dict[str, Any]
    source: str


def read_context(paths: tuple[Path, ...], context: str | None) -> Context:
    """The context of that name (None or empty: the current one) of the merged files.

    Files that do not exist are skipped as long as one of them does. Raises CredentialsError.
    """
    merged = _Merger(paths)
    contexts = merged.named("contexts")
    name = context or merged.current
    choice = f"the contexts are: {', '.join(sorted(contexts))}" if contexts else "it has no contexts"
    if not name:
        raise CredentialsError(
            "no context is selected", source=merged.source, field="current-context", remedy=f"name one; {choice}"
        )
    entry = contexts.get(name)
    if entry is None:
        field = "contexts" if context else "current-context"
        raise CredentialsError(f"there is no context {name!r}", source=merged.source, field=field, remedy=choice)
    cluster = _referred(merged.named("clusters"), entry, name, "cluster")
    user = _Entry({}, entry.source)
    if entry.value.get("user"):
        user = _referred(merged.named("users"), entry, name, "user")
    user_name = entry.value.get("user") or ""
    place = f"clusters[{entry.value['cluster']}]"
    checked = Context(
        name=name,
        cluster=_checked(cluster, _Cluster, place),
        user_name=user_name,
        user=_checked(user, _User, f"users[{user_name}]"),
        source=cluster.source,
        user_source=user.source,
    )
    _check_address(checked, f"{place}.server")
    return checked


def context_names(paths: tuple[Path, ...]) -> tuple[str, ...]:
    """Names of the contexts of the merged files. Raises CredentialsError."""
    return tuple(_Merger(paths).named("contexts"))


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


def _entries(content: Mapping[str, Any], plural: str, path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a kind in one file, with absolute paths."""
    source, singular = str(path), _KINDS[plural]
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
        yield {"name": entry["name"], singular: _with_absolute_paths(value or {}, path.parent.absolute())}


def _with_absolute_paths(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The library takes a user's files as relative to the cluster's kubeconfig, and a plugin as relative to nothing."""
    changed = dict(value)
    for field in _PATHS:
        if isinstance(changed.get(field), str) and changed[field]:
            changed[field] = str(folder / changed[field])
    plugin = changed.get("exec")
    if isinstance(plugin, dict) and isinstance(plugin.get("command"), str) and "/" in plugin["command"]:
        # A bare word is looked up on PATH, anything with a slash is relative to the file.
        changed["exec"] = plugin | {"command": str(folder / plugin["command"])}
    return changed


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


def _checked(entry: _Entry, shape: type[msgspec.Struct], place: str) -> dict[str, Any]:
    """The fields that are set. Raises CredentialsError for a wrong type, for data that is not base64, and for a file
    that is missing."""
    try:
        read = msgspec.convert(entry.value, shape)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        field = place + path.rstrip("`")
        problem = problem[:1].lower() + problem[1:]
        raise CredentialsError(problem, source=entry.source, field=field, remedy="correct or quote it") from error
    fields = {name: value for name, value in msgspec.to_builtins(read).items() if value}
    for name in [name for name in fields if f"{name}-data" in fields]:
        del fields[name]
    for name, value in fields.items():
        try:
            if name.endswith("-data"):
                problem, remedy = "is not base64", f"encode the PEM text, or give its file as {name[:-5]}"
                b64decode("".join(value.split()), validate=True)
            elif name in _PATHS and name != "tokenFile":
                problem, remedy = f"{value} cannot be read", "put the file there or correct the path"
                Path(value).open("rb").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            field = f"{place}.{name}"
            raise CredentialsError(f"{problem}: {reason}", source=entry.source, field=field, remedy=remedy) from error
    return fields


def _check_address(context: Context, field: str) -> None:
    server = context.cluster.get("server", "")
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
        raise CredentialsError(problem, source=context.source, field=field, remedy=remedy)
