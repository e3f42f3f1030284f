"""Matching of webhooks: rules, selectors, match conditions (kube-apiserver's ShouldCallHook).

With matchPolicy Equivalent a rule also matches by another version or group of the stored object; the webhook then sees
the object in that version.
"""

from __future__ import annotations

from kubesim.admission.conditions import ConditionFault, condition_holds
from kubesim.admission.reviews import Match, name_of, namespace_of, review
from kubesim.admission.shapes import Objects, shown
from kubesim.admission.webhooks import NAMESPACES, Place, Webhook
from kubesim.server.api import JsonObject
from kubesim.server.calls import Write
from kubesim.server.resource import Registry, Resource
from kubesim.server.selectors import selector_matches
from kubesim.server.status import Kind, forbidden, not_found
from kubesim.server.store import Store

NAMESPACE_WORDS = Kind("", "namespaces", "Namespace")


class Matcher:
    """Finds out whether a webhook is to be asked."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._namespaces = store.table("namespaces")
        self._registry = registry

    def match(self, webhook: Webhook, write: Write, objects: Objects) -> Match | None:
        """How the webhook is to be asked about the write, or None. `objects` as they are stored. Raises Refusal (403: a
        match condition cannot be evaluated; 404: the namespace is not there)."""
        resource = self._resource(webhook, write, objects)
        if resource is None or not _selects(webhook, objects):
            return None
        if not self._in_selected_namespace(webhook, write, objects):
            return None
        match = Match(webhook, resource)
        return match if not webhook.conditions or self._conditions_hold(match, write, objects) else None

    def _resource(self, webhook: Webhook, write: Write, objects: Objects) -> Resource | None:
        route, namespace = write.call.route, namespace_of(write, objects.new)
        asked = route.resource
        if _covered(webhook, write, asked, namespace):
            return asked
        if not webhook.equivalent:
            return None
        for other in self._registry:
            is_equivalent = other.table == asked.table and other is not asked
            served = not route.subresource or route.subresource in other.subresources
            if is_equivalent and served and _covered(webhook, write, other, namespace):
                return other
        return None

    def _in_selected_namespace(self, webhook: Webhook, write: Write, objects: Objects) -> bool:
        selector = webhook.namespace_selector
        name = namespace_of(write, objects.new)
        # What is cluster-scoped is never exempt.
        if not name or is_empty(selector):
            return True
        place = _place(write.call.route.resource, write.call.route.subresource)
        if place == NAMESPACES and objects.new is not None:
            return selector_matches(selector, objects.new["metadata"].get("labels") or {})
        namespace = self._namespaces.get("", name)
        if namespace is None:
            raise not_found(NAMESPACE_WORDS, name)
        return selector_matches(selector, namespace["metadata"].get("labels") or {})

    @staticmethod
    def _conditions_hold(match: Match, write: Write, objects: Objects) -> bool:
        """One that is false exempts; else one that cannot be evaluated refuses the write, or exempts under Ignore."""
        request: JsonObject = review(match, write, shown(match.resource, write, objects), "")["request"]
        faults: list[str] = []
        for condition in match.webhook.conditions:
            try:
                if not condition_holds(condition.expression, request):
                    return False
            except ConditionFault as fault:
                faults.append(f"expression '{condition.expression}' resulted in error: {fault}")
        if not faults:
            return True
        if match.webhook.ignores_failures:
            return False
        text = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
        raise forbidden(write.call.route.resource.words, name_of(write, objects.new), text)


def is_empty(selector: JsonObject) -> bool:
    """Whether a selector selects everything."""
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


def _selects(webhook: Webhook, objects: Objects) -> bool:
    """Whether the object matches the objectSelector, as it was or as it will be."""
    selector = webhook.object_selector
    return is_empty(selector) or any(
        selector_matches(selector, object_["metadata"].get("labels") or {})
        for object_ in objects
        if object_ is not None
    )


def _covered(webhook: Webhook, write: Write, resource: Resource, namespace: str) -> bool:
    place = _place(resource, write.call.route.subresource)
    return any(rule.covers(write.operation, place, namespace) for rule in webhook.rules)


def _place(resource: Resource, subresource: str) -> Place:
    return Place(resource.group, resource.version, resource.plural, subresource)
