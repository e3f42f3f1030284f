"""Pod affinity, anti-affinity and topology spread: does a pod fit a node, given the placed pods?

Counts are computed once per pod, then asked for each node. A pod counts from its placement, before its binding returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kubesim.controllers.nodefit import selects_node
from kubesim.controllers.objects import is_terminating, key_of, labels_of
from kubesim.server.api import JsonObject
from kubesim.server.selectors import LabelSelector, read_selector, selects

Pods = Callable[[str, LabelSelector], Iterable[JsonObject]]
"""The pods of a namespace that a selector takes."""

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
AFFINITY: Final = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY: Final = "node(s) didn't match pod anti-affinity rules"
EXISTING: Final = "node(s) didn't satisfy existing pods anti-affinity rules"
SPREAD: Final = "node(s) didn't match pod topology spread constraints"


def has_rules(pod: JsonObject) -> bool:
    """Whether the pod has affinity or spread rules."""
    spec = pod["spec"]
    affinity = spec.get("affinity") or {}
    return bool(spec.get("topologySpreadConstraints") or affinity.get("podAffinity") or affinity.get("podAntiAffinity"))


def terms_of(pod: JsonObject, kind: str) -> list[JsonObject]:
    """The required terms of `podAffinity` or `podAntiAffinity`."""
    found: list[JsonObject] = ((pod["spec"].get("affinity") or {}).get(kind) or {}).get(REQUIRED) or []
    return found


class PodAffinity:
    """What the pods that are there mean for one pod."""

    def __init__(
        self,
        pod: JsonObject,
        nodes: Mapping[str, JsonObject],
        pods: Pods,
        place_of: Callable[[JsonObject], str],
        repellent: Iterable[JsonObject],
    ) -> None:
        """`place_of` a pod is its node or ""; `repellent`: all placed pods that have required anti-affinity."""
        self._pod = pod
        self._nodes = nodes
        self._pods = pods
        self._place_of = place_of
        self._wanted = [self._domains(term) for term in terms_of(pod, "podAffinity")]
        self._avoided = [self._domains(term) for term in terms_of(pod, "podAntiAffinity")]
        self._forbidden = self._forbidden_by(repellent)
        constraints = pod["spec"].get("topologySpreadConstraints") or ()
        spreads = [(each, self._spread(each)) for each in constraints]
        self._hard = [spread for each, spread in spreads if each.get("whenUnsatisfiable") != "ScheduleAnyway"]
        self._soft = [spread for each, spread in spreads if each.get("whenUnsatisfiable") == "ScheduleAnyway"]

    def refusal(self, node: JsonObject) -> str:
        """Why the pod may not go there, in the scheduler's words; "" if it may."""
        labels = labels_of(node)
        for key, counts, matches_itself in self._wanted:
            is_first = matches_itself and not counts  # The first of a group that likes its own kind may go anywhere.
            if key not in labels or (not counts.get(labels[key]) and not is_first):
                return AFFINITY
        if any(counts.get(labels.get(key, "")) for key, counts, _ in self._avoided):
            return ANTI_AFFINITY
        if any(labels.get(key) == domain for key, domain in self._forbidden):
            return EXISTING
        for key, counts, itself, skew, least in self._hard:
            if key not in labels:
                return f"{SPREAD} (missing required label)"
            if counts[labels[key]] + itself - least > skew:
                return SPREAD
        return ""

    def crowd(self, node: JsonObject) -> int:
        """How many of its own kind the pod would meet where it would rather meet few."""
        labels = labels_of(node)
        return sum(counts[labels.get(key, "")] for key, counts, *_ in self._soft)

    def _domains(self, term: JsonObject) -> tuple[str, Counter[str], bool]:
        """(topology key, how many pods of a term are in which domain, does the term take the pod itself?)"""
        key, selector = term["topologyKey"], read_selector(term.get("labelSelector"))
        own = key_of(self._pod)[0]
        namespaces = term.get("namespaces") or [own]
        counts = self._count(key, selector, namespaces)
        return key, counts, own in namespaces and selects(selector, labels_of(self._pod))

    def _count(self, key: str, selector: LabelSelector | None, namespaces: Iterable[str]) -> Counter[str]:
        counts: Counter[str] = Counter()
        if selector is None:
            return counts
        for namespace in namespaces:
            for other in self._pods(namespace, selector):
                node = self._nodes.get(self._place_of(other))
                if node is not None and key in labels_of(node) and not is_terminating(other):
                    counts[labels_of(node)[key]] += 1
        return counts

    def _forbidden_by(self, repellent: Iterable[JsonObject]) -> set[tuple[str, str]]:
        """The domains that pods keep free of this one."""
        namespace, labels = key_of(self._pod)[0], labels_of(self._pod)
        forbidden: set[tuple[str, str]] = set()
        for other in repellent:
            node = self._nodes.get(self._place_of(other))
            for term in terms_of(other, "podAntiAffinity"):
                is_meant = namespace in (term.get("namespaces") or [key_of(other)[0]])
                domain = labels_of(node).get(term["topologyKey"]) if node is not None and is_meant else None
                if domain is not None and selects(read_selector(term.get("labelSelector")), labels):
                    forbidden.add((term["topologyKey"], domain))
        return forbidden

    def _spread(self, constraint: JsonObject) -> tuple[str, Counter[str], int, int, int]:
        """(topology key, pods per domain, does the pod count itself?, greatest skew, fewest pods of any domain)."""
        key, selector = constraint["topologyKey"], read_selector(constraint.get("labelSelector"))
        counts = self._count(key, selector, [key_of(self._pod)[0]])
        domains = {
            labels_of(node)[key]
            for node in self._nodes.values()
            if key in labels_of(node) and selects_node(self._pod["spec"], node)
        }
        least = min((counts[domain] for domain in domains), default=0)
        if len(domains) < (constraint.get("minDomains") or 1):
            least = 0
        itself = int(selects(selector, labels_of(self._pod)))
        return key, counts, itself, constraint.get("maxSkew", 1), least
