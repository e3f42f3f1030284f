"""Rules of roles: what a rule allows, which rules it covers, and how Go prints it.

Rules only add rights. `*` matches anything; a rule with resourceNames never allows create, list or deletecollection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from kubesim.auth.attributes import Attempt
from kubesim.server.api import JsonObject
from kubesim.server.goformat import quoted_words

ANY = "*"


class Rule:
    """One PolicyRule; never changed. Its words keep their order, as refusals print them."""

    def __init__(
        self,
        verbs: Iterable[str],
        *,
        groups: Iterable[str] = (),
        resources: Iterable[str] = (),
        names: Iterable[str] = (),
        urls: Iterable[str] = (),
    ) -> None:
        self.verbs = tuple(verbs)
        self.groups = tuple(groups)
        self.resources = tuple(resources)
        self.names = tuple(names)
        self.urls = tuple(urls)

    @cached_property
    def _words(self) -> tuple[frozenset[str], frozenset[str], frozenset[str], frozenset[str]]:
        return frozenset(self.verbs), frozenset(self.groups), frozenset(self.resources), frozenset(self.names)

    def allows(self, attempt: Attempt) -> bool:
        """Whether the rule is enough for an attempt."""
        verbs, groups, resources, names = self._words
        if attempt.verb not in verbs and ANY not in verbs:
            return False
        if attempt.path:
            return any(url_covers(url, attempt.path) for url in self.urls)
        return (
            (attempt.group in groups or ANY in groups)
            and resource_covered(resources, attempt.full_resource)
            and (not names or attempt.name in names)
        )

    def covers(self, part: Rule) -> bool:
        """Whether the rule gives all that a rule in parts (see `parts`) gives."""
        verbs, groups, resources, names = self._words
        return (
            (ANY in verbs or verbs.issuperset(part.verbs))
            and (ANY in groups or groups.issuperset(part.groups))
            and all(resource_covered(resources, resource) for resource in part.resources)
            and all(any(url_covers(url, wanted) for url in self.urls) for wanted in part.urls)
            and (not names or (bool(part.names) and names.issuperset(part.names)))
        )

    def parts(self) -> Iterator[Rule]:
        """The rule as rules with one verb, one group, one resource and at most one name, or one verb and one URL."""
        for group in self.groups:
            for resource in self.resources:
                for verb in self.verbs:
                    for name in self.names or ("",):
                        names = (name,) if self.names else ()
                        yield Rule((verb,), groups=(group,), resources=(resource,), names=names)
        for url in self.urls:
            for verb in self.verbs:
                yield Rule((verb,), urls=(url,))

    def __str__(self) -> str:
        """The rule as a refusal lists it: `{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "list"]}`."""
        shown = (
            ("APIGroups", self.groups),
            ("Resources", self.resources),
            ("NonResourceURLs", self.urls),
            ("ResourceNames", self.names),
            ("Verbs", self.verbs),
        )
        return "{" + ", ".join(f"{title}:{quoted_words(words)}" for title, words in shown if words) + "}"


def rule_from(raw: JsonObject) -> Rule:
    """A rule of a stored role."""
    return Rule(
        raw.get("verbs") or (),
        groups=raw.get("apiGroups") or (),
        resources=raw.get("resources") or (),
        names=raw.get("resourceNames") or (),
        urls=raw.get("nonResourceURLs") or (),
    )


def resource_covered(given: frozenset[str], wanted: str) -> bool:
    """Whether resources of a rule include one: by name, as `*`, or a subresource of anything as `*/status`."""
    if wanted in given or ANY in given:
        return True
    _, slash, subresource = wanted.partition("/")
    return bool(slash) and f"*/{subresource}" in given


def url_covers(given: str, wanted: str) -> bool:
    """Whether a URL of a rule includes a path; a trailing `*` is any rest."""
    return given == wanted or (given.endswith(ANY) and wanted.startswith(given.rstrip(ANY)))


def uncovered(held: Iterable[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """What `wanted` gives and `held` does not, in parts."""
    owned = list(held)
    return [part for rule in wanted for part in rule.parts() if not any(own.covers(part) for own in owned)]


def compacted(parts: Iterable[Rule]) -> list[Rule]:
    """Parts that differ in their verb alone, joined."""
    joined: dict[tuple[tuple[str, ...], ...], Rule] = {}
    others: list[Rule] = []
    for part in parts:
        if part.urls:
            others.append(part)
            continue
        key = part.groups, part.resources, part.names
        known = joined.get(key)
        verbs = (*known.verbs, *part.verbs) if known else part.verbs
        joined[key] = Rule(verbs, groups=part.groups, resources=part.resources, names=part.names)
    return [*others, *joined.values()]
