"""Reading kubeconfig files the way kubectl does, down to one context with its cluster and user.

kubernetes_asyncio merges files differently from kubectl (the last current-context wins, a client certificate is looked
for beside the *cluster's* file, an empty file is a crash), so the merging is done here and the library is handed one
finished context. Invariant: whatever is wrong is said once, with the file, the field and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

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
    if not isinstance(cluster.value.get("server"), str):
        raise CredentialsError(
            "the cluster has no address",
            source=cluster.source,
            field=f"clusters[{entry.value['cluster']}].server",
            remedy="give its URL",
        )
    return Context(
        name=name,
        cluster_name=entry.value["cluster"],
        cluster=cluster.value,
        user_name=entry.value.get("user") or "",
        user=user.value,
        source=cluster.source,
        user_source=user.source,
    )


def _merge(paths: tuple[Path, ...]) -> _Merged:
    """As kubectl: of two values under one name the first wins, and so does the first current-context."""
    merged = _Merged()
    for path in paths:
        content = _read(path)
        if content is None:
            continue
        source = str(path)
        merged.sources.append(source)
        merged.current = merged.current or str(content.get("current-context") or "")
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
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where is not None else ""
        problem = getattr(error, "problem", None) or "malformed"
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
    if isinstance(plugin, dict) and "/" in str(plugin.get("command", "")):
        # A bare word is looked up on PATH, anything with a slash is relative to the file.
        changed["exec"] = plugin | {"command": str(folder.absolute() / plugin["command"])}
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
